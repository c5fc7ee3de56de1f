// merge and average: sums of sparse and of dense terms along the lane tree.
//
// Bytes moved: every term once, every output once, keys twice.
#include "core/union.h"
#include "cpu/cpu.h"

namespace gradbus {
namespace {

struct MergeParts {
  UnionParts all;
  const float** rows;  // of the active terms
  MergeParts(Arena& arena, const gb_merge_args& a)
      : all(arena, a), rows(arena.Take<const float*>(a.terms_n)) {}
};

struct AverageParts {
  const float** terms;
  Step* steps;
  AverageParts(Arena& arena, const gb_average_args& a)
      : terms(arena.Take<const float*>(a.terms_n)), steps(arena.Take<Step>(2 * a.terms_n)) {}
};

}  // namespace

uint64_t NeedsOf(const gb_merge_args& a) {
  Arena arena;
  MergeParts parts(arena, a);
  return arena.needed();
}

uint64_t NeedsOf(const gb_average_args& a) {
  Arena arena;
  AverageParts parts(arena, a);
  return arena.needed();
}

gb_status CpuMerge(gb_context* context, gb_stream* stream, const gb_merge_args* a, gb_workspace w,
                   gb_report* report) {
  GB_BEGIN(context, stream, a, report);
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
    context->kernels->run_plan(p.rows, plan.steps(), plan.count(), 1.0f, a->dim,
                               Floats(a->out_rows) + position * a->dim);
  });
  return Done(report, count);
}

gb_status CpuAverage(gb_context* context, gb_stream* stream, const gb_average_args* a,
                     gb_workspace w, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const AverageParts p(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  Planner plan(p.steps);
  for (int64_t i = 0; i < a->terms_n; i++) {
    p.terms[i] = Floats(a->terms[i].values);
    plan.Push(static_cast<int32_t>(i),
              i == 0 ? 0 : PartDepth(a->terms[i - 1].node, a->terms[i].node, a->lanes));
  }
  plan.End();
  context->kernels->run_plan(p.terms, plan.steps(), plan.count(), a->weight, a->out.n,
                             Floats(a->out));
  return Done(report);
}

}  // namespace gradbus
