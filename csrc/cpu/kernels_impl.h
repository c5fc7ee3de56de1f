// The kernels of one instruction set. Included by kernels_<isa>.cc alone, after GB_ISA and
// GB_WIDTH.
//
// Vectors run along the columns only, so the order of additions of an element does not depend on
// their width. The compiler may not contract products into sums (-ffp-contract=off).
#include "core/order.h"
#include "cpu/bag_impl.h"
#include "cpu/gather_impl.h"
#include "cpu/kernels.h"
#include "cpu/load.h"
#include "cpu/plan_impl.h"
#include "cpu/step_impl.h"
#include "cpu/stream.h"
#include "cpu/vector.h"

namespace gradbus {
namespace GB_ISA {

// Finite says whether kSteps times four registers of values are all finite: x - x is 0 for a finite
// number and NaN for the others, and a NaN stays in the sum.
template <int kSteps>
inline bool Finite(const float* values) {
  using V = Vec<kWidth>;
  V::Type sums[4] = {};
  for (int i = 0; i < 4 * kSteps; i += 4) {
    for (int t = 0; t < 4; t++) {
      const V::Type x = V::Load(values + (i + t) * kWidth);
      sums[t] += x - x;
    }
  }
  float lanes[kWidth];
  V::Store(lanes, (sums[0] + sums[1]) + (sums[2] + sums[3]));
  float all = 0;
  for (const float s : lanes) all += s;
  return all == 0;
}

int64_t FirstNonFinite(const float* values, int64_t n) {
  constexpr int kSteps = 32, kStep = 4 * kWidth;
  int64_t at = 0;
  while (n - at >= kSteps * kStep && Finite<kSteps>(values + at)) at += kSteps * kStep;
  while (n - at >= kStep && Finite<1>(values + at)) at += kStep;
  for (; at < n; at++) {
    if (!(values[at] - values[at] == 0)) return at;
  }
  return -1;
}

void Copy(const void* from, int64_t bytes, bool stream, void* to) {
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
  constexpr int64_t kLine = 4 * kRegister;
  const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(target) % kRegister);
  int64_t at = past == 0 ? 0 : Least(kRegister - past, bytes);
  if (!stream || bytes < 2 * kLine) {
    __builtin_memcpy(target, source, bytes);
    return;
  }
  using V = Vec<kWidth>;
  __builtin_memcpy(target, source, at);
  for (; bytes - at >= kLine; at += kLine) {
    V::Type x[4];
    __builtin_memcpy(x, source + at, sizeof x);
    for (int t = 0; t < 4; t++) {
      Emit<V, true>(reinterpret_cast<float*>(target + at) + t * kWidth, x[t]);
    }
  }
  __builtin_memcpy(target + at, source + at, bytes - at);
  EmitEnd();
}

}  // namespace GB_ISA
}  // namespace gradbus

#include "cpu/math.h"
#include "cpu/matmul_impl.h"
#include "cpu/softmax.h"
#include "cpu/softmax_impl.h"

namespace gradbus {

#define GB_JOIN2(a, b) a##b
#define GB_JOIN(a, b) GB_JOIN2(a, b)

extern const Kernels GB_JOIN(kKernels, GB_SUFFIX);
const Kernels GB_JOIN(kKernels, GB_SUFFIX) = {
    GB_NAME,        GB_ISA::kBagKernels,   GB_ISA::kStepKernels, GB_ISA::PackedFloats,
    GB_ISA::MatMul, GB_ISA::SoftmaxFloats, GB_ISA::Softmax,      GB_ISA::FirstNonFinite,
    GB_ISA::Copy,   GB_ISA::Gather,
};

}  // namespace gradbus
