// Loads and stores of float32, float16 and bfloat16 as vectors of float32, for kernels that are
// templates over the type they store. Included once per instruction set, see vector.h.
//
// A store rounds once, to nearest even, subnormals kept; what is too large becomes infinite; a NaN
// stays some NaN.
#ifndef GRADBUS_CPU_LOAD_H_
#define GRADBUS_CPU_LOAD_H_

#include "core/dtype.h"
#include "cpu/vector.h"
#ifdef __F16C__
#include <immintrin.h>  // its functions are always inlined, so that the linker sees none of them
#endif

namespace gradbus {
namespace GB_ISA {

// Narrow is the vector of 16-bit values beside Vec, and Bits that of its bits.
template <int kFloats>
struct Narrow {
  using Bits = typename VectorOf<kFloats>::Uint;
  using Type = typename VectorOf<kFloats>::Short;
  static Bits Widen(const uint16_t* p) {
    Type v;
    __builtin_memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, Bits);
  }
  static void Keep(uint16_t* p, Bits bits) {
    const Type v = __builtin_convertvector(bits, Type);
    __builtin_memcpy(p, &v, sizeof v);
  }
};

template <>
struct Narrow<1> {
  using Bits = uint32_t;
  static Bits Widen(const uint16_t* p) { return *p; }
  static void Keep(uint16_t* p, Bits bits) { *p = static_cast<uint16_t>(bits); }
};

template <typename To, typename From>
inline To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// Float16Of and BitsOf16 are float16 in plain integers.
template <typename V>
inline typename V::Type Float16Of(typename Narrow<V::kWidth>::Bits h) {
  using Float = typename V::Type;
  using Bits = typename Narrow<V::kWidth>::Bits;
  const Bits sign = (h & 0x8000u) << 16, size = h & 0x7fffu;
  // 112 is the distance of the exponents' biases. A subnormal is put behind an exponent of its own,
  // which is then taken off again: an exact difference.
  const Bits shifted = (size << 13) + (112u << 23);
  const Float small = BitsAs<Float>((size << 13) + (113u << 23)) - V::All(6.103515625e-05f);
  const Bits bits = size < 0x400u    ? BitsAs<Bits>(small)
                    : size < 0x7c00u ? shifted
                                     : shifted + (112u << 23);
  return BitsAs<Float>(bits | sign);
}

template <typename V>
inline typename Narrow<V::kWidth>::Bits BitsOf16(typename V::Type x) {
  using Bits = typename Narrow<V::kWidth>::Bits;
  const Bits bits = BitsAs<Bits>(x);
  const Bits sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  // Adding a half leaves 24 bits behind the point, those of a subnormal, rounded by the addition.
  const Bits small =
      BitsAs<Bits>(BitsAs<typename V::Type>(size) + V::All(0.5f)) - (Bits{} + 0x3f000000u);
  const Bits even = size >> 13 & 1u;
  const Bits normal = (size - (112u << 23) + 0xfffu + even) >> 13;
  const Bits special = size > 0x7f800000u ? Bits{} + 0x7e00u : Bits{} + 0x7c00u;
  const Bits h = size < 0x38800000u ? small : size < 0x47800000u ? normal : special;
  return h | sign;
}

template <typename V>
inline typename Narrow<V::kWidth>::Bits BitsOfB16(typename V::Type x) {
  using Bits = typename Narrow<V::kWidth>::Bits;
  const Bits bits = BitsAs<Bits>(x);
  const Bits rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded;
}

#ifdef __AVX512F__
// The masked forms of intrinsics: the others name an undefined register, of which GCC 12 warns.
constexpr __mmask16 kAll = 0xffff;
#endif

// Load<V>(p) reads V::kWidth values, Store<V>(p, x) writes them.
template <typename V>
inline typename V::Type Load(const float* p) {
  return V::Load(p);
}

template <typename V>
inline void Store(float* p, typename V::Type x) {
  V::Store(p, x);
}

template <typename V>
inline typename V::Type Load(const BFloat16* p) {
  return BitsAs<typename V::Type>(Narrow<V::kWidth>::Widen(&p->bits) << 16);
}

template <typename V>
inline void Store(BFloat16* p, typename V::Type x) {
  Narrow<V::kWidth>::Keep(&p->bits, BitsOfB16<V>(x));
}

template <typename V>
inline typename V::Type Load(const Float16* p) {
#ifdef __AVX512F__
  if constexpr (V::kWidth == 16) {
    __m256i v;
    __builtin_memcpy(&v, p, sizeof v);
    return BitsAs<typename V::Type>(_mm512_maskz_cvtph_ps(kAll, v));
  }
#endif
#ifdef __F16C__
  if constexpr (V::kWidth == 8) {
    __m128i v;
    __builtin_memcpy(&v, p, sizeof v);
    return BitsAs<typename V::Type>(_mm256_cvtph_ps(v));
  }
#endif
  return Float16Of<V>(Narrow<V::kWidth>::Widen(&p->bits));
}

template <typename V>
inline void Store(Float16* p, typename V::Type x) {
#ifdef __AVX512F__
  if constexpr (V::kWidth == 16) {
    const __m256i v = _mm512_maskz_cvtps_ph(kAll, BitsAs<__m512>(x), _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(p, &v, sizeof v);
    return;
  }
#endif
#ifdef __F16C__
  if constexpr (V::kWidth == 8) {
    const __m128i v = _mm256_cvtps_ph(BitsAs<__m256>(x), _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(p, &v, sizeof v);
    return;
  }
#endif
  Narrow<V::kWidth>::Keep(&p->bits, BitsOf16<V>(x));
}

}  // namespace GB_ISA
}  // namespace gradbus

#endif  // GRADBUS_CPU_LOAD_H_
