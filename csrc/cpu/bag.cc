// bag_forward and bag_backward: sums of rows that an index chooses.
//
// Bytes moved: every chosen row is read once and every output row written once; the indices are
// read twice, once to be checked.
#include <cstddef>

#include "cpu/cpu.h"

namespace gradbus {
namespace {

struct ForwardParts {
  int64_t* index;  // ids of one bag without padding
  ForwardParts(Arena& arena, const gb_bag_forward_args& a)
      : index(a.padding == GB_NO_PADDING ? nullptr : arena.Take<int64_t>(a.ids.n)) {}
};

struct BackwardParts {
  Pair *pairs, *spare;
  float* scaled;  // grad_out divided by the lengths of the bags
  BackwardParts(Arena& arena, const gb_bag_backward_args& a)
      : pairs(arena.Take<Pair>(a.ids.n)),
        spare(arena.Take<Pair>(a.ids.n)),
        scaled(a.mode == GB_MEAN ? arena.Take<float>(a.grad_out.n) : nullptr) {}
};

// SumSegments sums the rows of each run of equal keys. The rows of a run lie a Pair apart in
// memory.
template <typename Key>
void SumSegments(const Kernels& k, const Pair* sorted, int64_t n, const float* rows, int64_t dim,
                 Key* keys, float* out) {
  constexpr int64_t kStride = sizeof(Pair) / sizeof(int64_t);
  static_assert(offsetof(Pair, row) == 8 && sizeof(Pair) == 16, "rows are read by their stride");
  for (int64_t lo = 0, segment = 0; lo < n; segment++) {
    int64_t end = lo + 1;
    while (end < n && sorted[end].key == sorted[lo].key) end++;
    keys[segment] = static_cast<Key>(sorted[lo].key);
    k.bags.sum_rows(rows, dim, &sorted[lo].row, kStride, end - lo, out + segment * dim);
    lo = end;
  }
}

}  // namespace

uint64_t NeedsOf(const gb_context&, const gb_bag_forward_args& a) {
  Arena arena;
  ForwardParts parts(arena, a);
  return arena.needed();
}

uint64_t NeedsOf(const gb_context&, const gb_bag_backward_args& a) {
  Arena arena;
  BackwardParts parts(arena, a);
  return arena.needed();
}

gb_status CpuBagForward(gb_context* context, gb_stream* stream, const gb_bag_forward_args* a,
                        gb_workspace w, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  if (a->mode == GB_MAX || a->policy != GB_REFUSE || a->open_offsets != 0 || a->weights.n != 0 ||
      a->rows.dtype != GB_FLOAT32 || a->ids.dtype == GB_INT32 || a->offsets.dtype == GB_INT32 ||
      a->out.dtype != GB_FLOAT32) {
    return Fail(report, GB_UNSUPPORTED, "not written yet");
  }
  Arena arena(w);
  const ForwardParts parts(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  const Kernels& k = *context->kernels;
  const int64_t *ids = Ints(a->ids), *offsets = Ints(a->offsets);
  for (int64_t b = 0; b < a->offsets.n - 1; b++) {
    const int64_t* index = ids + offsets[b];
    int64_t n = offsets[b + 1] - offsets[b];
    if (a->padding != GB_NO_PADDING) {
      int64_t kept = 0;
      for (int64_t i = 0; i < n; i++) {
        if (index[i] != a->padding) parts.index[kept++] = index[i];
      }
      index = parts.index;
      n = kept;
    }
    float* out = Floats(a->out) + b * a->dim;
    k.bags.sum_rows(Floats(a->rows), a->dim, index, 1, n, out);
    if (a->mode == GB_MEAN && n > 1) k.bags.divide(out, static_cast<float>(n), a->dim, out);
  }
  return Done(report);
}

gb_status CpuBagBackward(gb_context* context, gb_stream* stream, const gb_bag_backward_args* a,
                         gb_workspace w, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  if (a->mode == GB_MAX || a->policy != GB_REFUSE || a->open_offsets != 0 || a->weights.n != 0 ||
      a->grad_out.dtype != GB_FLOAT32 || a->ids.dtype == GB_INT32 || a->offsets.dtype == GB_INT32 ||
      a->out.dtype != GB_FLOAT32) {
    return Fail(report, GB_UNSUPPORTED, "not written yet");
  }
  Arena arena(w);
  const BackwardParts parts(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  const Kernels& k = *context->kernels;
  const int64_t *ids = Ints(a->ids), *offsets = Ints(a->offsets);
  const float* grad = Floats(a->grad_out);
  int64_t n = 0;
  for (int64_t b = 0; b < a->offsets.n - 1; b++) {
    const int64_t before = n;
    for (int64_t i = offsets[b]; i < offsets[b + 1]; i++) {
      if (a->padding == GB_NO_PADDING || ids[i] != a->padding) {
        parts.pairs[n++] = {static_cast<uint64_t>(ids[i]), b};
      }
    }
    if (a->mode == GB_MEAN && n > before) {
      k.bags.divide(grad + b * a->dim, static_cast<float>(n - before), a->dim,
                    parts.scaled + b * a->dim);
    }
  }
  const Pair* sorted = SortPairs(parts.pairs, parts.spare, n);
  const int64_t distinct = Distinct(sorted, n);
  if (distinct > a->keys.n) {
    return Fail(report, GB_ROOM, "too little room for the distinct ids", -1, distinct, a->keys.n);
  }
  SumSegments(k, sorted, n, a->mode == GB_MEAN ? parts.scaled : grad, a->dim,
              static_cast<int64_t*>(a->keys.data), Floats(a->out));
  return Done(report, distinct);
}

}  // namespace gradbus
