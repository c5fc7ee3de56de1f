// exp and log, operation by operation the same as cuda/math.go and csrc/cuda/math.cuh.
// Source: Cephes, expf.c and logf.c. Included once per instruction set, after vector.h.

namespace gradbus {
namespace GB_ISA {

// Exp is e^x for each element: +inf above 88.72283, +0 below -103.97208, NaN for NaN.
template <int kFloats>
inline typename VectorOf<kFloats>::Float Exp(typename VectorOf<kFloats>::Float x) {
  using Float = typename VectorOf<kFloats>::Float;
  using Int = typename VectorOf<kFloats>::Int;
  using Uint = typename VectorOf<kFloats>::Uint;
  const Float all = {};
  const auto over = x > 88.72283f;
  const auto under = x < -103.97208f;
  const auto other = x != x;
  const Float in =
      over | under | other ? all : x;  // what is replaced below must not overflow an integer
  Float n = in * 1.44269504088896341f + 12582912.0f;
  n -= 12582912.0f;
  Float r = in - n * 0.693359375f;
  r -= n * -2.12194440e-4f;
  Float y = all + 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r;
  y += 1.0f;
  // Two factors, since 2^n itself may be no float where the result still is one. Only the second
  // product rounds.
  const Int whole = __builtin_convertvector(n, Int);
  const Int half = whole >> 1;
  const Uint low = (Uint)(half + 127) << 23;
  const Uint high = (Uint)(whole - half + 127) << 23;
  y = y * (Float)low * (Float)high;
  y = over ? all + __builtin_inff() : y;
  y = under ? all : y;
  return other ? x : y;
}

// Log is the natural logarithm: NaN below 0, -inf at 0.
inline float Log(float x) {
  if (x != x || x < 0) return __builtin_nanf("");
  if (x == 0) return -__builtin_inff();
  if (x > 3.4028234663852886e38f) return x;
  float e = 0;
  if (x < 1.1754943508222875e-38f) {
    x *= 8388608.0f;
    e = -23;
  }
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  e += static_cast<float>(static_cast<int32_t>(bits >> 23) - 126);
  bits = (bits & 0x007fffffu) | 0x3f000000u;
  float m;
  __builtin_memcpy(&m, &bits, sizeof m);
  if (m < 0.707106781186547524f) {
    e -= 1;
    m = m + m;
  }
  m -= 1;
  const float z = m * m;
  float y = 7.0376836292e-2f;
  y = y * m - 1.1514610310e-1f;
  y = y * m + 1.1676998740e-1f;
  y = y * m - 1.2420140846e-1f;
  y = y * m + 1.4249322787e-1f;
  y = y * m - 1.6668057665e-1f;
  y = y * m + 2.0000714765e-1f;
  y = y * m - 2.4999993993e-1f;
  y = y * m + 3.3333331174e-1f;
  y = y * m * z;
  y += -2.12194440e-4f * e;
  y -= 0.5f * z;
  return (m + y) + 0.693359375f * e;
}

}  // namespace GB_ISA
}  // namespace gradbus
