#include "cpu/stepper.h"

#include <cmath>
#include <cstring>

namespace gradbus {

Stepper::Stepper(const Kernels& kernels, const gb_optimizer& optimizer, float weight,
                 gb_dtype table)
    : k_(kernels.steps),
      rule_(RuleOf(optimizer)),
      by_(weight),
      multiply_(PowerOfTwo(weight)),
      narrow_(table != GB_FLOAT32),
      table_(table) {
  if (multiply_) by_ = 1.0f / weight;
  const Slots slots = SlotsOf(optimizer);
  slots_n_ = rowwise() ? 0 : slots.n;
  for (int i = 0; i < slots_n_; i++) {
    types_[i] = slots.at[i]->before.dtype;
    narrow_ = narrow_ || types_[i] != GB_FLOAT32;
  }
}

StepRun Stepper::Start() const {
  StepRun run = {};
  run.rule = rule_;
  run.by = by_;
  run.multiply = multiply_;
  run.factor = 1;
  return run;
}

namespace {

const float* FloatsAt(const void* base, int64_t column) {
  return static_cast<const float*>(base) + column;
}

}  // namespace

const float* Stepper::Gradient(const void* g, gb_dtype type, int64_t column, int64_t n,
                               float* tile) const {
  if (type == GB_FLOAT32) return FloatsAt(g, column);
  k_.widen(static_cast<const char*>(g) + column * BytesOf(type), type, n, tile);
  return tile;
}

void Stepper::Piece(StepRun& run, const Spot& at, int64_t column, int64_t n, Tiles& t) const {
  run.n = n;
  run.p = Gradient(at.p, table_, column, n, t.p);
  const bool tiled = table_ != GB_FLOAT32;
  run.out = tiled ? t.p : reinterpret_cast<float*>(at.out) + column;
  for (int i = 0; i < slots_n_; i++) {
    run.s[i] = run.first && rule_.kind == GB_SGD ? t.s[i]  // is not read
                                                 : Gradient(at.s[i], types_[i], column, n, t.s[i]);
    run.out_s[i] =
        types_[i] != GB_FLOAT32 ? t.s[i] : reinterpret_cast<float*>(at.out_s[i]) + column;
  }
  k_.step(run);
  if (!narrow_) return;
  if (tiled) k_.narrow(t.p, n, at.out + column * 2, table_);
  for (int i = 0; i < slots_n_; i++) {
    if (types_[i] != GB_FLOAT32) k_.narrow(t.s[i], n, at.out_s[i] + column * 2, types_[i]);
  }
}

void Stepper::Rows(const StepRun& run, const Spot& base, RowsStep rows, int64_t dim) const {
  rows.one = run;
  rows.one.n = dim;
  rows.one.first = false;
  rows.one.p = FloatsAt(base.p, 0);
  rows.one.out = reinterpret_cast<float*>(base.out);
  for (int i = 0; i < slots_n_; i++) {
    rows.one.s[i] = FloatsAt(base.s[i], 0);
    rows.one.out_s[i] = reinterpret_cast<float*>(base.out_s[i]);
  }
  k_.step_rows(rows);
}

void Stepper::Squares(StepRun& run, const Spot& at, int64_t column, int64_t n, Tiles& t,
                      float* sums) const {
  run.n = n;
  run.p = Gradient(at.p, table_, column, n, t.p);
  k_.square_columns(run, sums);
}

namespace {

// Columns adds the partial sums pairwise.
float Columns(const float* sums) {
  float s[kColumnSums];
  std::memcpy(s, sums, sizeof s);
  for (int w = kColumnSums / 2; w > 0; w /= 2) {
    for (int i = 0; i < w; i++) s[i] += s[i + w];
  }
  return s[0];
}

}  // namespace

void Stepper::NormSquares(const StepRun& run, int64_t n, float* sums) const {
  StepRun plain = run;
  plain.rule.clip = GB_CLIP_NONE;
  plain.rule.decay = 0;
  plain.n = n;
  plain.p = plain.g;  // read, but of no effect without decay
  k_.square_columns(plain, sums);
}

float Stepper::RowFactor(const float* sums) const {
  const float norm = std::sqrt(Columns(sums));
  return norm > rule_.by ? rule_.by / norm : 1;
}

float Stepper::NewSum(float sum, const float* sums, int64_t dim) const {
  return sum + Columns(sums) / static_cast<float>(dim);
}

float Stepper::RootOf(float sum) const { return std::sqrt(sum) + rule_.eps; }

// Round gives the tiles the values that they would have if the step had stored them.
void Stepper::Round(int64_t n, Tiles& t) const {
  uint16_t stored[kTile];
  const auto round = [&](float* tile, gb_dtype type) {
    if (type == GB_FLOAT32) return;
    k_.narrow(tile, n, stored, type);
    k_.widen(stored, type, n, tile);
  };
  round(t.p, table_);
  for (int i = 0; i < slots_n_; i++) round(t.s[i], types_[i]);
}

// Settled does one step and says whether it changed no bit.
bool Stepper::Settled(StepRun& run, Tiles& t) const {
  float p[kTile], s[kSlotsMax][kTile];
  const size_t bytes = static_cast<size_t>(run.n) * sizeof(float);
  std::memcpy(p, t.p, bytes);
  for (int i = 0; i < slots_n_; i++) std::memcpy(s[i], t.s[i], bytes);
  k_.step(run);
  if (narrow_) Round(run.n, t);
  bool same = std::memcmp(p, t.p, bytes) == 0;
  for (int i = 0; i < slots_n_; i++) same = same && std::memcmp(s[i], t.s[i], bytes) == 0;
  return same;
}

void Stepper::Replay(StepRun& run, const Spot& at, int64_t column, int64_t n, int64_t from,
                     int64_t to, Tiles& t) const {
  constexpr int64_t kLook = 8;  // looking for a fixed point costs about as much as a step
  static const float kZeros[kTile] = {};
  run.n = n;
  run.g = kZeros;
  run.p = run.out = t.p;
  k_.widen(at.p + column * BytesOf(table_), table_, n, t.p);
  for (int i = 0; i < slots_n_; i++) {
    run.s[i] = run.out_s[i] = t.s[i];
    k_.widen(at.s[i] + column * BytesOf(types_[i]), types_[i], n, t.s[i]);
  }
  for (int64_t step = from; step < to; step++) {
    run.first = step == 1;
    if (!run.first && (step - from) % kLook == 1) {
      if (Settled(run, t)) break;
      continue;
    }
    k_.step(run);
    if (narrow_) Round(n, t);
  }
  run.first = false;
  k_.narrow(t.p, n, at.out + column * BytesOf(table_), table_);
  for (int i = 0; i < slots_n_; i++) {
    k_.narrow(t.s[i], n, at.out_s[i] + column * BytesOf(types_[i]), types_[i]);
  }
}

int64_t Stepper::CountNonFinite(StepRun& run, int64_t n) const {
  run.n = n;
  return k_.count_nonfinite(run);
}

int64_t Stepper::FirstNonFinite(StepRun run, int64_t n) const {
  run.n = 1;
  for (int64_t i = 0; i < n; i++, run.g++) {
    if (k_.count_nonfinite(run) != 0) return i;
  }
  return n;
}

Parts::Parts(const Pool& pool, int64_t n_, int64_t bytes_each, int64_t multiple) : n(n_) {
  constexpr int64_t kPartBytes = 1 << 20;
  const int64_t bytes = n * bytes_each;
  each = n;
  if (pool.threads() > 1 && bytes >= kInlineBytes) {
    const int64_t turns = pool.threads() * 8;
    each = (n + turns - 1) / turns;
    const int64_t most = kPartBytes / bytes_each > 0 ? kPartBytes / bytes_each : 1;
    const int64_t least = (kInlineBytes / 4) / bytes_each > 0 ? kInlineBytes / 4 / bytes_each : 1;
    if (each > most) each = most;
    if (each < least) each = least;
    each = (each + multiple - 1) / multiple * multiple;
  }
  count = n > 0 ? (n + each - 1) / each : 0;
}

}  // namespace gradbus
