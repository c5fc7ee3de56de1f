// apply_rows, apply_dense, matmul, softmax_cross_entropy and first_nonfinite.
#include "cpu/cpu.h"

namespace gradbus {
namespace {

SgdRun RunOf(const Sgd& s, float weight) {
  SgdRun run = {};
  run.lr = s.lr;
  run.momentum = s.momentum;
  run.keep = s.keep;
  run.weight_decay = s.weight_decay;
  run.weight = weight;
  run.has_momentum = s.momentum != 0;
  run.nesterov = s.nesterov;
  return run;
}

struct FloatParts {
  float* floats;
  FloatParts(Arena& arena, int64_t n) : floats(arena.Take<float>(n)) {}
};

int64_t PackedOf(const gb_context& c, const gb_matmul_args& a) {
  return c.kernels->packed_floats(a.n, a.k);
}

}  // namespace

uint64_t NeedsOf(const gb_context& c, const gb_matmul_args& a) {
  Arena arena;
  FloatParts parts(arena, PackedOf(c, a));
  return arena.needed();
}

uint64_t NeedsOf(const gb_context& c, const gb_softmax_args& a) {
  Arena arena;
  FloatParts parts(arena, c.kernels->softmax_floats(a.classes));
  return arena.needed();
}

gb_status CpuApplyRows(gb_context* context, gb_stream* stream, const gb_apply_rows_args* a,
                       gb_workspace, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  const Sgd s = SgdOf(a->optimizer);
  SgdRun run = RunOf(s, a->weight);
  run.n = a->dim;
  const int64_t* index = Ints(a->index);
  for (int64_t i = 0; i < a->index.n; i++) {
    run.p = Floats(a->table) + index[i] * a->dim;
    run.g = Floats(a->grad) + i * a->dim;
    run.out = Floats(a->out) + i * a->dim;
    if (run.has_momentum) {
      run.first = static_cast<const uint8_t*>(a->first.data)[i] != 0;
      run.m = s.before + index[i] * a->dim;
      run.out_m = s.after + i * a->dim;
    }
    context->kernels->sgd(run);
  }
  return Done(report);
}

gb_status CpuApplyDense(gb_context* context, gb_stream* stream, const gb_apply_dense_args* a,
                        gb_workspace, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  const Sgd s = SgdOf(a->optimizer);
  SgdRun run = RunOf(s, a->weight);
  run.n = a->param.n;
  run.first = a->first != 0;
  run.p = Floats(a->param);
  run.g = Floats(a->grad);
  run.out = Floats(a->out);
  run.m = s.before;
  run.out_m = s.after;
  context->kernels->sgd(run);
  return Done(report);
}

gb_status CpuMatMul(gb_context* context, gb_stream* stream, const gb_matmul_args* a, gb_workspace w,
                    gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const FloatParts parts(arena, PackedOf(*context, *a));
  if (!arena.enough()) return TooSmall(arena, w, report);
  const float* bias = a->bias.n == 0 ? nullptr : Floats(a->bias);
  context->kernels->matmul({a->m, a->n, a->k, a->trans_a != 0, a->trans_b != 0, Floats(a->a),
                            Floats(a->b), bias, Floats(a->c), parts.floats});
  return Done(report);
}

gb_status CpuSoftmax(gb_context* context, gb_stream* stream, const gb_softmax_args* a,
                     gb_workspace w, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const FloatParts parts(arena, context->kernels->softmax_floats(a->classes));
  if (!arena.enough()) return TooSmall(arena, w, report);
  const auto wanted = [](const gb_out& out) { return out.n == 0 ? nullptr : Floats(out); };
  context->kernels->softmax({a->classes, a->logits.n / a->classes, Floats(a->logits),
                             static_cast<const int32_t*>(a->targets.data), wanted(a->loss),
                             wanted(a->grad), wanted(a->probabilities), parts.floats});
  return Done(report);
}

gb_status CpuFirstNonFinite(gb_context* context, gb_stream* stream,
                            const gb_first_nonfinite_args* a, gb_workspace, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  return Done(report, 0, context->kernels->first_nonfinite(Floats(a->values), a->values.n));
}

}  // namespace gradbus
