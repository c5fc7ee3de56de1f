// The optimizer on rows, for apply_rows, and for dense tensors with a row-wise rule.
#ifndef GRADBUS_CUDA_ROWS_CUH_
#define GRADBUS_CUDA_ROWS_CUH_

#include "cuda/flags.cuh"
#include "cuda/rule.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

struct RowsCall {
  Target target;
  Rule rule;
  Quotient weight;
  Past past;
  const void* index;  // null: all rows, row i goes to i
  const void* grad;
  int64_t n;                        // rows of the gradient
  const unsigned long long* count;  // where the device alone knows how many there are; else null
  int64_t rows;                     // of the table
  gb_dtype index_dtype;
  gb_dtype grad_dtype;
  uint32_t in_place;  // row i goes to index[i]
  unsigned group;     // threads of a row; QueueRows sets it
  Flags* flags;       // may be null where nothing is counted and nothing refuses
  gb_nonfinite nonfinite;
};

// QueueRows queues the step, after a look at the whole gradient where that may refuse it.
void QueueRows(Queue& queue, RowsCall call);

// QueueLook raises kNonFinite where a value divided by weight is not finite, and counts those.
void QueueLook(Queue& queue, const void* values, gb_dtype dtype, const Quotient& weight, int64_t n,
               Flags* flags);

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_ROWS_CUH_
