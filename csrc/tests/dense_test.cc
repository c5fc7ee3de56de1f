// The libraries that are opened at run time: what the interface says where one is missing or
// strange, the declarations of oneDNN against its own header, that no thread is left behind, and
// cuBLAS's calls against a library that stands in for it. The first argument is that library's
// path; with a second, cuBLAS is opened by name alone, and what the loader finds is that library.
#include <dirent.h>
#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "gradbus_dense.h"

#if __has_include(<oneapi/dnnl/dnnl.h>)
#include <oneapi/dnnl/dnnl.h>

#include "dense/onednn_abi.h"

namespace {

namespace own = gradbus::onednn;

#if DNNL_VERSION_MAJOR == 2
#define SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs), #ours)
SAME(own::kSuccess, dnnl_success);
SAME(own::kOutOfMemory, dnnl_out_of_memory);
SAME(own::kCpu, dnnl_cpu);
SAME(own::kStreamDefault, dnnl_stream_default_flags);
SAME(own::kFloat32, dnnl_f32);
SAME(own::kScratchpadUser, dnnl_scratchpad_mode_user);
SAME(own::kRuntimeSequential, DNNL_RUNTIME_SEQ);
SAME(own::kRuntimeOpenMp, DNNL_RUNTIME_OMP);
SAME(own::kAny, dnnl_format_tag_any);
SAME(own::kA, dnnl_a);
SAME(own::kAB, dnnl_ab);
SAME(own::kBA, dnnl_ba);
SAME(own::kABCD, dnnl_abcd);
SAME(own::kACDB, dnnl_acdb);
SAME(own::kForwardTraining, dnnl_forward_training);
SAME(own::kDirect, dnnl_convolution_direct);
SAME(own::kRelu, dnnl_eltwise_relu);
SAME(own::kQueryInfo, dnnl_query_impl_info_str);
SAME(own::kQuerySrc, dnnl_query_src_md);
SAME(own::kQueryDiffSrc, dnnl_query_diff_src_md);
SAME(own::kQueryWeights, dnnl_query_weights_md);
SAME(own::kQueryDiffWeights, dnnl_query_diff_weights_md);
SAME(own::kQueryDst, dnnl_query_dst_md);
SAME(own::kQueryDiffDst, dnnl_query_diff_dst_md);
SAME(own::kQueryScratchpad, dnnl_query_scratchpad_md);
SAME(own::kArgSrc, DNNL_ARG_SRC);
SAME(own::kArgDst, DNNL_ARG_DST);
SAME(own::kArgWeights, DNNL_ARG_WEIGHTS);
SAME(own::kArgBias, DNNL_ARG_BIAS);
SAME(own::kArgScratchpad, DNNL_ARG_SCRATCHPAD);
SAME(own::kArgDiffSrc, DNNL_ARG_DIFF_SRC);
SAME(own::kArgDiffDst, DNNL_ARG_DIFF_DST);
SAME(own::kArgDiffWeights, DNNL_ARG_DIFF_WEIGHTS);
SAME(own::kArgDiffBias, DNNL_ARG_DIFF_BIAS);
static_assert(sizeof(own::Desc) >= sizeof(dnnl_memory_desc_t), "room for a descriptor");
static_assert(sizeof(own::Operation) >= sizeof(dnnl_convolution_desc_t), "room for a convolution");
static_assert(sizeof(own::Operation) >= sizeof(dnnl_matmul_desc_t), "room for a product");
static_assert(sizeof(own::Version) == sizeof(dnnl_version_t), "version");
static_assert(sizeof(own::ExecArg) == sizeof(dnnl_exec_arg_t), "argument");
#endif

}  // namespace
#endif

namespace {

std::string Why(const char* library, const char* path, gb_status want) {
  gb_dense* d = nullptr;
  char text[400] = "?";
  EXPECT(gb_dense_open(library, path, &d, text, sizeof text) == want);
  EXPECT(d == nullptr);
  return text;
}

bool Has(const std::string& text, const char* part) {
  if (text.find(part) != std::string::npos) return true;
  std::printf("\"%s\" lacks \"%s\"\n", text.c_str(), part);
  return false;
}

void TestMissing() {
  EXPECT(Has(Why("onednn", "/nowhere/libdnnl.so.2", GB_NO_DEVICE), "/nowhere/libdnnl.so.2"));
  EXPECT(Has(Why("onednn", "libm.so.6", GB_NO_DEVICE), "no function dnnl_version"));
  EXPECT(Has(Why("openblas", "libm.so.6", GB_NO_DEVICE), "no function cblas_sgemm"));
  EXPECT(Has(Why("cublas", "libm.so.6", GB_NO_DEVICE), "no function cublasCreate_v2"));
  EXPECT(Has(Why("mkl", nullptr, GB_ARGUMENT), "no such library"));
  char small[8];
  gb_dense* d;
  EXPECT(gb_dense_open("mkl", nullptr, &d, small, sizeof small) == GB_ARGUMENT);
  EXPECT(std::strcmp(small, "no such") == 0);
}

int Threads() {
  DIR* tasks = opendir("/proc/self/task");
  int n = -2;  // . and ..
  while (tasks != nullptr && readdir(tasks) != nullptr) n++;
  if (tasks != nullptr) closedir(tasks);
  return n;
}

// Ends waits until no more threads are there than before: one that was joined stays listed for a
// moment.
bool Ends(int before) {
  for (int i = 0; i < 10000 && Threads() > before; i++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return Threads() <= before;
}

// Calls makes products and convolutions large enough that a library would like to share them out.
void Calls(gb_dense* d) {
  gb_report report = {};
  report.size = sizeof report;
  std::vector<float> a(128 * 512, 1.0f), b(512 * 256, 0.5f), c(128 * 256);
  const gb_gemm_shape plain = {128, 256, 512, 0, 0, 0, 0}, turned = {128, 256, 512, 0, 1, 0, 0};
  for (const gb_gemm_shape& s : {plain, turned}) {
    EXPECT(gb_dense_gemm(d, &s, a.data(), b.data(), nullptr, c.data(), &report) == GB_OK);
    EXPECT(c[0] == 256 && c[128 * 256 - 1] == 256);
  }
  if (gb_dense_convolves(d) != GB_OK) return;
  const gb_conv_shape s = {4, 16, 20, 20, 32, 3, 3, 1, 1, 0, 0, 1, 0};
  std::vector<float> x(4 * 16 * 400, 1.0f), w(32 * 16 * 9, 0.25f), y(4 * 32 * 324), gw(w.size()),
      gb(32);
  EXPECT(gb_dense_conv_forward(d, &s, x.data(), w.data(), nullptr, y.data(), &report) == GB_OK);
  EXPECT(y[0] == 36);
  EXPECT(gb_dense_conv_backward_input(d, &s, y.data(), w.data(), x.data(), &report) == GB_OK);
  EXPECT(gb_dense_conv_backward_params(d, &s, x.data(), y.data(), gw.data(), gb.data(), &report) ==
         GB_OK);
  EXPECT(gb[31] == 36.0f * 4 * 324);
}

// A library's own threads have ended, or never start, for any caller.
void TestNoThreads(const char* library) {
  const int before = Threads();
  gb_dense* d = nullptr;
  char text[400];
  if (gb_dense_open(library, nullptr, &d, text, sizeof text) != GB_OK) {
    std::printf("%s is not tested here: %s\n", library, text);
    return;
  }
  std::printf("%s\n", text);
  Calls(d);
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; i++) callers.emplace_back([d] { Calls(d); });
  for (std::thread& t : callers) t.join();
  EXPECT(Ends(before));
  gb_dense_close(d);
}

void TestCuBlas(const char* path, bool by_name) {
  gb_dense* d = nullptr;
  char text[400];
  EXPECT(gb_dense_open("cublas", by_name ? nullptr : path, &d, text, sizeof text) == GB_OK);
  if (d == nullptr) {
    std::printf("%s\n", text);
    return;
  }
  EXPECT(Has(text, "cublas 120304"));
  void* fake = dlopen(path, RTLD_NOW);
  const auto open = reinterpret_cast<int (*)()>(dlsym(fake, "fake_open"));
  const auto fail = reinterpret_cast<void (*)(int)>(dlsym(fake, "fake_fail"));
  gb_report report = {};
  report.size = sizeof report;
  const float bias[] = {100, 200, -1000};
  for (uint32_t bits = 0; bits < 16; bits++) {
    const int m = 2, n = 3, k = 4;
    const gb_gemm_shape s = {
        m, n, k, bits & 1, bits >> 1 & 1, bits >> 2 & 1, (bits >> 2 & 1) ? 0 : bits >> 3};
    float a[m * k], b[k * n], c[m * n], want[m * n];
    for (int i = 0; i < m * n; i++) c[i] = want[i] = static_cast<float>(i);
    for (int i = 0; i < m * n; i++) {
      if (s.accumulate == 0) want[i] = 0;
      want[i] += bias[i % n];
      for (int l = 0; l < k; l++) {
        const float x = static_cast<float>(i / n * k + l + 1),
                    y = static_cast<float>(l * n + i % n);
        a[s.trans_a ? l * m + i / n : i / n * k + l] = x;
        b[s.trans_b ? i % n * k + l : l * n + i % n] = y;
        want[i] += x * y;
      }
      if (s.relu != 0 && want[i] <= 0) want[i] = 0;
    }
    EXPECT(gb_dense_gemm(d, &s, a, b, bias, c, &report) == GB_OK);
    EXPECT(std::memcmp(c, want, sizeof c) == 0);
  }
  EXPECT(open() == 1001);
  const gb_gemm_shape one = {1, 1, 1, 0, 0, 0, 0};
  float c = 7;
  fail(1);
  EXPECT(gb_dense_gemm(d, &one, bias, bias, nullptr, &c, &report) == GB_DEVICE);
  EXPECT(report.value == 13 && c == 7);
  const gb_conv_shape conv = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0};
  EXPECT(gb_dense_convolves(d) == GB_UNSUPPORTED);
  EXPECT(gb_dense_conv_forward(d, &conv, bias, bias, nullptr, &c, &report) == GB_UNSUPPORTED);
  gb_dense_close(d);
  EXPECT(open() == 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
  if (argc == 2) {
    TestMissing();
    TestNoThreads("onednn");
    TestNoThreads("openblas");
  }
  TestCuBlas(argv[1], argc == 3);
  if (failures == 0) std::printf("ok\n");
  return failures == 0 ? 0 : 1;
}
