// CUDA's half: 16 bits, and its conversions.
#ifndef GRADBUS_EMU_CUDA_FP16_H_
#define GRADBUS_EMU_CUDA_FP16_H_

#include "emu/cuda_runtime.h"

struct __half {
  unsigned short bits;
};
struct alignas(4) __half2 {
  __half x, y;
};
typedef __half half;
typedef __half2 half2;

inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }

inline float __half2float(__half h) {
  const uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000u) << 16;
  const uint32_t exponent = h.bits >> 10 & 0x1f, fraction = h.bits & 0x3ff;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2^-24, exact
  return sign == 0 ? small : -small;
}

// To nearest, ties to even.
inline __half __float2half_rn(float f) {
  const uint32_t bits = __float_as_uint(f), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  uint32_t out;
  if (magnitude > 0x7f800000u) {
    return {0x7fff};
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    out = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14, the least normal
    const uint32_t shifted = magnitude - 0x38000000u;
    out = (shifted + 0xfffu + (shifted >> 13 & 1)) >> 13;
  } else {
    // Adding 0.5 leaves 2^-24 as the last place of the sum, whose rounding is the one that is
    // wanted.
    out = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
  }
  return {static_cast<unsigned short>(sign | out)};
}
inline __half __float2half(float f) { return __float2half_rn(f); }
inline float2 __half22float2(__half2 h) { return {__half2float(h.x), __half2float(h.y)}; }
inline __half2 __floats2half2_rn(float a, float b) {
  return {__float2half_rn(a), __float2half_rn(b)};
}

#endif  // GRADBUS_EMU_CUDA_FP16_H_
