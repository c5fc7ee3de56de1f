// What the files of the CPU backend share.
#ifndef GRADBUS_CPU_CPU_H_
#define GRADBUS_CPU_CPU_H_

#include "core/core.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"

// An opened CPU backend.
struct gb_context {
  const gradbus::Kernels* kernels;
  gradbus::Pool pool;
};

namespace gradbus {

gb_status CpuAlloc(gb_context*, uint64_t bytes, void** memory, gb_report* report);
void CpuFree(gb_context*, void* memory, uint64_t bytes);

// Operations of the table, and the part of the workspace that each takes. A Needs function is run
// twice: on an empty arena to count, and on the caller's workspace to get the parts.
gb_status CpuBagForward(gb_context*, gb_stream*, const gb_bag_forward_args*, gb_workspace,
                        gb_report*);
gb_status CpuBagBackward(gb_context*, gb_stream*, const gb_bag_backward_args*, gb_workspace,
                         gb_report*);
gb_status CpuCoalesce(gb_context*, gb_stream*, const gb_coalesce_args*, gb_workspace, gb_report*);
gb_status CpuMerge(gb_context*, gb_stream*, const gb_merge_args*, gb_workspace, gb_report*);
gb_status CpuApplyRows(gb_context*, gb_stream*, const gb_apply_rows_args*, gb_workspace,
                       gb_report*);
gb_status CpuCoalesceApply(gb_context*, gb_stream*, const gb_coalesce_apply_args*, gb_workspace,
                           gb_report*);
gb_status CpuApplyDense(gb_context*, gb_stream*, const gb_apply_dense_args*, gb_workspace,
                        gb_report*);
gb_status CpuAverage(gb_context*, gb_stream*, const gb_average_args*, gb_workspace, gb_report*);
gb_status CpuAverageApply(gb_context*, gb_stream*, const gb_average_apply_args*, gb_workspace,
                          gb_report*);
gb_status CpuCopy(gb_context*, gb_stream*, const gb_copy_args*, gb_workspace, gb_report*);
gb_status CpuGather(gb_context*, gb_stream*, const gb_gather_args*, gb_workspace, gb_report*);
gb_status CpuMatMul(gb_context*, gb_stream*, const gb_matmul_args*, gb_workspace, gb_report*);
gb_status CpuSoftmax(gb_context*, gb_stream*, const gb_softmax_args*, gb_workspace, gb_report*);
gb_status CpuFirstNonFinite(gb_context*, gb_stream*, const gb_first_nonfinite_args*, gb_workspace,
                            gb_report*);

uint64_t NeedsOf(const gb_context& c, const gb_bag_forward_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_bag_backward_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_coalesce_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_merge_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_apply_rows_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_coalesce_apply_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_apply_dense_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_average_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_average_apply_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_copy_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_gather_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_matmul_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_softmax_args& a);
uint64_t NeedsOf(const gb_context& c, const gb_first_nonfinite_args& a);

// Begin refuses streams, which this backend does not have, before anything else is looked at.
inline gb_status Begin(gb_context* context, gb_stream* stream, gb_report* report) {
  if (context == nullptr) return Fail(report, GB_ARGUMENT, "no context");
  if (stream != nullptr) return Fail(report, GB_UNSUPPORTED, "the cpu backend has no streams");
  return GB_OK;
}

// Below so many bytes moved a job is not worth waking threads for.
constexpr int64_t kInlineBytes = 128 << 10;

// An output from here on is too much for the caches, and is written around them.
constexpr int64_t kAroundBytes = 4 << 20;

// RunFor runs the parts of a job that moves so many bytes.
template <typename F>
void RunFor(Pool& pool, int64_t bytes, int64_t parts, F&& f) {
  if (bytes < kInlineBytes) {
    for (int64_t part = 0; part < parts; part++) f(part, 0);
  } else {
    pool.Run(parts, f);
  }
}

inline gb_status TooSmall(const Arena& arena, gb_workspace w, gb_report* report) {
  return Fail(report, GB_WORKSPACE, "workspace is too small", -1,
              static_cast<int64_t>(arena.needed()), static_cast<int64_t>(w.bytes));
}

}  // namespace gradbus

#define GB_BEGIN(context, stream, args, report)                                    \
  if (const gb_status s_ = Begin(context, stream, report); s_ != GB_OK) return s_; \
  if (const gb_status s_ = Check(args, report); s_ != GB_OK) return s_

// GB_BEGIN_SHAPES leaves the arrays to the operation, which looks at them with all threads.
#define GB_BEGIN_SHAPES(context, stream, args, report)                             \
  if (const gb_status s_ = Begin(context, stream, report); s_ != GB_OK) return s_; \
  if (const gb_status s_ = CheckShapes(args, report); s_ != GB_OK) return s_

#endif  // GRADBUS_CPU_CPU_H_
