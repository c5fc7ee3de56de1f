// The rules that arguments must obey, the same for every backend. cuda/check.go states them for
// Go's callers.
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "core/core.h"

namespace gradbus {
namespace {

#define GB_TRY(call)                                \
  do {                                              \
    if (const gb_status s_ = (call); s_ != GB_OK) { \
      return s_;                                    \
    }                                               \
  } while (0)

gb_status Shape(gb_report* r, const char* message, int64_t have = 0, int64_t want = 0) {
  return Fail(r, GB_SHAPE, message, -1, have, want);
}

// Array checks type, length and pointer of an argument.
template <typename InOrOut>
gb_status Array(const InOrOut& x, gb_dtype dtype, const char* message, gb_report* r) {
  if (x.n < 0) return Shape(r, message, x.n);
  if (x.n > 0 && x.data == nullptr) return Shape(r, message, x.n);
  if (x.n > 0 && (x.dtype != dtype || x.reserved != 0)) {
    return Fail(r, GB_UNSUPPORTED, message, -1, x.dtype, dtype);
  }
  return GB_OK;
}

// Exactly rows x dim values; dim is at least 1.
bool IsRows(int64_t n, int64_t rows, int64_t dim) { return n % dim == 0 && n / dim == rows; }

gb_status Dim(int64_t dim, gb_report* r) {
  return dim < 1 || dim > kDimMax ? Shape(r, "dim", dim, kDimMax) : gb_status{GB_OK};
}

template <typename Args>
gb_status Pooling(const Args& a, gb_report* r) {
  GB_TRY(Dim(a.dim, r));
  if (a.mode != GB_SUM && a.mode != GB_MEAN) {
    return Fail(r, GB_UNSUPPORTED, "mode is neither sum nor mean", -1, a.mode);
  }
  if (a.padding < GB_NO_PADDING) return Fail(r, GB_ARGUMENT, "padding id", -1, a.padding);
  if (a.policy != GB_REFUSE) return Fail(r, GB_UNSUPPORTED, "policy for ids", -1, a.policy);
  if (a.weights.n != 0) return Fail(r, GB_UNSUPPORTED, "weights of positions");
  GB_TRY(Array(a.ids, GB_INT64, "ids", r));
  GB_TRY(Array(a.offsets, GB_INT64, "offsets", r));
  return a.offsets.n < 1 ? Shape(r, "no offsets, want one more than bags") : gb_status{GB_OK};
}

gb_status Offsets(const gb_in& offsets, int64_t n, gb_report* r) {
  const int64_t* o = Ints(offsets);
  if (o[0] != 0) return Fail(r, GB_SHAPE, "offsets do not start at 0", 0, o[0], 0);
  for (int64_t i = 1; i < offsets.n; i++) {
    if (o[i] < o[i - 1]) return Fail(r, GB_SHAPE, "offsets fall", i, o[i], o[i - 1]);
  }
  const int64_t last = offsets.n - 1;
  if (o[last] != n)
    return Fail(r, GB_SHAPE, "offsets do not end at the number of ids", last, o[last], n);
  return GB_OK;
}

gb_status Ids(const gb_in& ids, int64_t limit, int64_t padding, gb_report* r) {
  const int64_t* id = Ints(ids);
  for (int64_t i = 0; i < ids.n; i++) {
    if (static_cast<uint64_t>(id[i]) >= static_cast<uint64_t>(limit) &&
        (id[i] != padding || padding == GB_NO_PADDING)) {
      return Fail(r, GB_ID, "id out of range", i, id[i], limit);
    }
  }
  return GB_OK;
}

bool GoodWeight(float w) { return std::isfinite(w) && w > 0; }

gb_status Optimizer(const gb_optimizer& o, float weight, bool* momentum, gb_report* r) {
  if (!GoodWeight(weight)) return Fail(r, GB_ARGUMENT, "weight is not a finite number above 0");
  if (o.kind != GB_SGD) return Fail(r, GB_UNSUPPORTED, "optimizer", -1, o.kind);
  if (o.hyper == nullptr || o.hyper_bytes < sizeof(gb_sgd)) {
    return Fail(r, GB_ARGUMENT, "hyperparameters are too few", -1, o.hyper_bytes, sizeof(gb_sgd));
  }
  const char* bytes = static_cast<const char*>(o.hyper);
  for (uint32_t i = sizeof(gb_sgd); i < o.hyper_bytes; i++) {
    if (bytes[i] != 0) return Fail(r, GB_UNSUPPORTED, "hyperparameter of a newer version", i);
  }
  gb_sgd h;
  std::memcpy(&h, o.hyper, sizeof h);
  if (!std::isfinite(h.lr) || !std::isfinite(h.momentum) || !std::isfinite(h.dampening) ||
      !std::isfinite(h.weight_decay)) {
    return Fail(r, GB_ARGUMENT, "hyperparameters are not finite");
  }
  if (h.reserved != 0) return Fail(r, GB_UNSUPPORTED, "hyperparameter of a newer version");
  *momentum = h.momentum != 0;
  if (o.slots_n != (*momentum ? 1 : 0)) {
    return Shape(r, "number of slots", o.slots_n, *momentum);
  }
  if (*momentum && (o.slots == nullptr || o.slots[0].name == nullptr ||
                    std::strcmp(o.slots[0].name, "momentum") != 0)) {
    return Shape(r, "the slot of sgd is named momentum");
  }
  return GB_OK;
}

template <typename Term>
gb_status Nodes(const Term* terms, int64_t n, int64_t lanes, gb_report* r) {
  if (n < 0 || n > kLanesMax || (n > 0 && terms == nullptr)) return Shape(r, "terms", n, kLanesMax);
  int64_t end = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!IsNode(terms[i].node, lanes)) {
      return Fail(r, GB_NODE, "term is no node of the tree", -1, terms[i].node.first, lanes, i);
    }
    if (terms[i].node.first < end) {
      return Fail(r, GB_NODE, "term begins before the one before it ends", -1, terms[i].node.first,
                  end, i);
    }
    end = terms[i].node.first + terms[i].node.count;
  }
  return GB_OK;
}

}  // namespace

gb_status Check(const gb_bag_forward_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Pooling(*a, r));
  GB_TRY(Array(a->rows, GB_FLOAT32, "rows", r));
  GB_TRY(Array(a->out, GB_FLOAT32, "out", r));
  if (a->rows.n % a->dim != 0) return Shape(r, "rows", a->rows.n, a->dim);
  if (!IsRows(a->out.n, a->offsets.n - 1, a->dim)) return Shape(r, "out", a->out.n, a->dim);
  GB_TRY(Offsets(a->offsets, a->ids.n, r));
  return Ids(a->ids, a->rows.n / a->dim, a->padding, r);
}

gb_status Check(const gb_bag_backward_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Pooling(*a, r));
  if (a->rows < 0) return Shape(r, "number of rows", a->rows);
  GB_TRY(Array(a->grad_out, GB_FLOAT32, "grad_out", r));
  GB_TRY(Array(a->keys, GB_INT64, "keys", r));
  GB_TRY(Array(a->out, GB_FLOAT32, "out", r));
  if (!IsRows(a->grad_out.n, a->offsets.n - 1, a->dim)) {
    return Shape(r, "grad_out", a->grad_out.n, a->dim);
  }
  if (a->out.n / a->dim < a->keys.n)
    return Shape(r, "out has fewer rows than keys", a->out.n, a->dim);
  GB_TRY(Offsets(a->offsets, a->ids.n, r));
  return Ids(a->ids, a->rows, a->padding, r);
}

gb_status Check(const gb_coalesce_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Dim(a->dim, r));
  GB_TRY(Array(a->keys, GB_UINT64, "keys", r));
  GB_TRY(Array(a->rows, GB_FLOAT32, "rows", r));
  GB_TRY(Array(a->out_keys, GB_UINT64, "out_keys", r));
  GB_TRY(Array(a->out_rows, GB_FLOAT32, "out_rows", r));
  if (!IsRows(a->rows.n, a->keys.n, a->dim)) return Shape(r, "rows", a->rows.n, a->dim);
  if (a->out_rows.n / a->dim < a->out_keys.n) {
    return Shape(r, "out_rows has fewer rows than out_keys", a->out_rows.n, a->dim);
  }
  return GB_OK;
}

gb_status Check(const gb_merge_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Dim(a->dim, r));
  GB_TRY(Array(a->out_keys, GB_UINT64, "out_keys", r));
  GB_TRY(Array(a->out_rows, GB_FLOAT32, "out_rows", r));
  if (a->out_rows.n / a->dim < a->out_keys.n) {
    return Shape(r, "out_rows has fewer rows than out_keys", a->out_rows.n, a->dim);
  }
  GB_TRY(Nodes(a->terms, a->terms_n, a->lanes, r));
  for (int64_t i = 0; i < a->terms_n; i++) {
    const gb_rows_term& t = a->terms[i];
    GB_TRY(Array(t.keys, GB_UINT64, "keys of a term", r));
    GB_TRY(Array(t.rows, GB_FLOAT32, "rows of a term", r));
    if (!IsRows(t.rows.n, t.keys.n, a->dim)) {
      return Fail(r, GB_SHAPE, "rows of a term", -1, t.rows.n, a->dim, i);
    }
  }
  for (int64_t i = 0; i < a->terms_n; i++) {
    const uint64_t* k = Keys(a->terms[i].keys);
    for (int64_t j = 1; j < a->terms[i].keys.n; j++) {
      if (k[j] <= k[j - 1]) return Fail(r, GB_ORDER, "keys are not ascending", j, 0, 0, i);
    }
  }
  return GB_OK;
}

gb_status Check(const gb_apply_rows_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Dim(a->dim, r));
  bool momentum = false;
  GB_TRY(Optimizer(a->optimizer, a->weight, &momentum, r));
  GB_TRY(Array(a->table, GB_FLOAT32, "table", r));
  GB_TRY(Array(a->index, GB_INT64, "index", r));
  GB_TRY(Array(a->first, GB_UINT8, "first", r));
  GB_TRY(Array(a->grad, GB_FLOAT32, "grad", r));
  GB_TRY(Array(a->out, GB_FLOAT32, "out", r));
  const int64_t n = a->index.n;
  if (a->table.n % a->dim != 0) return Shape(r, "table", a->table.n, a->dim);
  if (!IsRows(a->grad.n, n, a->dim)) return Shape(r, "grad", a->grad.n, a->dim);
  if (!IsRows(a->out.n, n, a->dim)) return Shape(r, "out", a->out.n, a->dim);
  if (a->first.n != (momentum ? n : 0)) return Shape(r, "first", a->first.n, momentum ? n : 0);
  if (momentum) {
    const gb_slot& s = a->optimizer.slots[0];
    GB_TRY(Array(s.before, GB_FLOAT32, "momentum", r));
    GB_TRY(Array(s.after, GB_FLOAT32, "momentum after", r));
    if (s.before.n != a->table.n) return Shape(r, "momentum", s.before.n, a->table.n);
    if (s.after.n != a->out.n) return Shape(r, "momentum after", s.after.n, a->out.n);
  }
  return Ids(a->index, a->table.n / a->dim, GB_NO_PADDING, r);
}

gb_status Check(const gb_apply_dense_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  bool momentum = false;
  GB_TRY(Optimizer(a->optimizer, a->weight, &momentum, r));
  GB_TRY(Array(a->param, GB_FLOAT32, "param", r));
  GB_TRY(Array(a->grad, GB_FLOAT32, "grad", r));
  GB_TRY(Array(a->out, GB_FLOAT32, "out", r));
  const int64_t n = a->param.n;
  if (a->grad.n != n) return Shape(r, "grad", a->grad.n, n);
  if (a->out.n != n) return Shape(r, "out", a->out.n, n);
  if (momentum) {
    const gb_slot& s = a->optimizer.slots[0];
    GB_TRY(Array(s.before, GB_FLOAT32, "momentum", r));
    GB_TRY(Array(s.after, GB_FLOAT32, "momentum after", r));
    if (s.before.n != n) return Shape(r, "momentum", s.before.n, n);
    if (s.after.n != n) return Shape(r, "momentum after", s.after.n, n);
  }
  return GB_OK;
}

gb_status Check(const gb_average_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  if (!GoodWeight(a->weight)) return Fail(r, GB_ARGUMENT, "weight is not a finite number above 0");
  if (a->terms_n < 1) return Shape(r, "no terms: a round without a term has no average");
  GB_TRY(Array(a->out, GB_FLOAT32, "out", r));
  GB_TRY(Nodes(a->terms, a->terms_n, a->lanes, r));
  for (int64_t i = 0; i < a->terms_n; i++) {
    GB_TRY(Array(a->terms[i].values, GB_FLOAT32, "values of a term", r));
    if (a->terms[i].values.n != a->out.n) {
      return Fail(r, GB_SHAPE, "values of a term", -1, a->terms[i].values.n, a->out.n, i);
    }
  }
  return GB_OK;
}

gb_status Check(const gb_matmul_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  constexpr int64_t kMost = int64_t{1} << 31;  // so that products stay below 2^62
  for (const int64_t d : {a->m, a->n, a->k}) {
    if (d < 0 || d > kMost) return Shape(r, "m, n or k", d, kMost);
  }
  GB_TRY(Array(a->a, GB_FLOAT32, "a", r));
  GB_TRY(Array(a->b, GB_FLOAT32, "b", r));
  GB_TRY(Array(a->bias, GB_FLOAT32, "bias", r));
  GB_TRY(Array(a->c, GB_FLOAT32, "c", r));
  if (a->a.n != a->m * a->k) return Shape(r, "a", a->a.n, a->m * a->k);
  if (a->b.n != a->k * a->n) return Shape(r, "b", a->b.n, a->k * a->n);
  if (a->c.n != a->m * a->n) return Shape(r, "c", a->c.n, a->m * a->n);
  if (a->bias.n != 0 && a->bias.n != a->n) return Shape(r, "bias", a->bias.n, a->n);
  return GB_OK;
}

gb_status Check(const gb_softmax_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  if (a->classes < 1 || a->classes > kDimMax) return Shape(r, "classes", a->classes, kDimMax);
  GB_TRY(Array(a->logits, GB_FLOAT32, "logits", r));
  GB_TRY(Array(a->targets, GB_INT32, "targets", r));
  GB_TRY(Array(a->loss, GB_FLOAT32, "loss", r));
  GB_TRY(Array(a->grad, GB_FLOAT32, "grad", r));
  GB_TRY(Array(a->probabilities, GB_FLOAT32, "probabilities", r));
  const int64_t samples = a->logits.n / a->classes;
  if (a->logits.n % a->classes != 0) return Shape(r, "logits", a->logits.n, a->classes);
  if (a->loss.n != 0 && a->loss.n != samples) return Shape(r, "loss", a->loss.n, samples);
  if (a->grad.n != 0 && a->grad.n != a->logits.n) return Shape(r, "grad", a->grad.n, a->logits.n);
  if (a->probabilities.n != 0 && a->probabilities.n != a->logits.n) {
    return Shape(r, "probabilities", a->probabilities.n, a->logits.n);
  }
  const bool wanted = a->targets.n != 0 || a->loss.n != 0 || a->grad.n != 0;
  if (wanted && a->targets.n != samples) return Shape(r, "targets", a->targets.n, samples);
  const int32_t* t = static_cast<const int32_t*>(a->targets.data);
  for (int64_t i = 0; i < a->targets.n; i++) {
    if (t[i] < 0 || t[i] >= a->classes) return Fail(r, GB_ID, "target", i, t[i], a->classes);
  }
  return GB_OK;
}

gb_status Check(const gb_first_nonfinite_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  return Array(a->values, GB_FLOAT32, "values", r);
}

}  // namespace gradbus
