// merge: the host walks the keys and plans each sum; the device adds the rows.
#include "core/union.h"
#include "cuda/plan.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

struct HostParts {
  UnionParts all;
  int64_t* first;  // the first row of each term among all rows
  int64_t* steps;  // of all keys: at most two for each row
  int64_t* begin;  // where each key's steps begin
  HostParts(Arena& arena, const gb_merge_args& a)
      : all(arena, a),
        first(arena.Take<int64_t>(a.terms_n)),
        steps(arena.Take<int64_t>(2 * UnionParts::Total(a))),
        begin(arena.Take<int64_t>(UnionParts::Total(a) + 1)) {}
};

struct Parts {
  float *rows, *out;
  int64_t *steps, *begin;
  Parts(Arena& arena, int64_t rows_n, int64_t values, int64_t steps_n, int64_t runs)
      : rows(arena.Take<float>(rows_n)),
        out(arena.Take<float>(values)),
        steps(arena.Take<int64_t>(steps_n)),
        begin(arena.Take<int64_t>(runs + 1)) {}
};

}  // namespace

uint64_t NeedsOf(const gb_merge_args& a) {
  Arena arena;
  HostParts parts(arena, a);
  return arena.needed();
}

gb_status Merge(gb_context* context, gb_stream* stream, const gb_merge_args* a, gb_workspace w,
                gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const HostParts host(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  if (const gb_status status = CheckRoom(*a, host.all, report); status != GB_OK) return status;
  FillGaps(*a, host.all);
  int64_t total = 0, steps = 0;
  for (int64_t t = 0; t < a->terms_n; t++) {
    host.first[t] = total;
    total += a->terms[t].keys.n;
  }
  Planner plan(host.all.steps);
  const int64_t count = Union(*a, host.all, [&](int64_t position, uint64_t key, int64_t n) {
    static_cast<uint64_t*>(a->out_keys.data)[position] = key;
    PlanOf(host.all, n, plan);
    host.begin[position] = steps;
    for (int64_t s = 0; s < plan.count(); s++) {
      const Step step = plan.steps()[s];
      const int64_t t = step == kAdd ? 0 : host.all.active[step];
      host.steps[steps++] = step == kAdd ? kAdd : host.first[t] + host.all.heads[t];
    }
  });
  if (count == 0) return Done(report);
  host.begin[count] = steps;
  const int64_t values = count * a->dim;
  Use device(context, report);
  const Parts p = device.Reserve<Parts>(total * a->dim, values, steps, count);
  for (int64_t t = 0; t < a->terms_n; t++) {
    device.Upload(p.rows + host.first[t] * a->dim, Floats(a->terms[t].rows), a->terms[t].rows.n);
  }
  device.Upload(p.steps, host.steps, steps);
  device.Upload(p.begin, host.begin, count + 1);
  device.Launch(run_plan_kernel, values, p.rows, p.steps, p.begin, a->dim, values, 1.0f, p.out);
  device.Download(Floats(a->out_rows), p.out, values);
  return device.End(count);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
