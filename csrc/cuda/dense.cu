// Bytes moved of n float32 values: SGD 12n, with momentum 20n, Adam 28n, row-wise Adagrad 12n.
#include "cuda/dense.cuh"
#include "cuda/rows.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// Vectors of a thread in flight: of each there are 2 (sgd) to 4 (adam) arrays to be read.
template <Kind kKind>
constexpr int kFlight = kKind == kSgd    ? 4
                        : kKind == kFtrl ? 1
                                         : 2;

template <Kind kKind, Access kAccess>
__global__ void __launch_bounds__(kThreads, kBlocksEach) dense_kernel(DenseCall c) {
  if (Refused(c.flags)) return;
  constexpr int kTurn = kFlight<kKind>;
  const int64_t vectors = kAccess == kSingles ? (c.n + 3) / 4 : c.n / 4;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t me = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const When when = {c.first != 0, 0, 0};
  unsigned bad = 0;
  for (int64_t i = me; i < vectors; i += kTurn * stride) {
    Held held[kTurn];
    Bits grad[kTurn];
#pragma unroll
    for (int u = 0; u < kTurn; u++) {
      const int64_t v = i + u * stride;
      if (v >= vectors) continue;
      grad[u] = Fetch<kAccess, true>(c.grad, c.grad_dtype, 4 * v, ColumnsOf(c.n, v));
      held[u] = FetchRow<kKind, kAccess, true>(c.target, 4 * v, ColumnsOf(c.n, v));
    }
#pragma unroll
    for (int u = 0; u < kTurn; u++) {
      const int64_t v = i + u * stride;
      if (v >= vectors) continue;
      const Four d = Divided(c.weight, Widen<kAccess>(grad[u], c.grad_dtype));
      if (c.nonfinite == GB_NONFINITE_COUNT) bad += CountNonFinite(d);
      FinishRow<kKind, kAccess, true>(c.target, c.rule, when, held[u], d, 4 * v, ColumnsOf(c.n, v));
    }
  }
  if (kAccess != kSingles && me < c.n % 4) {  // what is left of the last vector, value by value
    const int64_t at = c.n - c.n % 4 + me;
    const Held held = FetchRow<kKind, kSingles, false>(c.target, at, 1);
    const Four d = Divided(c.weight, Load<kSingles>(c.grad, c.grad_dtype, at, 1));
    if (c.nonfinite == GB_NONFINITE_COUNT) bad += CountNonFinite(d);
    FinishRow<kKind, kSingles, false>(c.target, c.rule, when, held, d, at, 1);
  }
  if (c.nonfinite == GB_NONFINITE_COUNT) AddCount(&c.flags->nonfinite, bad);
}

template <Kind kKind>
void LaunchDense(Queue& queue, Access access, const DenseCall& c) {
  const unsigned blocks = queue.Blocks((c.n + 3) / 4, kThreads * kFlight<kKind>);
  if (access == kFloats) {
    Launch(queue, blocks, kThreads, dense_kernel<kKind, kFloats>, c);
  } else if (access == kVectors) {
    Launch(queue, blocks, kThreads, dense_kernel<kKind, kVectors>, c);
  } else {
    Launch(queue, blocks, kThreads, dense_kernel<kKind, kSingles>, c);
  }
}

// All rows of the tensor, in place of rows chosen by an index.
void QueueDenseRows(Queue& queue, const DenseCall& c) {
  RowsCall rows = {};
  rows.target = c.target;
  rows.rule = c.rule;
  rows.weight = c.weight;
  rows.grad = c.grad;
  rows.grad_dtype = c.grad_dtype;
  rows.n = rows.rows = c.n / c.target.dim;
  rows.flags = c.flags;
  rows.nonfinite = c.nonfinite;
  QueueRows(queue, rows);
}

}  // namespace

Target DenseTarget(const gb_in& param, const gb_out& out, const gb_optimizer& optimizer,
                   int64_t dim) {
  return TargetOf(param, out, optimizer, dim > 0 ? dim : param.n);
}

void QueueDense(Queue& queue, const DenseCall& c) {
  const Kind kind = KindOf(c.rule);
  if (kind == kRowwise) return QueueDenseRows(queue, c);
  if (c.nonfinite == GB_NONFINITE_REFUSE) {
    QueueLook(queue, c.grad, c.grad_dtype, c.weight, c.n, c.flags);
  }
  AccessOf access(4);
  access.And(c.grad, c.grad_dtype);
  And(access, c.target, kind);
  switch (kind) {
    case kSgd:
      return LaunchDense<kSgd>(queue, access.best(), c);
    case kMomentum:
      return LaunchDense<kMomentum>(queue, access.best(), c);
    case kAdagrad:
      return LaunchDense<kAdagrad>(queue, access.best(), c);
    case kFtrl:
      return LaunchDense<kFtrl>(queue, access.best(), c);
    default:
      return LaunchDense<kAdam>(queue, access.best(), c);
  }
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
