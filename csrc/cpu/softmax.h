// What softmax is made of, with and without a loss behind it. Included once per instruction set,
// after order.h and math.h.

namespace gradbus {
namespace GB_ISA {

// Largest may miss a NaN, which then spoils the sum all the same. Of zeros of both signs either may
// come out, which no result shows, so the order of comparisons is free.
inline float Largest(const float* x, int64_t n) {
  using V = Vec<kWidth>;
  float top = x[0];
  int64_t i = 0;
  if (n >= kWidth) {
    V::Type tops = V::Load(x);
    for (i = kWidth; n - i >= kWidth; i += kWidth) {
      const V::Type v = V::Load(x + i);
      tops = v > tops ? v : tops;
    }
    const V::Type last = V::Load(x + n - kWidth);  // overlaps what was seen
    tops = last > tops ? last : tops;
    float lanes[kWidth];
    V::Store(lanes, tops);
    for (const float v : lanes) top = v > top ? v : top;
    return top;
  }
  for (; i < n; i++) top = x[i] > top ? x[i] : top;
  return top;
}

// Exponentials writes exp(x - top) for n classes, and anything up to the next multiple of the
// width.
inline void Exponentials(const float* x, float top, int64_t n, float* out) {
  using V = Vec<kWidth>;
  int64_t i = 0;
  for (; n - i >= kWidth; i += kWidth) V::Store(out + i, Exp<kWidth>(V::Load(x + i) - top));
  if (i < n) {
    float last[kWidth] = {};
    for (int64_t j = i; j < n; j++) last[j - i] = x[j] - top;
    V::Store(out + i, Exp<kWidth>(V::Load(last)));
  }
}

// Sums is the canonical sum of each of kSums sequences of n values: value i of sequence j is
// x[j * across + i * along].
template <int kSums>
inline void Sums(const float* x, int64_t across, int64_t along, int64_t n, float* sums) {
  float total[kSums] = {};
  for (int64_t lo = 0; lo < n; lo += kSuper) {
    const int64_t end = Least(lo + kSuper, n);
    float super[kSums] = {};
    for (int64_t at = lo; at < end; at += kBlock) {
      const int64_t stop = Least(at + kBlock, end);
      float block[kSums] = {};
      for (int64_t i = at; i < stop; i++) {
        for (int j = 0; j < kSums; j++) block[j] += x[j * across + i * along];
      }
      for (int j = 0; j < kSums; j++) super[j] += block[j];
    }
    for (int j = 0; j < kSums; j++) total[j] += super[j];
  }
  for (int j = 0; j < kSums; j++) sums[j] = total[j];
}

}  // namespace GB_ISA
}  // namespace gradbus
