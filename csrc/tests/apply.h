// What the tests of the optimizers share: an opened CPU backend, vectors as arguments, and random
// numbers that are the same everywhere.
#ifndef GRADBUS_TESTS_APPLY_H_
#define GRADBUS_TESTS_APPLY_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "gradbus.h"

namespace {

template <typename Args>
Args Sized() {
  Args a;
  std::memset(&a, 0, sizeof a);
  a.size = sizeof a;
  return a;
}

gb_dtype TypeOf(float) { return GB_FLOAT32; }
gb_dtype TypeOf(int64_t) { return GB_INT64; }
gb_dtype TypeOf(int32_t) { return GB_INT32; }

template <typename T>
gb_in In(const std::vector<T>& v) {
  return {v.data(), static_cast<int64_t>(v.size()), TypeOf(T{}), 0};
}
template <typename T>
gb_out Out(std::vector<T>& v) {
  return {v.data(), static_cast<int64_t>(v.size()), TypeOf(T{}), 0};
}

using Floats = std::vector<float>;
using Ids = std::vector<int64_t>;

bool Same(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Cpu {
  const gb_api* api = gb_backend(GB_ABI);
  gb_context* context = nullptr;
  gb_report report = Sized<gb_report>();
  std::vector<char> memory;
  explicit Cpu(uint32_t threads = 1, const char* isa = nullptr) {
    gb_open_args a = Sized<gb_open_args>();
    a.threads = threads;
    a.isa = isa;
    if (api->open(&a, &context, &report) != GB_OK) context = nullptr;
  }
  ~Cpu() {
    if (context != nullptr) api->close(context);
  }
  template <typename Args>
  gb_status Run(gb_op op, const Args& a) {
    memory.resize(api->workspace(context, op, &a));
    const gb_command command = {op, 0, &a, nullptr};
    int64_t done = 0;
    return api->submit(context, nullptr, &command, 1, {memory.data(), memory.size()}, &done,
                       &report);
  }
};

// Random numbers, the same everywhere.
struct Random {
  uint64_t state;
  uint32_t Next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
  }
  float Unit() { return static_cast<float>(Next() % 20001) / 10000.0f - 1.0f; }
  Floats Many(int64_t n) {
    Floats v(static_cast<size_t>(n));
    for (float& x : v) x = Unit();
    return v;
  }
};

gb_slot Slot(const char* name, const Floats& before, Floats& after) {
  return {name, In(before), Out(after)};
}

}  // namespace

#endif  // GRADBUS_TESTS_APPLY_H_
