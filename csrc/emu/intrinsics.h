// The device functions that kernels use, as far as a CPU has them: the same roundings, no fused
// operations.
#ifndef GRADBUS_EMU_INTRINSICS_H_
#define GRADBUS_EMU_INTRINSICS_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "emu/machine.h"

namespace gradbus {
namespace emu {
namespace internal {

template <typename To, typename From>
To Bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Atomic operations are one step each, and a place where another thread may come in between.
template <typename T, typename F>
T Atomically(T* at, F make) {
  Machine::Here().Pause(16);
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(at, &old, make(old), false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return old;
}

}  // namespace internal
}  // namespace emu
}  // namespace gradbus

inline float __int_as_float(int bits) { return gradbus::emu::internal::Bits<float>(bits); }
inline int __float_as_int(float f) { return gradbus::emu::internal::Bits<int>(f); }
inline float __uint_as_float(unsigned bits) { return gradbus::emu::internal::Bits<float>(bits); }
inline unsigned __float_as_uint(float f) { return gradbus::emu::internal::Bits<unsigned>(f); }
inline double __longlong_as_double(long long bits) {
  return gradbus::emu::internal::Bits<double>(bits);
}
inline long long __double_as_longlong(double d) {
  return gradbus::emu::internal::Bits<long long>(d);
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

template <typename T>
T __ldg(const T* at) {
  return *at;
}
template <typename T>
T __ldcs(const T* at) {
  return *at;
}
template <typename T>
T __ldcg(const T* at) {
  return *at;
}
template <typename T>
void __stwb(T* at, T value) {
  *at = value;
}
template <typename T>
void __stcs(T* at, T value) {
  *at = value;
}
template <typename T>
void __stcg(T* at, T value) {
  *at = value;
}

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { gradbus::emu::internal::Machine::Here().Pause(1); }
inline void __trap() { gradbus::emu::internal::Machine::Here().Fault("a thread trapped"); }

#define GB_EMU_ATOMIC(name, T, expression)                                                     \
  inline T name(T* at, T value) {                                                              \
    return gradbus::emu::internal::Atomically(at, [value](T old) -> T { return expression; }); \
  }
#define GB_EMU_ATOMICS(T)                                              \
  GB_EMU_ATOMIC(atomicMin, T, value < old ? value : old)               \
  GB_EMU_ATOMIC(atomicMax, T, value > old ? value : old)               \
  GB_EMU_ATOMIC(atomicAnd, T, old& value)                              \
  GB_EMU_ATOMIC(atomicOr, T, old | value)                              \
  GB_EMU_ATOMIC(atomicXor, T, old ^ value)                             \
  GB_EMU_ATOMIC(atomicExch, T, ((void)old, value))                     \
  inline T atomicCAS(T* at, T compare, T value) {                      \
    return gradbus::emu::internal::Atomically(                         \
        at, [=](T old) -> T { return old == compare ? value : old; }); \
  }
GB_EMU_ATOMICS(int)
GB_EMU_ATOMICS(unsigned)
GB_EMU_ATOMICS(unsigned long long)
// What CUDA has of these, and no more.
GB_EMU_ATOMIC(atomicAdd, unsigned, old + value)
GB_EMU_ATOMIC(atomicAdd, unsigned long long, old + value)
GB_EMU_ATOMIC(atomicMin, long long, value < old ? value : old)
GB_EMU_ATOMIC(atomicMax, long long, value > old ? value : old)
inline int atomicAdd(int* at, int value) {
  return static_cast<int>(
      atomicAdd(reinterpret_cast<unsigned*>(at), static_cast<unsigned>(value)));  // wraps
}
#undef GB_EMU_ATOMICS
#undef GB_EMU_ATOMIC

#define GB_EMU_MINMAX(T)                           \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
GB_EMU_MINMAX(int)
GB_EMU_MINMAX(unsigned)
GB_EMU_MINMAX(long)
GB_EMU_MINMAX(unsigned long)
GB_EMU_MINMAX(long long)
GB_EMU_MINMAX(unsigned long long)
#undef GB_EMU_MINMAX
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }

#endif  // GRADBUS_EMU_INTRINSICS_H_
