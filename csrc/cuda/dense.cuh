// The optimizer on a dense tensor, for apply_dense and for average_apply where it cannot be fused.
#ifndef GRADBUS_CUDA_DENSE_CUH_
#define GRADBUS_CUDA_DENSE_CUH_

#include "cuda/flags.cuh"
#include "cuda/rule.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

struct DenseCall {
  Target target;  // dim is that of a row, for row-wise rules
  Rule rule;
  Quotient weight;
  const void* grad;
  gb_dtype grad_dtype;
  uint32_t first;
  int64_t n;
  Flags* flags;  // may be null where nothing is counted and nothing refuses
  gb_nonfinite nonfinite;
};

// TargetOf a dense tensor: dim 0 is one row.
Target DenseTarget(const gb_in& param, const gb_out& out, const gb_optimizer& optimizer,
                   int64_t dim);
// QueueDense queues the step, after a look at the whole gradient where that may refuse it.
void QueueDense(Queue& queue, const DenseCall& call);

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_DENSE_CUH_
