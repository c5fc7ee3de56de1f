// What the C++ tests share: a check that counts a failure and continues.
#ifndef GRADBUS_TESTS_EXPECT_H_
#define GRADBUS_TESTS_EXPECT_H_

#include <cstdio>

namespace {

int failures = 0;

#define EXPECT(condition)                                                   \
  do {                                                                      \
    if (!(condition)) {                                                     \
      std::printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      failures++;                                                           \
    }                                                                       \
  } while (0)

}  // namespace

#endif  // GRADBUS_TESTS_EXPECT_H_
