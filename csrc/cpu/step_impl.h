// The steps of the optimizers, on float32: SGD, both Adagrads, both Adams, FTRL. Included by
// kernels_impl.h.
//
// Values of one position depend on nothing else, but for the columns of row-wise Adagrad, whose 16
// partial sums are the same for vectors of every width.
#ifndef GRADBUS_CPU_STEP_IMPL_H_
#define GRADBUS_CPU_STEP_IMPL_H_

#include "cpu/load.h"
#include "cpu/plan_impl.h"
#include "cpu/step_kernels.h"
#include "cpu/stream.h"

namespace gradbus {
namespace GB_ISA {

// kAhead is how many bytes ahead the streams of a dense tensor are fetched. 1 to 8 KB could not be
// told apart on the machine this was written on; all were a few percent better than none.
constexpr int64_t kAhead = 2048;

template <typename V>
inline typename V::Type Sqrt(typename V::Type x) {
#ifdef GRADBUS_X86
#if GB_WIDTH >= 16
  if constexpr (V::kWidth == 16)
    return BitsAs<typename V::Type>(_mm512_maskz_sqrt_ps(kAll, (__m512)x));
#endif
#if GB_WIDTH >= 8
  if constexpr (V::kWidth == 8) return BitsAs<typename V::Type>(_mm256_sqrt_ps((__m256)x));
#endif
  if constexpr (V::kWidth == 4) return BitsAs<typename V::Type>(_mm_sqrt_ps((__m128)x));
  if constexpr (V::kWidth == 1) return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#else
  if constexpr (V::kWidth == 1) {
    return __builtin_sqrtf(x);
  } else {
    for (int i = 0; i < V::kWidth; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
  }
#endif
}

// Divided is the gradient as applied, before weight decay.
template <typename V>
inline typename V::Type Divided(const StepRun& r, int64_t i) {
  const typename V::Type g = V::Load(r.g + i);
  return r.multiply ? g * r.by : g / r.by;
}

// Clipped leaves NaN as it is.
template <typename V>
inline typename V::Type Clipped(const StepRun& r, typename V::Type d) {
  using T = typename V::Type;
  if (r.rule.clip == GB_CLIP_SCALE) return d * r.rule.by;
  if (r.rule.clip == GB_CLIP_ROW) return d * r.factor;
  const T zero = {}, by = zero + r.rule.by;
  d = d > by ? by : d;
  return d < -by ? -by : d;
}

template <typename V>
inline typename V::Type Decayed(const StepRun& r, int64_t i, typename V::Type p) {
  typename V::Type d = Divided<V>(r, i);
  if (r.rule.clip != GB_CLIP_NONE) d = Clipped<V>(r, d);
  return r.rule.decay != 0 ? d + p * r.rule.decay : d;
}

// The rules, one register at a time: they give the new value and store the new slots.
template <typename V, bool kStream>
inline typename V::Type Sgd(const StepRun& r, int64_t i, typename V::Type p) {
  const typename V::Type d = Decayed<V>(r, i, p);
  return p - d * r.rule.lr;
}

template <typename V, bool kStream>
inline typename V::Type Momentum(const StepRun& r, int64_t i, typename V::Type p) {
  const typename V::Type d = Decayed<V>(r, i, p);
  typename V::Type m = d;
  if (!r.first) m = V::Load(r.s[0] + i) * r.rule.mu + d * r.rule.keep;
  Emit<V, kStream>(r.out_s[0] + i, m);
  if (r.rule.nesterov) m = d + m * r.rule.mu;
  return p - m * r.rule.lr;
}

template <typename V, bool kStream>
inline typename V::Type RowwiseAdagrad(const StepRun& r, int64_t i, typename V::Type p) {
  return p - (Decayed<V>(r, i, p) / r.root) * r.rule.lr;
}

template <typename V, bool kStream>
inline typename V::Type Adagrad(const StepRun& r, int64_t i, typename V::Type p) {
  using T = typename V::Type;
  const T d = Decayed<V>(r, i, p);
  const T sum = V::Load(r.s[0] + i) + d * d;
  Emit<V, kStream>(r.out_s[0] + i, sum);
  return p - (d / (Sqrt<V>(sum) + r.rule.eps)) * r.rule.lr;
}

// Threshold is l1 with the sign of x; where x has none, x itself.
template <typename V>
inline typename V::Type Threshold(const StepRun& r, typename V::Type x) {
  using T = typename V::Type;
  const T zero = {}, l1 = zero + r.rule.l1;
  return x > zero ? l1 : x < zero ? -l1 : x;
}

template <typename V, bool kStream>
inline typename V::Type Ftrl(const StepRun& r, int64_t i, typename V::Type p) {
  using T = typename V::Type;
  const T zero = {}, l1 = zero + r.rule.l1;
  const T d = Decayed<V>(r, i, p);
  const T n = V::Load(r.s[1] + i), z = V::Load(r.s[0] + i);
  const T begun = n == zero ? -(p * r.rule.base + Threshold<V>(r, p)) : z;
  const T new_n = n + d * d;
  const T root = Sqrt<V>(new_n);
  const T new_z = (begun + d * r.rule.lr) - (root - Sqrt<V>(n)) * p;
  Emit<V, kStream>(r.out_s[0] + i, new_z);
  Emit<V, kStream>(r.out_s[1] + i, new_n);
  T out = (Threshold<V>(r, new_z) - new_z) / (root + r.rule.base);
  const T size = new_z < zero ? -new_z : new_z;
  out = size <= l1 ? zero : out;
  return new_n == zero ? p : out;
}

template <typename V, bool kStream>
inline typename V::Type Adam(const StepRun& r, int64_t i, typename V::Type p) {
  using T = typename V::Type;
  const T d = Decayed<V>(r, i, p);
  const T mean = V::Load(r.s[0] + i) * r.rule.beta1 + d * r.rule.keep1;
  const T square = V::Load(r.s[1] + i) * r.rule.beta2 + (d * r.rule.keep2) * d;
  Emit<V, kStream>(r.out_s[0] + i, mean);
  Emit<V, kStream>(r.out_s[1] + i, square);
  return p * r.rule.shrink - (mean / (Sqrt<V>(square) / r.rule.b2 + r.rule.eps)) * r.rule.rate;
}

// Ahead fetches what the streams of a dense tensor need next. Processors follow a few streams on
// their own, but not across the pages.
template <int kSlots>
inline void Ahead(const StepRun& r, int64_t i, int64_t n) {
  for (int64_t at = i; at < i + n; at += 16) {
    __builtin_prefetch(reinterpret_cast<const char*>(r.p + at) + kAhead);
    __builtin_prefetch(reinterpret_cast<const char*>(r.g + at) + kAhead);
    for (int s = 0; s < kSlots; s++) {
      __builtin_prefetch(reinterpret_cast<const char*>(r.s[s] + at) + kAhead);
    }
  }
}

// StepTiles runs a rule over [from, to).
template <bool kStream, int kSlots, typename RuleAt>
inline void StepTiles(const StepRun& r, int64_t from, int64_t to, RuleAt&& rule) {
  ForTiles<4>(to, from, [&](auto vec, auto count, int64_t column) {
    using V = decltype(vec);
    constexpr int kCount = decltype(count)::kValue;
    if (r.dense && V::kWidth == kWidth) Ahead<kSlots>(r, column, kCount * kWidth);
    typename V::Type out[kCount];
    for (int t = 0; t < kCount; t++) {
      const int64_t i = column + t * V::kWidth;
      out[t] = rule(vec, i, V::Load(r.p + i));
    }
    for (int t = 0; t < kCount; t++) Emit<V, kStream>(r.out + column + t * V::kWidth, out[t]);
  });
}

// WithRule calls run(number of slots, rule), the rule being that of r.
template <bool kStream, typename F>
inline void WithRule(const StepRun& r, F&& run) {
  switch (r.rule.kind) {
    case GB_SGD:
      if (r.rule.momentum) {
        return run(Count<1>(), [&r](auto vec, int64_t i, auto p) {
          return Momentum<decltype(vec), kStream>(r, i, p);
        });
      }
      return run(Count<0>(), [&r](auto vec, int64_t i, auto p) {
        return Sgd<decltype(vec), kStream>(r, i, p);
      });
    case GB_ROWWISE_ADAGRAD:
      return run(Count<0>(), [&r](auto vec, int64_t i, auto p) {
        return RowwiseAdagrad<decltype(vec), kStream>(r, i, p);
      });
    case GB_ADAGRAD:
      return run(Count<1>(), [&r](auto vec, int64_t i, auto p) {
        return Adagrad<decltype(vec), kStream>(r, i, p);
      });
    case GB_FTRL:
      return run(Count<2>(), [&r](auto vec, int64_t i, auto p) {
        return Ftrl<decltype(vec), kStream>(r, i, p);
      });
    default:
      return run(Count<2>(), [&r](auto vec, int64_t i, auto p) {
        return Adam<decltype(vec), kStream>(r, i, p);
      });
  }
}

template <bool kStream>
inline void StepRange(const StepRun& given, int64_t from, int64_t to) {
  const StepRun r = given;  // a copy that no store below can change, so it stays in registers
  WithRule<kStream>(r, [&](auto slots, auto rule) {
    StepTiles<kStream, decltype(slots)::kValue>(r, from, to, rule);
  });
}

void StepRows(const RowsStep& given) {
  const RowsStep all = given;
  StepRun r = all.one;
  WithRule<false>(r, [&](auto slots, auto rule) {
    constexpr int kSlots = decltype(slots)::kValue;
    for (int64_t i = 0; i < all.rows; i++) {
      const int64_t from = all.from[i] * r.n, to = all.to[i] * r.n;
      r.p = all.one.p + from;
      r.g = all.one.g + i * r.n;
      r.out = all.one.out + to;
      for (int s = 0; s < kSlots; s++) {
        r.s[s] = all.one.s[s] + from;
        r.out_s[s] = all.one.out_s[s] + to;
      }
      if (all.first != nullptr) r.first = all.first[i] != 0;
      StepTiles<false, kSlots>(r, 0, r.n, rule);
    }
  });
}

// Streams says whether all that a step writes can be aligned to registers at once.
inline bool Streams(const StepRun& r) {
  const int64_t head = ToRegister(r.out);
  for (int s = 0; s < kSlotsMax; s++) {
    if (r.out_s[s] != nullptr && ToRegister(r.out_s[s]) != head) return false;
  }
  return true;
}

void RunStep(const StepRun& r) {
  if (!r.stream || !Streams(r)) return StepRange<false>(r, 0, r.n);
  const int64_t head = Least(ToRegister(r.out), r.n);
  const int64_t whole = head + (r.n - head) / kWidth * kWidth;
  StepRange<false>(r, 0, head);
  StepRange<true>(r, head, whole);
  StepRange<false>(r, whole, r.n);
  EmitEnd();
}

void SquareColumns(const StepRun& r, float* sums) {
  using V = Vec<kWidth>;
  constexpr int kParts = kColumnSums / kWidth;
  typename V::Type part[kParts];
  for (int t = 0; t < kParts; t++) part[t] = V::Load(sums + t * kWidth);
  int64_t i = 0;
  for (; i + kColumnSums <= r.n; i += kColumnSums) {
    for (int t = 0; t < kParts; t++) {
      const int64_t at = i + t * kWidth;
      const typename V::Type d = Decayed<V>(r, at, V::Load(r.p + at));
      part[t] += d * d;
    }
  }
  for (int t = 0; t < kParts; t++) V::Store(sums + t * kWidth, part[t]);
  for (int j = 0; i < r.n; i++, j++) {
    const float d = Decayed<Vec<1>>(r, i, r.p[i]);
    sums[j] += d * d;
  }
}

// CountNonFinite: d - d is 0 for a finite number and NaN for the others, and only NaN differs from
// itself. n is below 2^31.
int64_t CountNonFinite(const StepRun& r) {
  using V = Vec<kWidth>;
  typename VectorOf<kWidth>::Int bad = {};  // -1 for each
  int64_t i = 0;
  for (; i + kWidth <= r.n; i += kWidth) {
    const V::Type d = Divided<V>(r, i);
    const V::Type zero = d - d;
    bad += zero != zero;
  }
  int64_t count = 0;
  for (int lane = 0; lane < kWidth; lane++) count -= bad[lane];
  for (; i < r.n; i++) {
    const float d = Divided<Vec<1>>(r, i);
    count += !(d - d == 0);
  }
  return count;
}

template <typename T>
inline void WidenFrom(const T* from, int64_t n, float* to) {
  ForTiles<2>(n, 0, [=](auto vec, auto count, int64_t i) {
    using V = decltype(vec);
    for (int t = 0; t < decltype(count)::kValue; t++) {
      V::Store(to + i + t * V::kWidth, Load<V>(from + i + t * V::kWidth));
    }
  });
}

template <typename T>
inline void NarrowTo(const float* from, int64_t n, T* to) {
  ForTiles<2>(n, 0, [=](auto vec, auto count, int64_t i) {
    using V = decltype(vec);
    for (int t = 0; t < decltype(count)::kValue; t++) {
      Store<V>(to + i + t * V::kWidth, V::Load(from + i + t * V::kWidth));
    }
  });
}

void WidenAny(const void* from, gb_dtype type, int64_t n, float* to) {
  switch (type) {
    case GB_FLOAT16:
      return WidenFrom(static_cast<const Float16*>(from), n, to);
    case GB_BFLOAT16:
      return WidenFrom(static_cast<const BFloat16*>(from), n, to);
    default:
      return WidenFrom(static_cast<const float*>(from), n, to);
  }
}

void NarrowAny(const float* from, int64_t n, void* to, gb_dtype type) {
  switch (type) {
    case GB_FLOAT16:
      return NarrowTo(from, n, static_cast<Float16*>(to));
    case GB_BFLOAT16:
      return NarrowTo(from, n, static_cast<BFloat16*>(to));
    default:
      return NarrowTo(from, n, static_cast<float*>(to));
  }
}

constexpr StepKernels kStepKernels = {RunPlan,        RunStep,  StepRows, SquareColumns,
                                      CountNonFinite, WidenAny, NarrowAny};

}  // namespace GB_ISA
}  // namespace gradbus

#endif  // GRADBUS_CPU_STEP_IMPL_H_
