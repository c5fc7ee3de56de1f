// matmul: one thread per value of C. Plain on purpose: large dense layers belong to a library, and
// the canonical order rules out the tensor cores.
#include "cuda/order.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// A's element (row, l) is a[row * a_row + l * a_col], B's (l, column) is b[l * b_row + column *
// b_col].
__global__ void matmul_kernel(const float* __restrict__ a, const float* __restrict__ b,
                              const float* __restrict__ bias, int64_t n, int64_t k, int64_t values,
                              int64_t a_row, int64_t a_col, int64_t b_row, int64_t b_col,
                              float* __restrict__ c) {
  GB_EACH(i, values) {
    const int64_t row = i / n, column = i % n;
    CanonicalSum sum;
    for (int64_t l = 0; l < k; l++) {
      sum.Add(a[row * a_row + l * a_col] * b[l * b_row + column * b_col]);
    }
    const float total = sum.Total();
    c[i] = bias == nullptr ? total : total + bias[column];
  }
}

struct Parts {
  float *a, *b, *bias, *c;
  Parts(Arena& arena, const gb_matmul_args& m)
      : a(arena.Take<float>(m.a.n)),
        b(arena.Take<float>(m.b.n)),
        bias(m.bias.n == 0 ? nullptr : arena.Take<float>(m.bias.n)),
        c(arena.Take<float>(m.c.n)) {}
};

}  // namespace

gb_status MatMul(gb_context* context, gb_stream* stream, const gb_matmul_args* a, gb_workspace,
                 gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  if (a->c.n == 0) return Done(report);
  Use device(context, report);
  const Parts p = device.Reserve<Parts>(*a);
  device.Upload(p.a, Floats(a->a), a->a.n);
  device.Upload(p.b, Floats(a->b), a->b.n);
  device.Upload(p.bias, Floats(a->bias), a->bias.n);
  const int64_t one = 1;
  device.Launch(matmul_kernel, a->c.n, p.a, p.b, p.bias, a->n, a->k, a->c.n,
                a->trans_a ? one : a->k, a->trans_a ? a->m : one, a->trans_b ? one : a->n,
                a->trans_b ? a->k : one, p.c);
  device.Download(Floats(a->c), p.c, a->c.n);
  return device.End();
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
