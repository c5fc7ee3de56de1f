// Sums over runs of equal keys, which bag_backward and coalesce share. The keys are sorted on the
// host, where they already are; on the device each thread makes one value of one distinct key.
#ifndef GRADBUS_CUDA_SEGMENTS_CUH_
#define GRADBUS_CUDA_SEGMENTS_CUH_

#include "cuda/order.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

// rows[index[at]] for at in [begin[s], begin[s+1]) are the terms of segment s, each divided by
// divisor[row] where that is given.
__global__ void sum_segments_kernel(const float* __restrict__ rows,
                                    const int64_t* __restrict__ index,
                                    const int64_t* __restrict__ begin,
                                    const float* __restrict__ divisor, int64_t dim, int64_t values,
                                    float* __restrict__ out);

// Segments is the host's side: the rows in the order of their keys, and where each key begins. It
// takes over the memory of the pair array that the sort did not end in.
struct Segments {
  int64_t *index, *begin;
  int64_t n, distinct;
  Segments(const Pair* sorted, int64_t n, int64_t distinct, void* memory);
};

// RunSegments sums on the device and brings the result to out.
gb_status RunSegments(gb_context* context, const Segments& s, const gb_in& rows, int64_t dim,
                      const float* divisor, int64_t divisors, float* out, gb_report* report);

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_SEGMENTS_CUH_
