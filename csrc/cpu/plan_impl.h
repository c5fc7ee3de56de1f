// Sums along the lane tree, by plans. Included by kernels_impl.h.
#ifndef GRADBUS_CPU_PLAN_IMPL_H_
#define GRADBUS_CPU_PLAN_IMPL_H_

#include "core/order.h"
#include "cpu/load.h"
#include "cpu/step_kernels.h"
#include "cpu/stream.h"

namespace gradbus {
namespace GB_ISA {

// PlanTile adds up one tile of columns, the waiting sums lying in L1. A term that is added as soon
// as it comes never lies there.
template <typename V, int kCount, typename In, bool kStream, typename Out>
inline void PlanTile(const PlanRun& r, float by, bool multiply, int64_t column, Out* out) {
  using T = typename V::Type;
  T stack[kStackMax][kCount];
  for (int t = 0; t < kCount; t++) stack[0][t] = T();  // GCC 14 does not see that a plan has steps
  int top = 0;
  for (int64_t s = 0; s < r.steps_n; s++) {
    if (r.steps[s] == kAdd) {
      top--;
      for (int t = 0; t < kCount; t++) stack[top - 1][t] += stack[top][t];
      continue;
    }
    const In* term = static_cast<const In*>(r.terms[r.steps[s]]) + r.at + column;
    if (s + 1 < r.steps_n && r.steps[s + 1] == kAdd) {
      for (int t = 0; t < kCount; t++) stack[top - 1][t] += Load<V>(term + t * V::kWidth);
      s++;
    } else {
      for (int t = 0; t < kCount; t++) stack[top][t] = Load<V>(term + t * V::kWidth);
      top++;
    }
  }
  for (int t = 0; t < kCount; t++) {
    const T x = multiply ? stack[0][t] * by : stack[0][t] / by;
    if constexpr (kStream) {
      Emit<V, true>(out + column + t * V::kWidth, x);
    } else {
      Store<V>(out + column + t * V::kWidth, x);
    }
  }
}

template <typename In, bool kStream, typename Out>
inline void PlanTiles(const PlanRun& r, int64_t from, int64_t to, Out* out) {
  const bool multiply = PowerOfTwo(r.by);
  const float by = multiply ? 1.0f / r.by : r.by;
  ForTiles<8>(to, from, [&](auto vec, auto count, int64_t column) {
    PlanTile<decltype(vec), decltype(count)::kValue, In, kStream>(r, by, multiply, column, out);
  });
}

template <typename In>
inline void PlanFrom(const PlanRun& r) {
  if constexpr (sizeof(In) == sizeof(float)) {  // float32 may be rounded to either 16-bit type
    if (r.out_type == GB_FLOAT16) {
      return PlanTiles<In, false>(r, 0, r.n, static_cast<Float16*>(r.out));
    }
    if (r.out_type == GB_BFLOAT16) {
      return PlanTiles<In, false>(r, 0, r.n, static_cast<BFloat16*>(r.out));
    }
  } else if (r.out_type != GB_FLOAT32) {
    return PlanTiles<In, false>(r, 0, r.n, static_cast<In*>(r.out));
  }
  float* out = static_cast<float*>(r.out);
  int64_t done = 0;
  if (r.stream) {
    done = Least(ToRegister(out), r.n);
    PlanTiles<In, false>(r, 0, done, out);
    const int64_t whole = (r.n - done) / kWidth * kWidth;
    PlanTiles<In, true>(r, done, done + whole, out);
    EmitEnd();
    done += whole;
  }
  PlanTiles<In, false>(r, done, r.n, out);
}

void RunPlan(const PlanRun& r) {
  switch (r.type) {
    case GB_FLOAT16:
      return PlanFrom<Float16>(r);
    case GB_BFLOAT16:
      return PlanFrom<BFloat16>(r);
    default:
      return PlanFrom<float>(r);
  }
}

}  // namespace GB_ISA
}  // namespace gradbus

#endif  // GRADBUS_CPU_PLAN_IMPL_H_
