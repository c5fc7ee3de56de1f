// merge: the sum of sparse terms along the lane tree.
//
// Bytes moved: every term once, every output once, keys twice.
#include "core/union.h"
#include "cpu/cpu.h"

namespace gradbus {
namespace {

struct MergeParts {
  UnionParts all;
  const void** rows;  // of the active terms
  MergeParts(Arena& arena, const gb_merge_args& a)
      : all(arena, a), rows(arena.Take<const void*>(a.terms_n)) {}
};

}  // namespace

uint64_t NeedsOf(const gb_context&, const gb_merge_args& a) {
  Arena arena;
  MergeParts parts(arena, a);
  return arena.needed();
}

gb_status CpuMerge(gb_context* context, gb_stream* stream, const gb_merge_args* a, gb_workspace w,
                   gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  if (a->weight != 0) return Fail(report, GB_UNSUPPORTED, "not written yet");
  for (int64_t i = 0; i < a->terms_n; i++) {
    if (a->terms[i].rows.n > 0 && a->terms[i].rows.dtype != GB_FLOAT32) {
      return Fail(report, GB_UNSUPPORTED, "not written yet");
    }
  }
  Arena arena(w);
  const MergeParts p(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  if (const gb_status status = CheckRoom(*a, p.all, report); status != GB_OK) return status;
  FillGaps(*a, p.all);
  Planner plan(p.all.steps);
  const int64_t count = Union(*a, p.all, [&](int64_t position, uint64_t key, int64_t n) {
    static_cast<uint64_t*>(a->out_keys.data)[position] = key;
    for (int64_t i = 0; i < n; i++) {
      const int64_t t = p.all.active[i];
      p.rows[i] = Floats(a->terms[t].rows) + p.all.heads[t] * a->dim;
    }
    PlanOf(p.all, n, plan);
    PlanRun run = {};
    run.terms = p.rows;
    run.steps = plan.steps();
    run.steps_n = plan.count();
    run.by = 1;
    run.n = a->dim;
    run.out = Floats(a->out_rows) + position * a->dim;
    context->kernels->steps.run_plan(run);
  });
  return Done(report, count);
}

}  // namespace gradbus
