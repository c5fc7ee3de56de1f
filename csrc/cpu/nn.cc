// matmul and softmax_cross_entropy, for the layers that run beside embeddings.
#include "cpu/cpu.h"

namespace gradbus {
namespace {

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

}  // namespace gradbus
