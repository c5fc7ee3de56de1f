// softmax_cross_entropy: one thread per sample, since the sum over classes is sequential by the
// canonical order.
#include "cuda/math.cuh"
#include "cuda/order.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// e is working memory like logits. Outputs that are not wanted are null.
__global__ void softmax_kernel(const float* __restrict__ logits,
                               const int32_t* __restrict__ targets, int64_t classes,
                               int64_t samples, float* __restrict__ e, float* __restrict__ loss,
                               float* __restrict__ grad, float* __restrict__ probabilities) {
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

struct Parts {
  float *logits, *e, *loss, *grad, *probabilities;
  int32_t* targets;
  Parts(Arena& arena, const gb_softmax_args& a)
      : logits(arena.Take<float>(a.logits.n)),
        e(arena.Take<float>(a.logits.n)),
        loss(a.loss.n == 0 ? nullptr : arena.Take<float>(a.loss.n)),
        grad(a.grad.n == 0 ? nullptr : arena.Take<float>(a.grad.n)),
        probabilities(a.probabilities.n == 0 ? nullptr : arena.Take<float>(a.probabilities.n)),
        targets(arena.Take<int32_t>(a.targets.n)) {}
};

}  // namespace

gb_status Softmax(gb_context* context, gb_stream* stream, const gb_softmax_args* a, gb_workspace,
                  gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  if (a->logits.n == 0) return Done(report);
  Use device(context, report);
  const Parts p = device.Reserve<Parts>(*a);
  const int64_t samples = a->logits.n / a->classes;
  device.Upload(p.logits, Floats(a->logits), a->logits.n);
  device.Upload(p.targets, static_cast<const int32_t*>(a->targets.data), a->targets.n);
  device.Launch(softmax_kernel, samples, p.logits, p.targets, a->classes, samples, p.e, p.loss,
                p.grad, p.probabilities);
  device.Download(Floats(a->loss), p.loss, a->loss.n);
  device.Download(Floats(a->grad), p.grad, a->grad.n);
  device.Download(Floats(a->probabilities), p.probabilities, a->probabilities.n);
  return device.End();
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
