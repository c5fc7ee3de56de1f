// Sums along the lane tree, by plans. Included by kernels_impl.h.
#ifndef GRADBUS_CPU_PLAN_IMPL_H_
#define GRADBUS_CPU_PLAN_IMPL_H_

#include "cpu/load.h"
#include "cpu/step_kernels.h"

namespace gradbus {
namespace GB_ISA {

template <typename V, int kCount>
inline void PlanTile(const float* const* terms, const int32_t* steps, int64_t steps_n, float by,
                     bool multiply, int64_t column, float* out) {
  using T = typename V::Type;
  T stack[kStackMax][kCount];
  int top = 0;
  for (int64_t s = 0; s < steps_n; s++) {
    if (steps[s] != kAdd) {
      const float* term = terms[steps[s]] + column;
      for (int t = 0; t < kCount; t++) stack[top][t] = V::Load(term + t * V::kWidth);
      top++;
    } else {
      top--;
      for (int t = 0; t < kCount; t++) stack[top - 1][t] += stack[top][t];
    }
  }
  for (int t = 0; t < kCount; t++) {
    V::Store(out + column + t * V::kWidth, multiply ? stack[0][t] * by : stack[0][t] / by);
  }
}

void RunPlan(const float* const* terms, const int32_t* steps, int64_t steps_n, float by, int64_t n,
             float* out) {
  const bool multiply = PowerOfTwo(by);
  if (multiply) by = 1.0f / by;
  ForTiles<8>(n, 0, [=](auto vec, auto count, int64_t column) {
    PlanTile<decltype(vec), decltype(count)::kValue>(terms, steps, steps_n, by, multiply, column,
                                                     out);
  });
}

}  // namespace GB_ISA
}  // namespace gradbus

#endif  // GRADBUS_CPU_PLAN_IMPL_H_
