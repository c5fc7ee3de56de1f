// cuBLAS: matrix products on a GPU, from host memory and back. One call at a time; the device's
// memory grows to the largest product and is kept.
#include <mutex>
#include <new>

#include "dense/library.h"

namespace gradbus {
namespace {

// Of cublas_v2.h and cuda_runtime_api.h, whose statuses are 0 where all is well.
struct Functions {
  int (*create)(void** handle);
  int (*destroy)(void* handle);
  int (*version)(void* handle, int* version);
  int (*sgemm)(void* handle, int trans_a, int trans_b, int m, int n, int k, const float* alpha,
               const float* a, int lda, const float* b, int ldb, const float* beta, float* c,
               int ldc);
  int (*allocate)(void** memory, size_t bytes);
  int (*release)(void* memory);
  int (*copy)(void* to, const void* from, size_t bytes, int kind);
};
enum { kToDevice = 1, kToHost = 2 };

class CuBlas : public gb_dense {
 public:
  CuBlas(const Functions& f, void* handle) : f_(f), handle_(handle) {}
  ~CuBlas() override {
    if (memory_ != nullptr) f_.release(memory_);
    f_.destroy(handle_);
  }

  gb_status Gemm(const gb_gemm_shape& s, const float* a, const float* b, const float* bias,
                 float* c, gb_report* report) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t a_n = s.m * s.k, b_n = s.k * s.n, c_n = s.m * s.n;
    if (const int status = Room((a_n + b_n + c_n) * sizeof(float)); status != 0) {
      return Fail(report, GB_MEMORY, "out of memory on the device; have is CUDA's status", -1,
                  status);
    }
    float* const on_a = memory_;
    float* const on_b = on_a + a_n;
    float* const on_c = on_b + b_n;
    // Column by column, which is how cuBLAS reads, C is its transpose, op(B)' op(A)'.
    const float one = 1, beta = s.accumulate ? 1 : 0;
    const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
    int status = f_.copy(on_a, a, a_n * sizeof(float), kToDevice);
    if (status == 0) status = f_.copy(on_b, b, b_n * sizeof(float), kToDevice);
    if (status == 0 && s.accumulate) status = f_.copy(on_c, c, c_n * sizeof(float), kToDevice);
    if (status == 0) {
      status = f_.sgemm(handle_, s.trans_b ? 1 : 0, s.trans_a ? 1 : 0, n, m, k, &one, on_b,
                        s.trans_b ? k : n, on_a, s.trans_a ? m : k, &beta, on_c, n);
    }
    if (status == 0) status = f_.copy(c, on_c, c_n * sizeof(float), kToHost);
    if (status != 0) {
      return Fail(report, GB_DEVICE, "cuBLAS failed; have is its status", -1, status);
    }
    AfterSum(s, bias, c);
    return Done(report);
  }

 private:
  int Room(size_t bytes) {
    if (bytes <= bytes_) return 0;
    if (memory_ != nullptr) f_.release(memory_);
    memory_ = nullptr;
    bytes_ = 0;
    void* memory = nullptr;
    const int status = f_.allocate(&memory, bytes);
    if (status == 0) {
      memory_ = static_cast<float*>(memory);
      bytes_ = bytes;
    }
    return status;
  }

  const Functions f_;
  void* const handle_;
  std::mutex mutex_;
  float* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace

// OpenPair opens cuBLAS and the runtime of the same release: the path alone where there is one, or
// the newest pair that the loader finds.
static bool OpenPair(const char* path, Shared& blas, Shared& runtime, Words& why) {
  static const struct {
    const char *blas, *runtime;
  } kPairs[] = {{"libcublas.so.13", "libcudart.so.13"},
                {"libcublas.so.12", "libcudart.so.12"},
                {"libcublas.so.11", "libcudart.so.11.0"},
                {"libcublas.so", "libcudart.so"}};
  if (path != nullptr) return blas.Open(path, {}, why) && runtime.Open(path, {}, why);
  for (const auto& pair : kPairs) {
    if (&pair != kPairs) why << "; ";
    if (blas.Open(nullptr, {pair.blas}, why) && runtime.Open(nullptr, {pair.runtime}, why)) {
      why.Clear();
      return true;
    }
  }
  return false;
}

gb_dense* OpenCuBlas(const char* path, Words& text) {
  Shared blas, runtime;
  Functions f;
  if (!OpenPair(path, blas, runtime, text) || !blas.Find("cublasCreate_v2", &f.create, text) ||
      !blas.Find("cublasDestroy_v2", &f.destroy, text) ||
      !blas.Find("cublasGetVersion_v2", &f.version, text) ||
      !blas.Find("cublasSgemm_v2", &f.sgemm, text) ||
      !runtime.Find("cudaMalloc", &f.allocate, text) ||
      !runtime.Find("cudaFree", &f.release, text) || !runtime.Find("cudaMemcpy", &f.copy, text)) {
    return nullptr;
  }
  void* handle = nullptr;
  int version = 0;
  int status = f.create(&handle);
  if (status == 0 && (status = f.version(handle, &version)) != 0) f.destroy(handle);
  if (status != 0) {
    text << "it has no device (status " << status << ")";
    return nullptr;
  }
  text << "cublas " << version;
  auto* d = new (std::nothrow) CuBlas(f, handle);
  if (d == nullptr) f.destroy(handle);
  return d;
}

}  // namespace gradbus
