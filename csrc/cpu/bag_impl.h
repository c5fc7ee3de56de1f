// Pooling of rows that an index chooses. Included by kernels_impl.h.
//
// The running sums of a tile of columns stay in registers while the rows go by, and the rows that
// come a few kilobytes later, also those of other segments, are prefetched: rows lie all over a
// table, where the processor's own prefetcher sees no pattern.
#ifndef GRADBUS_CPU_BAG_IMPL_H_
#define GRADBUS_CPU_BAG_IMPL_H_

#include "core/order.h"
#include "cpu/bag_kernels.h"
#include "cpu/load.h"
#include "cpu/stream.h"

namespace gradbus {
namespace GB_ISA {

// What a row adds: itself, itself times its weight, or only its marked columns.
enum class How { kPlain, kWeighted, kMarked };

// Fetch asks for the lines of one tile of a row. Narrow tiles lie in lines that wider ones asked
// for, unless they are a row's first. They go to the second cache: measured 12 to 15% faster than
// to the first, whose few outstanding misses the additions need themselves.
template <typename V, int kCount, typename In>
inline void Fetch(const void* row, int64_t column) {
  constexpr int64_t kLine = 64, kBytes = kCount * V::kWidth * static_cast<int64_t>(sizeof(In));
  if (V::kWidth < kWidth && column > 0) return;
  const char* from = static_cast<const char*>(row) + column * static_cast<int64_t>(sizeof(In));
  for (int64_t line = 0; line < kBytes; line += kLine) __builtin_prefetch(from + line, 0, 2);
}

template <typename V, int kCount, How kHow, typename In>
inline void AddRows(const RowsRun& r, int64_t from, int64_t n, int64_t column,
                    typename V::Type (&acc)[kCount]) {
  const void* const* at = r.at + from;
  const int64_t ahead = r.ahead;
  for (int64_t i = 0; i < n; i++) {
    Fetch<V, kCount, In>(at[i + ahead], column);
    const In* row = static_cast<const In*>(at[i]) + column;
    for (int t = 0; t < kCount; t++) {
      const typename V::Type x = Load<V>(row + t * V::kWidth);
      if constexpr (kHow == How::kPlain) {
        acc[t] += x;
      } else if constexpr (kHow == How::kWeighted) {
        acc[t] += x * r.weights[from + i];
      } else {
        const auto mark = Vec<V::kWidth>::LoadInts(r.marks[from + i] + column + t * V::kWidth);
        acc[t] += mark == r.positions[from + i] ? x : typename V::Type{};
      }
    }
  }
}

// Quotient divides by a number, or by none, through a product where that is exact: true division
// costs several times as much.
struct Quotient {
  float by;
  bool divide;
  explicit Quotient(float number) : by(number), divide(number != 0) {
    if (divide && PowerOfTwo(number)) by = 1.0f / number, divide = false;
    if (number == 0) by = 1;
  }
  template <typename T>
  T operator()(T x) const {
    return divide ? x / by : x * by;
  }
};

// Keep stores one register, around the caches where that was asked for and can be done.
template <typename V, typename Out>
inline void Keep(Out* out, typename V::Type x, bool stream) {
  if constexpr (sizeof(Out) == sizeof(float) && V::kWidth == kWidth) {
    if (stream) return Emit<V, true>(out, x);
  }
  Store<V>(out, x);
}

// SumTile is the canonical sum of a segment over one tile of columns. A sum is never -0, so where
// there is one block, or one superblock, adding it to +0 at the levels above would change nothing.
template <typename V, int kCount, How kHow, typename In, typename Out>
inline void SumTile(const RowsRun& r, int64_t from, int64_t n, int64_t column, const Quotient& by,
                    bool stream, Out* out) {
  using T = typename V::Type;
  T total[kCount] = {};
  if (n <= kBlock) {
    AddRows<V, kCount, kHow, In>(r, from, n, column, total);
  } else {
    for (int64_t lo = 0; lo < n; lo += kSuper) {
      const int64_t end = Least(lo + kSuper, n);
      T super[kCount] = {};
      for (int64_t at = lo; at < end; at += kBlock) {
        T block[kCount] = {};
        AddRows<V, kCount, kHow, In>(r, from + at, Least(kBlock, end - at), column, block);
        for (int t = 0; t < kCount; t++) super[t] += block[t];
      }
      for (int t = 0; t < kCount; t++) total[t] += super[t];
    }
  }
  for (int t = 0; t < kCount; t++) Keep<V>(out + column + t * V::kWidth, by(total[t]), stream);
}

template <How kHow, typename In, typename Out>
inline void SumSegments(const RowsRun& r) {
  // Whole registers are emitted only where every row of out begins at the border of one.
  const bool stream = r.stream && sizeof(Out) == 4 && r.dim % kWidth == 0 &&
                      reinterpret_cast<uintptr_t>(r.out) % kRegister == 0;
  Out* out = static_cast<Out*>(r.out);
  Quotient by(r.by);
  for (int64_t s = 0, from = 0; s < r.segments; s++) {
    const int64_t n = static_cast<int64_t>(r.ends[s]) - from;
    if (r.mean) by = Quotient(static_cast<float>(n));
    ForTiles<8>(r.dim, 0, [&](auto vec, auto count, int64_t column) {
      SumTile<decltype(vec), decltype(count)::kValue, kHow, In>(r, from, n, column, by, stream,
                                                                out);
    });
    out += r.dim;
    from += n;
  }
  if (stream) EmitEnd();
}

template <typename In, typename Out>
inline void SumHow(const RowsRun& r) {
  if (r.marks != nullptr) return SumSegments<How::kMarked, In, Out>(r);
  if (r.weights != nullptr) return SumSegments<How::kWeighted, In, Out>(r);
  SumSegments<How::kPlain, In, Out>(r);
}

// ForTypes calls f with values of the types of rows and of out. Rows that were divided, or put
// together from superblocks, are float32 even where out is not.
template <typename F>
inline void ForTypes(gb_dtype type, gb_dtype out_type, F&& f) {
  const bool narrow = out_type != GB_FLOAT32;
  if (type == GB_FLOAT16) return narrow ? f(Float16(), Float16()) : f(Float16(), float());
  if (type == GB_BFLOAT16) return narrow ? f(BFloat16(), BFloat16()) : f(BFloat16(), float());
  if (out_type == GB_FLOAT16) return f(float(), Float16());
  if (out_type == GB_BFLOAT16) return f(float(), BFloat16());
  f(float(), float());
}

void Sum(const RowsRun& r) {
  ForTypes(r.type, r.out_type, [&](auto in, auto out) { SumHow<decltype(in), decltype(out)>(r); });
}

// MaxTile takes a row's value where it is above the best so far, or the first NaN.
template <typename V, int kCount, typename In, typename Out>
inline void MaxTile(const RowsRun& r, int64_t from, int64_t n, int64_t column, Out* out,
                    int32_t* argmax) {
  using T = typename V::Type;
  using I = typename V::Ints;
  T best[kCount] = {};
  I taken[kCount];
  for (int t = 0; t < kCount; t++) taken[t] = I{} - 1;
  const bool named = argmax != nullptr;
  for (int64_t i = from; i < from + n; i++) {
    Fetch<V, kCount, In>(r.at[i + r.ahead], column);
    const In* row = static_cast<const In*>(r.at[i]) + column;
    const I position = I{} + (named ? r.positions[i] : 0);
    for (int t = 0; t < kCount; t++) {
      const T x = Load<V>(row + t * V::kWidth);
      const auto take = i == from ? I{} == I{} : (x > best[t]) | ((x != x) & (best[t] == best[t]));
      best[t] = take ? x : best[t];
      taken[t] = take ? position : taken[t];
    }
  }
  for (int t = 0; t < kCount; t++) {
    Store<V>(out + column + t * V::kWidth, best[t]);
    if (named) V::StoreInts(argmax + column + t * V::kWidth, taken[t]);
  }
}

template <typename In, typename Out>
inline void MaxSegments(const RowsRun& r) {
  for (int64_t s = 0, from = 0; s < r.segments; s++) {
    const int64_t n = static_cast<int64_t>(r.ends[s]) - from;
    Out* out = static_cast<Out*>(r.out) + s * r.dim;
    int32_t* argmax = r.argmax == nullptr ? nullptr : r.argmax + s * r.dim;
    ForTiles<4>(r.dim, 0, [&](auto vec, auto count, int64_t column) {
      MaxTile<decltype(vec), decltype(count)::kValue, In>(r, from, n, column, out, argmax);
    });
    from += n;
  }
}

void Max(const RowsRun& r) {
  ForTypes(r.type, r.out_type,
           [&](auto in, auto out) { MaxSegments<decltype(in), decltype(out)>(r); });
}

template <typename Out>
inline void TotalAs(const float* sums, int64_t n, int64_t dim, float by, Out* out) {
  const Quotient quotient(by);
  ForTiles<8>(dim, 0, [=](auto vec, auto count, int64_t column) {
    using V = decltype(vec);
    constexpr int kCount = decltype(count)::kValue;
    typename V::Type total[kCount] = {};
    for (int64_t i = 0; i < n; i++) {
      for (int t = 0; t < kCount; t++) {
        total[t] += V::Load(sums + i * dim + column + t * V::kWidth);
      }
    }
    for (int t = 0; t < kCount; t++) {
      Store<V>(out + column + t * V::kWidth, quotient(total[t]));
    }
  });
}

void Total(const float* sums, int64_t n, int64_t dim, float by, void* out, gb_dtype out_type) {
  switch (out_type) {
    case GB_FLOAT16:
      return TotalAs(sums, n, dim, by, static_cast<Float16*>(out));
    case GB_BFLOAT16:
      return TotalAs(sums, n, dim, by, static_cast<BFloat16*>(out));
    default:
      return TotalAs(sums, n, dim, by, static_cast<float*>(out));
  }
}

template <typename In>
inline void ScaleAs(const In* x, float by, int64_t n, float* out) {
  const Quotient quotient(by);
  ForWidths<kWidth>(n, 0, [=](auto vec, int64_t i) {
    using V = decltype(vec);
    V::Store(out + i, quotient(Load<V>(x + i)));
  });
}

void Scale(const void* x, gb_dtype type, float by, int64_t n, float* out) {
  switch (type) {
    case GB_FLOAT16:
      return ScaleAs(static_cast<const Float16*>(x), by, n, out);
    case GB_BFLOAT16:
      return ScaleAs(static_cast<const BFloat16*>(x), by, n, out);
    default:
      return ScaleAs(static_cast<const float*>(x), by, n, out);
  }
}

template <typename Id>
inline void AddressesOf(const Id* ids, int64_t n, const void* base, int64_t row_bytes,
                        const void** at) {
  const char* from = static_cast<const char*>(base);
  for (int64_t i = 0; i < n; i++) at[i] = from + static_cast<int64_t>(ids[i]) * row_bytes;
}

void Addresses(const void* ids, gb_dtype type, int64_t n, const void* base, int64_t row_bytes,
               const void** at) {
  if (type == GB_INT32) {
    AddressesOf(static_cast<const int32_t*>(ids), n, base, row_bytes, at);
  } else {
    AddressesOf(static_cast<const int64_t*>(ids), n, base, row_bytes, at);
  }
}

void WordAddresses(const uint64_t* words, uint64_t mask, int64_t n, const void* base,
                   int64_t row_bytes, const void** at) {
  const char* from = static_cast<const char*>(base);
  for (int64_t i = 0; i < n; i++) at[i] = from + static_cast<int64_t>(words[i] & mask) * row_bytes;
}

template <typename Id>
inline int64_t FirstAboveOf(const Id* ids, int64_t n, uint64_t limit, int64_t padding) {
  const bool all = padding == GB_NO_PADDING;
  constexpr int64_t kPiece = 1024;  // without a branch, so that vectors can do it
  for (int64_t lo = 0; lo < n; lo += kPiece) {
    const int64_t end = Least(lo + kPiece, n);
    int64_t bad = 0;
    for (int64_t i = lo; i < end; i++) {
      const int64_t id = ids[i];
      bad |= (static_cast<uint64_t>(id) >= limit) & (all | (id != padding));
    }
    if (bad == 0) continue;
    for (int64_t i = lo; i < end; i++) {
      const int64_t id = ids[i];
      if (static_cast<uint64_t>(id) >= limit && (all || id != padding)) return i;
    }
  }
  return n;
}

int64_t FirstAbove(const void* ids, gb_dtype type, int64_t n, uint64_t limit, int64_t padding) {
  return type == GB_INT32 ? FirstAboveOf(static_cast<const int32_t*>(ids), n, limit, padding)
                          : FirstAboveOf(static_cast<const int64_t*>(ids), n, limit, padding);
}

constexpr BagKernels kBagKernels = {
    Sum, Max, Total, Scale, Addresses, WordAddresses, FirstAbove,
};

}  // namespace GB_ISA
}  // namespace gradbus

#endif  // GRADBUS_CPU_BAG_IMPL_H_
