// What the tests of the C interface share.
#ifndef GRADBUS_TESTS_ABI_H_
#define GRADBUS_TESTS_ABI_H_

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "gradbus.h"

inline std::atomic<int> failures{0};

#define EXPECT(condition)                                                   \
  do {                                                                      \
    if (!(condition)) {                                                     \
      std::printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      failures++;                                                           \
    }                                                                       \
  } while (0)

template <typename Args>
inline Args Sized() {
  Args a;
  std::memset(&a, 0, sizeof a);
  a.size = sizeof a;
  return a;
}

inline gb_in In(const float* data, int64_t n) { return {data, n, GB_FLOAT32, 0}; }
inline gb_in In(const int64_t* data, int64_t n) { return {data, n, GB_INT64, 0}; }
inline gb_in In(const uint64_t* data, int64_t n) { return {data, n, GB_UINT64, 0}; }
inline gb_out Out(float* data, int64_t n) { return {data, n, GB_FLOAT32, 0}; }
inline gb_out Out(uint64_t* data, int64_t n) { return {data, n, GB_UINT64, 0}; }

constexpr gb_workspace kNone = {nullptr, 0};

struct Opened {
  const gb_api* api = gb_backend(GB_ABI);
  gb_context* context = nullptr;
  gb_report report = Sized<gb_report>();
  explicit Opened(const char* isa = nullptr, uint32_t threads = 1) {
    gb_open_args a = Sized<gb_open_args>();
    a.isa = isa;
    a.threads = threads;
    EXPECT(api->open(&a, &context, &report) == GB_OK);
  }
  ~Opened() { api->close(context); }
};

#endif  // GRADBUS_TESTS_ABI_H_
