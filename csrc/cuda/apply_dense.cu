// apply_dense: see dense.cuh. The plainest of the operations, and the example of how one is
// written (device.h).
#include "cuda/dense.cuh"
#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

struct Op {
  using Args = gb_apply_dense_args;

  struct Parts {
    Flags* flags;  // null where nothing can be counted or refused
    Parts(Arena& arena, const Context&, const Args& a)
        : flags(a.nonfinite == GB_NONFINITE_IGNORE ? nullptr : arena.Take<Flags>(1)) {}
  };

  static bool Nothing(const Args& a) { return a.param.n == 0; }

  static void Stage(Travel& travel, Args& a) {
    const gb_in param = a.param;
    travel.Near(a.param);
    travel.Near(a.grad);
    travel.Over(a.out, param, a.param);
    StageSlots(travel, a.optimizer);
  }

  static void Run(Queue& queue, const Parts& parts, const Args& a, gb_report* report) {
    DenseCall call = {};
    call.target = DenseTarget(a.param, a.out, a.optimizer, a.dim);
    call.rule = RuleOf(a.optimizer);
    call.weight = QuotientOf(a.weight);
    call.grad = a.grad.data;
    call.grad_dtype = a.grad.dtype;
    call.first = a.first;
    call.n = a.param.n;
    call.flags = parts.flags;
    call.nonfinite = a.nonfinite;
    if (parts.flags != nullptr) ZeroFlags(queue, parts.flags);
    QueueDense(queue, call);
    Verdict verdict;
    verdict.NonFinite();
    Report(queue, parts.flags, verdict, report);
  }
};

}  // namespace

uint64_t NeedsOf(const Context& context, const gb_apply_dense_args& a) {
  return Needs<Op>(context, a);
}

gb_status ApplyDense(gb_context* context, gb_stream* stream, const gb_apply_dense_args* a,
                     gb_workspace w, gb_report* report) {
  return Call<Op>(context, stream, a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
