// Softmax cross entropy. The exponentials run along the classes in vectors; the sums over classes
// are sequential by the canonical order, so those of several samples run side by side. Included by
// kernels_impl.h.

namespace gradbus {
namespace GB_ISA {

constexpr int kTogether = 8;  // samples whose sums run side by side

constexpr int64_t PaddedClasses(int64_t classes) {
  return (classes + kWidth - 1) / kWidth * kWidth;
}

int64_t SoftmaxFloats(int64_t classes) { return kTogether * PaddedClasses(classes); }

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

// SumClasses is the canonical sum of each of kSamples rows of n values, stride apart.
template <int kSamples>
inline void SumClasses(const float* e, int64_t stride, int64_t n, float* sums) {
  float total[kSamples] = {};
  for (int64_t lo = 0; lo < n; lo += kSuper) {
    const int64_t end = Least(lo + kSuper, n);
    float super[kSamples] = {};
    for (int64_t at = lo; at < end; at += kBlock) {
      const int64_t stop = Least(at + kBlock, end);
      float block[kSamples] = {};
      for (int64_t c = at; c < stop; c++) {
        for (int s = 0; s < kSamples; s++) block[s] += e[s * stride + c];
      }
      for (int s = 0; s < kSamples; s++) super[s] += block[s];
    }
    for (int s = 0; s < kSamples; s++) total[s] += super[s];
  }
  for (int s = 0; s < kSamples; s++) sums[s] = total[s];
}

template <int kSamples>
inline void SoftmaxGroup(const SoftmaxRun& r, int64_t sample) {
  const int64_t stride = PaddedClasses(r.classes);
  float top[kSamples], total[kSamples];
  for (int s = 0; s < kSamples; s++) {
    const float* x = r.logits + (sample + s) * r.classes;
    top[s] = Largest(x, r.classes);
    Exponentials(x, top[s], r.classes, r.scratch + s * stride);
  }
  SumClasses<kSamples>(r.scratch, stride, r.classes, total);
  for (int s = 0; s < kSamples; s++) {
    const int64_t at = (sample + s) * r.classes;
    const float* e = r.scratch + s * stride;
    if (r.loss != nullptr) {
      r.loss[sample + s] = Log(total[s]) - (r.logits[at + r.targets[sample + s]] - top[s]);
    }
    const float by = total[s];
    if (r.probabilities != nullptr) ScaleAs(e, by, r.classes, r.probabilities + at);
    if (r.grad != nullptr) {
      ScaleAs(e, by, r.classes, r.grad + at);
      r.grad[at + r.targets[sample + s]] -= 1;
    }
  }
}

void Softmax(const SoftmaxRun& r) {
  int64_t sample = 0;
  for (; r.samples - sample >= kTogether; sample += kTogether) SoftmaxGroup<kTogether>(r, sample);
  for (; sample < r.samples; sample++) SoftmaxGroup<1>(r, sample);
}

}  // namespace GB_ISA
}  // namespace gradbus
