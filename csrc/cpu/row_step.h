// The optimizer on rows of a table: where a row and its slots lie, which steps it has had.
#ifndef GRADBUS_CPU_ROW_STEP_H_
#define GRADBUS_CPU_ROW_STEP_H_

#include "cpu/stepper.h"

namespace gradbus {

class RowStep {
 public:
  RowStep(const Kernels& kernels, int64_t dim, float weight, const gb_optimizer& optimizer,
          const gb_steps& steps, const gb_in& table, const gb_out& out, gb_dtype gradients);

  // Worker is what one thread needs for itself.
  struct Worker {
    StepRun run;
    Tiles tiles;
    int64_t nonfinite = 0;
  };
  void Start(Worker& w) const { w.run = stepper_.Start(); }

  // Apply does the step of table row `row` into out's row `to`; first is looked at only where the
  // last steps are not given. With count it adds what is not finite to w.nonfinite.
  void Apply(Worker& w, int64_t row, int64_t to, const void* g, bool first, bool count) const;
  // ApplyMany does the steps of rows[0, n) with the n gradients that lie one after the other at g;
  // n <= kMany. to are the rows of out, first is null where no row is at its first step.
  static constexpr int64_t kMany = 64;
  void ApplyMany(Worker& w, const int64_t* rows, const int64_t* to, int64_t n, const void* g,
                 const uint8_t* first, bool count) const;
  // NonFinite counts the values of a gradient that are not finite once divided; *at is the first.
  int64_t NonFinite(Worker& w, const void* g, int64_t* at) const;
  // Prefetch fetches the beginning of a row and of its slots.
  void Prefetch(int64_t row) const;
  // bytes moved for a row, its gradient included.
  int64_t bytes() const { return bytes_; }
  bool in_place() const { return in_place_; }

 private:
  struct Turn {  // of a row
    int64_t from, to;
    bool first;
  };
  bool plain() const;
  Turn TurnOf(int64_t row, int64_t to, bool first) const;
  Spot At(int64_t row, int64_t to) const;
  void Clip(Worker& w, const void* g) const;
  void Columns(Worker& w, const Spot& at, const Turn& turn, const void* g, bool count) const;
  void Rowwise(Worker& w, const Spot& at, const void* g, bool count) const;
  void ReplayRowwise(Worker& w, const Spot& at, const Turn& turn) const;

  struct Operand {
    const char* before;
    char* after;
    int64_t bytes;  // of a row
  };
  Stepper stepper_;
  int64_t dim_, piece_, bytes_;
  gb_dtype gradients_;
  bool in_place_;
  Operand table_;
  Operand slots_[kSlotsMax] = {};
  int slots_n_;
  const int64_t* last_;
  int64_t* last_after_;
  int64_t step_;
  bool exact_;
};

}  // namespace gradbus

#endif  // GRADBUS_CPU_ROW_STEP_H_
