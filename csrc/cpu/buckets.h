// Sorting of one bucket: the elements whose keys agree in their upper bits, few enough, as a rule,
// to stay in L1 while they are sorted by the bits that are left.
#ifndef GRADBUS_CPU_BUCKETS_H_
#define GRADBUS_CPU_BUCKETS_H_

#include <cstdint>
#include <cstring>

namespace gradbus {

struct WidePair {
  uint64_t key, row;
};

inline uint64_t SortedBy(uint64_t word) { return word; }
inline uint64_t SortedBy(const WidePair& pair) { return pair.key; }

inline int BitsOf(uint64_t x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;
constexpr int64_t kLocal = 1024;  // elements that are sorted on the stack

template <typename T>
void InsertionSort(T* x, int64_t n, int shift) {
  for (int64_t i = 1; i < n; i++) {
    const T one = x[i];
    const uint64_t key = SortedBy(one) >> shift;
    int64_t j = i;
    for (; j > 0 && SortedBy(x[j - 1]) >> shift > key; j--) x[j] = x[j - 1];
    x[j] = one;
  }
}

// Differ is the bits above shift in which the keys differ.
template <typename T>
uint64_t Differ(const T* x, int64_t n, int shift) {
  uint64_t ones = 0, all = ~uint64_t{};
  for (int64_t i = 0; i < n; i++) {
    ones |= SortedBy(x[i]);
    all &= SortedBy(x[i]);
  }
  return n == 0 ? 0 : (ones & ~all) >> shift;
}

// SortByDigit is one stable pass over the width bits from shift on.
template <typename T>
void SortByDigit(const T* from, T* to, int64_t n, int shift, int width) {
  uint32_t at[kDigits];
  const uint64_t mask = (uint64_t{1} << width) - 1;
  std::memset(at, 0, sizeof *at << width);
  for (int64_t i = 0; i < n; i++) at[SortedBy(from[i]) >> shift & mask]++;
  uint32_t total = 0;
  for (uint64_t d = 0; d <= mask; d++) {
    const uint32_t count = at[d];
    at[d] = total;
    total += count;
  }
  for (int64_t i = 0; i < n; i++) to[at[SortedBy(from[i]) >> shift & mask]++] = from[i];
}

// SortBucket sorts n elements where they are, stably, by the bits of their keys above shift. spare
// has room for as many.
template <typename T>
void SortBucket(T* x, T* spare, int64_t n, int shift) {
  constexpr int64_t kFew = 16;
  if (n <= kFew) return InsertionSort(x, n, shift);
  const uint64_t differ = Differ(x, n, shift);
  if (differ == 0) return;
  T local[kLocal];
  T* const other = n <= kLocal ? local : spare;
  const int low = __builtin_ctzll(differ), bits = BitsOf(differ) - low;
  // One pass as long as its counters cost less than a second one.
  const int widest = n > kLocal ? kDigitBits : bits <= 9 ? 9 : 8;
  const int passes = (bits + widest - 1) / widest, width = (bits + passes - 1) / passes;
  T* from = x;
  T* to = other;
  for (int p = 0; p < passes; p++) {
    const int left = bits - p * width;
    SortByDigit(from, to, n, shift + low + p * width, left < width ? left : width);
    T* const sorted = to;
    to = from;
    from = sorted;
  }
  if (from != x) std::memcpy(static_cast<void*>(x), from, n * sizeof(T));
}

}  // namespace gradbus

#endif  // GRADBUS_CPU_BUCKETS_H_
