// Stores that go around the caches. Included once per instruction set, see vector.h.
#ifndef GRADBUS_CPU_STREAM_H_
#define GRADBUS_CPU_STREAM_H_

#include "cpu/vector.h"
#ifdef GRADBUS_X86
#include <immintrin.h>  // its functions are always inlined, so that the linker sees none of them
#endif

namespace gradbus {
namespace GB_ISA {

constexpr int64_t kRegister = kWidth * 4;  // bytes

// Emit stores a register; with kStream, where it is a whole one and p is aligned to it, around the
// caches.
template <typename V, bool kStream>
inline void Emit(float* p, typename V::Type x) {
#ifdef GRADBUS_X86
  if constexpr (kStream && V::kWidth == kWidth) {
#if GB_WIDTH == 16
    _mm512_stream_ps(p, (__m512)x);
#elif GB_WIDTH == 8
    _mm256_stream_ps(p, (__m256)x);
#else
    _mm_stream_ps(p, (__m128)x);
#endif
    return;
  }
#endif
  V::Store(p, x);
}

// EmitEnd makes streamed stores visible in order with those that follow.
inline void EmitEnd() {
#ifdef GRADBUS_X86
  _mm_sfence();
#endif
}

// ToRegister is how many floats lie before p is aligned to a register.
inline int64_t ToRegister(const float* p) {
  const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) % kRegister);
  return past == 0 ? 0 : (kRegister - past) / 4;
}

}  // namespace GB_ISA
}  // namespace gradbus

#endif  // GRADBUS_CPU_STREAM_H_
