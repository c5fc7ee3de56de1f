// average and average_apply: sums of dense terms along the lane tree.
//
// Bytes moved: every term once, the output once; average_apply also reads and writes parameters and
// slots once.
#include "cpu/cpu.h"
#include "cpu/dense_step.h"

namespace gradbus {
namespace {

struct AverageParts {
  const void** terms;
  Step* steps;
  AverageParts(Arena& arena, int64_t terms_n)
      : terms(arena.Take<const void*>(terms_n)), steps(arena.Take<Step>(2 * terms_n)) {}
};

uint64_t Needs(int64_t terms_n) {
  Arena arena;
  AverageParts parts(arena, terms_n);
  return arena.needed();
}

// PlanOf is the sum of all terms; at, n, by, and out are left to the caller.
PlanRun PlanOf(const gb_term* terms, int64_t terms_n, int64_t lanes, const AverageParts& p) {
  Planner plan(p.steps);
  for (int64_t i = 0; i < terms_n; i++) {
    p.terms[i] = terms[i].values.data;
    plan.Push(static_cast<int32_t>(i),
              i == 0 ? 0 : PartDepth(terms[i - 1].node, terms[i].node, lanes));
  }
  plan.End();
  PlanRun run = {};
  run.terms = p.terms;
  run.type = terms[0].values.dtype;
  run.steps = plan.steps();
  run.steps_n = plan.count();
  return run;
}

bool IsTerm(const gb_average_args& a) {
  for (int64_t i = 0; i < a.terms_n; i++) {
    if (a.terms[i].values.data == a.out.data) return true;
  }
  return false;
}

}  // namespace

uint64_t NeedsOf(const gb_context&, const gb_average_args& a) { return Needs(a.terms_n); }
uint64_t NeedsOf(const gb_context&, const gb_average_apply_args& a) { return Needs(a.terms_n); }

gb_status CpuAverage(gb_context* context, gb_stream* stream, const gb_average_args* a,
                     gb_workspace w, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const AverageParts p(arena, a->terms_n);
  if (!arena.enough()) return TooSmall(arena, w, report);
  PlanRun all = PlanOf(a->terms, a->terms_n, a->lanes, p);
  const int64_t bytes_in = BytesOf(all.type), bytes_out = BytesOf(a->out.dtype);
  all.by = a->weight;
  all.out_type = a->out.dtype;
  all.stream = a->out.n * bytes_out >= kStreamBytes && !IsTerm(*a);
  const Parts parts(context->pool, a->out.n, a->terms_n * bytes_in + bytes_out, kTile);
  context->pool.Run(parts.count, [&](int64_t part, int) {
    PlanRun run = all;
    run.at = parts.Lo(part);
    run.n = parts.Hi(part) - run.at;
    run.out = static_cast<char*>(a->out.data) + run.at * bytes_out;
    context->kernels->steps.run_plan(run);
  });
  return Done(report);
}

gb_status CpuAverageApply(gb_context* context, gb_stream* stream, const gb_average_apply_args* a,
                          gb_workspace w, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const AverageParts p(arena, a->terms_n);
  if (!arena.enough()) return TooSmall(arena, w, report);
  const PlanRun all = PlanOf(a->terms, a->terms_n, a->lanes, p);
  const DenseStep d = {context,  &a->optimizer, a->weight,
                       a->dim,   a->first != 0, a->nonfinite,
                       a->param, a->out,        a->terms_n * BytesOf(all.type),
                       false};
  const auto gradient = [&](int64_t at, int64_t n, float* tile) -> const float* {
    PlanRun run = all;
    run.by = 1;
    run.at = at;
    run.n = n;
    run.out = tile;
    context->kernels->steps.run_plan(run);
    return tile;
  };
  return RunDense(d, gradient, report);
}

}  // namespace gradbus
