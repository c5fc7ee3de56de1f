// Four values at a time, in any of the three float types, between memory and registers.
//
// A load has two halves: Fetch brings the bits, Widen makes float32 of them. Between the two a
// thread asks for whatever else it needs, so several accesses are in flight before the first is
// used. Which type an array has is known at compile time where all are float32 (kFloats), which is
// the fast path, and is a branch that all threads take alike otherwise.
#ifndef GRADBUS_CUDA_LOAD_CUH_
#define GRADBUS_CUDA_LOAD_CUH_

#include <cuda_fp16.h>

#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

struct alignas(16) Four {
  float x[4];
};

// Bits are four stored values: four words, or, of 16-bit types, two.
struct Bits {
  unsigned w[4];
};

// How a kernel may access its arrays.
enum Access {
  kFloats,   // all are float32, aligned to 16 bytes, in fours
  kVectors,  // of any type, aligned to four values, in fours
  kSingles   // anything: value by value
};

__device__ __forceinline__ float BFloat16ToFloat(unsigned bits) {
  return __int_as_float(static_cast<int>(bits << 16));
}

// Rounds to nearest even; a NaN stays one.
__device__ __forceinline__ unsigned FloatToBFloat16(float x) {
  const unsigned bits = static_cast<unsigned>(__float_as_int(x));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

__device__ __forceinline__ float Float16ToFloat(unsigned bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

__device__ __forceinline__ unsigned FloatToFloat16(float x) {
  return __half_as_ushort(__float2half_rn(x));
}

__device__ __forceinline__ float ToFloat(unsigned bits, gb_dtype dtype) {
  return dtype == GB_FLOAT16 ? Float16ToFloat(bits) : BFloat16ToFloat(bits);
}

__device__ __forceinline__ unsigned FromFloat(float x, gb_dtype dtype) {
  return dtype == GB_FLOAT16 ? FloatToFloat16(x) : FloatToBFloat16(x);
}

// How a vector is stored.
enum Storing {
  kPlain,    // as the compiler likes
  kWhole,    // by one instruction, also where it has the parts at different times
  kStreamed  // so too, and it should not drive out of the caches what is used again
};

// Streamed data are read or written once: they should not drive out what is used again.
template <typename T>
__device__ __forceinline__ T LoadStreamed(const T* at) {
  return __ldcs(at);
}

template <Storing kStoring, typename T>
__device__ __forceinline__ void StoreVector(T* at, T value) {
  if (kStoring == kStreamed) {
    __stcs(at, value);
  } else if (kStoring == kWhole) {
    __stwb(at, value);
  } else {
    *at = value;
  }
}

// Fetch brings values at .. at+3 of an array, of which the first count (1 to 4) exist; the others
// are zero. Only kSingles looks at count.
template <Access kAccess, bool kStream>
__device__ __forceinline__ Bits Fetch(const void* array, gb_dtype dtype, int64_t at, int count) {
  Bits b = {{0, 0, 0, 0}};
  if (kAccess == kSingles) {
    if (dtype == GB_FLOAT32) {
      const unsigned* p = static_cast<const unsigned*>(array) + at;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (i < count) b.w[i] = p[i];
      }
    } else {
      const unsigned short* p = static_cast<const unsigned short*>(array) + at;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (i < count) b.w[i / 2] |= static_cast<unsigned>(p[i]) << (16 * (i % 2));
      }
    }
  } else if (kAccess == kFloats || dtype == GB_FLOAT32) {
    const uint4* p = reinterpret_cast<const uint4*>(static_cast<const unsigned*>(array) + at);
    const uint4 v = kStream ? LoadStreamed(p) : *p;
    b.w[0] = v.x, b.w[1] = v.y, b.w[2] = v.z, b.w[3] = v.w;
  } else {
    const uint2* p = reinterpret_cast<const uint2*>(static_cast<const unsigned short*>(array) + at);
    const uint2 v = kStream ? LoadStreamed(p) : *p;
    b.w[0] = v.x, b.w[1] = v.y;
  }
  return b;
}

template <Access kAccess>
__device__ __forceinline__ Four Widen(const Bits& b, gb_dtype dtype) {
  Four f;
  if (kAccess == kFloats || dtype == GB_FLOAT32) {
#pragma unroll
    for (int i = 0; i < 4; i++) f.x[i] = __int_as_float(static_cast<int>(b.w[i]));
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) f.x[i] = ToFloat((b.w[i / 2] >> (16 * (i % 2))) & 0xffffu, dtype);
  }
  return f;
}

template <Access kAccess>
__device__ __forceinline__ Bits Narrow(const Four& f, gb_dtype dtype) {
  Bits b = {{0, 0, 0, 0}};
  if (kAccess == kFloats || dtype == GB_FLOAT32) {
#pragma unroll
    for (int i = 0; i < 4; i++) b.w[i] = static_cast<unsigned>(__float_as_int(f.x[i]));
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) b.w[i / 2] |= FromFloat(f.x[i], dtype) << (16 * (i % 2));
  }
  return b;
}

template <Access kAccess, Storing kStoring>
__device__ __forceinline__ void Put(void* array, gb_dtype dtype, int64_t at, int count,
                                    const Bits& b) {
  if (kAccess == kSingles) {
    if (dtype == GB_FLOAT32) {
      unsigned* p = static_cast<unsigned*>(array) + at;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (i < count) p[i] = b.w[i];
      }
    } else {
      unsigned short* p = static_cast<unsigned short*>(array) + at;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (i < count) p[i] = static_cast<unsigned short>((b.w[i / 2] >> (16 * (i % 2))) & 0xffffu);
      }
    }
  } else if (kAccess == kFloats || dtype == GB_FLOAT32) {
    uint4* p = reinterpret_cast<uint4*>(static_cast<unsigned*>(array) + at);
    const uint4 v = {b.w[0], b.w[1], b.w[2], b.w[3]};
    StoreVector<kStoring>(p, v);
  } else {
    uint2* p = reinterpret_cast<uint2*>(static_cast<unsigned short*>(array) + at);
    const uint2 v = {b.w[0], b.w[1]};
    StoreVector<kStoring>(p, v);
  }
}

// Load and Store are both halves in one.
template <Access kAccess, bool kStream = false>
__device__ __forceinline__ Four Load(const void* array, gb_dtype dtype, int64_t at, int count) {
  return Widen<kAccess>(Fetch<kAccess, kStream>(array, dtype, at, count), dtype);
}

template <Access kAccess, Storing kStoring = kPlain>
__device__ __forceinline__ void Store(void* array, gb_dtype dtype, int64_t at, int count,
                                      const Four& f) {
  Put<kAccess, kStoring>(array, dtype, at, count, Narrow<kAccess>(f, dtype));
}

// AccessOf finds the best access that all arrays of a kernel allow. Rows of dim values: 4 must
// divide dim. Empty arrays allow everything.
class AccessOf {
 public:
  explicit AccessOf(int64_t dim) : best_(dim % 4 == 0 ? kFloats : kSingles) {}
  AccessOf& And(const void* data, gb_dtype dtype) {
    if (data == nullptr || best_ == kSingles) return *this;
    const uintptr_t size = dtype == GB_FLOAT32 ? 16 : 8;
    if (reinterpret_cast<uintptr_t>(data) % size != 0) {
      best_ = kSingles;
    } else if (dtype != GB_FLOAT32) {
      best_ = kVectors;
    }
    return *this;
  }
  AccessOf& And(const gb_in& a) { return And(a.n == 0 ? nullptr : a.data, a.dtype); }
  AccessOf& And(const gb_out& a) { return And(a.n == 0 ? nullptr : a.data, a.dtype); }
  Access best() const { return best_; }

 private:
  Access best_;
};

// Integers of an index or of keys.
__device__ __forceinline__ int64_t IntAt(const void* array, gb_dtype dtype, int64_t at) {
  return dtype == GB_INT32 ? static_cast<const int32_t*>(array)[at]
                           : static_cast<const int64_t*>(array)[at];
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_LOAD_CUH_
