// The kernels that sum chosen rows, one table per instruction set.
#ifndef GRADBUS_CPU_BAG_KERNELS_H_
#define GRADBUS_CPU_BAG_KERNELS_H_

#include <cstdint>

namespace gradbus {

struct BagKernels {
  // out[0, dim) = canonical sum of rows[index[i * stride]] for i in [0, n).
  void (*sum_rows)(const float* rows, int64_t dim, const int64_t* index, int64_t stride, int64_t n,
                   float* out);
  // out = x / by; out may be x.
  void (*divide)(const float* x, float by, int64_t n, float* out);
};

}  // namespace gradbus

#endif  // GRADBUS_CPU_BAG_KERNELS_H_
