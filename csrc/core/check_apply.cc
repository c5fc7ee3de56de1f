// The rules for the arguments of the operations that run an optimizer: apply_rows, coalesce_apply,
// apply_dense, average_apply.
#include "core/check.h"
#include "core/rule.h"

namespace gradbus {
namespace {

gb_status Policies(gb_id_policy ids, gb_nonfinite nonfinite, gb_report* r) {
  GB_TRY(Policy(ids, r));
  if (nonfinite > GB_NONFINITE_REFUSE) {
    return Fail(r, GB_UNSUPPORTED, "policy for values that are not finite", -1, nonfinite);
  }
  return GB_OK;
}

// Place is where the new rows go.
struct Place {
  int64_t table_rows;
  int64_t out_rows;
  bool in_place;  // out is the table
};

bool Same(const gb_in& before, const gb_out& after) {
  return before.n > 0 && after.n > 0 && before.data == after.data;
}

// PlaceOf checks table and out against each other. The caller checks the number of rows of compact
// output.
template <typename Args>
gb_status PlaceOf(const Args& a, Place* place, gb_report* r) {
  GB_TRY(Array(a.table, kFloats, "table", r));
  GB_TRY(Array(a.out, kFloats, "out", r));
  if (a.table.n % a.dim != 0) return Shape(r, "table", a.table.n, a.dim);
  if (a.out.n % a.dim != 0) return Shape(r, "out", a.out.n, a.dim);
  if (a.out.n > 0 && a.table.n > 0 && a.out.dtype != a.table.dtype) {
    return Fail(r, GB_UNSUPPORTED, "out is not of the table's type", -1, a.out.dtype,
                a.table.dtype);
  }
  *place = {a.table.n / a.dim, a.out.n / a.dim, Same(a.table, a.out)};
  if (place->in_place && a.out.n != a.table.n) {
    return Shape(r, "out begins where the table does, but is not all of it", a.out.n, a.table.n);
  }
  return GB_OK;
}

// Before checks one before and its after: lengths, and that both are one memory or neither is.
gb_status Before(const gb_in& before, const gb_out& after, const Place& place, int64_t values,
                 const char* message, gb_report* r) {
  if (before.n != place.table_rows * values) {
    return Shape(r, message, before.n, place.table_rows * values);
  }
  if (after.n != place.out_rows * values) {
    return Shape(r, message, after.n, place.out_rows * values);
  }
  if (before.n > 0 && after.n > 0 && Same(before, after) != place.in_place) {
    return Shape(r, "all of table, slots and last steps are written in place, or none");
  }
  return GB_OK;
}

// SlotTypes checks the type of a slot: float32 for a row's own number, else any float.
gb_status SlotTypes(const gb_slot& s, const Rule& rule, gb_report* r) {
  GB_TRY(Array(s.before, kFloats, "slot", r));
  GB_TRY(Array(s.after, kFloats, "slot after", r));
  if (rule.kind == GB_ROWWISE_ADAGRAD)
    GB_TRY(Array(s.before, Only(GB_FLOAT32), "sum is float32", r));
  if (s.before.n > 0 && s.after.n > 0 && s.before.dtype != s.after.dtype) {
    return Fail(r, GB_UNSUPPORTED, "slot after is not of the slot's type", -1, s.after.dtype,
                s.before.dtype);
  }
  return GB_OK;
}

gb_status RowSlots(const gb_optimizer& o, int64_t dim, const Place& place, gb_report* r) {
  const Rule rule = RuleOf(o);
  const Slots slots = SlotsOf(o);
  for (int i = 0; i < slots.n; i++) {
    GB_TRY(SlotTypes(*slots.at[i], rule, r));
    GB_TRY(
        Before(slots.at[i]->before, slots.at[i]->after, place, SlotValues(rule, dim), "slot", r));
  }
  return GB_OK;
}

gb_status StepsOf(const gb_steps& s, uint32_t kind, const Place& place, gb_report* r) {
  GB_TRY(Array(s.last, Only(GB_INT64), "last", r));
  GB_TRY(Array(s.last_after, Only(GB_INT64), "last_after", r));
  if (s.reserved != 0) return Fail(r, GB_UNSUPPORTED, "steps of a newer version");
  if (s.exact != 0 && (kind == GB_ADAM || kind == GB_ADAMW || kind == GB_FTRL)) {
    return Fail(r, GB_ARGUMENT, "adam and ftrl cannot make up for steps that a row sat out");
  }
  if (s.last.n == 0 && s.last_after.n == 0 && s.exact == 0) return GB_OK;
  if (s.step < 1) return Fail(r, GB_ARGUMENT, "the step counts from 1", -1, s.step);
  return Before(s.last, s.last_after, place, 1, "last", r);
}

// DenseSlots checks the slots of a tensor of n values.
gb_status DenseSlots(const gb_optimizer& o, int64_t n, int64_t dim, gb_report* r) {
  const Rule rule = RuleOf(o);
  if (dim < 0) return Shape(r, "dim", dim);
  if (rule.clip == GB_CLIP_ROW) {
    return Fail(r, GB_ARGUMENT, "a dense tensor has no rows to be clipped by their norm");
  }
  int64_t values = n;
  if (rule.kind == GB_ROWWISE_ADAGRAD) {
    if (dim > 0 && n % dim != 0) return Shape(r, "param", n, dim);
    values = dim > 0 ? n / dim : n > 0;
  }
  const Slots slots = SlotsOf(o);
  for (int i = 0; i < slots.n; i++) {
    const gb_slot& s = *slots.at[i];
    GB_TRY(SlotTypes(s, rule, r));
    if (s.before.n != values) return Shape(r, "slot", s.before.n, values);
    if (s.after.n != values) return Shape(r, "slot after", s.after.n, values);
  }
  return GB_OK;
}

// DenseOut checks param and out.
gb_status DenseOut(const gb_in& param, const gb_out& out, gb_report* r) {
  GB_TRY(Array(param, kFloats, "param", r));
  GB_TRY(Array(out, kFloats, "out", r));
  if (out.n != param.n) return Shape(r, "out", out.n, param.n);
  if (out.n > 0 && out.dtype != param.dtype) {
    return Fail(r, GB_UNSUPPORTED, "out is not of param's type", -1, out.dtype, param.dtype);
  }
  return GB_OK;
}

// NotAbove is where ids that are rows of the table stop ascending; n where they do not. A negative
// id is a very large one.
template <typename Id>
int64_t NotAbove(const Id* ids, int64_t n, int64_t rows) {
  int64_t before = -1;
  for (int64_t i = 0; i < n; i++) {
    if (static_cast<uint64_t>(ids[i]) >= static_cast<uint64_t>(rows)) continue;
    if (ids[i] <= before) return i;
    before = ids[i];
  }
  return n;
}

}  // namespace

gb_status CheckShapes(const gb_apply_rows_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Dim(a->dim, r));
  GB_TRY(Policies(a->policy, a->nonfinite, r));
  GB_TRY(CheckOptimizer(a->optimizer, a->weight, r));
  GB_TRY(Array(a->index, kIds, "index", r));
  GB_TRY(Positions(a->index.n, "index", r));
  GB_TRY(Array(a->first, Only(GB_UINT8), "first", r));
  GB_TRY(Array(a->grad, kFloats, "grad", r));
  Place place;
  GB_TRY(PlaceOf(*a, &place, r));
  const int64_t n = a->index.n;
  if (!IsRows(a->grad.n, n, a->dim)) return Shape(r, "grad", a->grad.n, n);
  if (!place.in_place && place.out_rows != n) return Shape(r, "out", a->out.n, n);
  if (a->first.n != 0 && (a->first.n != n || a->steps.last.n != 0)) {
    return Shape(r, "first", a->first.n, n);
  }
  GB_TRY(RowSlots(a->optimizer, a->dim, place, r));
  return StepsOf(a->steps, a->optimizer.kind, place, r);
}

gb_status CheckData(const gb_apply_rows_args* a, gb_report* r) {
  const int64_t rows = a->table.n / a->dim;
  GB_TRY(IdsInRange(a->index, rows, GB_NO_PADDING, a->policy, "index out of range", r));
  if (!Same(a->table, a->out)) return GB_OK;
  const gb_in& ids = a->index;
  const int64_t at = ids.dtype == GB_INT32
                         ? NotAbove(static_cast<const int32_t*>(ids.data), ids.n, rows)
                         : NotAbove(static_cast<const int64_t*>(ids.data), ids.n, rows);
  if (at == ids.n) return GB_OK;
  return Fail(r, GB_ORDER, "an index that writes in place must ascend", at);
}

gb_status CheckShapes(const gb_coalesce_apply_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Dim(a->dim, r));
  GB_TRY(Policies(a->policy, a->nonfinite, r));
  GB_TRY(CheckOptimizer(a->optimizer, a->weight, r));
  GB_TRY(Array(a->keys, kKeys, "keys", r));
  GB_TRY(Positions(a->keys.n, "keys", r));
  GB_TRY(Array(a->rows, kFloats, "rows", r));
  GB_TRY(Array(a->out_keys, Only(GB_INT64), "out_keys", r));
  Place place;
  GB_TRY(PlaceOf(*a, &place, r));
  const int64_t n = a->keys.n;
  if (!IsRows(a->rows.n, n, a->dim)) return Shape(r, "rows", a->rows.n, n);
  if (!place.in_place && place.out_rows < a->out_keys.n) {
    return Shape(r, "out has fewer rows than out_keys", a->out.n, a->dim);
  }
  GB_TRY(RowSlots(a->optimizer, a->dim, place, r));
  return StepsOf(a->steps, a->optimizer.kind, place, r);
}

gb_status CheckData(const gb_coalesce_apply_args* a, gb_report* r) {
  return IdsInRange(a->keys, a->table.n / a->dim, GB_NO_PADDING, a->policy, "key out of range", r);
}

gb_status CheckShapes(const gb_apply_dense_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Policies(GB_REFUSE, a->nonfinite, r));
  GB_TRY(CheckOptimizer(a->optimizer, a->weight, r));
  GB_TRY(DenseOut(a->param, a->out, r));
  GB_TRY(Array(a->grad, kFloats, "grad", r));
  if (a->grad.n != a->param.n) return Shape(r, "grad", a->grad.n, a->param.n);
  return DenseSlots(a->optimizer, a->param.n, a->dim, r);
}

gb_status CheckData(const gb_apply_dense_args*, gb_report*) { return GB_OK; }

gb_status CheckShapes(const gb_average_apply_args* a, gb_report* r) {
  GB_TRY(CheckSize(a, sizeof *a, r));
  GB_TRY(Policies(GB_REFUSE, a->nonfinite, r));
  GB_TRY(CheckOptimizer(a->optimizer, a->weight, r));
  GB_TRY(DenseOut(a->param, a->out, r));
  GB_TRY(Values(a->terms, a->terms_n, a->lanes, a->param.n, r));
  return DenseSlots(a->optimizer, a->param.n, a->dim, r);
}

gb_status CheckData(const gb_average_apply_args*, gb_report*) { return GB_OK; }

}  // namespace gradbus
