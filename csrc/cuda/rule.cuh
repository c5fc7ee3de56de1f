// The optimizers on the device: one step of core/rule.h's Rule for four values of a row at a time,
// and the steps that a row has missed.
//
// A row is worked on by a group of threads, a power of two of them within one warp. Thread t of the
// group has the vectors t, t+size, ... of the row; vector v is columns 4v to 4v+3. A kernel fetches
// what it needs of a vector (FetchRow), and with the gradient at hand finishes it (FinishRow).
// Row-wise Adagrad needs the whole row for its sum and goes through AdagradRow instead.
#ifndef GRADBUS_CUDA_RULE_CUH_
#define GRADBUS_CUDA_RULE_CUH_

#include "core/rule.h"
#include "cuda/load.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

// Kind is a rule's kind as far as kernels are compiled for it: sgd without and with momentum,
// row-wise adagrad, both adams, adagrad, ftrl.
enum Kind { kSgd, kMomentum, kRowwise, kAdam, kAdagrad, kFtrl };

inline Kind KindOf(const Rule& rule) {
  switch (rule.kind) {
    case GB_SGD:
      return rule.momentum ? kMomentum : kSgd;
    case GB_ROWWISE_ADAGRAD:
      return kRowwise;
    case GB_ADAGRAD:
      return kAdagrad;
    case GB_FTRL:
      return kFtrl;
    default:
      return kAdam;
  }
}

// Slots of dim values a row; kinds with two cannot make up for steps.
template <Kind kKind>
constexpr bool kHasTwo = kKind == kAdam || kKind == kFtrl;
template <Kind kKind>
constexpr bool kHasOne = kHasTwo<kKind> || kKind == kMomentum || kKind == kAdagrad;

// Quotient divides by a weight, once rounded. Multiplying by the reciprocal of a power of two has
// the same bits.
struct Quotient {
  float by, times;
  uint32_t multiply;
};

// A weight of 0 stands for no division.
inline Quotient QuotientOf(float weight) {
  if (weight == 0) return {1, 1, 1};
  return PowerOfTwo(weight) ? Quotient{weight, 1 / weight, 1} : Quotient{weight, 0, 0};
}

__device__ __forceinline__ Four Divided(const Quotient& q, const Four& x) {
  Four d;
  if (q.multiply != 0) {
#pragma unroll
    for (int i = 0; i < 4; i++) d.x[i] = x.x[i] * q.times;
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) d.x[i] = x.x[i] / q.by;
  }
  return d;
}

// Target is what an optimizer reads and writes: the parameters, and the slots a and b of the kind
// (momentum; sum; mean and square; z and n). Rows of the arrays before are chosen by from, of those
// after by to.
struct Target {
  struct Array {
    const void* before;
    void* after;
    gb_dtype dtype;
  };
  Array p, a, b;
  int64_t dim;
};

// TargetOf takes the arrays of a call, slots in canonical order.
Target TargetOf(const gb_in& before, const gb_out& after, const gb_optimizer& optimizer,
                int64_t dim);
// AndTarget narrows the access to what the arrays of a target allow; Adagrad's sums are read one by
// one.
AccessOf& And(AccessOf& access, const Target& target, Kind kind);

struct Group {
  unsigned mask;  // of its lanes
  unsigned t;     // this thread
  unsigned size;
};

__device__ __forceinline__ Group GroupOf(unsigned size) {
  const unsigned lane = threadIdx.x % kWarp, t = lane & (size - 1);
  return {size == kWarp ? 0xffffffffu : ((1u << size) - 1) << (lane - t), t, size};
}

// GroupSize is how many threads a row of dim values is for.
inline unsigned GroupSize(int64_t dim) {
  unsigned size = 1;
  while (size < kWarp && size * 4 < dim) size *= 2;
  return size;
}

__device__ __forceinline__ int ColumnsOf(int64_t dim, int64_t vector) {
  const int64_t left = dim - 4 * vector;
  return left < 4 ? static_cast<int>(left) : 4;
}

// Past says which steps rows have had: gb_steps, and the first of apply_rows.
struct Past {
  const int64_t* last;
  int64_t* last_after;
  int64_t step;
  const uint8_t* first;
  uint32_t exact;
};

inline Past PastOf(const gb_steps& s, const gb_in* first) {
  Past p = {};
  if (s.last.n > 0) p.last = static_cast<const int64_t*>(s.last.data);
  if (s.last_after.n > 0) p.last_after = static_cast<int64_t*>(s.last_after.data);
  p.step = s.step;
  if (first != nullptr && first->n > 0) p.first = static_cast<const uint8_t*>(first->data);
  p.exact = s.exact;
  return p;
}

// When is the past of one row: the steps begin to step-1 are made up for first.
struct When {
  bool first;
  int64_t begin, step;
};

// Every thread of a group may ask; before one of them writes last_after, which may be last, all
// must have asked (EndRow).
__device__ __forceinline__ When WhenOf(const Past& past, int64_t row, int64_t i) {
  When w = {false, past.step, past.step};
  if (past.last == nullptr) {
    w.first = past.first != nullptr && past.first[i] != 0;
    return w;
  }
  const int64_t last = past.last[row];
  w.first = last == 0;
  if (past.exact != 0 && last >= 0 && last < past.step - 1) {
    w.begin = last + 1;
    w.first = false;  // step 1 is among those made up for, or was had before
  }
  return w;
}

// EndRow writes a row's last step.
__device__ __forceinline__ void EndRow(const Past& past, const Group& group, int64_t to) {
  if (past.last_after == nullptr) return;
  __syncwarp(group.mask);
  if (group.t == 0) past.last_after[to] = past.step;
}

__device__ __forceinline__ bool SameBits(const Four& a, const Four& b) {
  unsigned differ = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    differ |= static_cast<unsigned>(__float_as_int(a.x[i]) ^ __float_as_int(b.x[i]));
  }
  return differ == 0;
}

// CountNonFinite looks at a gradient as it is applied, before weight decay.
__device__ __forceinline__ unsigned CountNonFinite(const Four& d) {
  unsigned n = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) n += !(d.x[i] - d.x[i] == 0);
  return n;
}

__device__ __forceinline__ Four Times(const Four& d, float factor) {
  Four x;
#pragma unroll
  for (int i = 0; i < 4; i++) x.x[i] = d.x[i] * factor;
  return x;
}

// Clipped clips by value, or by a factor that is known; the norm of a row is the caller's affair.
// NaN stays as it is.
__device__ __forceinline__ Four Clipped(const Rule& r, const Four& d) {
  if (r.clip == GB_CLIP_SCALE) return Times(d, r.by);
  if (r.clip != GB_CLIP_VALUE) return d;
  Four x;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float low = d.x[i] > r.by ? r.by : d.x[i];
    x.x[i] = low < -r.by ? -r.by : low;
  }
  return x;
}

// Decayed is the divided gradient as the rules take it.
__device__ __forceinline__ Four Decayed(const Rule& r, const Four& d, const Four& p) {
  Four x = r.clip != GB_CLIP_NONE ? Clipped(r, d) : d;
  if (r.decay != 0) {
#pragma unroll
    for (int i = 0; i < 4; i++) x.x[i] = x.x[i] + r.decay * p.x[i];
  }
  return x;
}

// Threshold is l1 with the sign of x; where x has none, x itself.
__device__ __forceinline__ float Threshold(const Rule& r, float x) {
  return x > 0 ? r.l1 : x < 0 ? -r.l1 : x;
}

__device__ __forceinline__ void Ftrl(const Rule& r, float d, float& p, float& z, float& n) {
  const float begun = n == 0 ? -(p * r.base + Threshold(r, p)) : z;
  const float after = n + d * d;
  const float root = sqrtf(after);
  z = (begun + r.lr * d) - (root - sqrtf(n)) * p;
  n = after;
  if (after == 0) return;
  const float size = z < 0 ? -z : z;
  p = size <= r.l1 ? 0 : (Threshold(r, z) - z) / (root + r.base);
}

// StepFour is one step of the kinds that work value by value, with the gradient d already divided.
template <Kind kKind>
__device__ __forceinline__ void StepFour(const Rule& r, const Four& divided, bool first, Four& p,
                                         Four& a, Four& b) {
  const Four d = Decayed(r, divided, p);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float update = d.x[i];
    if (kKind == kAdagrad) {
      a.x[i] = a.x[i] + d.x[i] * d.x[i];
      update = d.x[i] / (sqrtf(a.x[i]) + r.eps);
    } else if (kKind == kMomentum) {
      const float m = first ? d.x[i] : r.mu * a.x[i] + r.keep * d.x[i];
      update = r.nesterov ? d.x[i] + r.mu * m : m;
      a.x[i] = m;
    }
    if (kKind == kFtrl) {
      Ftrl(r, d.x[i], p.x[i], a.x[i], b.x[i]);
    } else if (kKind == kAdam) {
      a.x[i] = r.beta1 * a.x[i] + r.keep1 * d.x[i];
      b.x[i] = r.beta2 * b.x[i] + (r.keep2 * d.x[i]) * d.x[i];
      p.x[i] = p.x[i] * r.shrink - r.rate * (a.x[i] / (sqrtf(b.x[i]) / r.b2 + r.eps));
    } else {
      p.x[i] = p.x[i] - r.lr * update;
    }
  }
}

// Replay makes up for the steps that four values sat out, as dense steps with a gradient of zero
// would have moved them, their rounding to the stored type included. It ends early where a step
// changes nothing, since then none after it does.
template <Kind kKind, Access kAccess>
__device__ __forceinline__ void Replay(const Rule& r, const When& when, gb_dtype p_dtype,
                                       gb_dtype a_dtype, Four& p, Four& a) {
  const Four zero = {{0, 0, 0, 0}};
  for (int64_t s = when.begin; s < when.step; s++) {
    const Four p0 = p, a0 = a;
    Four none = zero;
    StepFour<kKind>(r, zero, s == 1, p, a, none);
    p = Widen<kAccess>(Narrow<kAccess>(p, p_dtype), p_dtype);
    if (kHasOne<kKind>) a = Widen<kAccess>(Narrow<kAccess>(a, a_dtype), a_dtype);
    if (s != 1 && SameBits(p, p0) && SameBits(a, a0)) break;
  }
}

// Held is what was fetched of a vector of a row.
struct Held {
  Bits p, a, b;
};

// at is the first value of the vector among all of the array.
template <Kind kKind, Access kAccess, bool kStream>
__device__ __forceinline__ Held FetchRow(const Target& t, int64_t at, int count) {
  Held h = {};
  h.p = Fetch<kAccess, kStream>(t.p.before, t.p.dtype, at, count);
  if (kHasOne<kKind>) {
    h.a = Fetch<kAccess, kStream>(t.a.before, t.a.dtype, at, count);
  }
  if (kHasTwo<kKind>) h.b = Fetch<kAccess, kStream>(t.b.before, t.b.dtype, at, count);
  return h;
}

// FinishRow steps the vector and writes it from value at on; d is the gradient, divided.
template <Kind kKind, Access kAccess, bool kStream>
__device__ __forceinline__ void FinishRow(const Target& t, const Rule& r, const When& when,
                                          const Held& h, const Four& d, int64_t at, int count) {
  static_assert(kKind != kRowwise, "AdagradRow steps whole rows");
  Four p = Widen<kAccess>(h.p, t.p.dtype);
  Four a = {{0, 0, 0, 0}}, b = {{0, 0, 0, 0}};
  if (kHasOne<kKind>) a = Widen<kAccess>(h.a, t.a.dtype);
  if (kHasTwo<kKind>) b = Widen<kAccess>(h.b, t.b.dtype);
  if (!kHasTwo<kKind> && when.begin < when.step) {
    Replay<kKind, kAccess>(r, when, t.p.dtype, t.a.dtype, p, a);
  }
  StepFour<kKind>(r, d, when.first, p, a, b);
  constexpr Storing kStoring = kStream ? kStreamed : kWhole;
  Store<kAccess, kStoring>(t.p.after, t.p.dtype, at, count, p);
  if (kHasOne<kKind>) {
    Store<kAccess, kStoring>(t.a.after, t.a.dtype, at, count, a);
  }
  if (kHasTwo<kKind>) Store<kAccess, kStoring>(t.b.after, t.b.dtype, at, count, b);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_RULE_CUH_
