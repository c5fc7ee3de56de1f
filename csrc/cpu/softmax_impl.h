// Softmax cross entropy. The exponentials run along the classes in vectors; the sums over classes
// are sequential by the canonical order, so those of several samples run side by side. Included by
// kernels_impl.h, after softmax.h.

namespace gradbus {
namespace GB_ISA {

constexpr int kTogether = 8;  // samples whose sums run side by side

constexpr int64_t PaddedClasses(int64_t classes) {
  return (classes + kWidth - 1) / kWidth * kWidth;
}

int64_t SoftmaxFloats(int64_t classes) { return kTogether * PaddedClasses(classes); }

template <int kSamples>
inline void SoftmaxGroup(const SoftmaxRun& r, int64_t sample) {
  const int64_t stride = PaddedClasses(r.classes);
  float top[kSamples], total[kSamples];
  for (int s = 0; s < kSamples; s++) {
    const float* x = r.logits + (sample + s) * r.classes;
    top[s] = Largest(x, r.classes);
    Exponentials(x, top[s], r.classes, r.scratch + s * stride);
  }
  Sums<kSamples>(r.scratch, stride, 1, r.classes, total);
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
