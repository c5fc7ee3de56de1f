// What the device checks of bags and ids, and what it makes of them on the way.
#ifndef GRADBUS_CUDA_CHECK_DEVICE_CUH_
#define GRADBUS_CUDA_CHECK_DEVICE_CUH_

#include "cuda/flags.cuh"
#include "cuda/load.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

// Longs is what the device knows of long segments (segments.cuh).
struct Longs {
  unsigned any;    // not 0: there are some; set by the kernel that makes segments
  unsigned count;  // how many are in the list of them
};

// State is what an operation on segments begins with as zeros.
struct State {
  Flags flags;
  Longs longs;
};

constexpr uint32_t kLong = 512;  // places; segments of more are long

// Ids says which ids count: those in [0, limit) that are not padding. The others are faults, unless
// they are skipped.
struct Ids {
  const void* data;
  gb_dtype dtype;
  uint32_t skip;
  int64_t n, limit, padding;
};

// Bags are ids and where the bags begin: offsets [bags + 1], or [bags] where the last ends with the
// ids.
struct Bags {
  Ids ids;
  const void* offsets;
  gb_dtype dtype;
  int64_t entries, bags;
};

template <typename Args>
Bags BagsOf(const Args& a, int64_t limit) {
  const int64_t bags = a.offsets.n - (a.open_offsets != 0 ? 0 : 1);
  return {{a.ids.data, a.ids.dtype, a.policy == GB_SKIP, a.ids.n, limit, a.padding},
          a.offsets.data,
          a.offsets.dtype,
          a.offsets.n,
          bags};
}

// Drops says whether there may be ids that do not count: then what follows works on those that do.
template <typename Args>
bool Drops(const Args& a) {
  return a.padding != GB_NO_PADDING || a.policy == GB_SKIP;
}

__device__ __forceinline__ int64_t OffsetAt(const Bags& b, int64_t i) {
  return i < b.entries ? IntAt(b.offsets, b.dtype, i) : b.ids.n;
}

enum class IdKind { kCounts, kPadding, kBad };

__device__ __forceinline__ IdKind KindOfId(const Ids& ids, int64_t id) {
  if (id == ids.padding && id >= 0) return IdKind::kPadding;
  return static_cast<uint64_t>(id) < static_cast<uint64_t>(ids.limit) ? IdKind::kCounts
                                                                      : IdKind::kBad;
}

// BagAt finds the bag that position at is in. With offsets that are wrong it finds some bag.
__device__ __forceinline__ int64_t BagAt(const Bags& b, int64_t at) {
  int64_t low = 0, high = b.bags;  // offset low <= at < offset high
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (OffsetAt(b, middle) <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// CheckId raises the fault of a bad id at position i, or counts it in *skipped. It says whether the
// id counts.
__device__ __forceinline__ bool CheckId(Flags* flags, const Ids& ids, int64_t i, int64_t id,
                                        unsigned* skipped) {
  const IdKind kind = KindOfId(ids, id);
  if (kind == IdKind::kBad) {
    if (ids.skip != 0) {
      ++*skipped;
    } else {
      Raise(flags, kBadId, 0, i);
    }
  }
  return kind == IdKind::kCounts;
}

// CheckOffset raises the faults of offset i of 0 .. bags.
__device__ __forceinline__ void CheckOffset(Flags* flags, const Bags& b, int64_t i) {
  const int64_t here = OffsetAt(b, i);
  if (i == 0) {
    if (here != 0) Raise(flags, kOffsetsStart, 0, 0);
  } else if (i < b.entries) {
    if (here < OffsetAt(b, i - 1)) Raise(flags, kOffsetsFall, 0, i);
  }
  const bool open = b.entries == b.bags;
  if (i == b.entries - 1 && (open ? here > b.ids.n : here != b.ids.n)) {
    Raise(flags, kOffsetsEnd, 0, i);
  }
}

// Ranks are the positions that count: which do, and how many before each.
struct Ranks {
  uint32_t *counted, *rank;  // [n]
  int64_t n;
};

__device__ __forceinline__ uint32_t RankAt(const Ranks& r, int64_t at) {
  if (at < r.n) return r.rank[at];
  return at == 0 ? 0 : r.rank[at - 1] + r.counted[at - 1];
}

// RankParts is the workspace of bags that drop ids.
struct RankParts {
  Ranks ranks;
  void* scan;
  uint64_t scan_bytes;
  RankParts(Arena& arena, const Context& context, int64_t ids, bool drops);
};

// CheckBags queues the check of bags. Where begin is given it gets the bags' begins. With parts for
// ranks they are made as well, and the begins are those among the positions that count.
void CheckBags(Queue& queue, State* state, const Bags& bags, const RankParts& parts,
               uint32_t* begin);

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_CHECK_DEVICE_CUH_
