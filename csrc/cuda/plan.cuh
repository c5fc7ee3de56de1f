// Sums along the lane tree on the device: each thread makes one value, by a plan that the host has
// worked out.
#ifndef GRADBUS_CUDA_PLAN_CUH_
#define GRADBUS_CUDA_PLAN_CUH_

#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

// steps[begin[i]] to steps[begin[i+1]) are the plan of run i of dim values: a step pushes
// values[step * dim ...], or is kAdd. The result is divided by by, and written to out, run after
// run.
__global__ void run_plan_kernel(const float* __restrict__ values, const int64_t* __restrict__ steps,
                                const int64_t* __restrict__ begin, int64_t dim, int64_t n, float by,
                                float* __restrict__ out);

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_PLAN_CUH_
