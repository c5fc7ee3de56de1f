// coalesce: the sparse gradient sum, rows of equal keys added up.
//
//   out_keys[s]    = the s-th of the distinct keys, ascending
//   out_rows[s, c] = (sum over i with keys[i] = out_keys[s], i ascending, of rows[i, c]) / weight
//
// n keys of 32 or 64 bits, rows of dim columns; a weight of 0 divides by nothing. The distinct keys
// are segments of segments.cuh: runs of places in the sorted order. Kernels, in the order of the
// queue:
//
//   kernel         in            a thread has        what it does
//   order_kernel   here          a key               values[i] = i; flags negative keys
//   SortPairs      sort.cu, CUB                      sorted[], order[]: stable, by key
//   heads_kernel   sort.cu       a place             heads[i] = 1 where a run begins
//   Scan           sort.cu, CUB                      rank[i]: how many begin before i
//   begins_kernel  sort.cu       a place             begin[s]; the number of runs
//   sum_kernel     segments.cuh  4 columns of a run  sums of short runs, and of blocks of long ones
//   total_kernel   segments.cuh  4 columns of a run  sums of long runs from these
//
// How many runs there are only the device knows: grids are sized for min(n, room), and kernels read
// the count. More runs than there is room for refuse the call, with nothing written.
//
// Threads of sum_kernel: blocks of 128. A group of g threads has a run, g = dim/4 rounded up to a
// power of two, 8 at least and 32 at most; thread t has columns 4t to 4t+3 of a tile. dim 64: 16
// threads a run, 8 runs a block. order[place] names the row; the group looks up one place a thread
// and has 8 rows on their way before it adds the first.
//
// Where the sum is: in registers of the thread that has the column, in canonical order. The sort is
// stable, so places of a run ascend by position: (key, position). Blocks of 64 places from the
// run's first, superblocks of 64 blocks, each level from +0. Runs of more than 512 places are cut
// at their blocks, whose sums lie in partials until total_kernel adds them by superblocks: a key
// with a million rows keeps the whole device busy and has the same bits. The quotient is taken
// once, at the store. Integers alone are added atomically (long runs are listed so).
//
// Bytes moved: dim*n read, dim*runs written; keys and positions twice for each pass of the sort.
#include "cuda/sort.cuh"
#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// order_kernel numbers the positions, which travel with their keys, and looks for negative keys.
__global__ void order_kernel(State* state, const void* keys, gb_dtype dtype, int64_t n,
                             uint32_t* values) {
  GB_EACH(i, n) {
    values[i] = static_cast<uint32_t>(i);
    if (dtype != GB_UINT64 && IntAt(keys, dtype, i) < 0) Raise(&state->flags, kBadId, 0, i);
  }
}

struct CoalesceOp {
  using Args = gb_coalesce_args;

  // Nothing is known of the keys but their type.
  static SortKeys KeysOf(const Args& a) {
    if (a.keys.dtype == GB_INT32) return {false, 31};
    return {true, a.keys.dtype == GB_INT64 ? 63 : 64};
  }

  struct Parts {
    State* state;
    uint32_t* values;
    SortParts sort;
    Parts(Arena& arena, const Context& context, const Args& a)
        : state(arena.Take<State>(1)),
          values(arena.Take<uint32_t>(a.keys.n)),
          sort(arena, context, a.keys.n, a.dim, KeysOf(a)) {}
  };

  static bool Nothing(const Args& a) { return a.keys.n == 0; }

  static void Stage(Travel& travel, Args& a) {
    travel.In(a.keys);
    travel.Near(a.rows);
    travel.Out(a.out_keys, 1);
    travel.Out(a.out_rows, a.dim);
  }

  static void Run(Queue& queue, const Parts& p, const Args& a, gb_report* report) {
    const int64_t n = a.keys.n;
    const SortKeys keys = KeysOf(a);
    queue.Zero(p.state, sizeof *p.state);
    Launch(queue, queue.Blocks(n, kThreads), kThreads, order_kernel, p.state, a.keys.data,
           a.keys.dtype, n, p.values);
    const RunsOf runs = {keys, false, 0, a.out_keys.n};
    const Segments s = SortRuns(queue, p.state, p.sort, runs, a.keys.data, p.values, n);
    Sources t = {};
    t.rows = a.rows.data;
    t.dtype = a.rows.dtype;
    t.index = p.sort.order;
    t.dim = a.dim;
    RowsOut out = RowsOutOf(a.out_rows, a.dim);
    out.keys = a.out_keys.data;
    out.keys_type = a.out_keys.dtype;
    out.sorted = {p.sort.sorted, keys.wide};
    if (a.weight != 0) out.divide = Divide::kWeight;
    out.weight = QuotientOf(a.weight);
    SumInto(queue, &p.state->flags, Term::kPlain, t, s, out);
    Verdict verdict;
    verdict.Ids(a.keys, INT64_MAX, kTextNegativeKey);
    verdict.Room(a.out_keys.n, kTextRoomKeys);
    Report(queue, &p.state->flags, verdict, report);
  }
};

}  // namespace

uint64_t NeedsOf(const Context& context, const gb_coalesce_args& a) {
  return Needs<CoalesceOp>(context, a);
}

gb_status Coalesce(gb_context* context, gb_stream* stream, const gb_coalesce_args* a,
                   gb_workspace w, gb_report* report) {
  return Call<CoalesceOp>(context, stream, a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
