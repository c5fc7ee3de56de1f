// The canonical order on the device: one thread adds the terms of one value, one after the other.
#ifndef GRADBUS_CUDA_ORDER_CUH_
#define GRADBUS_CUDA_ORDER_CUH_

#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

// CanonicalSum adds terms in blocks of 64, superblocks of 64 blocks, and superblocks in sequence.
// None of its sums is ever -0, so adding an empty one changes nothing.
struct CanonicalSum {
  float block = 0, super = 0, total = 0;
  int64_t n = 0;

  __device__ void Add(float term) {
    block += term;
    n++;
    if (n % kBlock != 0) return;
    super += block;
    block = 0;
    if (n % kSuper != 0) return;
    total += super;
    super = 0;
  }
  __device__ float Total() const { return total + (super + block); }
};

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_ORDER_CUH_
