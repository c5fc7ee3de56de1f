// Vectors of floats for the kernels, through the vector types of GCC and Clang. Included once per
// instruction set, after GB_ISA (the name of a namespace) and GB_WIDTH (floats in a register) are
// defined.
//
// Everything lies in the instruction set's own namespace, and the kernels use no templates of the
// standard library: a function of the same name compiled twice is one function to the linker, and
// the copy it keeps may hold instructions that the machine lacks.
#ifndef GRADBUS_CPU_VECTOR_H_
#define GRADBUS_CPU_VECTOR_H_

#include <cstdint>

namespace gradbus {
namespace GB_ISA {

template <int kFloats>
struct VectorOf {
  typedef float Float __attribute__((vector_size(kFloats * 4)));
  typedef int32_t Int __attribute__((vector_size(kFloats * 4)));
  typedef uint32_t Uint __attribute__((vector_size(kFloats * 4)));
  typedef uint16_t Short __attribute__((vector_size(kFloats * 2)));
};

// Vec is a float vector of the given width, or a plain float where it is 1, with what the two do
// not share.
template <int kFloats>
struct Vec {
  using Type = typename VectorOf<kFloats>::Float;
  static constexpr int kWidth = kFloats;
  static Type Load(const float* p) {
    Type v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static void Store(float* p, Type v) { __builtin_memcpy(p, &v, sizeof v); }
  static Type All(float x) { return Type{} + x; }
  using Ints = typename VectorOf<kFloats>::Int;
  static Ints LoadInts(const int32_t* p) {
    Ints v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static void StoreInts(int32_t* p, Ints v) { __builtin_memcpy(p, &v, sizeof v); }
};

template <>
struct Vec<1> {
  using Type = float;
  static constexpr int kWidth = 1;
  static Type Load(const float* p) { return *p; }
  static void Store(float* p, Type v) { *p = v; }
  static Type All(float x) { return x; }
  using Ints = int32_t;
  static Ints LoadInts(const int32_t* p) { return *p; }
  static void StoreInts(int32_t* p, Ints v) { *p = v; }
};

constexpr int kWidth = GB_WIDTH;

// ForWidths covers n columns with the widest pieces that fit: f(Vec<..>, column). kFloats is the
// widest.
template <int kFloats, typename F>
inline void ForWidths(int64_t n, int64_t at, F&& f) {
  for (; n - at >= kFloats; at += kFloats) f(Vec<kFloats>(), at);
  if constexpr (kFloats > 4) {
    if (at < n) ForWidths<kFloats / 2>(n, at, f);
  } else if constexpr (kFloats == 4) {
    if (at < n) ForWidths<1>(n, at, f);
  }
}

// ForTiles covers n columns with tiles of 8, 4, 2 and 1 registers, then narrower ones: f(Vec<..>,
// Count<..>, column).
template <int kCount>
struct Count {
  static constexpr int kValue = kCount;
};

template <int kMost, typename F>
inline void ForTiles(int64_t n, int64_t at, F&& f) {
  for (; n - at >= kMost * kWidth; at += kMost * kWidth) f(Vec<kWidth>(), Count<kMost>(), at);
  if constexpr (kMost > 1) {
    if (at < n) ForTiles<kMost / 2>(n, at, f);
  } else if constexpr (kWidth > 4) {
    if (at < n) {
      ForWidths<kWidth / 2>(n, at, [&](auto vec, int64_t column) { f(vec, Count<1>(), column); });
    }
  } else {
    if (at < n) ForWidths<1>(n, at, [&](auto vec, int64_t column) { f(vec, Count<1>(), column); });
  }
}

inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace GB_ISA
}  // namespace gradbus

#endif  // GRADBUS_CPU_VECTOR_H_
