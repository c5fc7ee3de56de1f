// Places and the rows they name: how a group of threads reads row after row, with several on their
// way at a time, and adds them up.
//
// Loads are never conditional: what should not be read is replaced by what has been, and left out
// when it comes to adding. A load under a condition needs a value for the other case, the compiler
// merges the two right behind the load, and waits there before it asks for the next row.
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

// Reading says how rows are read: 4 values of 32 or of 16 bits at once, or one by one.
enum Reading { kFours32, kFours16, kOnes32, kOnes16 };

inline Reading ReadingOf(Access access, gb_dtype dtype) {
  if (access == kSingles) return dtype == GB_FLOAT32 ? kOnes32 : kOnes16;
  return dtype == GB_FLOAT32 ? kFours32 : kFours16;
}

// Columns is the 4 columns of a row that a thread reads. Those beyond the row are others of it.
template <Reading kReading>
struct Columns {
  static constexpr bool kFours = kReading == kFours32 || kReading == kFours16;
  static constexpr uint32_t kSize = kReading == kFours32 || kReading == kOnes32 ? 4 : 2;
  uint32_t at[kFours ? 1 : 4];  // bytes from the row's begin

  __device__ __forceinline__ Columns(int64_t column, int64_t dim) {
    if (kFours) {
      at[0] = column < dim ? static_cast<uint32_t>(column) * kSize : 0;
    } else {
#pragma unroll
      for (int i = 0; i < (kFours ? 1 : 4); i++) {
        at[i] = static_cast<uint32_t>(column + i < dim ? column + i : dim - 1) * kSize;
      }
    }
  }
  __device__ __forceinline__ Bits Read(const char* row) const {
    Bits b = {{0, 0, 0, 0}};
    if constexpr (kReading == kFours32) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(row + at[0]));
      b = {{v.x, v.y, v.z, v.w}};
    } else if constexpr (kReading == kFours16) {
      const uint2 v = __ldg(reinterpret_cast<const uint2*>(row + at[0]));
      b = {{v.x, v.y, 0, 0}};
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        b.w[i] = kReading == kOnes32 ? __ldg(reinterpret_cast<const unsigned*>(row + at[i]))
                                     : __ldg(reinterpret_cast<const unsigned short*>(row + at[i]));
      }
    }
    return b;
  }
  // Hold is called for all rows when all have been asked for: where the values are used under a
  // condition only, the compiler would else move the load there too.
  __device__ __forceinline__ static void Hold(Bits& b) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(b.w[0]), "+r"(b.w[1]));
    if (kReading != kFours16) asm volatile("" : "+r"(b.w[2]), "+r"(b.w[3]));
#else
    static_cast<void>(b);
#endif
  }
  __device__ __forceinline__ static Four Wide(const Bits& b, gb_dtype dtype) {
    Four f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (kSize == 4) {
        f.x[i] = __int_as_float(static_cast<int>(b.w[i]));
      } else {
        f.x[i] = ToFloat(kFours ? (b.w[i / 2] >> (16 * (i % 2))) & 0xffffu : b.w[i], dtype);
      }
    }
    return f;
  }
};

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
__device__ __forceinline__ Place<kHuge> PlaceAt(const Sources& t, uint32_t at) {
  Place<kHuge> p = {0, 0};
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

// Rows is a number of rows as a type.
template <int kRows>
using Rows = std::integral_constant<int, kRows>;

// EachChunk walks over places begin to end in turn: visit(Rows<n>, at, left, place) has n rows read
// and uses the first left of them, place(k) being what is known of place at + k. n is kInFlight but
// for the last, so that a short segment does not read the same row eight times. look(at) finds out
// about a place, pass(found, from) is what the group's thread from found; next is what this thread
// found at begin + g.t, or, behind the end, at the last place. All threads of a group must call it
// with the same places.
template <typename Found, typename Look, typename Pass, typename Visit>
__device__ __forceinline__ void EachChunk(const Group& g, uint32_t begin, uint32_t end, Found next,
                                          Look&& look, Pass&& pass, Visit&& visit) {
  // Each thread looks up one of the next g.size places while the rows of the present ones come.
  const auto look_at = [&](uint32_t at) { return look(at < end ? at : end - 1); };
#pragma unroll 1
  for (uint32_t turn = begin; turn < end; turn += g.size) {
    const auto mine = next;
    const uint32_t here = end - turn < g.size ? end - turn : g.size;
    if (end - turn > g.size) next = look_at(turn + g.size + g.t);
#pragma unroll 1
    for (uint32_t u = 0; u < here; u += kInFlight) {
      const auto place = [&](int k) { return pass(mine, static_cast<int>(u) + k); };
      if (here - u > 4) {
        visit(Rows<kInFlight>(), turn + u, here - u, place);
      } else if (here - u > 1) {
        visit(Rows<4>(), turn + u, here - u, place);
      } else {
        visit(Rows<1>(), turn + u, here - u, place);
      }
    }
  }
}

// FirstPlace is what EachRow begins with. Of no places it finds nothing.
template <Term kTerm, bool kHuge>
__device__ __forceinline__ Place<kHuge> FirstPlace(const Sources& t, const Group& g, uint32_t begin,
                                                   uint32_t end) {
  Place<kHuge> p;  // a value for the other case would be one to wait for
  if (begin != end) {
    p = PlaceAt<kTerm, kHuge>(t, begin + g.t < end ? begin + g.t : end - 1);
  }
  return p;
}

// EachRow does so for sources: place(k) is a Place.
template <Term kTerm, bool kHuge, typename Visit>
__device__ __forceinline__ void EachRow(const Sources& t, const Group& g, uint32_t begin,
                                        uint32_t end, const Place<kHuge>& first, Visit&& visit) {
  EachChunk(
      g, begin, end, first, [&](uint32_t at) { return PlaceAt<kTerm, kHuge>(t, at); },
      [&](const Place<kHuge>& p, int from) { return Shuffled<kTerm, kHuge>(g, p, from); }, visit);
}

__device__ __forceinline__ void Add(Four& sum, const Four& x) {
#pragma unroll
  for (int i = 0; i < 4; i++) sum.x[i] += x.x[i];
}

template <Term kTerm>
__device__ __forceinline__ Four TermOf(Four x, int32_t extra, const int32_t (&winner)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (kTerm == Term::kWeighted) x.x[i] = __int_as_float(extra) * x.x[i];
    if (kTerm == Term::kDivided) x.x[i] = x.x[i] / __int_as_float(extra);
    if (kTerm == Term::kWinner) x.x[i] = winner[i] == extra ? x.x[i] : 0;
  }
  return x;
}

// SumPlaces adds places begin to end, at most a superblock, for the group's columns. Columns that
// do not exist have the sums of others.
template <Term kTerm, Reading kReading, bool kHuge>
__device__ __forceinline__ Four SumPlaces(const Sources& t, const Group& g, int64_t column,
                                          uint32_t begin, uint32_t end, const Place<kHuge>& first) {
  Four super = {}, block = {};
  const Columns<kReading> columns(column, t.dim);
  const Columns<kOnes32> winners(column, t.dim);
  const uint32_t row_bytes = static_cast<uint32_t>(t.dim) * Columns<kReading>::kSize;
  EachRow<kTerm, kHuge>(
      t, g, begin, end, first, [&](auto rows, uint32_t at, uint32_t left, auto&& place) {
        constexpr int kRows = decltype(rows)::value;
        if (at != begin && (at - begin) % kBlock == 0) {
          Add(super, block);
          block = {};
        }
        Bits bits[kRows];
        int32_t extra[kRows], winner[kRows][4];
#pragma unroll
        for (int k = 0; k < kRows; k++) {
          const Place<kHuge> p = place(k);
          extra[k] = p.extra;
          bits[k] = columns.Read(static_cast<const char*>(t.rows) +
                                 static_cast<uint64_t>(p.row) * row_bytes);
          if (kTerm == Term::kWinner) {
            const Bits won = winners.Read(
                static_cast<const char*>(static_cast<const void*>(t.winner)) + p.row * t.dim * 4);
#pragma unroll
            for (int i = 0; i < 4; i++) winner[k][i] = static_cast<int32_t>(won.w[i]);
          }
        }
#pragma unroll
        for (int k = 0; k < kRows; k++) Columns<kReading>::Hold(bits[k]);
#pragma unroll
        for (int k = 0; k < kRows; k++) {
          const Four x =
              TermOf<kTerm>(Columns<kReading>::Wide(bits[k], t.dtype), extra[k], winner[k]);
      // A row too many is added as zeros, which change nothing: no sum is ever -0. Not adding it
      // would again be a condition that a load could be moved behind.
#pragma unroll
          for (int i = 0; i < 4; i++) block.x[i] += static_cast<uint32_t>(k) < left ? x.x[i] : 0;
        }
      });
  Add(super, block);
  return super;
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_PLACES_CUH_
