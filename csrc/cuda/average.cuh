// What average and average_apply share.
#ifndef GRADBUS_CUDA_AVERAGE_CUH_
#define GRADBUS_CUDA_AVERAGE_CUH_

#include "cuda/flags.cuh"
#include "cuda/rule.cuh"
#include "cuda/stage.h"
#include "cuda/tree.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

// StageTerms lets the terms' values travel and replaces terms by a copy.
void StageTerms(Travel& travel, const gb_term*& terms, int64_t n);

AccessOf AccessOfTerms(const gb_term* terms, int64_t n);

// QueueAverage queues out = (sum of terms) / weight; access is what the terms allow.
void QueueAverage(Queue& queue, const Terms& terms, int depth, AccessOf access,
                  const Quotient& weight, const gb_out& out);

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_AVERAGE_CUH_
