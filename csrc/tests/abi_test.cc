// The edges of the C interface that Go's tests do not reach: versions, sizes, workspaces, batches
// of commands. The arithmetic itself is tested from Go, where all backends run through one body.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "gradbus.h"

namespace {

int failures = 0;

#define EXPECT(condition)                                                   \
  do {                                                                      \
    if (!(condition)) {                                                     \
      std::printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      failures++;                                                           \
    }                                                                       \
  } while (0)

template <typename Args>
Args Sized() {
  Args a;
  std::memset(&a, 0, sizeof a);
  a.size = sizeof a;
  return a;
}

gb_in In(const float* data, int64_t n) { return {data, n, GB_FLOAT32, 0}; }
gb_in In(const int64_t* data, int64_t n) { return {data, n, GB_INT64, 0}; }
gb_in In(const uint64_t* data, int64_t n) { return {data, n, GB_UINT64, 0}; }
gb_out Out(float* data, int64_t n) { return {data, n, GB_FLOAT32, 0}; }
gb_out Out(uint64_t* data, int64_t n) { return {data, n, GB_UINT64, 0}; }

constexpr gb_workspace kNone = {nullptr, 0};

struct Opened {
  const gb_api* api = gb_backend(GB_ABI);
  gb_context* context = nullptr;
  gb_report report = Sized<gb_report>();
  explicit Opened(const char* isa = nullptr) {
    gb_open_args a = Sized<gb_open_args>();
    a.isa = isa;
    EXPECT(api->open(&a, &context, &report) == GB_OK);
  }
  ~Opened() { api->close(context); }
};

void Versions() {
  EXPECT(gb_backend(GB_ABI) != nullptr);
  EXPECT(gb_backend(GB_ABI + 1) == nullptr);
  EXPECT(gb_cuda_backend(GB_ABI + 1) == nullptr);
  const gb_api* api = gb_backend(GB_ABI);
  EXPECT(api->size == sizeof(gb_api) && api->abi == GB_ABI);
  EXPECT(std::strcmp(api->name, "cpu") == 0);
}

void Opening() {
  const gb_api* api = gb_backend(GB_ABI);
  gb_context* context = nullptr;
  gb_report report = Sized<gb_report>();
  gb_open_args a = Sized<gb_open_args>();
  a.threads = 257;
  EXPECT(api->open(&a, &context, &report) == GB_ARGUMENT);
  a.threads = 0;
  a.isa = "sse9";
  EXPECT(api->open(&a, &context, &report) == GB_ARGUMENT && report.message != nullptr);
  EXPECT(context == nullptr);
  EXPECT(api->open(&a, nullptr, nullptr) == GB_ARGUMENT);
  a.size = 4;
  EXPECT(api->open(&a, &context, &report) == GB_ARGUMENT);
  Opened baseline("baseline");
  EXPECT(std::strcmp(api->isa(baseline.context), "baseline") == 0);
}

// A struct of a newer version is taken where its new fields are zero, and refused where they say
// something.
void Sizes() {
  Opened o;
  struct {
    gb_average_args a;
    uint64_t more;
  } args;
  std::memset(&args, 0, sizeof args);
  const float values[2] = {3, 5};
  float out[2] = {0, 0};
  const gb_term term = {{0, 1}, In(values, 2)};
  args.a.size = sizeof args;
  args.a.weight = 1;
  args.a.lanes = 1;
  args.a.terms = &term;
  args.a.terms_n = 1;
  args.a.out = Out(out, 2);
  char memory[1024];
  const gb_workspace w = {memory + 1, sizeof memory - 1};  // any alignment will do
  EXPECT(o.api->average(o.context, nullptr, &args.a, w, &o.report) == GB_OK);
  EXPECT(out[0] == 3 && out[1] == 5);
  args.more = 1;
  out[0] = 7;
  EXPECT(o.api->average(o.context, nullptr, &args.a, w, &o.report) == GB_UNSUPPORTED);
  args.a.size = sizeof args.a - 8;
  EXPECT(o.api->average(o.context, nullptr, &args.a, w, &o.report) == GB_ARGUMENT);
  args.a.size = sizeof args.a;
  EXPECT(o.api->average(o.context, reinterpret_cast<gb_stream*>(memory), &args.a, w, &o.report) ==
         GB_UNSUPPORTED);
  EXPECT(o.api->average(nullptr, nullptr, &args.a, w, &o.report) == GB_ARGUMENT);
  EXPECT(o.api->average(o.context, nullptr, nullptr, w, &o.report) == GB_ARGUMENT);
  EXPECT(out[0] == 7);
  EXPECT(o.api->average(o.context, nullptr, &args.a, w, nullptr) == GB_OK);  // a report is optional
  EXPECT(out[0] == 3);
}

void Workspaces() {
  Opened o;
  const uint64_t keys[3] = {9, 5, 9};
  const float rows[3] = {1, 2, 4};
  uint64_t out_keys[2] = {0, 0};
  float out_rows[2] = {0, 0};
  gb_coalesce_args a = Sized<gb_coalesce_args>();
  a.dim = 1;
  a.keys = In(keys, 3);
  a.rows = In(rows, 3);
  a.out_keys = Out(out_keys, 2);
  a.out_rows = Out(out_rows, 2);
  EXPECT(o.api->coalesce(o.context, nullptr, &a, kNone, &o.report) == GB_WORKSPACE);
  const uint64_t bytes = o.api->workspace(o.context, GB_OP_COALESCE, &a);
  EXPECT(o.report.value == static_cast<int64_t>(bytes));
  EXPECT(o.api->workspace(o.context, 999, &a) == UINT64_MAX);
  char* memory = new char[bytes + 64];
  std::memset(memory, 0x5a, bytes + 64);
  const gb_workspace w = {memory, bytes};
  EXPECT(o.api->coalesce(o.context, nullptr, &a, w, &o.report) == GB_OK);
  EXPECT(o.report.count == 2 && out_keys[0] == 5 && out_keys[1] == 9);
  EXPECT(out_rows[0] == 2 && out_rows[1] == 5);
  for (int i = 0; i < 64; i++) EXPECT(memory[bytes + i] == 0x5a);
  delete[] memory;
}

// Fields that later versions will use are refused until then, not ignored.
void Future() {
  Opened o;
  const float rows[2] = {1, 2};
  const int64_t ids[2] = {0, 1}, offsets[2] = {0, 2};
  float out[1] = {7};
  gb_bag_forward_args a = Sized<gb_bag_forward_args>();
  a.dim = 1;
  a.padding = GB_NO_PADDING;
  a.rows = In(rows, 2);
  a.ids = In(ids, 2);
  a.offsets = In(offsets, 2);
  a.out = Out(out, 1);
  const auto run = [&] { return o.api->bag_forward(o.context, nullptr, &a, kNone, &o.report); };
  const gb_bag_forward_args good = a;
  a.mode = 3;
  EXPECT(run() == GB_UNSUPPORTED);
  a = good;
  a.policy = 2;
  EXPECT(run() == GB_UNSUPPORTED);
  a = good;
  a.rows.dtype = GB_UINT8;
  EXPECT(run() == GB_UNSUPPORTED);
  a = good;
  a.ids.dtype = GB_UINT64;
  EXPECT(run() == GB_UNSUPPORTED);
  a = good;
  a.rows.data = nullptr;
  EXPECT(run() == GB_SHAPE);
  a = good;
  a.rows.n = -2;
  EXPECT(run() == GB_SHAPE);
  a = good;
  a.dim = INT64_MAX;
  EXPECT(run() == GB_SHAPE);
  EXPECT(out[0] == 7);
  a = good;
  EXPECT(run() == GB_OK && out[0] == 3);
}

void Optimizers() {
  Opened o;
  const float p[1] = {1}, g[1] = {2};
  float out[1] = {7};
  gb_sgd h = {0.5f, 0, 0, 0, 0, 0};
  gb_apply_dense_args a = Sized<gb_apply_dense_args>();
  a.weight = 1;
  a.optimizer = {GB_SGD, sizeof h, &h, nullptr, 0};
  a.param = In(p, 1);
  a.grad = In(g, 1);
  a.out = Out(out, 1);
  const auto run = [&] { return o.api->apply_dense(o.context, nullptr, &a, kNone, &o.report); };
  a.optimizer.kind = 99;
  EXPECT(run() == GB_UNSUPPORTED);
  a.optimizer.kind = GB_SGD;
  a.optimizer.hyper_bytes = 8;
  EXPECT(run() == GB_ARGUMENT);
  a.optimizer.hyper_bytes = sizeof h;
  h.momentum = 0.5f;
  EXPECT(run() == GB_SHAPE);  // momentum without its slot
  float m[1] = {4};
  gb_slot slot = {"velocity", In(m, 1), Out(m, 1)};
  a.optimizer.slots = &slot;
  a.optimizer.slots_n = 1;
  EXPECT(run() == GB_SHAPE);
  EXPECT(out[0] == 7);
  slot.name = "momentum";
  EXPECT(run() == GB_OK && m[0] == 4 && out[0] == 1 - 0.5f * 4);
}

void Commands() {
  Opened o;
  const float x[4] = {1, 2, 3, 4};
  float c[4] = {0, 0, 0, 0};
  gb_matmul_args square = Sized<gb_matmul_args>();
  square.m = square.n = square.k = 2;
  square.a = In(x, 4);
  square.b = In(x, 4);
  square.c = Out(c, 4);
  gb_first_nonfinite_args look = Sized<gb_first_nonfinite_args>();
  const float bad[3] = {1, std::nanf(""), INFINITY};
  look.values = In(bad, 3);
  const gb_command commands[3] = {{GB_OP_MATMUL, 0, &square, nullptr},
                                  {GB_OP_FIRST_NONFINITE, 0, &look, nullptr},
                                  {77, 0, &look, nullptr}};
  char memory[4096];
  int64_t done = -1;
  const gb_workspace w = {memory, sizeof memory};
  EXPECT(o.api->submit(o.context, nullptr, commands, 2, w, &done, &o.report) == GB_OK);
  EXPECT(done == 2 && o.report.position == 1);
  EXPECT(c[0] == 7 && c[1] == 10 && c[2] == 15 && c[3] == 22);
  EXPECT(o.api->submit(o.context, nullptr, commands, 3, w, &done, &o.report) == GB_UNSUPPORTED);
  EXPECT(done == 2);
  EXPECT(o.api->submit(o.context, nullptr, nullptr, 0, kNone, &done, &o.report) == GB_OK);
}

void Memory() {
  Opened o;
  void* memory = nullptr;
  EXPECT(o.api->alloc(o.context, 100, &memory, &o.report) == GB_OK);
  EXPECT(reinterpret_cast<uintptr_t>(memory) % 64 == 0);
  EXPECT(static_cast<char*>(memory)[99] == 0);
  o.api->free(o.context, memory, 100);
  EXPECT(o.api->alloc(o.context, 0, &memory, &o.report) == GB_OK && memory == nullptr);
  EXPECT(o.api->alloc(o.context, UINT64_MAX / 2, &memory, &o.report) == GB_MEMORY);
}

// With CUDA compiled in but no device, open says so; the table itself needs no driver.
void Cuda() {
  const gb_api* api = gb_cuda_backend(GB_ABI);
  if (api == nullptr) {
    std::printf("cuda: not compiled in\n");
    return;
  }
  gb_context* context = nullptr;
  gb_report report = Sized<gb_report>();
  const gb_open_args a = Sized<gb_open_args>();
  const gb_status status = api->open(&a, &context, &report);
  if (status == GB_OK) {
    std::printf("cuda: %s\n", api->isa(context));
    api->close(context);
    return;
  }
  std::printf("cuda: %s\n", report.message);
  EXPECT(status == GB_NO_DEVICE && report.message != nullptr && context == nullptr);
}

}  // namespace

int main() {
  Versions();
  Opening();
  Sizes();
  Workspaces();
  Future();
  Optimizers();
  Commands();
  Memory();
  Cuda();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
