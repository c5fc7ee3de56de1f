#include "cpu/row_step.h"

namespace gradbus {

RowStep::RowStep(const Kernels& kernels, int64_t dim, float weight, const gb_optimizer& optimizer,
                 const gb_steps& steps, const gb_in& table, const gb_out& out, gb_dtype gradients)
    : stepper_(kernels, optimizer, weight, table.dtype), dim_(dim), gradients_(gradients) {
  table_ = {static_cast<const char*>(table.data), static_cast<char*>(out.data),
            dim * BytesOf(table.dtype)};
  in_place_ = out.n > 0 && table.data == out.data;
  bytes_ = 2 * table_.bytes + dim * BytesOf(gradients);
  const Slots slots = SlotsOf(optimizer);
  slots_n_ = slots.n;
  for (int i = 0; i < slots.n; i++) {
    const gb_slot& s = *slots.at[i];
    const int64_t values = SlotValues(stepper_.rule(), dim);
    slots_[i] = {static_cast<const char*>(s.before.data), static_cast<char*>(s.after.data),
                 values * BytesOf(s.before.dtype)};
    bytes_ += 2 * slots_[i].bytes;
  }
  piece_ = stepper_.narrow() || gradients != GB_FLOAT32 ? kTile : dim;
  last_ = static_cast<const int64_t*>(steps.last.data);
  last_after_ = static_cast<int64_t*>(steps.last_after.data);
  if (steps.last.n == 0 || steps.last_after.n == 0) last_ = nullptr;
  step_ = steps.step;
  exact_ = steps.exact != 0;
}

RowStep::Turn RowStep::TurnOf(int64_t row, int64_t to, bool first) const {
  if (last_ == nullptr) return {0, 0, first};
  const int64_t last = last_[row];
  last_after_[to] = step_;
  if (!exact_ || last < 0 || last >= step_ - 1) return {0, 0, last == 0};
  return {last + 1, step_, false};  // if there was none before, a step made up for is the first
}

Spot RowStep::At(int64_t row, int64_t to) const {
  Spot at = {};
  at.p = table_.before + row * table_.bytes;
  at.out = table_.after + to * table_.bytes;
  for (int i = 0; i < slots_n_; i++) {
    at.s[i] = slots_[i].before + row * slots_[i].bytes;
    at.out_s[i] = slots_[i].after + to * slots_[i].bytes;
  }
  return at;
}

void RowStep::Apply(Worker& w, int64_t row, int64_t to, const void* g, bool first,
                    bool count) const {
  const Turn turn = TurnOf(row, to, first);
  Spot at = At(row, to);
  if (stepper_.clips_rows()) Clip(w, g);
  if (!stepper_.rowwise()) return Columns(w, at, turn, g, count);
  if (turn.from < turn.to) {
    ReplayRowwise(w, at, turn);
    at = at.After();
  }
  Rowwise(w, at, g, count);
}

// plain: a kernel can do many rows in one call.
bool RowStep::plain() const {
  return !stepper_.rowwise() && !stepper_.clips_rows() && !stepper_.narrow() &&
         gradients_ == GB_FLOAT32 && !exact_;
}

void RowStep::ApplyMany(Worker& w, const int64_t* rows, const int64_t* to, int64_t n, const void* g,
                        const uint8_t* first, bool count) const {
  const char* gradient = static_cast<const char*>(g);
  if (!plain()) {
    for (int64_t i = 0; i < n; i++) {
      Apply(w, rows[i], to[i], gradient, first != nullptr && first[i] != 0, count);
      gradient += dim_ * BytesOf(gradients_);
    }
    return;
  }
  uint8_t firsts[kMany];
  if (last_ != nullptr) {
    for (int64_t i = 0; i < n; i++) {
      firsts[i] = last_[rows[i]] == 0;
      last_after_[to[i]] = step_;
    }
    first = firsts;
  }
  w.run.g = static_cast<const float*>(g);
  if (count) w.nonfinite += stepper_.CountNonFinite(w.run, n * dim_);
  stepper_.Rows(w.run, At(0, 0), {{}, n, rows, to, first}, dim_);
}

// Clip finds the factor of a row that is clipped by its norm.
void RowStep::Clip(Worker& w, const void* g) const {
  float sums[kColumnSums] = {};
  for (int64_t column = 0; column < dim_; column += piece_) {
    const int64_t n = dim_ - column < piece_ ? dim_ - column : piece_;
    w.run.g = stepper_.Gradient(g, gradients_, column, n, w.tiles.g);
    stepper_.NormSquares(w.run, n, sums);
  }
  w.run.factor = stepper_.RowFactor(sums);
}

void RowStep::Columns(Worker& w, const Spot& at, const Turn& turn, const void* g,
                      bool count) const {
  const bool replay = turn.from < turn.to;
  const Spot now = replay ? at.After() : at;
  const int64_t piece = replay && dim_ > kTile ? kTile : piece_;
  for (int64_t column = 0; column < dim_; column += piece) {
    const int64_t n = dim_ - column < piece ? dim_ - column : piece;
    if (replay) stepper_.Replay(w.run, at, column, n, turn.from, turn.to, w.tiles);
    w.run.first = turn.first;
    w.run.g = stepper_.Gradient(g, gradients_, column, n, w.tiles.g);
    if (count) w.nonfinite += stepper_.CountNonFinite(w.run, n);
    stepper_.Piece(w.run, now, column, n, w.tiles);
  }
}

// Rowwise does a step of row-wise Adagrad; a gradient of null is one of zeros.
void RowStep::Rowwise(Worker& w, const Spot& at, const void* g, bool count) const {
  static const float kZeros[kTile] = {};
  float sums[kColumnSums] = {};
  const int64_t piece = g == nullptr ? kTile : piece_;
  const auto each = [&](auto&& f) {
    for (int64_t column = 0; column < dim_; column += piece) {
      const int64_t n = dim_ - column < piece ? dim_ - column : piece;
      w.run.g = g == nullptr ? kZeros : stepper_.Gradient(g, gradients_, column, n, w.tiles.g);
      f(column, n);
    }
  };
  each([&](int64_t column, int64_t n) {
    if (count) w.nonfinite += stepper_.CountNonFinite(w.run, n);
    stepper_.Squares(w.run, at, column, n, w.tiles, sums);
  });
  const float sum = stepper_.NewSum(*reinterpret_cast<const float*>(at.s[0]), sums, dim_);
  *reinterpret_cast<float*>(at.out_s[0]) = sum;
  w.run.root = stepper_.RootOf(sum);
  each([&](int64_t column, int64_t n) { stepper_.Piece(w.run, at, column, n, w.tiles); });
}

// ReplayRowwise: without weight decay the gradient is zero in every column, and a second step
// changes nothing that the first has not (it only turns -0 into +0).
void RowStep::ReplayRowwise(Worker& w, const Spot& at, const Turn& turn) const {
  int64_t steps = turn.to - turn.from;
  if (stepper_.rule().decay == 0 && steps > 2) steps = 2;
  Rowwise(w, at, nullptr, false);
  const Spot after = at.After();
  for (int64_t i = 1; i < steps; i++) Rowwise(w, after, nullptr, false);
}

int64_t RowStep::NonFinite(Worker& w, const void* g, int64_t* at) const {
  int64_t count = 0;
  for (int64_t column = 0; column < dim_; column += piece_) {
    const int64_t n = dim_ - column < piece_ ? dim_ - column : piece_;
    w.run.g = stepper_.Gradient(g, gradients_, column, n, w.tiles.g);
    const int64_t bad = stepper_.CountNonFinite(w.run, n);
    if (bad > 0 && count == 0) *at = column + stepper_.FirstNonFinite(w.run, n);
    count += bad;
  }
  return count;
}

void RowStep::Prefetch(int64_t row) const {
  constexpr int64_t kMost = 512;  // bytes; a longer row is a stream that the processor follows
  const auto fetch = [row](const Operand& x) {
    const char* at = x.before + row * x.bytes;
    const int64_t n = x.bytes < kMost ? x.bytes : kMost;
    for (int64_t i = 0; i < n; i += 64) __builtin_prefetch(at + i, 1);
  };
  fetch(table_);
  for (int i = 0; i < slots_n_; i++) fetch(slots_[i]);
}

}  // namespace gradbus
