#include "cuda/bag_max.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// Best is the largest so far of 4 columns, and the places it came from; -1 before the first row.
struct Best {
  Four value;
  int32_t place[4];
};

__device__ __forceinline__ Best NoBest() { return {{{0, 0, 0, 0}}, {-1, -1, -1, -1}}; }

// Take looks at a later row. The first of equals stays, and so does the first NaN.
__device__ __forceinline__ void Take(Best& best, int i, float x, int32_t place) {
  const float now = best.value.x[i];
  if (best.place[i] < 0 || x > now || (x != x && now == now)) {
    best.value.x[i] = x;
    best.place[i] = place;
  }
}

// MaxPlaces takes places begin to end in turn.
template <Reading kReading, bool kHuge>
__device__ __forceinline__ Best MaxPlaces(const Sources& t, const Group& g, int64_t column,
                                          uint32_t begin, uint32_t end, const Place<kHuge>& first) {
  Best best = NoBest();
  const Columns<kReading> columns(column, t.dim);
  const uint32_t row_bytes = static_cast<uint32_t>(t.dim) * Columns<kReading>::kSize;
  EachRow<Term::kPlain, kHuge>(
      t, g, begin, end, first, [&](auto rows, uint32_t at, uint32_t left, auto&& place) {
        constexpr int kRows = decltype(rows)::value;
        Bits bits[kRows];
#pragma unroll
        for (int k = 0; k < kRows; k++) {
          bits[k] = columns.Read(static_cast<const char*>(t.rows) +
                                 static_cast<uint64_t>(place(k).row) * row_bytes);
        }
#pragma unroll
        for (int k = 0; k < kRows; k++) Columns<kReading>::Hold(bits[k]);
#pragma unroll
        for (int k = 0; k < kRows; k++) {
          const Four x = Columns<kReading>::Wide(bits[k], t.dtype);
#pragma unroll
          for (int i = 0; i < 4; i++) {
            if (static_cast<uint32_t>(k) < left) {
              Take(best, i, x.x[i], static_cast<int32_t>(at) + k);
            }
          }
        }
      });
  return best;
}

struct MaxOut {
  const uint32_t* positions;
  int32_t* winners;  // of blocks
  void* out;
  int32_t* argmax;
  gb_dtype dtype;
  Access access;  // to out

  __device__ __forceinline__ void End(const Tiling& tiling, int64_t segment, int64_t column,
                                      const Best& best) const {
    const int count = CountFrom(column, tiling.dim);
    if (count == 0) return;
    const int64_t at = segment * tiling.dim + column;
    StoreRow(access, out, dtype, at, count, best.value);
    if (argmax == nullptr) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int32_t place = best.place[i];
      if (i >= count) continue;
      argmax[at + i] =
          place < 0 || positions == nullptr ? place : static_cast<int32_t>(positions[place]);
    }
  }
  __device__ __forceinline__ void Keep(const Segments& s, const Tiling& tiling, int64_t slot,
                                       int64_t column, const Best& best) const {
    StorePartial(s, tiling.dim, slot, column, best.value);
    const int count = CountFrom(column, tiling.dim);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i < count) winners[slot * tiling.dim + column + i] = best.place[i];
    }
  }
  __device__ __forceinline__ void TakeSlot(const Segments& s, const Tiling& tiling, int64_t slot,
                                           int64_t column, Best& best) const {
    const int count = CountFrom(column, tiling.dim);
    const Four x = LoadPartial(s, tiling.dim, slot, column);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i < count) Take(best, i, x.x[i], winners[slot * tiling.dim + column + i]);
    }
  }
};

// As SumBlocks.
template <Reading kReading>
constexpr int kMaxBlocks = Columns<kReading>::kFours ? 5 : 4;

template <Reading kReading, bool kHuge>
__global__ void __launch_bounds__(kSumThreads, kMaxBlocks<kReading>)
    max_kernel(const Flags* flags, Sources t, Segments s, Tiling tiling, MaxOut out) {
  Await();
  if (Refused(flags)) return;
  const Group g = GroupOf(tiling.width);
  const auto look = [&](const Range& r) {
    return FirstPlace<Term::kPlain, kHuge>(t, g, r.begin, r.end);
  };
  EachSlot(s, tiling, g, [&](int64_t slot, const Range& r, int64_t column) {
    out.Keep(s, tiling, slot, column,
             MaxPlaces<kReading, kHuge>(t, g, column, r.begin, r.end, look(r)));
  });
  EachSegment(s, tiling, g, look,
              [&](int64_t segment, const Range& r, int64_t column, const Place<kHuge>& first) {
                out.End(tiling, segment, column,
                        MaxPlaces<kReading, kHuge>(t, g, column, r.begin, r.end, first));
              });
}

// The maxima of blocks, 64 at a time by the groups of a thread block, then of those.
__global__ void __launch_bounds__(kTotalThreads)
    max_total_kernel(const Flags* flags, Segments s, Tiling tiling, MaxOut out) {
  Await();
  if (Refused(flags)) return;
  const Group g = GroupOf(tiling.width);
  const uint32_t groups = blockDim.x / g.size, group = threadIdx.x / g.size;
  const int64_t pieces = static_cast<int64_t>(s.longs->count) * tiling.tiles;
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const int64_t segment = s.list[piece / tiling.tiles];
    const int64_t column = (piece % tiling.tiles * g.size + g.t) * 4;
    const uint32_t begin = s.begin[segment];
    const uint32_t blocks = (s.begin[segment + 1] - begin + kWindow - 1) / kWindow;
    for (uint32_t from = group * 64; from < blocks; from += groups * 64) {
      Best best = NoBest();
      for (uint32_t b = from; b < blocks && b < from + 64; b++) {
        out.TakeSlot(s, tiling, SlotOf(begin, b), column, best);
      }
      out.Keep(s, tiling, SlotOf(begin, from), column, best);
    }
    __syncthreads();
    if (group != 0) continue;
    Best best = NoBest();
    for (uint32_t b = 0; b < blocks; b += 64) {
      out.TakeSlot(s, tiling, SlotOf(begin, b), column, best);
    }
    out.End(tiling, segment, column, best);
  }
}

template <Reading kReading, bool kHuge>
void RunMax(Queue& queue, const Flags* flags, const Sources& t, const Segments& s,
            const MaxOut& out) {
  const Tiling tiling = TilingOf(t.dim);
  const int64_t longs = LongsMost(s.places);
  LaunchAfter(queue, BlocksFor(queue, s.most + SlotsOf(s.places), tiling, kMaxBlocks<kReading>),
              kSumThreads, max_kernel<kReading, kHuge>, flags, t, s, tiling, out);
  if (longs > 0) {
    LaunchAfter(queue, queue.Blocks(longs * tiling.tiles, 1), kTotalThreads, max_total_kernel,
                flags, s, tiling, out);
  }
}

}  // namespace

void MaxInto(Queue& queue, const Flags* flags, const Sources& t, const Segments& s,
             const uint32_t* positions, int32_t* winners, const gb_out& out, const gb_out& argmax) {
  const MaxOut to = {positions, winners,
                     out.data,  argmax.n > 0 ? static_cast<int32_t*>(argmax.data) : nullptr,
                     out.dtype, AccessOf(t.dim).And(out).best()};
  switch (ReadingOf(AccessOf(t.dim).And(t.rows, t.dtype).best(), t.dtype)) {
    case kFours32:
      return t.huge ? RunMax<kFours32, true>(queue, flags, t, s, to)
                    : RunMax<kFours32, false>(queue, flags, t, s, to);
    case kFours16:
      return t.huge ? RunMax<kFours16, true>(queue, flags, t, s, to)
                    : RunMax<kFours16, false>(queue, flags, t, s, to);
    case kOnes32:
      return t.huge ? RunMax<kOnes32, true>(queue, flags, t, s, to)
                    : RunMax<kOnes32, false>(queue, flags, t, s, to);
    case kOnes16:
      return t.huge ? RunMax<kOnes16, true>(queue, flags, t, s, to)
                    : RunMax<kOnes16, false>(queue, flags, t, s, to);
  }
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
