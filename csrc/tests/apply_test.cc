// The optimizers of the CPU backend: vectors that one checks by hand, then every instruction set
// and number of threads against each other and against dense steps. The same arithmetic on random
// numbers, against a second implementation, is tested from Go.
#include "tests/apply.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "core/half.h"
#include "tests/expect.h"

namespace {

using gradbus::BF16ToFloat;
using gradbus::F16ToFloat;
using gradbus::FloatToBF16;
using gradbus::FloatToF16;

// Two steps of SGD with momentum 0.5 and weight 2: d = 1, m = 1, p = 10 - 0.5; d = 2, m = 0.5 + 2,
// p = 9.5 - 1.25.
void SgdByHand() {
  Cpu cpu;
  gb_sgd h = {0.5f, 0.5f, 0, 0, 0, 0};
  Floats p = {10}, m = {99}, g = {2};
  gb_slot slot = Slot("momentum", m, m);
  gb_apply_dense_args a = Sized<gb_apply_dense_args>();
  a.weight = 2;
  a.first = 1;
  a.optimizer = {GB_SGD, sizeof h, &h, &slot, 1, {}};
  a.param = In(p);
  a.grad = In(g);
  a.out = Out(p);
  EXPECT(cpu.Run(GB_OP_APPLY_DENSE, a) == GB_OK && p[0] == 9.5f && m[0] == 1);
  a.first = 0;
  g[0] = 4;
  EXPECT(cpu.Run(GB_OP_APPLY_DENSE, a) == GB_OK && p[0] == 8.25f && m[0] == 2.5f);
  // Nesterov, dampening and decay: d = 4/2 + 0.25*8 = 4 (p = 8), m = 0.5*2 + 0.5*4 = 3,
  // u = 4 + 0.5*3 = 5.5, p = 8 - 2.75.
  h = {0.5f, 0.5f, 0.5f, 0.25f, 1, 0};
  p[0] = 8, m[0] = 2;
  EXPECT(cpu.Run(GB_OP_APPLY_DENSE, a) == GB_OK && p[0] == 5.25f && m[0] == 3);
  // Without momentum there is no slot: p = 8 - 0.5*2.
  h = {0.5f, 0, 0, 0, 0, 0};
  a.optimizer.slots_n = 0;
  p[0] = 8;
  EXPECT(cpu.Run(GB_OP_APPLY_DENSE, a) == GB_OK && p[0] == 7);
}

// Row-wise Adagrad: row {3, 4}/1 gives columns 25, /2 = 12.5, sum 3.5 + 12.5 = 16, root 4:
// p = 1 - 2*(3/4), 1 - 2*(4/4).
void AdagradByHand() {
  Cpu cpu;
  gb_adagrad h = {2, 0, 0, 0};
  Floats table = {0, 0, 1, 1}, sum = {7, 3.5f}, g = {3, 4}, out(2), sum_after(1);
  Ids index = {1};
  gb_slot slot = Slot("sum", sum, sum_after);
  gb_apply_rows_args a = Sized<gb_apply_rows_args>();
  a.weight = 1;
  a.dim = 2;
  a.optimizer = {GB_ROWWISE_ADAGRAD, sizeof h, &h, &slot, 1, {}};
  a.table = In(table);
  a.index = In(index);
  a.grad = In(g);
  a.out = Out(out);
  EXPECT(cpu.Run(GB_OP_APPLY_ROWS, a) == GB_OK);
  EXPECT(out[0] == -0.5f && out[1] == -1 && sum_after[0] == 16);
  EXPECT(table[2] == 1 && sum[1] == 3.5f);
}

// Adam, step 1, betas 0.5 and 0.75: b1 = 0.5, b2 = 0.5; d = 2: mean = 1, square = 0.25*2*2 = 1,
// p = 8 - (1/0.5) * (1/(1/0.5)) = 7. Slots may come in any order.
void AdamByHand() {
  Cpu cpu;
  gb_adam h = {1, 0.5f, 0.75f, 0, 0, 0, 1};
  Floats p = {8}, mean = {0}, square = {0}, g = {2};
  gb_slot slots[2] = {Slot("square", square, square), Slot("mean", mean, mean)};
  gb_apply_dense_args a = Sized<gb_apply_dense_args>();
  a.weight = 1;
  a.optimizer = {GB_ADAM, sizeof h, &h, slots, 2, {}};
  a.param = In(p);
  a.grad = In(g);
  a.out = Out(p);
  EXPECT(cpu.Run(GB_OP_APPLY_DENSE, a) == GB_OK);
  EXPECT(p[0] == 7 && mean[0] == 1 && square[0] == 1);
  h.step = 0;
  EXPECT(cpu.Run(GB_OP_APPLY_DENSE, a) == GB_ARGUMENT && p[0] == 7);
  h.step = 1;
  slots[0].name = "mean";
  EXPECT(cpu.Run(GB_OP_APPLY_DENSE, a) == GB_SHAPE && p[0] == 7);
}

// A Model is an optimizer with its state over a table of rows, all float32.
struct Model {
  uint32_t kind;
  int64_t rows, dim;
  gb_sgd sgd = {0.1f, 0.9f, 0.25f, 0.01f, 1, 0};
  gb_adagrad adagrad = {0.1f, 1e-6f, 0.01f, 0};
  gb_adam adam = {0.01f, 0.9f, 0.999f, 1e-8f, 0.01f, 0, 3};
  gb_ftrl ftrl = {0.1f, 1, 0.3f, 0.2f};
  gb_clip clip = {GB_CLIP_NONE, 0};
  Floats table, slot[2];
  Ids last;

  Model(uint32_t k, int64_t r, int64_t d, uint64_t seed) : kind(k), rows(r), dim(d) {
    Random random = {seed};
    table = random.Many(rows * dim);
    for (Floats& s : slot) {
      s = random.Many(Values());
      for (float& x : s) x = std::fabs(x);
    }
    last.assign(static_cast<size_t>(rows), 0);
  }
  int64_t Values() const { return kind == GB_ROWWISE_ADAGRAD ? rows : rows * dim; }
  bool IsAdam() const { return kind == GB_ADAM || kind == GB_ADAMW; }
  int Slots() const { return IsAdam() || kind == GB_FTRL ? 2 : 1; }
  const char* Name(int i) const {
    if (kind == GB_SGD) return "momentum";
    if (kind == GB_FTRL) return i == 0 ? "z" : "n";
    if (IsAdam()) return i == 0 ? "mean" : "square";
    return "sum";
  }
  gb_optimizer With(gb_slot* slots) const {
    if (kind == GB_SGD) return {kind, sizeof sgd, &sgd, slots, 1, clip};
    if (kind == GB_FTRL) return {kind, sizeof ftrl, &ftrl, slots, 2, clip};
    if (IsAdam()) return {kind, sizeof adam, &adam, slots, 2, clip};
    return {kind, sizeof adagrad, &adagrad, slots, 1, clip};
  }
  bool Equals(const Model& o) const {
    return Same(table, o.table) && Same(slot[0], o.slot[0]) && Same(slot[1], o.slot[1]) &&
           last == o.last;
  }

  // Rows does apply_rows in place.
  gb_status Rows(Cpu& cpu, const Ids& index, const Floats& g, int64_t step, bool exact) {
    gb_slot slots[2];
    for (int i = 0; i < Slots(); i++) slots[i] = Slot(Name(i), slot[i], slot[i]);
    gb_apply_rows_args a = Sized<gb_apply_rows_args>();
    a.weight = 3;
    a.dim = dim;
    a.optimizer = With(slots);
    a.steps = {In(last), Out(last), step, exact, 0};
    a.table = In(table);
    a.index = In(index);
    a.grad = In(g);
    a.out = Out(table);
    return cpu.Run(GB_OP_APPLY_ROWS, a);
  }
  gb_status Dense(Cpu& cpu, const Floats& g, bool first) {
    gb_slot slots[2];
    for (int i = 0; i < Slots(); i++) slots[i] = Slot(Name(i), slot[i], slot[i]);
    gb_apply_dense_args a = Sized<gb_apply_dense_args>();
    a.weight = 3;
    a.dim = dim;
    a.first = first;
    a.optimizer = With(slots);
    a.param = In(table);
    a.grad = In(g);
    a.out = Out(table);
    return cpu.Run(GB_OP_APPLY_DENSE, a);
  }
  // Fused does coalesce_apply in place.
  gb_status Fused(Cpu& cpu, const Ids& keys, const Floats& rows_, int64_t step,
                  gb_nonfinite nonfinite = GB_NONFINITE_IGNORE) {
    gb_slot slots[2];
    for (int i = 0; i < Slots(); i++) slots[i] = Slot(Name(i), slot[i], slot[i]);
    gb_coalesce_apply_args a = Sized<gb_coalesce_apply_args>();
    a.weight = 3;
    a.dim = dim;
    a.nonfinite = nonfinite;
    a.optimizer = With(slots);
    a.steps = {In(last), Out(last), step, 0, 0};
    a.table = In(table);
    a.keys = In(keys);
    a.rows = In(rows_);
    a.out = Out(table);
    return cpu.Run(GB_OP_COALESCE_APPLY, a);
  }
};

// Rows that sit steps out and are then caught up are what dense steps with a gradient of zero make
// of them, bit for bit.
void ExactIsDense(uint32_t kind, int64_t dim) {
  constexpr int64_t kRows = 5, kSteps = 40;
  Cpu cpu;
  Model sparse(kind, kRows, dim, 1), dense(kind, kRows, dim, 1);
  Random random = {7};
  for (int64_t step = 1; step <= kSteps; step++) {
    Ids index;
    Floats g, all(static_cast<size_t>(kRows * dim), 0.0f);
    for (int64_t row = 0; row < kRows; row++) {
      if (step != kSteps && random.Next() % 4 != 0) continue;
      index.push_back(row);
      for (int64_t d = 0; d < dim; d++) {
        g.push_back(random.Unit());
        all[static_cast<size_t>(row * dim + d)] = g.back();
      }
    }
    EXPECT(sparse.Rows(cpu, index, g, step, true) == GB_OK);
    EXPECT(dense.Dense(cpu, all, step == 1) == GB_OK);
  }
  dense.last.assign(kRows, kSteps);
  EXPECT(sparse.Equals(dense));
}

// A row that sat out a million steps settles long before.
void ExactSettles() {
  Cpu cpu;
  Model a(GB_SGD, 1, 70, 3), b(GB_SGD, 1, 70, 3);
  a.sgd.weight_decay = b.sgd.weight_decay = 0;
  Random random = {9};
  const Floats g = random.Many(70), zero(70, 0.0f);
  EXPECT(a.Rows(cpu, {0}, g, 1, true) == GB_OK && b.Rows(cpu, {0}, g, 1, true) == GB_OK);
  EXPECT(a.Rows(cpu, {0}, g, 20000, true) == GB_OK);
  for (int64_t step = 2; step < 20000; step++) b.Dense(cpu, zero, false);
  EXPECT(b.Dense(cpu, g, false) == GB_OK);
  b.last = {20000};
  EXPECT(a.Equals(b));
}

struct Work {
  Ids keys;
  Floats rows;
  Work(int64_t n, int64_t dim, int64_t table, uint64_t seed) {
    Random random = {seed};
    for (int64_t i = 0; i < n; i++) {
      const bool same = random.Next() % 3 != 0;  // most of them are one key
      keys.push_back(same ? table / 2 : random.Next() % table);
    }
    rows = random.Many(n * dim);
  }
};

// coalesce_apply gives the bits of coalesce and apply_rows, on every instruction set and number of
// threads.
void FusedIsBoth(uint32_t kind, int64_t n, int64_t dim) {
  constexpr int64_t kRows = 300;
  const Work work(n, dim, kRows, 5);
  Cpu plain;
  Model want(kind, kRows, dim, 2);
  Ids keys(kRows);
  Floats sums(static_cast<size_t>(kRows * dim));
  gb_coalesce_args c = Sized<gb_coalesce_args>();
  c.dim = dim;
  c.keys = In(work.keys);
  c.rows = In(work.rows);
  c.out_keys = Out(keys);
  c.out_rows = Out(sums);
  EXPECT(plain.Run(GB_OP_COALESCE, c) == GB_OK);
  const size_t distinct = static_cast<size_t>(plain.report.count);
  keys.resize(distinct);
  sums.resize(distinct * static_cast<size_t>(dim));
  EXPECT(want.Rows(plain, keys, sums, 2, false) == GB_OK);
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    for (uint32_t threads = 1; threads <= 3; threads++) {
      Cpu cpu(threads, isa);
      if (cpu.context == nullptr) continue;
      Model have(kind, kRows, dim, 2);
      EXPECT(have.Fused(cpu, work.keys, work.rows, 2) == GB_OK);
      EXPECT(cpu.report.count == static_cast<int64_t>(distinct));
      EXPECT(have.Equals(want));
    }
  }
}

// Refused and faulty calls change nothing.
void RefusedIsUntouched() {
  Cpu cpu;
  Model m(GB_SGD, 20, 3, 4);
  const Model before = m;
  Floats g = {1, 2, 3, 4, NAN, INFINITY, 7, 8, 9};
  EXPECT(m.Fused(cpu, {9, 3, 9}, g, 1, GB_NONFINITE_REFUSE) == GB_NONFINITE);
  EXPECT(cpu.report.position == 1 && cpu.report.value == 2 && cpu.report.nonfinite == 2);
  EXPECT(m.Equals(before));
  EXPECT(m.Fused(cpu, {9, 20, 9}, g, 1) == GB_ID && cpu.report.position == 1);
  EXPECT(m.Equals(before));
  EXPECT(m.Rows(cpu, {1, 4, 4}, g, 1, false) == GB_ORDER && cpu.report.position == 2);
  EXPECT(m.Rows(cpu, {1, 4, 5}, g, 0, false) == GB_ARGUMENT);
  EXPECT(m.Equals(before));
  EXPECT(m.Fused(cpu, {9, 3, 9}, g, 1, GB_NONFINITE_COUNT) == GB_OK);
  EXPECT(cpu.report.nonfinite == 2 && cpu.report.count == 2);
}

// Compact output is what in place writes, and leaves the table alone.
void CompactIsInPlace(uint32_t kind) {
  constexpr int64_t kRows = 9, kDim = 19;
  Cpu cpu;
  Model want(kind, kRows, kDim, 6), from(kind, kRows, kDim, 6);
  want.clip = from.clip = {GB_CLIP_ROW, 0.4f};
  Random random = {11};
  const std::vector<int32_t> index = {1, 4, -1, 8};
  const Floats g = random.Many(4 * kDim);
  Ids last(4, -5);
  Floats out(4 * kDim, 77.0f), after[2];
  gb_slot slots[2];
  const int64_t values = kind == GB_ROWWISE_ADAGRAD ? 1 : kDim;
  for (int i = 0; i < from.Slots(); i++) {
    after[i].assign(static_cast<size_t>(4 * values), 77.0f);
    slots[i] = Slot(from.Name(i), from.slot[i], after[i]);
  }
  gb_apply_rows_args a = Sized<gb_apply_rows_args>();
  a.weight = 3;
  a.dim = kDim;
  a.policy = GB_SKIP;
  a.optimizer = from.With(slots);
  a.steps = {In(from.last), Out(last), 6, 0, 0};
  a.table = In(from.table);
  a.index = In(index);
  a.grad = In(g);
  a.out = Out(out);
  EXPECT(cpu.Run(GB_OP_APPLY_ROWS, a) == GB_OK && cpu.report.skipped == 1);
  const Model untouched(kind, kRows, kDim, 6);
  EXPECT(from.Equals(untouched));
  EXPECT((last == Ids{6, 6, -5, 6}) && out[2 * kDim] == 77.0f);
  Floats three(g.begin(), g.begin() + 2 * kDim);
  three.insert(three.end(), g.begin() + 3 * kDim, g.end());
  EXPECT(want.Rows(cpu, {1, 4, 8}, three, 6, false) == GB_OK);
  for (const size_t i : {0u, 1u, 3u}) {
    const auto row = static_cast<size_t>(index[i]);
    EXPECT(std::memcmp(&out[i * kDim], &want.table[row * kDim], kDim * 4) == 0);
    for (int s = 0; s < from.Slots(); s++) {
      const auto n = static_cast<size_t>(values);
      EXPECT(std::memcmp(&after[s][i * n], &want.slot[s][row * n], n * 4) == 0);
    }
  }
}

// Half is a 16-bit type: what a step stores is the float32 step on widened values, rounded once.
struct Half {
  gb_dtype type;
  uint16_t (*narrow)(float);
  float (*widen)(uint16_t);
};

void HalvesAreRoundedFloats(const Half& h, uint32_t kind, const char* isa) {
  constexpr int64_t kN = 2 * 1111;
  Cpu cpu(2, isa);
  if (cpu.context == nullptr) return;
  Model m(kind, 2, kN / 2, 8);
  Random random = {13};
  Floats g = random.Many(kN);
  std::vector<uint16_t> p, s[2], grad;
  const auto store = [&](Floats& from, std::vector<uint16_t>& to) {
    for (float& x : from) {
      to.push_back(h.narrow(x));
      x = h.widen(to.back());
    }
  };
  store(m.table, p);
  store(g, grad);
  const bool halves = kind != GB_ROWWISE_ADAGRAD;  // whose sum is float32
  Floats sum = m.slot[0];
  for (int i = 0; halves && i < m.Slots(); i++) store(m.slot[i], s[i]);
  gb_slot slots[2];
  for (int i = 0; i < m.Slots(); i++) {
    slots[i] = halves
                   ? gb_slot{m.Name(i), {s[i].data(), kN, h.type, 0}, {s[i].data(), kN, h.type, 0}}
                   : Slot("sum", sum, sum);
  }
  gb_apply_dense_args a = Sized<gb_apply_dense_args>();
  a.weight = 3;
  a.dim = kN / 2;
  a.optimizer = m.With(slots);
  a.param = {p.data(), kN, h.type, 0};
  a.grad = {grad.data(), kN, h.type, 0};
  a.out = {p.data(), kN, h.type, 0};
  EXPECT(cpu.Run(GB_OP_APPLY_DENSE, a) == GB_OK);
  EXPECT(m.Dense(cpu, g, false) == GB_OK);
  int64_t wrong = 0;
  for (size_t i = 0; i < kN; i++) {
    wrong += p[i] != h.narrow(m.table[i]);
    for (int j = 0; halves && j < m.Slots(); j++) wrong += s[j][i] != h.narrow(m.slot[j][i]);
  }
  EXPECT(wrong == 0 && (halves || Same(sum, m.slot[0])));
}

// Large tensors go through several threads, and around the caches; average_apply is average and
// apply_dense.
void LargeIsSmall(uint32_t kind) {
  constexpr int64_t kRows = 3, kDim = 400013, kN = kRows * kDim;
  Random random = {17};
  std::vector<Floats> terms;
  for (int i = 0; i < 3; i++) terms.push_back(random.Many(kN));
  Floats mean(kN);
  gb_term list[3] = {{{0, 1}, In(terms[0])}, {{1, 1}, In(terms[1])}, {{2, 2}, In(terms[2])}};
  gb_average_args average = Sized<gb_average_args>();
  average.weight = 1;
  average.lanes = 4;
  average.terms = list;
  average.terms_n = 3;
  average.out = Out(mean);
  Cpu one(1), two(2);
  EXPECT(two.Run(GB_OP_AVERAGE, average) == GB_OK);
  for (const size_t i : {size_t{0}, size_t{kN / 2}, size_t{kN - 1}}) {
    EXPECT(mean[i] == (terms[0][i] + terms[1][i]) + terms[2][i]);
  }
  Model want(kind, kRows, kDim, 10), from(kind, kRows, kDim, 10);
  want.clip = from.clip = {GB_CLIP_VALUE, 0.25f};
  EXPECT(want.Dense(one, mean, false) == GB_OK);
  Floats out(kN + 3), after[2];
  gb_slot slots[2];
  for (int i = 0; i < from.Slots(); i++) {
    after[i].resize(from.slot[i].size());
    slots[i] = Slot(from.Name(i), from.slot[i], after[i]);
  }
  gb_average_apply_args a = Sized<gb_average_apply_args>();
  a.weight = 3;
  a.dim = kDim;
  a.lanes = 4;
  a.terms = list;
  a.terms_n = 3;
  a.optimizer = from.With(slots);
  a.param = In(from.table);
  for (int64_t shift = 0; shift < 4; shift++) {
    a.out = {out.data() + shift, kN, GB_FLOAT32, 0};
    EXPECT(two.Run(GB_OP_AVERAGE_APPLY, a) == GB_OK);
    EXPECT(std::memcmp(out.data() + shift, want.table.data(), kN * 4) == 0);
    for (int i = 0; i < from.Slots(); i++) EXPECT(Same(after[i], want.slot[i]));
  }
  terms[0][kN - 2] = NAN;
  a.nonfinite = GB_NONFINITE_REFUSE;
  EXPECT(two.Run(GB_OP_AVERAGE_APPLY, a) == GB_NONFINITE);
  EXPECT(two.report.position == kN - 2 && two.report.value == 1);
}

}  // namespace

int main() {
  SgdByHand();
  AdagradByHand();
  AdamByHand();
  for (const int64_t dim : {3, 64, 1100}) {
    ExactIsDense(GB_SGD, dim);
    ExactIsDense(GB_ROWWISE_ADAGRAD, dim);
    ExactIsDense(GB_ADAGRAD, dim);
  }
  ExactSettles();
  for (const uint32_t kind : {GB_SGD, GB_ROWWISE_ADAGRAD, GB_ADAM, GB_ADAGRAD, GB_ADAMW, GB_FTRL}) {
    for (const int64_t dim : {1, 5, 64, 257}) FusedIsBoth(kind, 700, dim);
    FusedIsBoth(kind, 30000, 16);
    CompactIsInPlace(kind);
    LargeIsSmall(kind);
    for (const char* isa : {"baseline", "avx2", "avx512"}) {
      HalvesAreRoundedFloats({GB_FLOAT16, FloatToF16, F16ToFloat}, kind, isa);
      HalvesAreRoundedFloats({GB_BFLOAT16, FloatToBF16, BF16ToFloat}, kind, isa);
    }
  }
  RefusedIsUntouched();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
