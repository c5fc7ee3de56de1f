// The inner loops of the optimizers and of sums along the lane tree, a table of them per
// instruction set. Their callers have checked every argument. Plain data only, see vector.h.
#ifndef GRADBUS_CPU_STEP_KERNELS_H_
#define GRADBUS_CPU_STEP_KERNELS_H_

#include <cstdint>

#include "core/rule.h"
#include "gradbus.h"

namespace gradbus {

constexpr int kColumnSums = 16;  // partial sums of columns(), see gradbus.h

// StepRun is one step of n consecutive values of one row, or of a piece of a dense tensor. Slots
// are in the canonical order of core/rule.h; row-wise ones are the caller's affair. out may be p,
// and out_s may be s.
struct StepRun {
  Rule rule;
  float by;       // d = multiply ? g * by : g / by
  bool multiply;  // by is the exact reciprocal of the weight
  bool first;     // no step of these values before this one
  bool stream;    // what is written is not read again soon, and is too much for the caches
  bool dense;     // the memory behind these values will be needed next
  float root;     // row-wise adagrad: sqrt(s) + eps
  float factor;   // of a row that is clipped by its norm
  int64_t n;
  const float *p, *g;
  const float* s[kSlotsMax];
  float* out;
  float* out_s[kSlotsMax];
};

// RowsStep is one step of rows of one.n values each, all float32, not row-wise: row from[i] of p
// and s, with row i of g, gives row to[i] of out and out_s.
struct RowsStep {
  StepRun one;
  int64_t rows;
  const int64_t *from, *to;
  const uint8_t* first;  // of each row; null: one.first for all
};

// PlanRun is the sum of terms along the lane tree, divided by by, for values [at, at+n) of each
// term. out, which gets n values, is float32 or of the terms' type, and may be a term's own [at,
// at+n).
struct PlanRun {
  const void* const* terms;
  gb_dtype type;
  gb_dtype out_type;
  const int32_t* steps;
  int64_t steps_n;
  float by;
  bool stream;  // as in StepRun
  int64_t at, n;
  void* out;
};

struct StepKernels {
  void (*run_plan)(const PlanRun& run);
  void (*step)(const StepRun& run);
  void (*step_rows)(const RowsStep& run);
  // sums[j] += d*d over the values j, j+16, ...: the first half of row-wise Adagrad.
  // Without decay and clip it is the square of a norm.
  void (*square_columns)(const StepRun& run, float* sums);
  // How many of the n values d = g/weight are NaN or Inf; reads g, n and by alone.
  int64_t (*count_nonfinite)(const StepRun& run);
  // Between a float type and float32, n values.
  void (*widen)(const void* from, gb_dtype type, int64_t n, float* to);
  void (*narrow)(const float* from, int64_t n, void* to, gb_dtype type);
};

}  // namespace gradbus

#endif  // GRADBUS_CPU_STEP_KERNELS_H_
