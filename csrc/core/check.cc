// The rules that arguments must obey, the same for every backend; those of the operations with an
// optimizer are in check_apply.cc. cuda/check.go states them for Go's callers.
#include "core/check.h"

#include <initializer_list>

namespace gradbus {
namespace {

// BagsOf is the number of bags that the offsets stand for.
template <typename Args>
int64_t BagsOf(const Args& a) {
  return a.offsets.n - (a.open_offsets != 0 ? 0 : 1);
}

template <typename Args>
gb_status Pooling(const Args& a, gb_report* r) {
  GB_TRY(Dim(a.dim, r));
  if (a.mode > GB_MAX) return Fail(r, GB_UNSUPPORTED, "mode", -1, a.mode);
  if (a.padding < GB_NO_PADDING) return Fail(r, GB_ARGUMENT, "padding id", -1, a.padding);
  GB_TRY(Policy(a.policy, r));
  GB_TRY(Array(a.ids, kIds, "ids", r));
  GB_TRY(Array(a.offsets, kIds, "offsets", r));
  GB_TRY(Array(a.weights, Only(GB_FLOAT32), "weights", r));
  GB_TRY(Array(a.argmax, Only(GB_INT32), "argmax", r));
  GB_TRY(Positions(a.ids.n, "ids", r));
  if (a.offsets.n < 1 && a.open_offsets == 0) {
    return Shape(r, "no offsets, want one more than bags");
  }
  if (BagsOf(a) == 0 && a.ids.n > 0) return Shape(r, "ids without a bag", a.ids.n);
  if (a.weights.n != 0) {
    if (a.mode != GB_SUM) return Fail(r, GB_ARGUMENT, "weights are only for sum", -1, a.mode);
    if (a.weights.n != a.ids.n) return Shape(r, "weights", a.weights.n, a.ids.n);
  }
  if (a.argmax.n != 0) {
    if (a.mode != GB_MAX) return Fail(r, GB_ARGUMENT, "argmax is only for max", -1, a.mode);
    if (!IsRows(a.argmax.n, BagsOf(a), a.dim)) return Shape(r, "argmax", a.argmax.n, a.dim);
  }
  return GB_OK;
}

template <typename T>
gb_status OffsetsOf(const gb_in& offsets, bool open, int64_t n, gb_report* r) {
  const T* o = static_cast<const T*>(offsets.data);
  if (offsets.n == 0) return GB_OK;
  if (o[0] != 0) return Fail(r, GB_SHAPE, "offsets do not start at 0", 0, o[0], 0);
  for (int64_t i = 1; i < offsets.n; i++) {
    if (o[i] < o[i - 1]) return Fail(r, GB_SHAPE, "offsets fall", i, o[i], o[i - 1]);
  }
  const int64_t last = offsets.n - 1;
  if (open ? o[last] > n : o[last] != n) {
    return Fail(r, GB_SHAPE,
                open ? "offsets go beyond the ids" : "offsets do not end at the number of ids",
                last, o[last], n);
  }
  return GB_OK;
}

// Bad reports the id at a position.
gb_status Bad(int64_t position, int64_t id, int64_t limit, const char* message, gb_report* r) {
  return Fail(r, GB_ID, message, position, id, limit);
}

template <typename T>
gb_status IdsOf(const gb_in& ids, int64_t limit, int64_t padding, const char* message,
                gb_report* r) {
  const T* id = static_cast<const T*>(ids.data);
  for (int64_t i = 0; i < ids.n; i++) {
    const int64_t x = static_cast<int64_t>(id[i]);
    if (static_cast<uint64_t>(x) >= static_cast<uint64_t>(limit) &&
        (x != padding || padding == GB_NO_PADDING)) {
      return Bad(i, x, limit, message, r);
    }
  }
  return GB_OK;
}

template <typename T>
gb_status NotNegative(const gb_in& keys, gb_report* r) {
  const T* k = static_cast<const T*>(keys.data);
  for (int64_t i = 0; i < keys.n; i++) {
    if (k[i] < 0) return Bad(i, k[i], INT64_MAX, "key is negative", r);
  }
  return GB_OK;
}

}  // namespace

gb_status CheckOffsets(const gb_in& offsets, bool open, int64_t n, gb_report* r) {
  return offsets.dtype == GB_INT32 ? OffsetsOf<int32_t>(offsets, open, n, r)
                                   : OffsetsOf<int64_t>(offsets, open, n, r);
}

gb_status IdsInRange(const gb_in& ids, int64_t limit, int64_t padding, gb_id_policy policy,
                     const char* message, gb_report* r) {
  if (policy == GB_SKIP) return GB_OK;
  return ids.dtype == GB_INT32 ? IdsOf<int32_t>(ids, limit, padding, message, r)
                               : IdsOf<int64_t>(ids, limit, padding, message, r);
}

gb_status CheckShapes(const gb_bag_forward_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Pooling(*a, r));
  GB_TRY(Array(a->rows, kFloats, "rows", r));
  GB_TRY(Result(a->out, a->rows.dtype, "out", r));
  if (a->rows.n % a->dim != 0) return Shape(r, "rows", a->rows.n, a->dim);
  if (!IsRows(a->out.n, BagsOf(*a), a->dim)) return Shape(r, "out", a->out.n, a->dim);
  return GB_OK;
}

gb_status CheckData(const gb_bag_forward_args* a, gb_report* r) {
  GB_TRY(CheckOffsets(a->offsets, a->open_offsets != 0, a->ids.n, r));
  return IdsInRange(a->ids, a->rows.n / a->dim, a->padding, a->policy, "id out of range", r);
}

gb_status CheckShapes(const gb_bag_backward_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Pooling(*a, r));
  if (a->rows < 0) return Shape(r, "number of rows", a->rows);
  GB_TRY(Array(a->grad_out, kFloats, "grad_out", r));
  GB_TRY(Array(a->keys, Only(GB_INT64), "keys", r));
  GB_TRY(Result(a->out, a->grad_out.dtype, "out", r));
  if (!IsRows(a->grad_out.n, BagsOf(*a), a->dim)) {
    return Shape(r, "grad_out", a->grad_out.n, a->dim);
  }
  if (a->mode == GB_MAX && a->argmax.n != a->grad_out.n) {
    return Shape(r, "argmax", a->argmax.n, a->grad_out.n);
  }
  if (a->out.n / a->dim < a->keys.n) {
    return Shape(r, "out has fewer rows than keys", a->out.n, a->dim);
  }
  return GB_OK;
}

gb_status CheckData(const gb_bag_backward_args* a, gb_report* r) {
  GB_TRY(CheckOffsets(a->offsets, a->open_offsets != 0, a->ids.n, r));
  return IdsInRange(a->ids, a->rows, a->padding, a->policy, "id out of range", r);
}

gb_status CheckShapes(const gb_coalesce_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Dim(a->dim, r));
  GB_TRY(Divisor(a->weight, r));
  GB_TRY(Array(a->keys, kKeys, "keys", r));
  GB_TRY(Positions(a->keys.n, "keys", r));
  GB_TRY(Array(a->rows, kFloats, "rows", r));
  GB_TRY(Array(a->out_keys, a->keys.n == 0 ? kKeys : Only(a->keys.dtype), "out_keys", r));
  GB_TRY(Result(a->out_rows, a->rows.dtype, "out_rows", r));
  if (!IsRows(a->rows.n, a->keys.n, a->dim)) return Shape(r, "rows", a->rows.n, a->dim);
  if (a->out_rows.n / a->dim < a->out_keys.n) {
    return Shape(r, "out_rows has fewer rows than out_keys", a->out_rows.n, a->dim);
  }
  return GB_OK;
}

gb_status CheckData(const gb_coalesce_args* a, gb_report* r) {
  switch (a->keys.dtype) {
    case GB_INT32:
      return NotNegative<int32_t>(a->keys, r);
    case GB_INT64:
      return NotNegative<int64_t>(a->keys, r);
    default:
      return GB_OK;
  }
}

gb_status CheckShapes(const gb_merge_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Dim(a->dim, r));
  GB_TRY(Divisor(a->weight, r));
  GB_TRY(Array(a->out_keys, Only(GB_UINT64), "out_keys", r));
  GB_TRY(Nodes(a->terms, a->terms_n, a->lanes, r));
  gb_dtype dtype = GB_FLOAT32;
  int64_t total = 0;
  for (int64_t i = 0; i < a->terms_n; i++) {
    const gb_rows_term& t = a->terms[i];
    GB_TRY(Array(t.keys, Only(GB_UINT64), "keys of a term", r));
    GB_TRY(Positions(t.keys.n, "keys of a term", r));
    GB_TRY(Array(t.rows, kFloats, "rows of a term", r));
    if (!IsRows(t.rows.n, t.keys.n, a->dim)) {
      return Fail(r, GB_SHAPE, "rows of a term", -1, t.rows.n, a->dim, i);
    }
    if (t.rows.n == 0) continue;
    if (total > 0 && t.rows.dtype != dtype) {
      return Fail(r, GB_UNSUPPORTED, "terms of different types", -1, t.rows.dtype, dtype, i);
    }
    dtype = t.rows.dtype;
    total += t.keys.n;
  }
  GB_TRY(Positions(total, "keys of all terms", r));
  GB_TRY(Result(a->out_rows, total > 0 ? dtype : a->out_rows.dtype, "out_rows", r));
  if (a->out_rows.n / a->dim < a->out_keys.n) {
    return Shape(r, "out_rows has fewer rows than out_keys", a->out_rows.n, a->dim);
  }
  return GB_OK;
}

gb_status CheckData(const gb_merge_args* a, gb_report* r) {
  for (int64_t i = 0; i < a->terms_n; i++) {
    const uint64_t* k = Keys(a->terms[i].keys);
    for (int64_t j = 1; j < a->terms[i].keys.n; j++) {
      if (k[j] <= k[j - 1]) return Fail(r, GB_ORDER, "keys are not ascending", j, 0, 0, i);
    }
  }
  return GB_OK;
}

gb_status CheckShapes(const gb_average_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  if (!GoodWeight(a->weight)) return Fail(r, GB_ARGUMENT, "weight is not a finite number above 0");
  GB_TRY(Array(a->out, kFloats, "out", r));
  GB_TRY(Values(a->terms, a->terms_n, a->lanes, a->out.n, r));
  const gb_dtype like = a->terms[0].values.dtype;
  return like == GB_FLOAT32 ? GB_OK : Result(a->out, like, "out", r);
}

gb_status CheckData(const gb_average_args*, gb_report*) { return GB_OK; }

gb_status CheckShapes(const gb_matmul_args* a, gb_report* r) {
  constexpr Types kF32 = Only(GB_FLOAT32);
  GB_TRY(CheckSize(a, sizeof *a, r));
  constexpr int64_t kMost = int64_t{1} << 31;  // so that products stay below 2^62
  for (const int64_t d : {a->m, a->n, a->k}) {
    if (d < 0 || d > kMost) return Shape(r, "m, n or k", d, kMost);
  }
  GB_TRY(Array(a->a, kF32, "a", r));
  GB_TRY(Array(a->b, kF32, "b", r));
  GB_TRY(Array(a->bias, kF32, "bias", r));
  GB_TRY(Array(a->c, kF32, "c", r));
  if (a->a.n != a->m * a->k) return Shape(r, "a", a->a.n, a->m * a->k);
  if (a->b.n != a->k * a->n) return Shape(r, "b", a->b.n, a->k * a->n);
  if (a->c.n != a->m * a->n) return Shape(r, "c", a->c.n, a->m * a->n);
  if (a->bias.n != 0 && a->bias.n != a->n) return Shape(r, "bias", a->bias.n, a->n);
  return GB_OK;
}

gb_status CheckData(const gb_matmul_args*, gb_report*) { return GB_OK; }

gb_status CheckShapes(const gb_softmax_args* a, gb_report* r) {
  constexpr Types kF32 = Only(GB_FLOAT32);
  GB_TRY(CheckSize(a, sizeof *a, r));
  if (a->classes < 1 || a->classes > kDimMax) return Shape(r, "classes", a->classes, kDimMax);
  GB_TRY(Array(a->logits, kF32, "logits", r));
  GB_TRY(Array(a->targets, Only(GB_INT32), "targets", r));
  GB_TRY(Array(a->loss, kF32, "loss", r));
  GB_TRY(Array(a->grad, kF32, "grad", r));
  GB_TRY(Array(a->probabilities, kF32, "probabilities", r));
  const int64_t samples = a->logits.n / a->classes;
  if (a->logits.n % a->classes != 0) return Shape(r, "logits", a->logits.n, a->classes);
  if (a->loss.n != 0 && a->loss.n != samples) return Shape(r, "loss", a->loss.n, samples);
  if (a->grad.n != 0 && a->grad.n != a->logits.n) return Shape(r, "grad", a->grad.n, a->logits.n);
  if (a->probabilities.n != 0 && a->probabilities.n != a->logits.n) {
    return Shape(r, "probabilities", a->probabilities.n, a->logits.n);
  }
  const bool wanted = a->targets.n != 0 || a->loss.n != 0 || a->grad.n != 0;
  if (wanted && a->targets.n != samples) return Shape(r, "targets", a->targets.n, samples);
  return GB_OK;
}

gb_status CheckData(const gb_softmax_args* a, gb_report* r) {
  return IdsOf<int32_t>(a->targets, a->classes, GB_NO_PADDING, "target", r);
}

gb_status CheckShapes(const gb_first_nonfinite_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  return Array(a->values, Only(GB_FLOAT32), "values", r);
}

gb_status CheckData(const gb_first_nonfinite_args*, gb_report*) { return GB_OK; }

gb_status CheckShapes(const gb_copy_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  if (a->reserved != 0) return Fail(r, GB_UNSUPPORTED, "field of a newer version");
  if (a->bytes < 0) return Shape(r, "bytes", a->bytes);
  if (a->bytes > 0 && (a->from == nullptr || a->to == nullptr)) return Shape(r, "no memory");
  return GB_OK;
}

gb_status CheckData(const gb_copy_args*, gb_report*) { return GB_OK; }

gb_status CheckShapes(const gb_gather_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  if (a->reserved != 0) return Fail(r, GB_UNSUPPORTED, "field of a newer version");
  GB_TRY(Dim(a->dim, r));
  GB_TRY(Array(a->rows, kFloats, "rows", r));
  GB_TRY(Array(a->ids, kIds, "ids", r));
  GB_TRY(Array(a->out, Only(a->rows.dtype), "out", r));
  GB_TRY(Positions(a->ids.n, "ids", r));
  if (a->rows.n % a->dim != 0) return Shape(r, "rows", a->rows.n, a->dim);
  if (!IsRows(a->out.n, a->ids.n, a->dim)) return Shape(r, "out", a->out.n, a->dim);
  return GB_OK;
}

gb_status CheckData(const gb_gather_args* a, gb_report* r) {
  return IdsInRange(a->ids, a->rows.n / a->dim, GB_NO_PADDING, GB_REFUSE, "id", r);
}

}  // namespace gradbus
