// One call on the CPU backend, on the emulated device in the synchronous form, and there on a
// stream with all arrays in device memory: for tests that compare the three.
#ifndef GRADBUS_TESTS_BOTH_H_
#define GRADBUS_TESTS_BOTH_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/core.h"
#include "emu/emu.h"
#include "expect.h"
#include "gradbus.h"

extern "C" const gb_api* gb_emu_backend(uint32_t abi);

namespace {

bool quiet = false;  // where failures are what a test wants

#define GB_GOOD(condition)         \
  do {                             \
    const bool good = (condition); \
    if (quiet) {                   \
      failures += !good;           \
    } else {                       \
      EXPECT(good);                \
    }                              \
  } while (0)

enum Form { kCpu, kHere, kStream, kForms };
const char* const kFormNames[] = {"cpu", "emulated", "emulated stream"};

// A generator of its own, so that a failure can be repeated from its seed.
struct Random {
  uint64_t state;
  uint64_t Next() {
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  float Normal() {  // roughly, and of many magnitudes
    const float x = static_cast<float>(static_cast<int64_t>(Next() % 2001) - 1000) / 997.0f;
    const int shift = static_cast<int>(Next() % 9) - 4;
    return x *
           (shift < 0 ? 1.0f / static_cast<float>(1 << -shift) : static_cast<float>(1 << shift));
  }
};

inline size_t SizeOf(gb_dtype t) { return static_cast<size_t>(gradbus::BytesOf(t)); }

// Array is one array of a case, and what a form leaves in it.
struct Array {
  gb_dtype dtype = GB_FLOAT32;
  int64_t n = 0;
  int64_t shift = 0;  // elements that it begins behind an aligned address
  std::vector<char> bytes;

  size_t size() const { return static_cast<size_t>(n) * SizeOf(dtype); }
};

inline Array Zeros(gb_dtype dtype, int64_t n, int64_t shift = 0) {
  Array a;
  a.dtype = dtype;
  a.n = n;
  a.shift = shift;
  a.bytes.assign(a.size(), 0);
  return a;
}

template <typename T>
T* At(Array& a) {
  return reinterpret_cast<T*>(a.bytes.data());
}

inline void SetFloat(Array& a, int64_t i, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (a.dtype == GB_FLOAT32) {
    At<uint32_t>(a)[i] = bits;
  } else if (a.dtype == GB_BFLOAT16) {
    At<uint16_t>(a)[i] = static_cast<uint16_t>(bits >> 16);
  } else {
    const _Float16 half = static_cast<_Float16>(x);
    std::memcpy(At<uint16_t>(a) + i, &half, sizeof half);
  }
}

inline Array Floats(Random& r, gb_dtype dtype, int64_t n, int64_t shift = 0,
                    bool positive = false) {
  Array a = Zeros(dtype, n, shift);
  for (int64_t i = 0; i < n; i++) {
    const float x = r.Normal();
    SetFloat(a, i, positive && x < 0 ? -x : x);
  }
  return a;
}

template <typename T>
Array Ints(gb_dtype dtype, const std::vector<T>& values, int64_t shift = 0) {
  Array a = Zeros(dtype, static_cast<int64_t>(values.size()), shift);
  if (!values.empty()) std::memcpy(a.bytes.data(), values.data(), a.size());
  return a;
}

// Same says whether an element of two arrays is the same: bits, or both NaN.
inline bool Same(const Array& a, const Array& b, int64_t i) {
  const size_t size = SizeOf(a.dtype);
  uint64_t x = 0, y = 0;
  std::memcpy(&x, a.bytes.data() + i * static_cast<int64_t>(size), size);
  std::memcpy(&y, b.bytes.data() + i * static_cast<int64_t>(size), size);
  if (x == y) return true;
  if (a.dtype == GB_FLOAT32) return (x & 0x7fffffff) > 0x7f800000 && (y & 0x7fffffff) > 0x7f800000;
  if (a.dtype == GB_FLOAT16) return (x & 0x7fff) > 0x7c00 && (y & 0x7fff) > 0x7c00;
  if (a.dtype == GB_BFLOAT16) return (x & 0x7fff) > 0x7f80 && (y & 0x7fff) > 0x7f80;
  return false;
}

// Placed are the arrays of a case in the memory of one form.
struct Placed {
  const std::vector<Array>* arrays = nullptr;
  std::vector<void*> at;

  gb_in In(int i) const {
    const Array& a = (*arrays)[static_cast<size_t>(i)];
    return {at[static_cast<size_t>(i)], a.n, a.dtype, 0};
  }
  gb_out Out(int i) const {
    const Array& a = (*arrays)[static_cast<size_t>(i)];
    return {at[static_cast<size_t>(i)], a.n, a.dtype, 0};
  }
};

struct Outcome {
  gb_status status = GB_OK;
  gb_report report = {};
  std::vector<Array> after;
};

template <typename T>
T Sized() {
  T t;
  std::memset(&t, 0, sizeof t);
  t.size = sizeof t;
  return t;
}

class Both {
 public:
  Both() {
    const gb_open_args a = Sized<gb_open_args>();
    gb_report r = Sized<gb_report>();
    api_[kCpu] = gb_backend(GB_ABI);
    api_[kHere] = api_[kStream] = gb_emu_backend(GB_ABI);
    for (int f = 0; f < kForms; f++) GB_GOOD(api_[f]->open(&a, &context_[f], &r) == GB_OK);
    GB_GOOD(api_[kStream]->stream_open(context_[kStream], &stream_, &r) == GB_OK);
  }
  ~Both() {
    api_[kStream]->stream_close(context_[kStream], stream_);
    for (int f = 0; f < kForms; f++) api_[f]->close(context_[f]);
  }

  // Seen is how many cases ended with a status, for a test that wants to be sure that it met some.
  int64_t Seen(gb_status status) const { return seen_[status]; }
  const gb_api* api(Form f) const { return api_[f]; }
  gb_context* context(Form f) const { return context_[f]; }
  gb_stream* stream() const { return stream_; }

  // Run makes one call. call(api, context, stream, placed, workspace, report) fills in the
  // arguments and calls; with a null workspace pointer it returns the size that it needs.
  template <typename F>
  Outcome Run(Form f, const std::vector<Array>& arrays, F&& call) {
    const gb_api* api = api_[f];
    gb_context* context = context_[f];
    Outcome o;
    o.report = Sized<gb_report>();
    o.after = arrays;
    Placed placed;
    placed.arrays = &arrays;
    std::vector<void*> memory;
    for (const Array& a : arrays) memory.push_back(Place(f, a, &placed));
    uint64_t bytes = 0;
    call(api, context, nullptr, placed, nullptr, &bytes, nullptr);
    GB_GOOD(bytes != UINT64_MAX);
    if (bytes == UINT64_MAX) bytes = 0;
    void* space = f == kStream ? DeviceMemory(bytes) : std::malloc(bytes + 1);
    gb_report* report = &o.report;
    void* pinned = nullptr;
    if (f == kStream) {
      GB_GOOD(api->alloc(context, sizeof(gb_report), &pinned, &o.report) == GB_OK);
      report = static_cast<gb_report*>(pinned);
      report->size = sizeof *report;
    }
    gb_workspace w = {space, bytes};
    o.status = call(api, context, f == kStream ? stream_ : nullptr, placed, &w, &bytes, report);
    if (f == kStream) {
      gb_report waited = Sized<gb_report>();
      GB_GOOD(api->stream_wait(context, stream_, &waited) == GB_OK);
      o.report = *report;
      if (o.status == GB_OK) o.status = report->status;
      api->free(context, pinned, sizeof(gb_report));
    }
    for (size_t i = 0; i < arrays.size(); i++) {
      Fetch(f, placed.at[i], &o.after[i]);
      Release(f, memory[i]);
    }
    Release(f, space);
    return o;
  }

  // Compare runs all forms and expects the same of each: status, report, and every array.
  template <typename F>
  Outcome Compare(const std::string& what, const std::vector<Array>& arrays, F&& call) {
    Outcome first;
    for (int f = 0; f < kForms && !broken_; f++) {
      Outcome o = Run(static_cast<Form>(f), arrays, call);
      broken_ = !gradbus::emu::Faults().empty();
      if (f == 0) {
        first = o;
        continue;
      }
      Match(what + " on " + kFormNames[f], first, o);
    }
    seen_[first.status]++;
    const std::string faults = gradbus::emu::Faults();
    if (!faults.empty()) {
      if (!quiet) std::printf("%s: %s\n", what.c_str(), faults.c_str());
      failures++;
    }
    return first;
  }

 private:
  static void Match(const std::string& what, const Outcome& a, const Outcome& b) {
    const gb_report &x = a.report, &y = b.report;
    if (a.status != b.status || x.count != y.count || x.position != y.position ||
        x.value != y.value || x.limit != y.limit || x.term != y.term || x.skipped != y.skipped ||
        x.nonfinite != y.nonfinite) {
      if (!quiet)
        std::printf(
            "%s: status %d, want %d (%s); count %ld %ld position %ld %ld value %ld %ld limit %ld "
            "%ld "
            "term %ld %ld skipped %ld %ld nonfinite %ld %ld\n",
            what.c_str(), b.status, a.status, y.message == nullptr ? "" : y.message, y.count,
            x.count, y.position, x.position, y.value, x.value, y.limit, x.limit, y.term, x.term,
            y.skipped, x.skipped, y.nonfinite, x.nonfinite);
      failures++;
    }
    for (size_t i = 0; i < a.after.size(); i++) {
      for (int64_t j = 0; j < a.after[i].n; j++) {
        if (Same(a.after[i], b.after[i], j)) continue;
        if (!quiet)
          std::printf("%s: array %zu differs at %ld of %ld\n", what.c_str(), i, j, a.after[i].n);
        failures++;
        return;
      }
    }
  }

  void* DeviceMemory(uint64_t bytes) {
    void* p = nullptr;
    gb_report r = Sized<gb_report>();
    GB_GOOD(api_[kStream]->device_alloc(context_[kStream], bytes, &p, &r) == GB_OK);
    return p;
  }

  void* Place(Form f, const Array& a, Placed* placed) {
    const size_t past = static_cast<size_t>(a.shift) * SizeOf(a.dtype);
    if (f == kStream) {
      void* p = DeviceMemory(a.size() + past + 1);
      void* at = static_cast<char*>(p) + past;
      Copy(f, at, a.bytes.data(), a.size());
      placed->at.push_back(at);
      return p;
    }
    void* p = std::aligned_alloc(64, (a.size() + past + 64) / 64 * 64);
    char* at = static_cast<char*>(p) + past;
    if (a.n > 0) std::memcpy(at, a.bytes.data(), a.size());
    placed->at.push_back(at);
    return p;
  }

  void Copy(Form f, void* to, const void* from, size_t bytes) {
    gb_copy_args c = Sized<gb_copy_args>();
    gb_report r = Sized<gb_report>();
    c.from = from;
    c.to = to;
    c.bytes = static_cast<int64_t>(bytes);
    GB_GOOD(api_[f]->copy(context_[f], nullptr, &c, {nullptr, 0}, &r) == GB_OK);
  }

  void Fetch(Form f, const void* at, Array* a) {
    if (a->n == 0) return;
    if (f == kStream) return Copy(f, a->bytes.data(), at, a->size());
    std::memcpy(a->bytes.data(), at, a->size());
  }

  void Release(Form f, void* p) {
    if (f == kStream) {
      api_[f]->device_free(context_[f], p);
    } else {
      std::free(p);
    }
  }

  const gb_api* api_[kForms];
  gb_context* context_[kForms] = {};
  gb_stream* stream_ = nullptr;
  int64_t seen_[GB_BUSY + 1] = {};
  bool broken_ = false;  // the device has faulted, and does nothing more
};

}  // namespace

#endif  // GRADBUS_TESTS_BOTH_H_
