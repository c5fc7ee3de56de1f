// softmax_cross_entropy: one thread per sample, since the sum over classes is sequential by the
// canonical order.
#include "cuda/flags.cuh"
#include "cuda/math.cuh"
#include "cuda/order.cuh"
#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// e is working memory like logits. Outputs that are not wanted are null.
__global__ void softmax_kernel(const float* __restrict__ logits,
                               const int32_t* __restrict__ targets, int64_t classes,
                               int64_t samples, const Flags* flags, float* __restrict__ e,
                               float* __restrict__ loss, float* __restrict__ grad,
                               float* __restrict__ probabilities) {
  if (Refused(flags)) return;
  GB_EACH(sample, samples) {
    const float* x = logits + sample * classes;
    float* mine = e + sample * classes;
    float top = x[0];
    for (int64_t c = 1; c < classes; c++) {
      if (x[c] > top) top = x[c];  // a NaN spoils the sum in any case
    }
    CanonicalSum sum;
    for (int64_t c = 0; c < classes; c++) {
      mine[c] = Exp(x[c] - top);
      sum.Add(mine[c]);
    }
    const float total = sum.Total();
    if (loss != nullptr) loss[sample] = Log(total) - (x[targets[sample]] - top);
    for (int64_t c = 0; c < classes; c++) {
      const float p = mine[c] / total;
      if (probabilities != nullptr) probabilities[sample * classes + c] = p;
      if (grad != nullptr) grad[sample * classes + c] = c == targets[sample] ? p - 1 : p;
    }
  }
}

__global__ void check_targets_kernel(const int32_t* __restrict__ targets, int64_t n,
                                     int64_t classes, Flags* flags) {
  GB_EACH(i, n) {
    if (targets[i] < 0 || targets[i] >= classes) Raise(flags, kBadId, 0, i);
  }
}

struct Op {
  using Args = gb_softmax_args;

  struct Parts {
    Flags* flags;
    float* e;
    Parts(Arena& arena, const Context&, const Args& a)
        : flags(arena.Take<Flags>(1)), e(arena.Take<float>(a.logits.n)) {}
  };

  static bool Nothing(const Args& a) { return a.logits.n == 0; }

  static void Stage(Travel& travel, Args& a) {
    travel.In(a.logits);
    travel.In(a.targets);
    travel.Out(a.loss);
    travel.Out(a.grad);
    travel.Out(a.probabilities);
  }

  static float* Wanted(const gb_out& out) { return out.n == 0 ? nullptr : Floats(out); }

  static void Run(Queue& queue, const Parts& parts, const Args& a, gb_report* report) {
    const int64_t samples = a.logits.n / a.classes;
    const int32_t* targets = static_cast<const int32_t*>(a.targets.data);
    ZeroFlags(queue, parts.flags);
    Launch(queue, queue.Blocks(a.targets.n, kThreads), kThreads, check_targets_kernel, targets,
           a.targets.n, a.classes, parts.flags);
    Launch(queue, queue.Blocks(samples, kThreads), kThreads, softmax_kernel, Floats(a.logits),
           targets, a.classes, samples, parts.flags, parts.e, Wanted(a.loss), Wanted(a.grad),
           Wanted(a.probabilities));
    Verdict verdict;
    verdict.Ids(a.targets, a.classes, kTextTarget);
    Report(queue, parts.flags, verdict, report);
  }
};

}  // namespace

uint64_t NeedsOf(const Context& context, const gb_softmax_args& a) { return Needs<Op>(context, a); }

gb_status Softmax(gb_context* context, gb_stream* stream, const gb_softmax_args* a, gb_workspace w,
                  gb_report* report) {
  return Call<Op>(context, stream, a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
