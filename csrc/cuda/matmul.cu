// matmul: one thread per value of C. Plain on purpose: large dense layers belong to a library, and
// the canonical order rules out the tensor cores.
#include "cuda/flags.cuh"
#include "cuda/order.cuh"
#include "cuda/stage.h"

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

struct Op {
  using Args = gb_matmul_args;

  struct Parts {
    Parts(Arena&, const Context&, const Args&) {}
  };

  static bool Nothing(const Args& a) { return a.c.n == 0; }

  static void Stage(Travel& travel, Args& a) {
    travel.In(a.a);
    travel.In(a.b);
    travel.In(a.bias);
    travel.Out(a.c);
  }

  static void Run(Queue& queue, const Parts&, const Args& a, gb_report* report) {
    const int64_t one = 1;
    Launch(queue, queue.Blocks(a.c.n, kThreads), kThreads, matmul_kernel, Floats(a.a), Floats(a.b),
           a.bias.n == 0 ? nullptr : Floats(a.bias), a.n, a.k, a.c.n, a.trans_a != 0 ? one : a.k,
           a.trans_a != 0 ? a.m : one, a.trans_b != 0 ? one : a.n, a.trans_b != 0 ? a.k : one,
           Floats(a.c));
    Report(queue, nullptr, Verdict(), report);
  }
};

}  // namespace

uint64_t NeedsOf(const Context& context, const gb_matmul_args& a) { return Needs<Op>(context, a); }

gb_status MatMul(gb_context* context, gb_stream* stream, const gb_matmul_args* a, gb_workspace w,
                 gb_report* report) {
  return Call<Op>(context, stream, a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
