// The optimizer on pieces of rows and tensors of any float type: 16-bit operands pass through tiles
// of float32 that stay in L1, float32 ones are worked on where they lie.
#ifndef GRADBUS_CPU_STEPPER_H_
#define GRADBUS_CPU_STEPPER_H_

#include "core/rule.h"
#include "cpu/cpu.h"

namespace gradbus {

constexpr int64_t kTile = 1024;  // values: four tiles of 4 KB are a third of the smallest L1

// Spot is where a row, or a dense tensor, and its slots lie before and after the step.
struct Spot {
  const char* p;
  const char* s[kSlotsMax];
  char* out;
  char* out_s[kSlotsMax];
  // After is the spot of a second step, on what the first has written.
  Spot After() const { return {out, {out_s[0], out_s[1]}, out, {out_s[0], out_s[1]}}; }
};

// Tiles are a worker's.
struct Tiles {
  alignas(64) float p[kTile];
  alignas(64) float g[kTile];
  alignas(64) float s[kSlotsMax][kTile];
};

class Stepper {
 public:
  Stepper(const Kernels& kernels, const gb_optimizer& optimizer, float weight, gb_dtype table);

  const Rule& rule() const { return rule_; }
  bool rowwise() const { return rule_.kind == GB_ROWWISE_ADAGRAD; }
  // narrow: some operand has 16 bits, so a piece has at most kTile values.
  bool narrow() const { return narrow_; }
  int slots() const { return slots_n_; }
  gb_dtype slot_type(int i) const { return types_[i]; }

  // Start gives the part of a run that is the same for all pieces.
  StepRun Start() const;
  // Gradient is values [column, column+n) of g as float32; n <= kTile unless g is float32.
  const float* Gradient(const void* g, gb_dtype type, int64_t column, int64_t n, float* tile) const;
  // Piece does the step on values [column, column+n); run.g, run.first and, row-wise, run.root are
  // the caller's.
  void Piece(StepRun& run, const Spot& at, int64_t column, int64_t n, Tiles& t) const;
  // Rows does the step on many rows of float32; base is where row 0 lies.
  void Rows(const StepRun& run, const Spot& base, RowsStep rows, int64_t dim) const;
  // Squares is the first half of a row-wise step.
  void Squares(StepRun& run, const Spot& at, int64_t column, int64_t n, Tiles& t,
               float* sums) const;
  // RowFactor is what a row must be multiplied by so that its norm is at most the clip's; of sums
  // that NormSquares has made. clips_rows: it is wanted.
  bool clips_rows() const { return rule_.clip == GB_CLIP_ROW; }
  void NormSquares(const StepRun& run, int64_t n, float* sums) const;
  float RowFactor(const float* sums) const;
  // NewSum is the row's sum after the step; RootOf what the values are divided by.
  float NewSum(float sum, const float* sums, int64_t dim) const;
  float RootOf(float sum) const;
  // Replay makes up for the steps [from, to) on values [column, column+n), n <= kTile, each with a
  // gradient of zero. What it gives lies in at.After(). Not for row-wise rules.
  void Replay(StepRun& run, const Spot& at, int64_t column, int64_t n, int64_t from, int64_t to,
              Tiles& t) const;
  int64_t CountNonFinite(StepRun& run, int64_t n) const;
  // FirstNonFinite is the first of n values of run.g that is not finite once divided.
  int64_t FirstNonFinite(StepRun run, int64_t n) const;

 private:
  bool Settled(StepRun& run, Tiles& t) const;
  void Round(int64_t n, Tiles& t) const;
  const StepKernels& k_;
  Rule rule_;
  float by_;
  bool multiply_;
  bool narrow_;
  gb_dtype table_;
  gb_dtype types_[kSlotsMax] = {};
  int slots_n_;  // of as many values as the table
};

// RowsAhead is how many rows ahead of their use they are fetched: about 8 KB, and not so many that
// short rows push each other out.
inline int64_t RowsAhead(int64_t row_bytes) {
  const int64_t rows = 8192 / row_bytes;
  return rows < 2 ? 2 : rows > 32 ? 32 : rows;
}

// Parts cuts n things of the given number of bytes each into parts for the pool: large enough to
// be worth a turn, small enough that the threads end together.
struct Parts {
  int64_t n, each, count;
  Parts(const Pool& pool, int64_t n, int64_t bytes_each, int64_t multiple = 1);
  int64_t Lo(int64_t part) const { return part * each; }
  int64_t Hi(int64_t part) const { return part * each + each < n ? part * each + each : n; }
};

}  // namespace gradbus

#endif  // GRADBUS_CPU_STEPPER_H_
