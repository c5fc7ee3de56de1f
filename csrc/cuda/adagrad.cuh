// Row-wise Adagrad and the norm of a row on the device, a row by a group of threads (rule.cuh).
#ifndef GRADBUS_CUDA_ADAGRAD_CUH_
#define GRADBUS_CUDA_ADAGRAD_CUH_

#include "cuda/rule.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

// ColumnSum adds up a row in the order of gradbus.h: 16 partial sums, the j-th over columns j,
// j+16, ..., then pairwise. Vectors 0, 4, 8, ... carry the partial sums 0 to 3, vectors 1, 5, 9,
// ... those from 4 on, and so forth; so thread t keeps four of them, those of vectors t%4, t%4+4,
// ..., and shuffles bring it what the other threads hold. Threads with equal t%4 do the same work.
struct ColumnSum {
  float part[4] = {0, 0, 0, 0};

  // Add takes the next size vectors of the row, one from each thread; missing columns are zero. All
  // threads of the group must call it.
  __device__ __forceinline__ void Add(const Group& g, const Four& x) {
    const unsigned first = threadIdx.x % kWarp - g.t + g.t % 4;
    if (g.size < 4) {
#pragma unroll
      for (int c = 0; c < 4; c++) part[c] += x.x[c];
      return;
    }
    for (unsigned m = 0; m < g.size; m += 4) {
#pragma unroll
      for (int c = 0; c < 4; c++) part[c] += __shfl_sync(g.mask, x.x[c], first + m);
    }
  }

  __device__ __forceinline__ float Total(const Group& g) {
    if (g.size >= 4) {
#pragma unroll
      for (int c = 0; c < 4; c++) part[c] += __shfl_xor_sync(g.mask, part[c], 2);
    }
    if (g.size >= 2) {
#pragma unroll
      for (int c = 0; c < 4; c++) part[c] += __shfl_xor_sync(g.mask, part[c], 1);
    }
    return (part[0] + part[2]) + (part[1] + part[3]);
  }
};

__device__ __forceinline__ Four Squares(const Four& d) {
  Four x;
#pragma unroll
  for (int i = 0; i < 4; i++) x.x[i] = d.x[i] * d.x[i];
  return x;
}

// RowFactor is what a row is multiplied by so that its norm is at most by; grad(v) is vector v of
// its gradient, divided, zero beyond the row.
template <typename Grad>
__device__ __forceinline__ float RowFactor(const Group& g, int64_t dim, float by, Grad grad) {
  const int64_t vectors = (dim + 3) / 4;
  ColumnSum columns;
  for (int64_t base = 0; base < vectors; base += g.size) columns.Add(g, Squares(grad(base + g.t)));
  const float norm = sqrtf(columns.Total(g));
  return norm > by ? by / norm : 1;
}

// SumOf is a row's slot. The thread that writes it later is the only one to read it, so no other
// can read too late.
__device__ __forceinline__ float SumOf(const Group& g, const Target& t, int64_t row) {
  const float sum = g.t == 0 ? static_cast<const float*>(t.a.before)[row] : 0;
  return __shfl_sync(g.mask, sum, threadIdx.x % kWarp - g.t);
}

// AdagradSum is the new sum of a row's slot.
__device__ __forceinline__ float AdagradSum(float sum, ColumnSum& columns, const Group& g,
                                            int64_t dim) {
  return sum + columns.Total(g) / static_cast<float>(dim);
}

__device__ __forceinline__ void AdagradStep(const Rule& r, float sum, const Four& d, Four& p) {
  const float divisor = sqrtf(sum) + r.eps;
#pragma unroll
  for (int i = 0; i < 4; i++) p.x[i] = p.x[i] - r.lr * (d.x[i] / divisor);
}

// Present keeps the columns that exist; what a step makes of the others could spoil a sum.
__device__ __forceinline__ Four Present(const Four& x, int count) {
  Four y;
#pragma unroll
  for (int i = 0; i < 4; i++) y.x[i] = i < count ? x.x[i] : 0;
  return y;
}

// A row of no more vectors than the group has threads stays in registers. grad is divided.
template <Access kAccess, bool kStream>
__device__ __forceinline__ void AdagradNarrow(const Group& g, const Target& t, const Rule& r,
                                              const When& when, const Bits& p_bits,
                                              const Four& grad, int64_t from, int64_t to) {
  const int count = ColumnsOf(t.dim, g.t);
  float sum = SumOf(g, t, from);
  Four p = Widen<kAccess>(p_bits, t.p.dtype);
  const Four zero = {{0, 0, 0, 0}};
  for (int64_t s = when.begin; s < when.step; s++) {
    const Four p0 = p;
    const float sum0 = sum;
    const Four d = Decayed(r, zero, p);
    ColumnSum columns;
    columns.Add(g, Squares(d));
    sum = AdagradSum(sum, columns, g, t.dim);
    AdagradStep(r, sum, d, p);
    p = Present(Widen<kAccess>(Narrow<kAccess>(p, t.p.dtype), t.p.dtype), count);
    const bool same = SameBits(p, p0) && __float_as_int(sum) == __float_as_int(sum0);
    if (__all_sync(g.mask, same) && s != 1) break;
  }
  const Four d = Decayed(r, grad, p);
  ColumnSum columns;
  columns.Add(g, Squares(d));
  sum = AdagradSum(sum, columns, g, t.dim);
  AdagradStep(r, sum, d, p);
  if (count > 0) {
    Store<kAccess, kStream ? kStreamed : kWhole>(t.p.after, t.p.dtype, to * t.dim + 4 * g.t, count,
                                                 p);
  }
  if (g.t == 0) static_cast<float*>(t.a.after)[to] = sum;
}

// A wider row passes by twice a step: for the sum, and to be moved. The steps it makes up for go
// through memory, where the row is in the stored type as it should be between steps.
// grad(v) is vector v of the gradient, divided; it is asked for twice.
template <Access kAccess, typename Grad>
__device__ __forceinline__ float AdagradPass(const Group& g, const Target& t, const Rule& r,
                                             const void* before, int64_t from, int64_t to,
                                             float sum, bool* same, Grad grad) {
  const int64_t vectors = (t.dim + 3) / 4;
  ColumnSum columns;
  for (int64_t base = 0; base < vectors; base += g.size) {
    const int64_t v = base + g.t;
    Four x = {{0, 0, 0, 0}};
    if (v < vectors) {
      const int count = ColumnsOf(t.dim, v);
      const Four p = Load<kAccess>(before, t.p.dtype, from * t.dim + 4 * v, count);
      x = Squares(Decayed(r, grad(v), p));
    }
    columns.Add(g, x);
  }
  sum = AdagradSum(sum, columns, g, t.dim);
  for (int64_t v = g.t; v < vectors; v += g.size) {
    const int count = ColumnsOf(t.dim, v);
    const Four p0 = Load<kAccess>(before, t.p.dtype, from * t.dim + 4 * v, count);
    Four p = p0;
    AdagradStep(r, sum, Decayed(r, grad(v), p), p);
    const Bits now = Narrow<kAccess>(p, t.p.dtype);
    *same = *same && SameBits(Present(Widen<kAccess>(now, t.p.dtype), count), p0);
    Put<kAccess, kPlain>(t.p.after, t.p.dtype, to * t.dim + 4 * v, count, now);
  }
  return sum;
}

template <Access kAccess, typename Grad>
__device__ __forceinline__ void AdagradWide(const Group& g, const Target& t, const Rule& r,
                                            const When& when, int64_t from, int64_t to, Grad grad) {
  float sum = SumOf(g, t, from);
  const void* before = t.p.before;
  int64_t row = from;
  const Four zero = {{0, 0, 0, 0}};
  for (int64_t s = when.begin; s < when.step; s++) {
    const float sum0 = sum;
    bool same = true;
    sum = AdagradPass<kAccess>(g, t, r, before, row, to, sum, &same, [&](int64_t) { return zero; });
    before = t.p.after;
    row = to;
    same = same && __float_as_int(sum) == __float_as_int(sum0);
    if (__all_sync(g.mask, same) && s != 1) break;
  }
  bool same = true;
  sum = AdagradPass<kAccess>(g, t, r, before, row, to, sum, &same, grad);
  if (g.t == 0) static_cast<float*>(t.a.after)[to] = sum;
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_ADAGRAD_CUH_
