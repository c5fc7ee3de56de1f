// apply_rows: see rows.cuh for the step. The index is checked first, in one pass.
#include "cuda/rows.cuh"
#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// Bad ids refuse the call or are counted; those that write in place must ascend, where bad ones are
// looked past. Looking back over bad ids is work in proportion to them, whoever does it.
__global__ void check_index_kernel(const void* index, gb_dtype dtype, int64_t n, int64_t rows,
                                   gb_id_policy policy, uint32_t in_place, Flags* flags) {
  const uint64_t limit = static_cast<uint64_t>(rows);
  const int64_t turn = static_cast<int64_t>(gridDim.x) * blockDim.x;
  unsigned skipped = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += turn) {
    const int64_t id = IntAt(index, dtype, i);
    if (static_cast<uint64_t>(id) >= limit) {
      skipped++;
      if (policy == GB_REFUSE) Raise(flags, kBadId, 0, i);
      continue;
    }
    if (in_place == 0) continue;
    int64_t before = i - 1;
    while (before >= 0 && static_cast<uint64_t>(IntAt(index, dtype, before)) >= limit) before--;
    if (before >= 0 && IntAt(index, dtype, before) >= id) Raise(flags, kBadOrder, 0, i);
  }
  AddCount(&flags->skipped, skipped);
}

struct Op {
  using Args = gb_apply_rows_args;

  struct Parts {
    Flags* flags;
    Parts(Arena& arena, const Context&, const Args&) : flags(arena.Take<Flags>(1)) {}
  };

  static bool Nothing(const Args& a) { return a.index.n == 0; }

  // Compact output of a call that skips bad ids keeps what was there for them.
  static void StageOut(Travel& travel, const Args& a, gb_out& out, const gb_in& was,
                       const gb_in& now) {
    if (a.policy == GB_SKIP && out.data != was.data) return travel.Kept(out);
    travel.Over(out, was, now);
  }

  static void Stage(Travel& travel, Args& a) {
    const Args was = a;
    travel.In(a.table);
    travel.In(a.index);
    travel.In(a.first);
    travel.In(a.grad);
    travel.In(a.steps.last);
    StageOut(travel, a, a.out, was.table, a.table);
    StageOut(travel, a, a.steps.last_after, was.steps.last, a.steps.last);
    gb_slot* slots = travel.Host<gb_slot>(a.optimizer.slots_n);
    for (int64_t i = 0; i < a.optimizer.slots_n; i++) {
      gb_slot s = a.optimizer.slots[i];
      const gb_in before = s.before;
      travel.In(s.before);
      StageOut(travel, a, s.after, before, s.before);
      if (!travel.counting()) slots[i] = s;
    }
    if (!travel.counting()) a.optimizer.slots = slots;
  }

  static void Run(Queue& queue, const Parts& parts, const Args& a, gb_report* report) {
    const int64_t rows = a.table.n / a.dim;
    RowsCall call = {};
    call.target = TargetOf(a.table, a.out, a.optimizer, a.dim);
    call.rule = RuleOf(a.optimizer);
    call.weight = QuotientOf(a.weight);
    call.past = PastOf(a.steps, &a.first);
    call.index = a.index.data;
    call.index_dtype = a.index.dtype;
    call.grad = a.grad.data;
    call.grad_dtype = a.grad.dtype;
    call.n = a.index.n;
    call.rows = rows;
    call.in_place = a.out.data == a.table.data;
    call.flags = parts.flags;
    call.nonfinite = a.nonfinite;
    ZeroFlags(queue, parts.flags);
    Launch(queue, queue.Blocks(call.n, kThreads), kThreads, check_index_kernel, call.index,
           call.index_dtype, call.n, rows, a.policy, call.in_place, parts.flags);
    QueueRows(queue, call);
    Verdict verdict;
    verdict.Ids(a.index, rows);
    verdict.Order(kTextIndexOrder);
    verdict.NonFinite();
    Report(queue, parts.flags, verdict, report);
  }
};

}  // namespace

uint64_t NeedsOf(const Context& context, const gb_apply_rows_args& a) {
  return Needs<Op>(context, a);
}

gb_status ApplyRows(gb_context* context, gb_stream* stream, const gb_apply_rows_args* a,
                    gb_workspace w, gb_report* report) {
  return Call<Op>(context, stream, a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
