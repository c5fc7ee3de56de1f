// average and average_apply: sums of dense terms along the lane tree.
#include "cpu/cpu.h"

namespace gradbus {
namespace {

struct AverageParts {
  const float** terms;
  Step* steps;
  AverageParts(Arena& arena, const gb_average_args& a)
      : terms(arena.Take<const float*>(a.terms_n)), steps(arena.Take<Step>(2 * a.terms_n)) {}
};

}  // namespace

uint64_t NeedsOf(const gb_context&, const gb_average_args& a) {
  Arena arena;
  AverageParts parts(arena, a);
  return arena.needed();
}

uint64_t NeedsOf(const gb_context&, const gb_average_apply_args&) { return 0; }

gb_status CpuAverage(gb_context* context, gb_stream* stream, const gb_average_args* a,
                     gb_workspace w, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  if (a->terms[0].values.dtype != GB_FLOAT32) {
    return Fail(report, GB_UNSUPPORTED, "not written yet");
  }
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
  context->kernels->steps.run_plan(p.terms, plan.steps(), plan.count(), a->weight, a->out.n,
                                   Floats(a->out));
  return Done(report);
}

gb_status CpuAverageApply(gb_context* context, gb_stream* stream, const gb_average_apply_args* a,
                          gb_workspace, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  return Fail(report, GB_UNSUPPORTED, "average_apply");
}

}  // namespace gradbus
