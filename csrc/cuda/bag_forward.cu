// bag_forward: rows of a table, pooled by bags.
//
//   out[b, c] = sum over i in offsets[b] .. offsets[b+1]-1 of weights[i] * rows[ids[i], c]   sum
//             = that / how many ids of the bag count                                        mean
//             = the largest, NaN above all, the first of equals; argmax[b, c] = its i        max
//
// B bags of N ids in all, rows of dim columns. A bag is a segment of segments.cuh, its places are
// the positions of its ids; where ids may drop out (padding, policy skip) the positions that count,
// packed first. Kernels, in the order of the queue; drops marks those for ids that may drop out:
//
//   kernel             in       a thread has          what it does
//   check_bags_kernel  check_d* an id and an offset   flags what is wrong; begin[], or counted[]
//   Scan (CUB)         sort.cu                        rank[i]: how many count before i      drops
//   rank_bags_kernel   check_d* a bag                 begin[] among those that count        drops
//   pack_kernel        here     a position            its id and weight to rank[i]          drops
//   sum_kernel         segments 4 columns of a bag    the sums of short bags; of long bags, blocks
//   total_kernel       segments 4 columns of a bag    the sums of long bags from those of blocks
//   (max_* in bag_max.cu in place of the last two, with a comparison for the addition)
//
// Threads of sum_kernel: blocks of 128. A group of g threads has a bag, g = dim/4 rounded up to a
// power of two, 8 at least and 32 at most; thread t has columns 4t to 4t+3, of rows above 128
// columns those of one tile. dim 64: 16 threads a bag, 8 bags a block. Groups take bags in turn, a
// grid apart. The group's threads look up one place each, hand it round by shuffles, and have 8
// rows on their way before they add the first.
//
// Where the sum is: in registers of the thread that has the column (SumPlaces), in canonical order:
// blocks of 64 places from the bag's first, superblocks of 64 blocks, each level from +0. A bag of
// at most 512 places is one thread's from begin to end. A longer one is cut at its blocks: each
// block's sum goes to a slot of partials, and a thread block of 512 adds the slots, its groups a
// superblock each, then one group the superblocks (total_kernel). Same additions, same bits. The
// division of a mean is at the store (RowsOut::End); no atomic touches a float.
//
// Bytes moved: the rows that ids name, once each where the cache holds them; N ids twice; B*dim
// written.
#include "cuda/bag_max.cuh"
#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// Packed is what is left of the positions that count.
struct Packed {
  int64_t* ids;
  float* weights;
  uint32_t* positions;
};

__global__ void pack_kernel(const State* state, Ids ids, const float* weights, Ranks ranks,
                            Packed to) {
  if (Refused(&state->flags)) return;
  GB_EACH(i, ids.n) {
    if (ranks.counted[i] == 0) continue;
    const uint32_t rank = ranks.rank[i];
    to.ids[rank] = IntAt(ids.data, ids.dtype, i);
    if (to.weights != nullptr) to.weights[rank] = weights[i];
    if (to.positions != nullptr) to.positions[rank] = static_cast<uint32_t>(i);
  }
}

struct BagForwardOp {
  using Args = gb_bag_forward_args;

  struct Parts {
    State* state;
    uint32_t* begin;
    RankParts ranks;
    Packed packed;
    SegmentParts segments;
    int32_t* winners;  // of blocks, with max
    Parts(Arena& arena, const Context& context, const Args& a)
        : state(arena.Take<State>(1)),
          begin(arena.Take<uint32_t>(BagsOf(a, 0).bags + 1)),
          ranks(arena, context, a.ids.n, Drops(a)),
          packed(PackedOf(arena, a)),
          segments(arena, a.ids.n, a.dim),
          winners(a.mode == GB_MAX ? arena.Take<int32_t>(SlotsOf(a.ids.n) * a.dim) : nullptr) {}
    static Packed PackedOf(Arena& arena, const Args& a) {
      if (!Drops(a)) return {nullptr, nullptr, nullptr};
      return {arena.Take<int64_t>(a.ids.n), a.weights.n > 0 ? arena.Take<float>(a.ids.n) : nullptr,
              a.argmax.n > 0 ? arena.Take<uint32_t>(a.ids.n) : nullptr};
    }
  };

  static bool Nothing(const Args& a) { return a.offsets.n == 0; }

  static void Stage(Travel& travel, Args& a) {
    travel.Near(a.rows);
    travel.In(a.ids);
    travel.In(a.offsets);
    travel.In(a.weights);
    travel.Out(a.out);
    travel.Out(a.argmax);
  }

  static void Run(Queue& queue, const Parts& p, const Args& a, gb_report* report) {
    const Bags bags = BagsOf(a, a.rows.n / a.dim);
    const Flags* flags = &p.state->flags;
    queue.Zero(p.state, sizeof *p.state);
    CheckBags(queue, p.state, bags, p.ranks, p.begin);
    const float* weights = a.weights.n > 0 ? static_cast<const float*>(a.weights.data) : nullptr;
    const bool packs = Drops(a) && a.ids.n > 0;
    if (packs) {
      Launch(queue, queue.Blocks(a.ids.n, kThreads), kThreads, pack_kernel, p.state, bags.ids,
             weights, p.ranks.ranks, p.packed);
    }
    Sources t = {};
    t.rows = a.rows.data;
    t.dtype = a.rows.dtype;
    t.huge = a.ids.dtype == GB_INT64 && bags.ids.limit > int64_t{1} << 32;
    t.shift = packs || a.ids.dtype == GB_INT64 ? 1 : 0;
    t.index = static_cast<const uint32_t*>(packs ? p.packed.ids : a.ids.data);
    t.factor = packs ? p.packed.weights : weights;
    t.dim = a.dim;
    t.by_place = true;
    const Segments s = {p.begin,         nullptr,         bags.bags,          a.ids.n,
                        &p.state->longs, p.segments.list, p.segments.partials};
    if (a.mode == GB_MAX) {
      MaxInto(queue, flags, t, s, packs ? p.packed.positions : nullptr, p.winners, a.out, a.argmax);
    } else {
      RowsOut out = RowsOutOf(a.out, a.dim);
      if (a.mode == GB_MEAN) out.divide = Divide::kPlaces;
      SumInto(queue, flags, weights == nullptr ? Term::kPlain : Term::kWeighted, t, s, out);
    }
    Verdict verdict;
    verdict.Offsets(a.offsets, a.open_offsets != 0, a.ids.n);
    verdict.Ids(a.ids, bags.ids.limit);
    Report(queue, flags, verdict, report);
  }
};

}  // namespace

uint64_t NeedsOf(const Context& context, const gb_bag_forward_args& a) {
  return Needs<BagForwardOp>(context, a);
}

gb_status BagForward(gb_context* context, gb_stream* stream, const gb_bag_forward_args* a,
                     gb_workspace w, gb_report* report) {
  return Call<BagForwardOp>(context, stream, a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
