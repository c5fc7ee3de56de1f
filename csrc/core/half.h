// Conversions of single 16-bit floats in plain integers, for code outside the kernels. Both round
// to nearest even, keep subnormals, and keep a NaN some NaN.
#ifndef GRADBUS_CORE_HALF_H_
#define GRADBUS_CORE_HALF_H_

#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace gradbus {

inline float FloatOfBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t BitsOfFloat(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float F16ToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, size = h & 0x7fffu;
  if (size >= 0x7c00u) return FloatOfBits(sign | 0x7f800000u | (size & 0x3ffu) << 13);
  if (size >= 0x400u) return FloatOfBits(sign | ((size << 13) + (112u << 23)));
  const float small = static_cast<float>(size) * 5.9604644775390625e-08f;  // 2^-24: exact
  return FloatOfBits(sign | BitsOfFloat(small));
}

inline uint16_t FloatToF16(float x) {
  const uint32_t bits = BitsOfFloat(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  uint32_t h;
  if (size > 0x7f800000u) {
    h = 0x7e00u;
  } else if (size >= 0x47800000u) {
    h = 0x7c00u;
  } else if (size >= 0x38800000u) {
    h = (size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13;
  } else {  // adding a half leaves the 24 bits behind the point that a subnormal has
    h = BitsOfFloat(FloatOfBits(size) + 0.5f) - 0x3f000000u;
  }
  return static_cast<uint16_t>(h | sign);
}

inline float BF16ToFloat(uint16_t b) { return FloatOfBits(static_cast<uint32_t>(b) << 16); }

inline uint16_t FloatToBF16(float x) {
  const uint32_t bits = BitsOfFloat(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace gradbus

#endif  // GRADBUS_CORE_HALF_H_
