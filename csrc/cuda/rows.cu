// Bytes moved of n rows of dim float32 values: 4*dim*n for the gradient and as much for each array
// that is read and each that is written, the index, and a row's own numbers.
#include "cuda/adagrad.cuh"
#include "cuda/rows.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// Rows of a group in flight: of each there are 2 (sgd) to 4 (adam) arrays to be read. A row that
// may have steps to make up for needs the registers itself.
template <Kind kKind, bool kPast>
constexpr int kFlight = kPast || kHasTwo<kKind> ? 1 : 2;

// RowAt is where row i of the gradient belongs, or -1 where its index is bad and to be skipped.
__device__ __forceinline__ int64_t RowAt(const RowsCall& c, int64_t i) {
  if (c.index == nullptr) return i;
  const int64_t row = IntAt(c.index, c.index_dtype, i);
  return static_cast<uint64_t>(row) < static_cast<uint64_t>(c.rows) ? row : -1;
}

// Mine says which rows a group takes: begin, begin+stride, ...
struct Mine {
  int64_t begin, stride;
};

__device__ __forceinline__ Mine MineOf(unsigned group) {
  const int64_t block = kThreads / group;
  return {blockIdx.x * block + threadIdx.x / group, gridDim.x * block};
}

// GradAt is vector v of row i of the gradient, divided; zero beyond the row.
template <Access kAccess>
__device__ __forceinline__ Four GradAt(const RowsCall& c, int64_t i, int64_t v) {
  const Four zero = {{0, 0, 0, 0}};
  const int count = ColumnsOf(c.target.dim, v);
  if (count <= 0) return zero;
  const int64_t at = i * c.target.dim + 4 * v;
  return Divided(c.weight, Load<kAccess>(c.grad, c.grad_dtype, at, count));
}

// ClipOf is the factor of row i of the gradient; 1 where rows are not clipped by their norm.
template <Access kAccess>
__device__ __forceinline__ float ClipOf(const RowsCall& c, const Group& g, int64_t i) {
  if (c.rule.clip != GB_CLIP_ROW) return 1;
  return RowFactor(g, c.target.dim, c.rule.by, [&](int64_t v) { return GradAt<kAccess>(c, i, v); });
}

// What has a past needs some 80 registers, which three blocks have room for.
template <bool kPast>
constexpr unsigned kBlocksOf = kPast ? kBlocksEach - 1 : kBlocksEach;

// kPast: rows have a last step, or are clipped by their norm.
template <Kind kKind, Access kAccess, bool kPast>
__global__ void __launch_bounds__(kThreads, kBlocksOf<kPast>) rows_kernel(RowsCall c) {
  if (Refused(c.flags)) return;
  if (c.count != nullptr) c.n = static_cast<int64_t>(*c.count);
  constexpr int kTurn = kFlight<kKind, kPast>;
  const Group g = GroupOf(c.group);
  const Mine mine = MineOf(c.group);
  const int64_t dim = c.target.dim, vectors = (dim + 3) / 4;
  unsigned bad = 0;
  for (int64_t base = mine.begin; base < c.n; base += kTurn * mine.stride) {
    int64_t from[kTurn];
    When when[kTurn];
    float factor[kTurn];
#pragma unroll
    for (int u = 0; u < kTurn; u++) {
      const int64_t i = base + u * mine.stride;
      from[u] = i < c.n ? RowAt(c, i) : -1;
    }
#pragma unroll
    for (int u = 0; u < kTurn; u++) {
      when[u] = {false, 0, 0};
      factor[u] = 1;
      if (from[u] < 0) continue;
      const int64_t i = base + u * mine.stride;
      if (kPast) factor[u] = ClipOf<kAccess>(c, g, i);
      if (kPast) {
        when[u] = WhenOf(c.past, from[u], i);
      } else if (kKind == kMomentum && c.past.first != nullptr) {
        when[u].first = c.past.first[i] != 0;
      }
    }
    for (int64_t v = g.t; v < vectors; v += g.size) {
      const int count = ColumnsOf(dim, v);
      Held held[kTurn];
      Bits grad[kTurn];
#pragma unroll
      for (int u = 0; u < kTurn; u++) {
        if (from[u] < 0) continue;
        const int64_t i = base + u * mine.stride;
        held[u] = FetchRow<kKind, kAccess, false>(c.target, from[u] * dim + 4 * v, count);
        grad[u] = Fetch<kAccess, true>(c.grad, c.grad_dtype, i * dim + 4 * v, count);
      }
#pragma unroll
      for (int u = 0; u < kTurn; u++) {
        if (from[u] < 0) continue;
        const int64_t to = c.in_place != 0 ? from[u] : base + u * mine.stride;
        Four d = Divided(c.weight, Widen<kAccess>(grad[u], c.grad_dtype));
        if (c.nonfinite == GB_NONFINITE_COUNT) bad += CountNonFinite(d);
        if (kPast && c.rule.clip == GB_CLIP_ROW) d = Times(d, factor[u]);
        FinishRow<kKind, kAccess, false>(c.target, c.rule, when[u], held[u], d, to * dim + 4 * v,
                                         count);
      }
    }
#pragma unroll
    for (int u = 0; kPast && u < kTurn; u++) {
      if (from[u] < 0) continue;
      EndRow(c.past, g, c.in_place != 0 ? from[u] : base + u * mine.stride);
    }
  }
  if (c.nonfinite == GB_NONFINITE_COUNT) AddCount(&c.flags->nonfinite, bad);
}

// kNarrow: a row has no more vectors than the group has threads.
template <Access kAccess, bool kNarrow>
__global__ void __launch_bounds__(kThreads, kBlocksEach) adagrad_rows_kernel(RowsCall c) {
  if (Refused(c.flags)) return;
  if (c.count != nullptr) c.n = static_cast<int64_t>(*c.count);
  const Group g = GroupOf(c.group);
  const Mine mine = MineOf(c.group);
  const int64_t dim = c.target.dim, vectors = (dim + 3) / 4;
  unsigned bad = 0;
  for (int64_t i = mine.begin; i < c.n; i += mine.stride) {
    const int64_t from = RowAt(c, i);
    if (from < 0) continue;
    const int64_t to = c.in_place != 0 ? from : i;
    const When when = WhenOf(c.past, from, i);
    const float factor = ClipOf<kAccess>(c, g, i);
    if (kNarrow) {
      Bits p = {{0, 0, 0, 0}};
      const int count = ColumnsOf(dim, g.t);
      if (count > 0) {
        p = Fetch<kAccess, false>(c.target.p.before, c.target.p.dtype, from * dim + 4 * g.t, count);
      }
      const Four d = GradAt<kAccess>(c, i, g.t);
      if (c.nonfinite == GB_NONFINITE_COUNT) bad += CountNonFinite(d);
      AdagradNarrow<kAccess, false>(g, c.target, c.rule, when, p, Times(d, factor), from, to);
    } else {
      for (int64_t v = g.t; v < vectors && c.nonfinite == GB_NONFINITE_COUNT; v += g.size) {
        bad += CountNonFinite(GradAt<kAccess>(c, i, v));
      }
      AdagradWide<kAccess>(g, c.target, c.rule, when, from, to,
                           [&](int64_t v) { return Times(GradAt<kAccess>(c, i, v), factor); });
    }
    EndRow(c.past, g, to);
  }
  if (c.nonfinite == GB_NONFINITE_COUNT) AddCount(&c.flags->nonfinite, bad);
}

__device__ __forceinline__ void RaiseNonFinite(Flags* flags, const Four& d, int64_t at) {
#pragma unroll
  for (int i = 3; i >= 0; i--) {
    if (!(d.x[i] - d.x[i] == 0)) Raise(flags, kNonFinite, 0, at + i);
  }
}

// Looks at the gradient of the rows that would be applied, and writes nothing.
template <Access kAccess>
__global__ void __launch_bounds__(kThreads, kBlocksEach) look_rows_kernel(RowsCall c) {
  // Not if it is refused already: some blocks of this very kernel may have seen to that.
  if (c.count != nullptr) c.n = static_cast<int64_t>(*c.count);
  const Mine mine = MineOf(c.group);
  const int64_t dim = c.target.dim, vectors = (dim + 3) / 4;
  unsigned bad = 0;
  for (int64_t i = mine.begin; i < c.n; i += mine.stride) {
    if (RowAt(c, i) < 0) continue;
    for (int64_t v = threadIdx.x % c.group; v < vectors; v += c.group) {
      const Four d = GradAt<kAccess>(c, i, v);
      bad += CountNonFinite(d);
      RaiseNonFinite(c.flags, d, i * dim + 4 * v);
    }
  }
  AddCount(&c.flags->nonfinite, bad);
}

template <Access kAccess>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    look_kernel(const void* __restrict__ values, gb_dtype dtype, Quotient weight, int64_t n,
                Flags* flags) {
  unsigned bad = 0;
  GB_EACH(v, (n + 3) / 4) {
    const int count = ColumnsOf(n, v);
    const Bits bits = kAccess != kSingles && count == 4
                          ? Fetch<kAccess, true>(values, dtype, 4 * v, count)
                          : Fetch<kSingles, false>(values, dtype, 4 * v, count);
    const Four d = Divided(weight, Widen<kAccess>(bits, dtype));
    bad += CountNonFinite(d);
    RaiseNonFinite(flags, d, 4 * v);
  }
  AddCount(&flags->nonfinite, bad);
}

template <Kind kKind, Access kAccess>
void LaunchPast(Queue& queue, const RowsCall& c) {
  const int64_t block = kThreads / c.group;
  if (c.past.last != nullptr || c.rule.clip == GB_CLIP_ROW) {
    Launch(queue, queue.Blocks(c.n, block * kFlight<kKind, true>), kThreads,
           rows_kernel<kKind, kAccess, true>, c);
  } else {
    Launch(queue, queue.Blocks(c.n, block * kFlight<kKind, false>), kThreads,
           rows_kernel<kKind, kAccess, false>, c);
  }
}

template <Access kAccess>
void LaunchRows(Queue& queue, Kind kind, const RowsCall& c) {
  const int64_t block = kThreads / c.group;  // rows of a block at once
  if (c.nonfinite == GB_NONFINITE_REFUSE) {
    Launch(queue, queue.Blocks(c.n, block), kThreads, look_rows_kernel<kAccess>, c);
  }
  if (kind == kSgd) {
    LaunchPast<kSgd, kAccess>(queue, c);
  } else if (kind == kMomentum) {
    LaunchPast<kMomentum, kAccess>(queue, c);
  } else if (kind == kAdam) {
    LaunchPast<kAdam, kAccess>(queue, c);
  } else if (kind == kAdagrad) {
    LaunchPast<kAdagrad, kAccess>(queue, c);
  } else if (kind == kFtrl) {
    LaunchPast<kFtrl, kAccess>(queue, c);
  } else if (c.target.dim <= 4 * static_cast<int64_t>(c.group)) {
    Launch(queue, queue.Blocks(c.n, block), kThreads, adagrad_rows_kernel<kAccess, true>, c);
  } else {
    Launch(queue, queue.Blocks(c.n, block), kThreads, adagrad_rows_kernel<kAccess, false>, c);
  }
}

}  // namespace

void QueueRows(Queue& queue, RowsCall c) {
  const Kind kind = KindOf(c.rule);
  AccessOf access(c.target.dim);
  access.And(c.grad, c.grad_dtype);
  And(access, c.target, kind);
  c.group = GroupSize(c.target.dim);
  if (access.best() == kFloats) {
    LaunchRows<kFloats>(queue, kind, c);
  } else if (access.best() == kVectors) {
    LaunchRows<kVectors>(queue, kind, c);
  } else {
    LaunchRows<kSingles>(queue, kind, c);
  }
}

void QueueLook(Queue& queue, const void* values, gb_dtype dtype, const Quotient& weight, int64_t n,
               Flags* flags) {
  AccessOf access(4);
  access.And(values, dtype);
  const unsigned blocks = queue.Blocks((n + 3) / 4, kThreads);
  if (access.best() == kFloats) {
    Launch(queue, blocks, kThreads, look_kernel<kFloats>, values, dtype, weight, n, flags);
  } else if (access.best() == kVectors) {
    Launch(queue, blocks, kThreads, look_kernel<kVectors>, values, dtype, weight, n, flags);
  } else {
    Launch(queue, blocks, kThreads, look_kernel<kSingles>, values, dtype, weight, n, flags);
  }
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
