// apply_rows and apply_dense.
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

}  // namespace

uint64_t NeedsOf(const gb_context&, const gb_apply_rows_args&) { return 0; }
uint64_t NeedsOf(const gb_context&, const gb_apply_dense_args&) { return 0; }

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
    context->kernels->steps.sgd(run);
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
  context->kernels->steps.sgd(run);
  return Done(report);
}

}  // namespace gradbus
