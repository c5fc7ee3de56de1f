// The kernels of one instruction set: sums of rows, plans, the optimizer. Matrices are in
// matmul_impl.h, the softmax in softmax_impl.h. Included by kernels_<isa>.cc alone, after GB_ISA
// and GB_WIDTH.
//
// Vectors run along the columns only, so the order of additions of an element does not depend on
// their width. The compiler may not contract products into sums (-ffp-contract=off).
#include "core/order.h"
#include "cpu/kernels.h"
#include "cpu/vector.h"

namespace gradbus {
namespace GB_ISA {

// AddRows adds n chosen rows to the running sums, which stay in registers.
template <typename V, int kCount>
inline void AddRows(const float* rows, int64_t dim, const int64_t* index, int64_t stride, int64_t n,
                    typename V::Type (&acc)[kCount]) {
  for (int64_t i = 0; i < n; i++) {
    const float* row = rows + index[i * stride] * dim;
    for (int t = 0; t < kCount; t++) acc[t] += V::Load(row + t * V::kWidth);
  }
}

// SumTile is the canonical sum over one tile of columns.
template <typename V, int kCount>
inline void SumTile(const float* rows, int64_t dim, const int64_t* index, int64_t stride, int64_t n,
                    float* out) {
  using T = typename V::Type;
  T total[kCount] = {};
  if (n <= kBlock) {  // a sum is never -0, so adding it to +0 at the two upper levels would change
                      // nothing
    AddRows<V, kCount>(rows, dim, index, stride, n, total);
  } else {
    for (int64_t lo = 0; lo < n; lo += kSuper) {
      const int64_t end = Least(lo + kSuper, n);
      T super[kCount] = {};
      for (int64_t at = lo; at < end; at += kBlock) {
        T block[kCount] = {};
        AddRows<V, kCount>(rows, dim, index + at * stride, stride, Least(kBlock, end - at), block);
        for (int t = 0; t < kCount; t++) super[t] += block[t];
      }
      for (int t = 0; t < kCount; t++) total[t] += super[t];
    }
  }
  for (int t = 0; t < kCount; t++) V::Store(out + t * V::kWidth, total[t]);
}

void SumRows(const float* rows, int64_t dim, const int64_t* index, int64_t stride, int64_t n,
             float* out) {
  ForTiles<8>(dim, 0, [=](auto vec, auto count, int64_t column) {
    SumTile<decltype(vec), decltype(count)::kValue>(rows + column, dim, index, stride, n,
                                                    out + column);
  });
}

// Divide multiplies by the reciprocal where that is exact: true division costs several times as
// much.
void Divide(const float* x, float by, int64_t n, float* out) {
  if (PowerOfTwo(by)) {
    const float factor = 1.0f / by;
    ForWidths<kWidth>(n, 0, [=](auto vec, int64_t i) {
      using V = decltype(vec);
      V::Store(out + i, V::Load(x + i) * factor);
    });
    return;
  }
  ForWidths<kWidth>(n, 0, [=](auto vec, int64_t i) {
    using V = decltype(vec);
    V::Store(out + i, V::Load(x + i) / by);
  });
}

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

int64_t FirstNonFinite(const float* values, int64_t n) {
  using V = Vec<kWidth>;
  constexpr int kStep = 4 * kWidth;
  int64_t at = 0;
  for (; n - at >= kStep; at += kStep) {
    // x - x is 0 for a finite number and NaN for the others, and a NaN stays in the sum.
    V::Type sum = {};
    for (int t = 0; t < 4; t++) {
      const V::Type x = V::Load(values + at + t * kWidth);
      sum += x - x;
    }
    float lanes[kWidth];
    V::Store(lanes, sum);
    float all = 0;
    for (const float s : lanes) all += s;
    if (all != 0) break;
  }
  for (; at < n; at++) {
    if (!(values[at] - values[at] == 0)) return at;
  }
  return -1;
}

}  // namespace GB_ISA
}  // namespace gradbus

#include "cpu/math.h"
#include "cpu/matmul_impl.h"
#include "cpu/softmax_impl.h"

namespace gradbus {

#define GB_JOIN2(a, b) a##b
#define GB_JOIN(a, b) GB_JOIN2(a, b)

extern const Kernels GB_JOIN(kKernels, GB_SUFFIX);
const Kernels GB_JOIN(kKernels, GB_SUFFIX) = {
    GB_NAME,         GB_ISA::SumRows,        GB_ISA::Divide, GB_ISA::RunPlan,
    GB_ISA::RunSgd,  GB_ISA::PackedFloats,   GB_ISA::MatMul, GB_ISA::SoftmaxFloats,
    GB_ISA::Softmax, GB_ISA::FirstNonFinite,
};

}  // namespace gradbus
