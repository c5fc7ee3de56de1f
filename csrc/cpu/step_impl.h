// The steps of the optimizers. Included by kernels_impl.h.
#ifndef GRADBUS_CPU_STEP_IMPL_H_
#define GRADBUS_CPU_STEP_IMPL_H_

#include "cpu/load.h"
#include "cpu/plan_impl.h"
#include "cpu/step_kernels.h"

namespace gradbus {
namespace GB_ISA {

template <bool kMomentum, bool kMultiply>
inline void SgdLoop(const SgdRun& r, float by) {
  const float lr = r.lr, mu = r.momentum, keep = r.keep, decay = r.weight_decay;
  const bool first = r.first, nesterov = r.nesterov;
  const float *p = r.p, *g = r.g, *m = r.m;
  float *out = r.out, *out_m = r.out_m;
  ForWidths<kWidth>(r.n, 0, [=](auto vec, int64_t i) {
    using V = decltype(vec);
    const auto pv = V::Load(p + i);
    auto d = kMultiply ? V::Load(g + i) * by : V::Load(g + i) / by;
    if (decay != 0) d = d + pv * decay;
    auto u = d;
    if constexpr (kMomentum) {
      auto mv = d;
      if (!first) mv = V::Load(m + i) * mu + d * keep;
      u = nesterov ? d + mv * mu : mv;
      V::Store(out_m + i, mv);
    }
    V::Store(out + i, pv - u * lr);
  });
}

void RunSgd(const SgdRun& r) {
  const bool multiply = PowerOfTwo(r.weight);
  const float by = multiply ? 1.0f / r.weight : r.weight;
  if (r.has_momentum) {
    multiply ? SgdLoop<true, true>(r, by) : SgdLoop<true, false>(r, by);
  } else {
    multiply ? SgdLoop<false, true>(r, by) : SgdLoop<false, false>(r, by);
  }
}

constexpr StepKernels kStepKernels = {RunPlan, RunSgd};

}  // namespace GB_ISA
}  // namespace gradbus

#endif  // GRADBUS_CPU_STEP_IMPL_H_
