// The inner loops of the CPU backend, compiled once per instruction set. The callers (bag.cc,
// merge.cc, dense.cc) have checked every argument; kernels trust them.
#ifndef GRADBUS_CPU_KERNELS_H_
#define GRADBUS_CPU_KERNELS_H_

#include <cstdint>

namespace gradbus {

struct SgdRun {
  float lr, momentum, keep, weight_decay;
  float weight;
  bool has_momentum, nesterov, first;
  const float *p, *g, *m;
  float *out, *out_m;
  int64_t n;
};

struct MatMulRun {
  int64_t m, n, k;
  bool trans_a, trans_b;
  const float *a, *b, *bias;  // bias may be null
  float* c;
  float* packed;  // packed_floats(n, k) of them
};

struct SoftmaxRun {
  int64_t classes, samples;
  const float* logits;
  const int32_t* targets;
  float *loss, *grad, *probabilities;  // each may be null
  float* scratch;                      // softmax_floats(classes) of them
};

struct Kernels {
  const char* isa;

  // out[0, dim) = canonical sum of rows[index[i * stride]] for i in [0, n).
  void (*sum_rows)(const float* rows, int64_t dim, const int64_t* index, int64_t stride, int64_t n,
                   float* out);
  // out = x / by; out may be x.
  void (*divide)(const float* x, float by, int64_t n, float* out);
  // out = (the plan over terms) / by, elementwise over n; out may be one of the terms.
  void (*run_plan)(const float* const* terms, const int32_t* steps, int64_t steps_n, float by,
                   int64_t n, float* out);
  void (*sgd)(const SgdRun& run);  // out may be p, out_m may be m
  int64_t (*packed_floats)(int64_t n, int64_t k);
  void (*matmul)(const MatMulRun& run);
  int64_t (*softmax_floats)(int64_t classes);
  void (*softmax)(const SoftmaxRun& run);
  int64_t (*first_nonfinite)(const float* values, int64_t n);
};

extern const Kernels kKernelsBaseline;
#ifdef GRADBUS_X86
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
#endif

}  // namespace gradbus

#endif  // GRADBUS_CPU_KERNELS_H_
