// Places and the rows they name: how a group of threads reads row after row, with several on their
// way at a time, and adds them up.
#ifndef GRADBUS_CUDA_PLACES_CUH_
#define GRADBUS_CUDA_PLACES_CUH_

#include <type_traits>

#include "cuda/rule.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

constexpr int kInFlight = 8;  // rows that a group asks for before it uses the first; divides kBlock

// Tiling says how a row is divided among threads: groups of width threads, each with 4 neighbouring
// columns, and as many such tiles as the row needs. A group has a thread for each row in flight, to
// look it up.
struct Tiling {
  unsigned width;
  int tiles;
  int64_t dim;
};

inline Tiling TilingOf(int64_t dim) {
  const unsigned size = GroupSize(dim), width = size < kInFlight ? kInFlight : size;
  return {width, static_cast<int>((dim + width * 4 - 1) / (width * 4)), dim};
}

// CountFrom is how many of the 4 columns from this one on exist.
__device__ __forceinline__ int CountFrom(int64_t column, int64_t dim) {
  return column >= dim ? 0 : dim - column < 4 ? static_cast<int>(dim - column) : 4;
}

// What a place adds: its row; the row times a weight; the row divided by a bag's length; or those
// columns of the row that name the place as their winner.
enum class Term { kPlain, kWeighted, kDivided, kWinner };

// Sources says which row each place names.
struct Sources {
  const void* rows;
  gb_dtype dtype;         // of rows
  unsigned shift;         // 1 where index has 64 bits: then the low half is read
  const uint32_t* index;  // of each place
  const uint32_t* map;    // the row is map[index], or index itself where there is no map
  const float* factor;    // weights or lengths, by place or by index
  const int32_t* winner;  // [rows, dim]: the index that won each column
  int64_t dim;
  bool by_place;  // factor is laid out by place
  bool huge;      // rows are 2^32 or more, so both halves of index matter
};

// Place is what a place adds: which row, and the bits of its factor or its index.
template <bool kHuge>
struct Place {
  std::conditional_t<kHuge, uint64_t, uint32_t> row;
  int32_t extra;
};

template <Term kTerm, bool kHuge>
__device__ __forceinline__ Place<kHuge> PlaceAt(const Sources& t, uint32_t at, uint32_t end) {
  // Behind the end a term of zero is added, which changes nothing: no sum is ever -0.
  Place<kHuge> p = {0, kTerm == Term::kDivided ? 0x3f800000 : 0};
  if (at >= end) return p;
  if (kHuge) {
    p.row = static_cast<const uint64_t*>(static_cast<const void*>(t.index))[at];
  } else {
    p.row = t.index[static_cast<uint64_t>(at) << t.shift];
  }
  const uint64_t index = p.row;
  if (kTerm == Term::kWinner) p.extra = static_cast<int32_t>(index);
  if (kTerm == Term::kWeighted || kTerm == Term::kDivided) {
    p.extra = __float_as_int(t.factor[t.by_place ? at : index]);
  }
  if ((kTerm == Term::kWeighted || kTerm == Term::kWinner) && t.map != nullptr) {
    p.row = t.map[index];
  }
  return p;
}

template <Term kTerm, bool kHuge>
__device__ __forceinline__ Place<kHuge> Shuffled(const Group& g, const Place<kHuge>& p, int from) {
  const int size = static_cast<int>(g.size);
  return {__shfl_sync(g.mask, p.row, from, size),
          kTerm == Term::kPlain ? 0 : __shfl_sync(g.mask, p.extra, from, size)};
}

__device__ __forceinline__ void Add(Four& sum, const Four& x) {
#pragma unroll
  for (int i = 0; i < 4; i++) sum.x[i] += x.x[i];
}

// EachChunk walks over places begin to end, kInFlight at a time: visit(at, place), where place(k)
// is what is known of place at + k. look(at) finds that out, also for places behind the end, and
// pass(place, from) is what the group's thread from found. All threads of a group must call it with
// the same places.
template <typename Look, typename Pass, typename Visit>
__device__ __forceinline__ void EachChunk(const Group& g, uint32_t begin, uint32_t end, Look&& look,
                                          Pass&& pass, Visit&& visit) {
  // Each thread looks up one of the next g.size places while the rows of the present ones come.
  auto next = look(begin + g.t);
#pragma unroll 1
  for (uint32_t turn = begin; turn < end; turn += g.size) {
    const auto mine = next;
    next = look(turn + g.size + g.t);
#pragma unroll 1
    for (uint32_t u = 0; u < g.size && turn + u < end; u += kInFlight) {
      visit(turn + u, [&](int k) { return pass(mine, static_cast<int>(u) + k); });
    }
  }
}

// EachRow does so for sources: place(k) is a Place.
template <Term kTerm, bool kHuge, typename Visit>
__device__ __forceinline__ void EachRow(const Sources& t, const Group& g, uint32_t begin,
                                        uint32_t end, Visit&& visit) {
  EachChunk(
      g, begin, end, [&](uint32_t at) { return PlaceAt<kTerm, kHuge>(t, at, end); },
      [&](const Place<kHuge>& p, int from) { return Shuffled<kTerm, kHuge>(g, p, from); }, visit);
}

template <Term kTerm, Access kAccess>
__device__ __forceinline__ Four TermOf(const Sources& t, const Bits& bits, int32_t extra,
                                       const int32_t (&winner)[4]) {
  Four x = Widen<kAccess>(bits, t.dtype);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (kTerm == Term::kWeighted) x.x[i] = __int_as_float(extra) * x.x[i];
    if (kTerm == Term::kDivided) x.x[i] = x.x[i] / __int_as_float(extra);
    if (kTerm == Term::kWinner) x.x[i] = winner[i] == extra ? x.x[i] : 0;
  }
  return x;
}

// SumPlaces adds places begin to end, at most a superblock, for the group's columns.
template <Term kTerm, Access kAccess, bool kHuge>
__device__ __forceinline__ Four SumPlaces(const Sources& t, const Group& g, int64_t column,
                                          uint32_t begin, uint32_t end) {
  Four super = {}, block = {};
  const int count = CountFrom(column, t.dim);
  EachRow<kTerm, kHuge>(t, g, begin, end, [&](uint32_t at, auto&& place) {
    if (at != begin && (at - begin) % kBlock == 0) {
      Add(super, block);
      block = {};
    }
    Bits bits[kInFlight];
    int32_t extra[kInFlight], winner[kInFlight][4];
#pragma unroll
    for (int k = 0; k < kInFlight; k++) {
      const Place<kHuge> p = place(k);
      const int64_t at_row = static_cast<int64_t>(p.row) * t.dim + column;
      const int here = static_cast<uint32_t>(k) < end - at ? count : 0;
      extra[k] = p.extra;
      bits[k] = {{0, 0, 0, 0}};
      if (here > 0) bits[k] = Fetch<kAccess, false>(t.rows, t.dtype, at_row, here);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        winner[k][i] = -1;
        if (kTerm == Term::kWinner && i < here) winner[k][i] = t.winner[at_row + i];
      }
    }
#pragma unroll
    for (int k = 0; k < kInFlight; k++) {
      Add(block, TermOf<kTerm, kAccess>(t, bits[k], extra[k], winner[k]));
    }
  });
  Add(super, block);
  return super;
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_PLACES_CUH_
