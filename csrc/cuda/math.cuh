// exp and log, operation by operation the same as cuda/math.go and csrc/cpu/math.h. Source: Cephes,
// expf.c and logf.c.
#ifndef GRADBUS_CUDA_MATH_CUH_
#define GRADBUS_CUDA_MATH_CUH_

#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

__device__ inline float Power2(int n) {
  return __int_as_float(static_cast<int>(static_cast<unsigned>(n + 127) << 23));
}

__device__ inline float Exp(float x) {
  if (x != x) return x;
  if (x > 88.72283f) return __int_as_float(0x7f800000);
  if (x < -103.97208f) return 0;
  float n = x * 1.44269504088896341f + 12582912.0f;
  n -= 12582912.0f;
  float r = x - n * 0.693359375f;
  r -= n * -2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r;
  y += 1.0f;
  const int whole = static_cast<int>(n), half = whole >> 1;
  return y * Power2(half) * Power2(whole - half);
}

__device__ inline float Log(float x) {
  if (x != x || x < 0) return __int_as_float(0x7fc00000);
  if (x == 0) return __int_as_float(static_cast<int>(0xff800000u));
  if (x > 3.4028234663852886e38f) return x;
  float e = 0;
  if (x < 1.1754943508222875e-38f) {
    x *= 8388608.0f;
    e = -23;
  }
  const int bits = __float_as_int(x);
  e += static_cast<float>((bits >> 23) - 126);
  float m = __int_as_float((bits & 0x007fffff) | 0x3f000000);
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

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_MATH_CUH_
