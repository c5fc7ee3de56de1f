// Sums of rows that an index chooses. Included by kernels_impl.h.
#ifndef GRADBUS_CPU_BAG_IMPL_H_
#define GRADBUS_CPU_BAG_IMPL_H_

#include "cpu/bag_kernels.h"
#include "cpu/load.h"

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

constexpr BagKernels kBagKernels = {SumRows, Divide};

}  // namespace GB_ISA
}  // namespace gradbus

#endif  // GRADBUS_CPU_BAG_IMPL_H_
