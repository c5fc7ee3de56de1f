#include "cuda/plan.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

__global__ void run_plan_kernel(const float* __restrict__ values, const int64_t* __restrict__ steps,
                                const int64_t* __restrict__ begin, int64_t dim, int64_t n, float by,
                                float* __restrict__ out) {
  GB_EACH(i, n) {
    const int64_t run = i / dim, column = i % dim;
    float stack[kStackMax];
    int top = 0;
    for (int64_t s = begin[run]; s < begin[run + 1]; s++) {
      if (steps[s] != kAdd) {
        stack[top++] = values[steps[s] * dim + column];
      } else {
        top--;
        stack[top - 1] += stack[top];
      }
    }
    out[i] = stack[0] / by;
  }
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
