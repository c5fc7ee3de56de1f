// The kernels of the optimizers and of sums along the lane tree, one table per instruction set.
#ifndef GRADBUS_CPU_STEP_KERNELS_H_
#define GRADBUS_CPU_STEP_KERNELS_H_

#include <cstdint>

namespace gradbus {

struct SgdRun {
  float lr, momentum, keep, weight_decay;
  float weight;
  bool has_momentum, nesterov, first;
  const float *p, *g, *m;
  float *out, *out_m;
  int64_t n;
};

struct StepKernels {
  // out = (the plan over terms) / by, elementwise over n; out may be one of the terms.
  void (*run_plan)(const float* const* terms, const int32_t* steps, int64_t steps_n, float by,
                   int64_t n, float* out);
  void (*sgd)(const SgdRun& run);  // out may be p, out_m may be m
};

}  // namespace gradbus

#endif  // GRADBUS_CPU_STEP_KERNELS_H_
