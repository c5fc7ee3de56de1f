// The edges of the C interface that Go's tests do not reach: versions, sizes, workspaces, batches
// of commands. The arithmetic itself is tested from Go, where all backends run through one body.
#include "abi.h"

#include <cmath>
#include <vector>

namespace {

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
  a.optimizer = {GB_SGD, sizeof h, &h, nullptr, 0, {}};
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

void Gather() {
  Opened o;
  const float rows[6] = {1, 2, 10, 20, 100, 200};
  int64_t ids[3] = {2, 0, 2};
  float out[6] = {0, 0, 0, 0, 0, 0};
  gb_gather_args a = Sized<gb_gather_args>();
  a.dim = 2;
  a.rows = In(rows, 6);
  a.ids = In(ids, 3);
  a.out = Out(out, 6);
  EXPECT(o.api->workspace(o.context, GB_OP_GATHER, &a) == 0);
  const gb_command command = {GB_OP_GATHER, 0, &a, nullptr};
  int64_t done = -1;
  EXPECT(o.api->submit(o.context, nullptr, &command, 1, kNone, &done, &o.report) == GB_OK);
  EXPECT(out[0] == 100 && out[1] == 200 && out[2] == 1 && out[3] == 2 && out[4] == 100);
  ids[1] = 3;
  out[0] = 7;
  EXPECT(o.api->gather(o.context, nullptr, &a, kNone, &o.report) == GB_ID);
  EXPECT(o.report.position == 1 && o.report.value == 3 && o.report.limit == 3 && out[0] == 7);
  a.reserved = 1;
  EXPECT(o.api->gather(o.context, nullptr, &a, kNone, &o.report) == GB_UNSUPPORTED);
  a.reserved = 0;
  a.out.n = 4;
  EXPECT(o.api->gather(o.context, nullptr, &a, kNone, &o.report) == GB_SHAPE);
}

void Memory() {
  Opened o;
  void* memory = nullptr;
  EXPECT(o.api->alloc(o.context, 100, &memory, &o.report) == GB_OK);
  EXPECT(reinterpret_cast<uintptr_t>(memory) % 64 == 0);
  EXPECT(static_cast<char*>(memory)[99] == 0);
  o.api->free(o.context, memory, 100);
  constexpr uint64_t kLarge = (5 << 20) + 1;  // beyond huge pages' size: at a border of one
  EXPECT(o.api->alloc(o.context, kLarge, &memory, &o.report) == GB_OK);
  EXPECT(reinterpret_cast<uintptr_t>(memory) % (2 << 20) == 0);
  for (uint64_t i = 0; i < kLarge; i += 4096) EXPECT(static_cast<char*>(memory)[i] == 0);
  std::memset(memory, 1, kLarge);
  o.api->free(o.context, memory, kLarge);
  o.api->free(o.context, nullptr, 0);
  EXPECT(o.api->alloc(o.context, 0, &memory, &o.report) == GB_OK && memory == nullptr);
  EXPECT(o.api->alloc(o.context, UINT64_MAX / 2, &memory, &o.report) == GB_MEMORY);
}

// A forward call on one bag, to be bent by tests.
struct OneBag {
  float rows[4] = {1, 2, 4, 8};
  int64_t ids[4] = {0, 9, 2, -3};
  int64_t offsets[2] = {0, 4};
  float out[1] = {7};
  gb_bag_forward_args a = Sized<gb_bag_forward_args>();
  OneBag() {
    a.dim = 1;
    a.padding = GB_NO_PADDING;
    a.rows = In(rows, 4);
    a.ids = In(ids, 4);
    a.offsets = In(offsets, 2);
    a.out = Out(out, 1);
  }
};

void Reports() {
  Opened o;
  OneBag b;
  char memory[4096];
  const gb_workspace w = {memory, sizeof memory};
  o.report.skipped = o.report.nonfinite = o.report.term = 77;  // what was there before must go
  EXPECT(o.api->bag_forward(o.context, nullptr, &b.a, w, &o.report) == GB_ID);
  EXPECT(o.report.status == GB_ID && o.report.position == 1 && o.report.value == 9);
  EXPECT(o.report.limit == 4 && o.report.skipped == 0 && o.report.nonfinite == 0);
  EXPECT(o.report.term == -1 && o.report.message != nullptr && b.out[0] == 7);
  b.a.policy = GB_SKIP;
  EXPECT(o.api->bag_forward(o.context, nullptr, &b.a, w, &o.report) == GB_OK);
  EXPECT(o.report.skipped == 2 && b.out[0] == 5 && o.report.message == nullptr);
  EXPECT(o.report.size == sizeof(gb_report));
  b.a.padding = 9;  // padding is no id out of range
  EXPECT(o.api->bag_forward(o.context, nullptr, &b.a, w, &o.report) == GB_OK);
  EXPECT(o.report.skipped == 1 && b.out[0] == 5);
  b.ids[1] = b.ids[3] = 9;
  b.a.policy = GB_REFUSE;
  EXPECT(o.api->bag_forward(o.context, nullptr, &b.a, w, &o.report) == GB_OK);
  EXPECT(o.report.skipped == 0 && b.out[0] == 5);
}

// As many ids as 32 bits cannot number are refused before any is looked at.
void TooMany() {
  Opened o;
  OneBag b;
  const int64_t many = GB_POSITIONS_MAX;
  b.a.ids.n = many;
  EXPECT(o.api->bag_forward(o.context, nullptr, &b.a, kNone, &o.report) == GB_SHAPE);
  gb_bag_backward_args back = Sized<gb_bag_backward_args>();
  back.dim = 1;
  back.rows = 4;
  back.padding = GB_NO_PADDING;
  back.ids = b.a.ids;
  back.offsets = b.a.offsets;
  back.grad_out = In(b.rows, 1);
  EXPECT(o.api->bag_backward(o.context, nullptr, &back, kNone, &o.report) == GB_SHAPE);
  EXPECT(o.report.value == many);
  gb_coalesce_args c = Sized<gb_coalesce_args>();
  c.dim = 1;
  c.keys = b.a.ids;
  c.rows = {b.rows, many, GB_FLOAT32, 0};
  EXPECT(o.api->coalesce(o.context, nullptr, &c, kNone, &o.report) == GB_SHAPE);
  // Lengths that no call may have make no small workspace by going round.
  c.keys.n = INT64_MAX;
  EXPECT(o.api->workspace(o.context, GB_OP_COALESCE, &c) > uint64_t{1} << 62);
  c.size = 8;
  EXPECT(o.api->workspace(o.context, GB_OP_COALESCE, &c) == UINT64_MAX);
}

// Zero lengths may come with null pointers, of whatever type.
void Nothing() {
  Opened o;
  char memory[4096];
  const gb_workspace w = {memory, sizeof memory};
  gb_bag_forward_args f = Sized<gb_bag_forward_args>();
  f.dim = 3;
  f.padding = GB_NO_PADDING;
  f.open_offsets = 1;
  EXPECT(o.api->bag_forward(o.context, nullptr, &f, w, &o.report) == GB_OK);
  gb_bag_backward_args b = Sized<gb_bag_backward_args>();
  b.dim = 3;
  b.padding = GB_NO_PADDING;
  b.open_offsets = 1;
  EXPECT(o.api->bag_backward(o.context, nullptr, &b, w, &o.report) == GB_OK);
  EXPECT(o.report.count == 0);
  gb_coalesce_args c = Sized<gb_coalesce_args>();
  c.dim = 3;
  EXPECT(o.api->coalesce(o.context, nullptr, &c, w, &o.report) == GB_OK && o.report.count == 0);
  gb_merge_args m = Sized<gb_merge_args>();
  m.dim = 3;
  m.lanes = 4;
  EXPECT(o.api->merge(o.context, nullptr, &m, w, &o.report) == GB_OK && o.report.count == 0);
  gb_copy_args copy = Sized<gb_copy_args>();
  EXPECT(o.api->copy(o.context, nullptr, &copy, kNone, &o.report) == GB_OK);
  copy.bytes = -1;
  EXPECT(o.api->copy(o.context, nullptr, &copy, kNone, &o.report) == GB_SHAPE);
}

// Each command of a batch has a report of its own.
void OwnReports() {
  Opened o;
  gb_first_nonfinite_args look[2] = {Sized<gb_first_nonfinite_args>(),
                                     Sized<gb_first_nonfinite_args>()};
  const float bad[3] = {1, 2, INFINITY};
  look[0].values = In(bad, 3);
  look[1].values = In(bad, 2);
  gb_report own[2] = {Sized<gb_report>(), Sized<gb_report>()};
  const gb_command commands[2] = {{GB_OP_FIRST_NONFINITE, 0, &look[0], &own[0]},
                                  {GB_OP_FIRST_NONFINITE, 0, &look[1], &own[1]}};
  int64_t done = 0;
  EXPECT(o.api->submit(o.context, nullptr, commands, 2, kNone, &done, &o.report) == GB_OK);
  EXPECT(own[0].position == 2 && own[1].position == -1 && o.report.position == -1);
  EXPECT(own[0].status == GB_OK && done == 2);
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
  Reports();
  TooMany();
  Nothing();
  OwnReports();
  Gather();
  Memory();
  Cuda();
  std::printf("%d failures\n", failures.load());
  return failures == 0 ? 0 : 1;
}
