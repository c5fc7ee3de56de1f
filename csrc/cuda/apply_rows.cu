// apply_rows: one optimizer step on the rows that an index names.
//
//   for i in 0 .. n-1:  r = index[i];  d = grad[i] / weight, clipped, + decay * table[r]
//                       (out[to], slots[to]) = step(table[r], slots[r], d)
//
// to is r in place, else i. step is that of the rule (rule.cuh). With momentum m = mu*m + keep*d,
// at a row's first step m = d, and p -= lr * (nesterov ? d + mu*m : m). Rows with a last step of
// their own make up for those that they have missed, where that is asked for. n rows of dim
// columns. Kernels, in the order of the queue:
//
//   kernel               in       a thread has           what it does
//   check_index_kernel   here     an entry of the index  flags ids out of range; in place, order
//   look_rows_kernel     rows.cu  4 columns of a row     flags values that are not finite  refusing
//   rows_kernel          rows.cu  4 columns of a row     the step; all rules but row-wise Adagrad
//   adagrad_rows_kernel  rows.cu  4 columns of a row     the step of that
//
// Threads: blocks of 256. A group of g threads has a row, g = dim/4 rounded up to a power of two,
// 32 at most, within one warp; thread t has vectors t, t+g, ... of four columns. dim 64: 16 threads
// a row, 16 rows a block. Groups take rows in turn, a grid apart, two at a time where registers
// allow (kFlight), so that the arrays of both are on their way before either is finished.
//
// Where the sum is: there is none over rows; each value is stepped by the thread that has its
// column, in registers, and stored once. Duplicates are coalesced before (in place the index must
// ascend, so no two groups write one row). A row's columns are summed in two places, the norm that
// clips a row and the squares of row-wise Adagrad. Both are ColumnSum's (adagrad.cuh): 16 partial
// sums over columns j, j+16, ..., spread over the group by shuffles, then added pairwise, so that
// the bits are those of the CPU at any g. Only counts of bad ids and bad values are atomic.
//
// Bytes moved: see rows.cu.
#include "cuda/rows.cuh"
#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// Bad ids refuse the call or are counted; those that write in place must ascend, where bad ones are
// looked past. Looking back over bad ids costs work in proportion to their number.
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

  // What goes with the table, row by row: the table itself, the last steps, the slots. A table much
  // larger than what the index names stays at home but for those rows, unless the device reaches
  // it.
  struct Rows {
    Travel& travel;
    bool keep;  // compact output keeps what was there for ids that are skipped
    bool picked;
    Chosen chosen;

    void Go(gb_in& before, gb_out& after, int64_t width) {
      const gb_in was = before;
      const bool over = after.data == was.data;
      if (picked) {
        travel.Picked(before, chosen, width);
      } else {
        travel.Near(before);
      }
      if (over && picked) {
        travel.PickedOver(after, before, chosen, width);
      } else if (!over && keep) {
        travel.Kept(after);
      } else {
        travel.Over(after, was, before);
      }
    }
  };

  // The rows that the index names, and in its place one that counts them.
  static Chosen Choose(Travel& travel, gb_in& index, int64_t rows) {
    int64_t* at = travel.Host<int64_t>(index.n);
    int64_t* place = travel.Host<int64_t>(index.n);
    if (!travel.counting()) {
      for (int64_t i = 0; i < index.n; i++) {
        const int64_t id = index.dtype == GB_INT32 ? static_cast<const int32_t*>(index.data)[i]
                                                   : static_cast<const int64_t*>(index.data)[i];
        at[i] = id >= 0 && id < rows ? id : -1;
        place[i] = at[i] < 0 ? -1 : i;
      }
      index.data = place;
    }
    index.dtype = GB_INT64;
    return {at, index.n};
  }

  static void Stage(Travel& travel, Args& a) {
    const int64_t table_rows = a.table.n / a.dim;
    const bool picked = table_rows > 2 * a.index.n && !travel.Reaches(a.table.data);
    Rows rows = {travel, a.policy == GB_SKIP, picked, {nullptr, 0}};
    if (rows.picked) rows.chosen = Choose(travel, a.index, table_rows);
    travel.In(a.index);
    travel.In(a.first);
    travel.Near(a.grad);
    rows.Go(a.table, a.out, a.dim);
    rows.Go(a.steps.last, a.steps.last_after, 1);
    gb_slot* slots = travel.Host<gb_slot>(a.optimizer.slots_n);
    for (int64_t i = 0; i < a.optimizer.slots_n; i++) {
      gb_slot s = a.optimizer.slots[i];
      rows.Go(s.before, s.after, table_rows == 0 ? 0 : s.before.n / table_rows);
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
