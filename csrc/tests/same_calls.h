// Calls of the emulated CUDA backend against the CPU backend, bit for bit: in the synchronous form,
// and on a stream, where the arrays lie in device memory.
//
// A case is arguments over the host's arrays. What a call may write is put back after it. Both
// backends must agree on every byte of it, on the status and on the report, but for its words.
#ifndef GRADBUS_TESTS_SAME_CALLS_H_
#define GRADBUS_TESTS_SAME_CALLS_H_

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/core.h"
#include "emu/emu.h"
#include "gradbus.h"

extern "C" const gb_api* gb_emu_backend(uint32_t abi);

namespace {

int failures = 0;
std::string now;  // the case being run

#define EXPECT(condition)                                                                    \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::printf("%s:%d: %s: not true: %s\n", __FILE__, __LINE__, now.c_str(), #condition); \
      failures++;                                                                            \
    }                                                                                        \
  } while (0)

// Random numbers: splitmix64.
struct Random {
  uint64_t state;
  uint64_t Next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
};

template <typename Args>
Args Sized() {
  Args a;
  std::memset(&a, 0, sizeof a);
  a.size = sizeof a;
  return a;
}

// Data is an array of any type. It lies so many bytes behind an aligned place.
struct Data {
  gb_dtype dtype = GB_FLOAT32;
  int64_t n = 0;
  int64_t past = 0;
  std::vector<uint64_t> memory;

  Data() = default;
  Data(gb_dtype type, int64_t count, int64_t shift = 0)
      : dtype(type),
        n(count),
        past(shift * gradbus::BytesOf(type)),
        memory(static_cast<size_t>((count + shift) * gradbus::BytesOf(type) / 8 + 2),
               0x7b7b7b7b7b7b7b7bu) {}
  char* at() { return reinterpret_cast<char*>(memory.data()) + past; }
  gb_in In() { return {n == 0 ? nullptr : at(), n, dtype, 0}; }
  gb_out Out() { return {n == 0 ? nullptr : at(), n, dtype, 0}; }
  void Set(int64_t i, int64_t x) {
    if (gradbus::BytesOf(dtype) == 4) {
      const int32_t narrow = static_cast<int32_t>(x);
      std::memcpy(at() + i * 4, &narrow, 4);
    } else {
      std::memcpy(at() + i * 8, &x, 8);
    }
  }
};

// Floats of all kinds: mostly of like size, some far apart, zeros of both signs, and, where wanted,
// NaN and Inf.
Data Floats(gb_dtype dtype, int64_t n, Random& r, bool strange = false, int64_t shift = 0) {
  Data d(dtype, n, shift);
  for (int64_t i = 0; i < n; i++) {
    float x = static_cast<float>(r.Below(2000001) - 1000000) / 65536.0f;
    const int64_t kind = r.Below(64);
    if (kind == 0) x *= 1e6f;
    if (kind == 1) x = 0;
    if (kind == 2) x = -0.0f;
    if (kind == 3) x *= 1e-30f;
    if (strange && kind == 4) x = NAN;
    if (strange && kind == 5) x = x > 0 ? INFINITY : -INFINITY;
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (dtype == GB_FLOAT32) {
      std::memcpy(d.at() + i * 4, &bits, 4);
      continue;
    }
    // Any 16 bits are a number; those of a bfloat16 are the upper half of a float32.
    uint16_t half = static_cast<uint16_t>(bits >> 16);
    if (dtype == GB_FLOAT16) {
      half = static_cast<uint16_t>(r.Next());
      if (!strange && (half & 0x7c00) == 0x7c00) half &= 0xbfff;
    }
    std::memcpy(d.at() + i * 2, &half, 2);
  }
  return d;
}

// The arrays of each operation: f(in) and f(out).
template <typename F>
void Arrays(gb_bag_forward_args& a, F&& f) {
  f(a.rows), f(a.ids), f(a.offsets), f(a.weights), f(a.out), f(a.argmax);
}
template <typename F>
void Arrays(gb_bag_backward_args& a, F&& f) {
  f(a.ids), f(a.offsets), f(a.weights), f(a.argmax), f(a.grad_out), f(a.keys), f(a.out);
}
template <typename F>
void Arrays(gb_coalesce_args& a, F&& f) {
  f(a.keys), f(a.rows), f(a.out_keys), f(a.out_rows);
}
template <typename F>
void Arrays(gb_merge_args& a, F&& f) {
  for (int64_t i = 0; i < a.terms_n; i++) {
    f(const_cast<gb_rows_term&>(a.terms[i]).keys);
    f(const_cast<gb_rows_term&>(a.terms[i]).rows);
  }
  f(a.out_keys), f(a.out_rows);
}
template <typename F>
void Arrays(gb_coalesce_apply_args& a, F&& f) {
  f(a.table), f(a.keys), f(a.rows), f(a.steps.last);
  for (int64_t i = 0; i < a.optimizer.slots_n; i++) {
    f(const_cast<gb_slot&>(a.optimizer.slots[i]).before);
  }
  f(a.out), f(a.out_keys), f(a.steps.last_after);
  for (int64_t i = 0; i < a.optimizer.slots_n; i++) {
    f(const_cast<gb_slot&>(a.optimizer.slots[i]).after);
  }
}

gb_status Run(const gb_api* api, gb_context* c, gb_stream* s, const gb_bag_forward_args* a,
              gb_workspace w, gb_report* r) {
  return api->bag_forward(c, s, a, w, r);
}
gb_status Run(const gb_api* api, gb_context* c, gb_stream* s, const gb_bag_backward_args* a,
              gb_workspace w, gb_report* r) {
  return api->bag_backward(c, s, a, w, r);
}
gb_status Run(const gb_api* api, gb_context* c, gb_stream* s, const gb_coalesce_args* a,
              gb_workspace w, gb_report* r) {
  return api->coalesce(c, s, a, w, r);
}
gb_status Run(const gb_api* api, gb_context* c, gb_stream* s, const gb_merge_args* a,
              gb_workspace w, gb_report* r) {
  return api->merge(c, s, a, w, r);
}
gb_status Run(const gb_api* api, gb_context* c, gb_stream* s, const gb_coalesce_apply_args* a,
              gb_workspace w, gb_report* r) {
  return api->coalesce_apply(c, s, a, w, r);
}

constexpr gb_op OpOf(const gb_bag_forward_args&) { return GB_OP_BAG_FORWARD; }
constexpr gb_op OpOf(const gb_bag_backward_args&) { return GB_OP_BAG_BACKWARD; }
constexpr gb_op OpOf(const gb_coalesce_args&) { return GB_OP_COALESCE; }
constexpr gb_op OpOf(const gb_merge_args&) { return GB_OP_MERGE; }
constexpr gb_op OpOf(const gb_coalesce_apply_args&) { return GB_OP_COALESCE_APPLY; }

struct Backend {
  const gb_api* api;
  gb_context* context = nullptr;
  gb_stream* stream = nullptr;
  Backend(const gb_api* table, const char* isa) : api(table) {
    gb_open_args a = Sized<gb_open_args>();
    a.isa = isa;
    gb_report report = Sized<gb_report>();
    EXPECT(api->open(&a, &context, &report) == GB_OK);
    if (api->stream_open != nullptr) {
      EXPECT(api->stream_open(context, &stream, &report) == GB_OK);
    }
  }
  ~Backend() {
    if (stream != nullptr) api->stream_close(context, stream);
    api->close(context);
  }
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
};

// Ran is what a call left behind.
struct Ran {
  gb_status status = GB_OK;
  gb_report report = Sized<gb_report>();
  std::vector<std::vector<char>> outs;
};

void Keep(Ran& ran, const gb_out& out, const char* from) {
  ran.outs.emplace_back(from, from + out.n * gradbus::BytesOf(out.dtype));
}
void Keep(Ran&, const gb_in&, const char*) {}

// Here runs the synchronous form. What is written must be as it was at first.
template <typename Args>
Ran Here(Backend& b, Args a) {
  Ran ran;
  std::vector<std::vector<char>> saved;
  Arrays(a, [&](auto& x) {
    const char* p = static_cast<const char*>(x.data);
    saved.emplace_back(p, p + x.n * gradbus::BytesOf(x.dtype));
  });
  std::vector<char> memory(b.api->workspace(b.context, OpOf(a), &a) + 1);
  const gb_workspace w = {memory.data() + 1, memory.size() - 1};
  ran.status = Run(b.api, b.context, nullptr, &a, w, &ran.report);
  Arrays(a, [&](auto& x) { Keep(ran, x, static_cast<const char*>(x.data)); });
  size_t i = 0;
  Arrays(a, [&](auto& x) {
    if (x.n > 0) {
      std::memcpy(const_cast<char*>(static_cast<const char*>(x.data)), saved[i].data(),
                  saved[i].size());
    }
    i++;
  });
  return ran;
}

// Far is an array's copy on the device, and pinned memory to come back to. Arrays of one memory
// have one copy.
struct Far {
  const void* home;
  int64_t bytes;
  void *device, *pinned;
};

Far& Send(Backend& b, std::vector<Far>& all, const void* home, int64_t bytes) {
  for (Far& f : all) {
    if (f.home == home && f.bytes == bytes) return f;
  }
  // The place on the device is as far behind an aligned one as at home.
  const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(home) % 16);
  Far f = {home, bytes, nullptr, nullptr};
  EXPECT(b.api->device_alloc(b.context, static_cast<uint64_t>(bytes + past), &f.device, nullptr) ==
         GB_OK);
  EXPECT(b.api->alloc(b.context, static_cast<uint64_t>(bytes), &f.pinned, nullptr) == GB_OK);
  f.device = static_cast<char*>(f.device) + past;
  std::memcpy(f.pinned, home, static_cast<size_t>(bytes));
  gb_copy_args copy = Sized<gb_copy_args>();
  copy.from = f.pinned;
  copy.to = f.device;
  copy.bytes = bytes;
  EXPECT(b.api->copy(b.context, b.stream, &copy, {nullptr, 0}, nullptr) == GB_OK);
  all.push_back(f);
  return all.back();
}

// There runs the asynchronous form on arrays of the device.
template <typename Args>
Ran There(Backend& b, Args a) {
  Ran ran;
  std::vector<Far> all;
  std::vector<const void*> homes;
  const uint64_t bytes = b.api->workspace(b.context, OpOf(a), &a);
  Arrays(a, [&](auto& x) {
    homes.push_back(x.data);
    if (x.n > 0) x.data = Send(b, all, x.data, x.n * gradbus::BytesOf(x.dtype)).device;
  });
  void* memory = nullptr;
  void* pinned = nullptr;
  EXPECT(b.api->device_alloc(b.context, bytes + 1, &memory, nullptr) == GB_OK);
  EXPECT(b.api->alloc(b.context, sizeof(gb_report), &pinned, nullptr) == GB_OK);
  gb_report* report = static_cast<gb_report*>(pinned);
  *report = Sized<gb_report>();
  ran.status = Run(b.api, b.context, b.stream, &a, {static_cast<char*>(memory) + 1, bytes}, report);
  for (Far& f : all) {
    gb_copy_args copy = Sized<gb_copy_args>();
    copy.from = f.device;
    copy.to = f.pinned;
    copy.bytes = f.bytes;
    EXPECT(b.api->copy(b.context, b.stream, &copy, {nullptr, 0}, nullptr) == GB_OK);
  }
  EXPECT(b.api->stream_wait(b.context, b.stream, &ran.report) == GB_OK);
  ran.report = *report;
  if (ran.status == GB_OK) ran.status = report->status;
  size_t i = 0;
  Arrays(a, [&](auto& x) {
    const void* home = homes[i++];
    const char* from = nullptr;
    for (const Far& f : all) {
      if (f.home == home && f.device == x.data) from = static_cast<const char*>(f.pinned);
    }
    Keep(ran, x, from);
    x.data = const_cast<void*>(home);
  });
  for (Far& f : all) {
    const uintptr_t past = reinterpret_cast<uintptr_t>(f.home) % 16;
    b.api->device_free(b.context, static_cast<char*>(f.device) - past);
    b.api->free(b.context, f.pinned, static_cast<uint64_t>(f.bytes));
  }
  b.api->device_free(b.context, memory);
  b.api->free(b.context, pinned, sizeof(gb_report));
  return ran;
}

bool IsNan(gb_dtype dtype, const char* p) {
  uint32_t bits = 0;
  std::memcpy(&bits, p, static_cast<size_t>(gradbus::BytesOf(dtype)));
  if (dtype == GB_FLOAT32) return (bits & 0x7fffffff) > 0x7f800000;
  if (dtype == GB_FLOAT16) return (bits & 0x7fff) > 0x7c00;
  return dtype == GB_BFLOAT16 && (bits & 0x7fff) > 0x7f80;
}

void SameOut(const gb_out& out, const std::vector<char>& want, const std::vector<char>& have) {
  const int64_t size = gradbus::BytesOf(out.dtype);
  for (int64_t i = 0; i < out.n; i++) {
    const char *w = want.data() + i * size, *h = have.data() + i * size;
    if (std::memcmp(w, h, static_cast<size_t>(size)) == 0) continue;
    if (out.dtype <= GB_BFLOAT16 && IsNan(out.dtype, w) && IsNan(out.dtype, h)) continue;
    std::printf("%s: element %lld of %lld differs\n", now.c_str(), static_cast<long long>(i),
                static_cast<long long>(out.n));
    failures++;
    return;
  }
}
void SameOut(const gb_in&, const std::vector<char>&, const std::vector<char>&) {}

template <typename Args>
void Same(Args& a, const Ran& want, const Ran& have) {
  EXPECT(want.status == have.status);
  EXPECT(want.report.status == have.report.status);
  EXPECT(want.report.count == have.report.count);
  EXPECT(want.report.position == have.report.position);
  EXPECT(want.report.value == have.report.value);
  EXPECT(want.report.limit == have.report.limit);
  EXPECT(want.report.term == have.report.term);
  EXPECT(want.report.skipped == have.report.skipped);
  EXPECT(want.report.nonfinite == have.report.nonfinite);
  EXPECT((want.report.message == nullptr) == (have.report.message == nullptr));
  if (want.status != have.status) {
    std::printf("  cpu %d %s, emulated %d %s\n", want.status,
                want.report.message == nullptr ? "" : want.report.message, have.status,
                have.report.message == nullptr ? "" : have.report.message);
  }
  size_t o = 0;
  Arrays(a, [&](auto& x) {
    if (std::is_same<std::decay_t<decltype(x)>, gb_out>::value) {
      SameOut(x, want.outs[o], have.outs[o]);
      o++;
    }
  });
}

struct Both {
  Backend cpu{gb_backend(GB_ABI), "baseline"};
  Backend emulated{gb_emu_backend(GB_ABI), nullptr};
  uint64_t seed = 1;

  template <typename Args>
  gb_status Compare(const std::string& name, Args a) {
    gradbus::emu::Seed(seed++);
    now = name + " on the cpu";
    const Ran want = Here(cpu, a);
    now = name + " here";
    Same(a, want, Here(emulated, a));
    now = name + " on a stream";
    Same(a, want, There(emulated, a));
    EXPECT(gradbus::emu::Faults().empty());
    if (!gradbus::emu::Faults().empty()) {
      std::printf("  %s\n", gradbus::emu::Faults().c_str());
      gradbus::emu::Reset();
    }
    return want.status;
  }
};

}  // namespace

#endif  // GRADBUS_TESTS_SAME_CALLS_H_
