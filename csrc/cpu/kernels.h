// The inner loops of the CPU backend, compiled once per instruction set. The callers (bag.cc,
// merge.cc, dense.cc) have checked every argument; kernels trust them.
#ifndef GRADBUS_CPU_KERNELS_H_
#define GRADBUS_CPU_KERNELS_H_

#include <cstdint>

#include "cpu/bag_kernels.h"
#include "cpu/step_kernels.h"

namespace gradbus {

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

struct GatherRun {
  const void* ids;   // int32 or int64
  gb_dtype type;     // of ids
  int64_t n, known;  // rows to gather; ids that may be read, for rows to fetch early
  int64_t ahead;     // row ids[i + ahead] is fetched while row ids[i] is copied
  const char* rows;
  int64_t row_bytes;
  char* out;
};

struct Kernels {
  const char* isa;
  BagKernels bags;
  StepKernels steps;
  int64_t (*packed_floats)(int64_t n, int64_t k);
  void (*matmul)(const MatMulRun& run);
  int64_t (*softmax_floats)(int64_t classes);
  void (*softmax)(const SoftmaxRun& run);
  int64_t (*first_nonfinite)(const float* values, int64_t n);
  void (*copy)(const void* from, int64_t bytes, bool stream, void* to);  // stream as in RowsRun
  void (*gather)(const GatherRun& run);
};

extern const Kernels kKernelsBaseline;
#ifdef GRADBUS_X86
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
#endif

}  // namespace gradbus

#endif  // GRADBUS_CPU_KERNELS_H_
