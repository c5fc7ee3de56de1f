// average: one plan for all values.
#include "cuda/plan.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

struct HostParts {
  Step* steps;
  int64_t* wide;  // the same in 64 bits, then the two ends of the plan
  HostParts(Arena& arena, const gb_average_args& a)
      : steps(arena.Take<Step>(2 * a.terms_n)), wide(arena.Take<int64_t>(2 * a.terms_n + 2)) {}
};

struct Parts {
  float *values, *out;
  int64_t* steps;
  Parts(Arena& arena, int64_t values_n, int64_t n, int64_t steps_n)
      : values(arena.Take<float>(values_n)),
        out(arena.Take<float>(n)),
        steps(arena.Take<int64_t>(steps_n)) {}
};

}  // namespace

uint64_t NeedsOf(const gb_average_args& a) {
  Arena arena;
  HostParts parts(arena, a);
  return arena.needed();
}

gb_status Average(gb_context* context, gb_stream* stream, const gb_average_args* a, gb_workspace w,
                  gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const HostParts host(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  const int64_t n = a->out.n;
  if (n == 0) return Done(report);
  Planner plan(host.steps);
  for (int64_t i = 0; i < a->terms_n; i++) {
    plan.Push(static_cast<int32_t>(i),
              i == 0 ? 0 : PartDepth(a->terms[i - 1].node, a->terms[i].node, a->lanes));
  }
  plan.End();
  const int64_t steps = plan.count();
  for (int64_t s = 0; s < steps; s++) host.wide[s] = plan.steps()[s];
  host.wide[steps] = 0;
  host.wide[steps + 1] = steps;
  Use device(context, report);
  const Parts p = device.Reserve<Parts>(a->terms_n * n, n, steps + 2);
  for (int64_t i = 0; i < a->terms_n; i++) {
    device.Upload(p.values + i * n, Floats(a->terms[i].values), n);
  }
  device.Upload(p.steps, host.wide, steps + 2);
  device.Launch(run_plan_kernel, n, p.values, p.steps, p.steps + steps, n, n, a->weight, p.out);
  device.Download(Floats(a->out), p.out, n);
  return device.End();
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
