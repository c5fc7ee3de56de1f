// bag_backward: positions are sorted by their ids, and the runs of equal ids are the segments of
// segments.cuh; their rows are those of grad_out.
//
// What is sorted beside an id is the bag where that is all a term needs to know, else the position.
// Positions that do not count get the key behind all ids, and so end up behind all segments.
#include "cuda/sort.cuh"
#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// Expanded is what is made of every position.
struct Expanded {
  void* keys;        // its id, or the limit where it does not count; 32 or 64 bits
  uint32_t* values;  // what travels with it: its bag or itself
  uint32_t* bag;     // of each position; nullptr where values has it
};

__global__ void expand_kernel(Bags b, bool wide, Expanded to) {
  GB_EACH(i, b.ids.n) {
    const int64_t id = IntAt(b.ids.data, b.ids.dtype, i);
    const bool counts = KindOfId(b.ids, id) == IdKind::kCounts;
    const uint64_t key = static_cast<uint64_t>(counts ? id : b.ids.limit);
    if (wide) {
      static_cast<uint64_t*>(to.keys)[i] = key;
    } else {
      static_cast<uint32_t*>(to.keys)[i] = static_cast<uint32_t>(key);
    }
    const uint32_t bag = static_cast<uint32_t>(BagAt(b, i));
    to.values[i] = to.bag == nullptr ? bag : static_cast<uint32_t>(i);
    if (to.bag != nullptr) to.bag[i] = bag;
  }
}

__global__ void lengths_kernel(const State* state, Bags b, Ranks ranks, float* lengths) {
  if (Refused(&state->flags)) return;
  GB_EACH(i, b.bags) {
    const int64_t begin = OffsetAt(b, i), end = OffsetAt(b, i + 1);
    const int64_t n = ranks.rank == nullptr ? end - begin
                                            : static_cast<int64_t>(RankAt(ranks, end)) -
                                                  static_cast<int64_t>(RankAt(ranks, begin));
    lengths[i] = static_cast<float>(n);
  }
}

struct BagBackwardOp {
  using Args = gb_bag_backward_args;

  static Term TermOf(const Args& a) {
    if (a.mode == GB_MAX) return Term::kWinner;
    if (a.mode == GB_MEAN) return Term::kDivided;
    return a.weights.n > 0 ? Term::kWeighted : Term::kPlain;
  }
  static bool ByPosition(const Args& a) {
    return TermOf(a) == Term::kWinner || TermOf(a) == Term::kWeighted;
  }
  static SortKeys KeysOf(const Args& a) { return KeysBelow(a.rows, Drops(a)); }

  struct Parts {
    State* state;
    RankParts ranks;  // where bag lengths need them
    float* lengths;
    Expanded expanded;
    SortParts sort;
    Parts(Arena& arena, const Context& context, const Args& a)
        : state(arena.Take<State>(1)),
          ranks(arena, context, a.ids.n, a.mode == GB_MEAN && Drops(a)),
          lengths(a.mode == GB_MEAN ? arena.Take<float>(BagsOf(a, 0).bags) : nullptr),
          expanded({KeysOf(a).wide ? static_cast<void*>(arena.Take<uint64_t>(a.ids.n))
                                   : arena.Take<uint32_t>(a.ids.n),
                    arena.Take<uint32_t>(a.ids.n),
                    ByPosition(a) ? arena.Take<uint32_t>(a.ids.n) : nullptr}),
          sort(arena, context, a.ids.n, a.dim, KeysOf(a)) {}
  };

  // Offsets without ids may still be wrong.
  static bool Nothing(const Args& a) { return a.offsets.n == 0; }

  static void Stage(Travel& travel, Args& a) {
    travel.In(a.ids);
    travel.In(a.offsets);
    travel.In(a.weights);
    travel.In(a.argmax);
    travel.In(a.grad_out);
    travel.Out(a.keys, 1);
    travel.Out(a.out, a.dim);
  }

  static Sources TermsOf(const Parts& p, const Args& a) {
    Sources t = {};
    t.rows = a.grad_out.data;
    t.dtype = a.grad_out.dtype;
    t.index = p.sort.order;
    t.map = p.expanded.bag;
    t.factor = a.mode == GB_MEAN ? p.lengths : static_cast<const float*>(a.weights.data);
    t.winner = static_cast<const int32_t*>(a.argmax.data);
    t.dim = a.dim;
    return t;
  }

  static void Sum(Queue& queue, const Parts& p, const Bags& bags, const Args& a) {
    const int64_t n = a.ids.n;
    const SortKeys keys = KeysOf(a);
    Launch(queue, queue.Blocks(n, kThreads), kThreads, expand_kernel, bags, keys.wide, p.expanded);
    if (a.mode == GB_MEAN) {
      Launch(queue, queue.Blocks(bags.bags, kThreads), kThreads, lengths_kernel, p.state, bags,
             p.ranks.ranks, p.lengths);
    }
    const RunsOf runs = {keys, true, static_cast<uint64_t>(a.rows), a.keys.n};
    const Segments s =
        SortRuns(queue, p.state, p.sort, runs, p.expanded.keys, p.expanded.values, n);
    RowsOut out = RowsOutOf(a.out, a.dim);
    out.keys = a.keys.data;
    out.keys_type = GB_INT64;
    out.sorted = {p.sort.sorted, keys.wide};
    SumInto(queue, &p.state->flags, TermOf(a), TermsOf(p, a), s, out);
  }

  static void Run(Queue& queue, const Parts& p, const Args& a, gb_report* report) {
    const Bags bags = BagsOf(a, a.rows);
    queue.Zero(p.state, sizeof *p.state);
    CheckBags(queue, p.state, bags, p.ranks, nullptr);
    if (a.ids.n > 0) Sum(queue, p, bags, a);
    Verdict verdict;
    verdict.Offsets(a.offsets, a.open_offsets != 0, a.ids.n);
    verdict.Ids(a.ids, a.rows);
    verdict.Room(a.keys.n, kTextRoomIds);
    Report(queue, &p.state->flags, verdict, report);
  }
};

}  // namespace

uint64_t NeedsOf(const Context& context, const gb_bag_backward_args& a) {
  return Needs<BagBackwardOp>(context, a);
}

gb_status BagBackward(gb_context* context, gb_stream* stream, const gb_bag_backward_args* a,
                      gb_workspace w, gb_report* report) {
  return Call<BagBackwardOp>(context, stream, a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
