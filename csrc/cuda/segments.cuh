// Sums of rows over segments, which bag_forward, bag_backward, coalesce and coalesce_apply share.
//
// A segment is a run of places; each place names a row; the rows of a segment are added in
// canonical order. A group of threads, sized to the row, makes one segment, with several rows on
// their way at a time: what limits these kernels is how many bytes are in flight.
//
// Segments of more than kLong places are cut at their canonical blocks, so that one of a million
// rows keeps the whole device busy and still gives the same bits. Places are seen as windows of 64;
// a long segment has at most one block that starts in a window, and a window meets at most two long
// segments. So the block sums have fixed slots: 2w for a block of a segment that begins at or
// before the first place of window w, 2w+1 for the first block of one that begins inside it.
// sum_kernel fills the slots beside its short segments, and total_kernel adds them up.
//
// How many segments there are is known on the device alone; grids are sized by the host's bounds.
#ifndef GRADBUS_CUDA_SEGMENTS_CUH_
#define GRADBUS_CUDA_SEGMENTS_CUH_

#include "cuda/check_device.cuh"
#include "cuda/places.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

constexpr int kSumThreads = 128;
constexpr int kTotalThreads = 512;
constexpr uint32_t kWindow = 64;  // places: a canonical block

// Segments is where each of them begins: begin[s] to begin[s+1], ascending, count of them, count
// being known on the device.
struct Segments {
  const uint32_t* begin;            // [most + 1]
  const unsigned long long* count;  // nullptr: most
  int64_t most;
  int64_t places;   // at most
  Longs* longs;     // nullptr where there can be none
  uint32_t* list;   // [LongsMost(places)]
  float* partials;  // [SlotsOf(places), dim], sums of blocks
};

// LongsMost is how many long segments so many places can have.
inline int64_t LongsMost(int64_t places) { return places / (kLong + 1); }
// SlotsOf is how many sums of blocks there is room for.
inline int64_t SlotsOf(int64_t places) {
  return LongsMost(places) == 0 ? 0 : (places + kWindow - 1) / kWindow * 2;
}

struct Range {
  uint32_t begin, end;
};

// SegmentAt finds the segment that place at is in.
__device__ __forceinline__ int64_t SegmentAt(const Segments& s, int64_t count, uint32_t at) {
  int64_t low = 0, high = count;  // begin[low] <= at < begin[high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (s.begin[middle] <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// BlockIn finds the block that a slot is for; an empty range where there is none.
__device__ __forceinline__ Range BlockIn(const Segments& s, int64_t count, int64_t slot) {
  const uint32_t first = static_cast<uint32_t>(slot / 2) * kWindow, all = s.begin[count];
  const bool inside = slot % 2 != 0;
  if (first >= all) return {0, 0};
  const uint32_t last = all - first < kWindow ? all - 1 : first + kWindow - 1;
  const int64_t segment = SegmentAt(s, count, inside ? last : first);
  const uint32_t begin = s.begin[segment], end = s.begin[segment + 1];
  if (end - begin <= kLong) return {0, 0};
  if (inside) return begin > first ? Range{begin, begin + kWindow} : Range{0, 0};
  const uint32_t skip = (first - begin + kWindow - 1) / kWindow * kWindow;
  if (skip >= end - begin) return {0, 0};
  const uint32_t at = begin + skip;
  return {at, end - at < kWindow ? end : at + kWindow};
}

// SlotOf is where the sum of a block is, by the place where its segment begins.
__device__ __forceinline__ int64_t SlotOf(uint32_t begin, uint32_t block) {
  const int64_t slot = (static_cast<int64_t>(begin / kWindow) + block) * 2;
  return block == 0 && begin % kWindow != 0 ? slot + 1 : slot;
}

// CountOf is how many segments there are.
__device__ __forceinline__ int64_t CountOf(const Segments& s) {
  return s.count == nullptr ? s.most : static_cast<int64_t>(*s.count);
}

// Pieces are what the groups of a launch share out among themselves: tiles of items, an item being
// a slot or a segment.
struct Pieces {
  int64_t begin, step;
  __device__ __forceinline__ explicit Pieces(const Group& g) {
    const uint32_t groups = blockDim.x / g.size;
    begin = static_cast<int64_t>(blockIdx.x) * groups + threadIdx.x / g.size;
    step = static_cast<int64_t>(gridDim.x) * groups;
  }
};

struct Piece {
  int64_t item, column;
  __device__ __forceinline__ Piece(const Tiling& tiling, const Group& g, int64_t i) {
    item = tiling.tiles == 1 ? i : i / tiling.tiles;
    column = ((i - item * tiling.tiles) * g.size + g.t) * 4;
  }
};

// EachSlot calls f(slot, range, column) for the group's share of the blocks of long segments.
template <typename F>
__device__ __forceinline__ void EachSlot(const Segments& s, const Tiling& tiling, const Group& g,
                                         F&& f) {
  if (s.longs == nullptr || s.longs->any == 0) return;
  const int64_t count = CountOf(s);
  const int64_t slots = static_cast<int64_t>((s.begin[count] + kWindow - 1) / kWindow) * 2;
  const Pieces pieces(g);
#pragma unroll 1
  for (int64_t i = pieces.begin; i < slots * tiling.tiles; i += pieces.step) {
    const Piece p(tiling, g, i);
    const Range r = BlockIn(s, count, p.item);
    if (r.begin != r.end) f(p.item, r, p.column);
  }
}

// RangeAt is the segment of a piece; behind the last piece, of that.
__device__ __forceinline__ Range RangeAt(const Segments& s, const Tiling& tiling, int64_t i,
                                         int64_t pieces) {
  if (i >= pieces) i = pieces - 1;
  const int64_t segment = tiling.tiles == 1 ? i : i / tiling.tiles;
  return {s.begin[segment], s.begin[segment + 1]};
}

// EachSegment calls f(segment, range, column, found) for the group's share of the short segments,
// and puts the long ones, where that is how they go, into the list. found is look(range), called a
// segment ahead, for ranges known another segment ahead: a short segment is a chain of loads, each
// telling where the next one is, and so the group waits once for each segment, not once for each
// link.
template <typename Look, typename F>
__device__ __forceinline__ void EachSegment(const Segments& s, const Tiling& tiling, const Group& g,
                                            Look&& look, F&& f) {
  const int64_t pieces_n = CountOf(s) * tiling.tiles;
  const Pieces pieces(g);
  if (pieces.begin >= pieces_n) return;
  Range r = RangeAt(s, tiling, pieces.begin, pieces_n);
  Range next = RangeAt(s, tiling, pieces.begin + pieces.step, pieces_n);
  auto found = look(r);
#pragma unroll 1
  for (int64_t i = pieces.begin; i < pieces_n; i += pieces.step) {
    const Range later = RangeAt(s, tiling, i + 2 * pieces.step, pieces_n);
    const auto ahead = look(next);
    const Piece p(tiling, g, i);
    if (s.longs == nullptr || r.end - r.begin <= kLong) {
      f(p.item, r, p.column, found);
    } else if (p.column == 0) {
      s.list[atomicAdd(&s.longs->count, 1u)] = static_cast<uint32_t>(p.item);
    }
    r = next, next = later, found = ahead;
  }
}

// Partial sums are aligned where rows of them are.
__device__ __forceinline__ Four LoadPartial(const Segments& s, int64_t dim, int64_t slot,
                                            int64_t column) {
  const int64_t at = slot * dim + column;
  const int count = CountFrom(column, dim);
  if (count == 0) return {};
  return dim % 4 == 0 ? Load<kFloats>(s.partials, GB_FLOAT32, at, 4)
                      : Load<kSingles>(s.partials, GB_FLOAT32, at, count);
}

__device__ __forceinline__ void StorePartial(const Segments& s, int64_t dim, int64_t slot,
                                             int64_t column, const Four& sum) {
  const int64_t at = slot * dim + column;
  const int count = CountFrom(column, dim);
  if (count == 0) return;
  if (dim % 4 == 0) {
    Store<kFloats>(s.partials, GB_FLOAT32, at, 4, sum);
  } else {
    Store<kSingles>(s.partials, GB_FLOAT32, at, count, sum);
  }
}

// SumBlocks is how many thread blocks a multiprocessor should hold at once: as many as leave the
// registers that eight rows on their way take.
template <Term kTerm, Reading kReading, bool kHuge, typename Epilogue>
constexpr int SumBlocks() {
  if (kTerm == Term::kWinner) return 3;  // twice the loads
  const bool light = kTerm == Term::kPlain && !kHuge && !Epilogue::kHeavy;
  return light && kReading == kFours16 ? 6 : light && kReading == kFours32 ? 5 : 4;
}

// An Epilogue takes the sums. All threads of a group call it, also those whose columns are beyond
// the row: key = end.Look(range) some time ahead; held = end.Begin(key, segment, column) before the
// rows are read, so that what it needs comes with them; and end.End(group, segment, range, column,
// held, sum) after.
template <typename Epilogue, bool kHuge>
struct Ahead {
  typename Epilogue::Key key;
  Place<kHuge> place;
};

template <Term kTerm, Reading kReading, bool kHuge, typename Epilogue>
__global__ void __launch_bounds__(kSumThreads, (SumBlocks<kTerm, kReading, kHuge, Epilogue>()))
    sum_kernel(const Flags* flags, Sources t, Segments s, Tiling tiling, Epilogue end) {
  Await();
  if (Refused(flags)) return;
  const Group g = GroupOf(tiling.width);
  EachSlot(s, tiling, g, [&](int64_t slot, const Range& r, int64_t column) {
    const Place<kHuge> first = FirstPlace<kTerm, kHuge>(t, g, r.begin, r.end);
    StorePartial(s, tiling.dim, slot, column,
                 SumPlaces<kTerm, kReading, kHuge>(t, g, column, r.begin, r.end, first));
  });
  const auto look = [&](const Range& r) -> Ahead<Epilogue, kHuge> {
    return {end.Look(r), FirstPlace<kTerm, kHuge>(t, g, r.begin, r.end)};
  };
  EachSegment(
      s, tiling, g, look,
      [&](int64_t segment, const Range& r, int64_t column, const Ahead<Epilogue, kHuge>& found) {
        const typename Epilogue::Held held = end.Begin(found.key, segment, column);
        const Four sum =
            SumPlaces<kTerm, kReading, kHuge>(t, g, column, r.begin, r.end, found.place);
        end.End(g, segment, r, column, held, sum);
      });
}

// SumSlots adds the sums of blocks from, from + step, ... before to, in turn.
__device__ __forceinline__ Four SumSlots(const Segments& s, int64_t dim, int64_t column,
                                         uint32_t begin, uint32_t from, uint32_t to,
                                         uint32_t step) {
  Four sum = {};
#pragma unroll 1
  for (uint32_t block = from; block < to; block += step * kInFlight) {
    Four x[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; k++) {
      const uint32_t b = block + static_cast<uint32_t>(k) * step;
      x[k] = {};
      if (b < to) x[k] = LoadPartial(s, dim, SlotOf(begin, b), column);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; k++) Add(sum, x[k]);
  }
  return sum;
}

// total_kernel adds the block sums of long segments, a thread block to each: its groups make the
// superblocks, in the slots of their first blocks, and then one group adds those.
template <typename Epilogue>
__global__ void __launch_bounds__(kTotalThreads)
    total_kernel(const Flags* flags, Segments s, Tiling tiling, Epilogue end) {
  Await();
  if (Refused(flags)) return;
  const Group g = GroupOf(tiling.width);
  const uint32_t groups = blockDim.x / g.size, group = threadIdx.x / g.size;
  const int64_t pieces = static_cast<int64_t>(s.longs->count) * tiling.tiles;
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const int64_t segment = s.list[piece / tiling.tiles];
    const int64_t column = (piece % tiling.tiles * g.size + g.t) * 4;
    const Range r = {s.begin[segment], s.begin[segment + 1]};
    const uint32_t blocks = (r.end - r.begin + kWindow - 1) / kWindow;
    for (uint32_t from = group * 64; from < blocks; from += groups * 64) {
      const uint32_t to = blocks - from < 64 ? blocks : from + 64;
      const Four sum = SumSlots(s, tiling.dim, column, r.begin, from, to, 1);
      StorePartial(s, tiling.dim, SlotOf(r.begin, from), column, sum);
    }
    __syncthreads();
    if (group == 0) {
      const typename Epilogue::Held held = end.Begin(end.Look(r), segment, column);
      const Four sum = SumSlots(s, tiling.dim, column, r.begin, 0, blocks, 64);
      end.End(g, segment, r, column, held, sum);
    }
  }
}

// Divide says what a sum is divided by at the end.
enum class Divide : uint32_t { kNothing, kPlaces, kWeight };

// SortedKeys are the keys of places; a segment's key is that of its first place.
struct SortedKeys {
  const void* data;
  bool wide;  // 64 bits, else 32
};

__device__ __forceinline__ uint64_t KeyAt(const SortedKeys& k, int64_t at) {
  return k.wide ? static_cast<const uint64_t*>(k.data)[at]
                : static_cast<const uint32_t*>(k.data)[at];
}

// StoreRow stores by an access that all threads find alike.
__device__ __forceinline__ void StoreRow(Access access, void* out, gb_dtype dtype, int64_t at,
                                         int count, const Four& x) {
  if (access == kFloats) {
    Store<kFloats, kStreamed>(out, dtype, at, count, x);
  } else if (access == kVectors) {
    Store<kVectors, kStreamed>(out, dtype, at, count, x);
  } else {
    Store<kSingles, kStreamed>(out, dtype, at, count, x);
  }
}

// RowsOut writes sums to rows of their own, and the segments' keys beside them.
struct RowsOut {
  void* out;
  void* keys;  // nullptr: not wanted
  SortedKeys sorted;
  Quotient weight;
  int64_t dim;
  gb_dtype dtype;      // of out
  gb_dtype keys_type;  // of keys
  Access access;       // to out
  Divide divide;

  static constexpr bool kHeavy = false;
  struct Key {};
  struct Held {};
  __device__ __forceinline__ Key Look(const Range&) const { return {}; }
  __device__ __forceinline__ Held Begin(const Key&, int64_t, int64_t) const { return {}; }
  __device__ __forceinline__ void End(const Group&, int64_t segment, const Range& r, int64_t column,
                                      const Held&, Four sum) const {
    if (column == 0 && keys != nullptr) {
      const uint64_t key = KeyAt(sorted, r.begin);
      if (keys_type == GB_INT32) {
        static_cast<uint32_t*>(keys)[segment] = static_cast<uint32_t>(key);
      } else {
        static_cast<uint64_t*>(keys)[segment] = key;
      }
    }
    const int count = CountFrom(column, dim);
    if (count == 0) return;
    if (divide == Divide::kWeight) sum = Divided(weight, sum);
    if (divide == Divide::kPlaces && r.end != r.begin) {
      const float n = static_cast<float>(r.end - r.begin);
#pragma unroll
      for (int i = 0; i < 4; i++) sum.x[i] = sum.x[i] / n;
    }
    StoreRow(access, out, dtype, segment * dim + column, count, sum);
  }
};

// RowsOutOf is for sums without keys, undivided.
inline RowsOut RowsOutOf(const gb_out& out, int64_t dim) {
  RowsOut to = {};
  to.out = out.data;
  to.dim = dim;
  to.dtype = out.dtype;
  to.access = AccessOf(dim).And(out).best();
  return to;
}

// SegmentParts is the workspace of long segments.
struct SegmentParts {
  uint32_t* list;
  float* partials;
  SegmentParts(Arena& arena, int64_t places, int64_t dim)
      : list(arena.Take<uint32_t>(LongsMost(places))),
        partials(arena.Take<float>(SlotsOf(places) * dim)) {}
};

// SumInto queues sums of segments into rows.
void SumInto(Queue& queue, const Flags* flags, Term term, const Sources& t, const Segments& s,
             const RowsOut& out);

// BlocksFor is how many thread blocks share out so many items, the device holding each blocks of
// them on a multiprocessor: a few times as many as it holds at once, so that those that are done
// early are replaced, and groups still look ahead.
inline unsigned BlocksFor(const Queue& queue, int64_t items, const Tiling& tiling, int each) {
  constexpr int64_t kWaves = 4;
  const int64_t blocks = queue.Blocks(items * tiling.tiles, kSumThreads / tiling.width);
  const int64_t most = queue.context().multiprocessors * kWaves * each;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

// RunSums queues the two kernels, each with its epilogue.
template <Term kTerm, Reading kReading, bool kHuge, typename Epilogue, typename LongEpilogue>
void RunSums(Queue& queue, const Flags* flags, const Sources& t, const Segments& s,
             const Epilogue& end, const LongEpilogue& long_end) {
  const Tiling tiling = TilingOf(t.dim);
  constexpr int kEach = SumBlocks<kTerm, kReading, kHuge, Epilogue>();
  const int64_t longs = LongsMost(s.places);
  LaunchAfter(queue, BlocksFor(queue, s.most + SlotsOf(s.places), tiling, kEach), kSumThreads,
              sum_kernel<kTerm, kReading, kHuge, Epilogue>, flags, t, s, tiling, end);
  if (longs > 0) {
    LaunchAfter(queue, queue.Blocks(longs * tiling.tiles, 1), kTotalThreads,
                total_kernel<LongEpilogue>, flags, s, tiling, long_end);
  }
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_SEGMENTS_CUH_
