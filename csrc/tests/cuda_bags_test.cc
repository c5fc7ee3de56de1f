// Bags, coalesce, coalesce_apply and merge of the emulated CUDA backend against the CPU backend:
// random calls, edges, and what must be refused.
#include <algorithm>
#include <string>
#include <vector>

#include "same_calls.h"

namespace {

constexpr gb_dtype kFloats[] = {GB_FLOAT32, GB_FLOAT16, GB_BFLOAT16};

// Bag is what bags of one case are made of; Forward and Backward make arguments of it.
struct BagCase {
  int64_t rows = 50, dim = 4;
  gb_mode mode = GB_SUM;
  gb_dtype dtype = GB_FLOAT32, out = GB_FLOAT32, id = GB_INT64, offset = GB_INT64;
  int64_t padding = GB_NO_PADDING;
  bool skip = false, open = false, weighted = false, strange = false;
  int64_t shift = 0;             // of the floats from an aligned place
  std::vector<int64_t> lengths;  // of the bags
  std::vector<int64_t> ids;
};

struct Bags {
  Data rows, ids, offsets, weights, out, argmax, grad, keys, grads;
  int64_t bags;

  Bags(const BagCase& c, Random& r) : bags(static_cast<int64_t>(c.lengths.size())) {
    const int64_t n = static_cast<int64_t>(c.ids.size());
    rows = Floats(c.dtype, c.rows * c.dim, r, c.strange, c.shift);
    ids = Data(c.id, n);
    for (int64_t i = 0; i < n; i++) ids.Set(i, c.ids[static_cast<size_t>(i)]);
    offsets = Data(c.offset, bags + (c.open ? 0 : 1));
    int64_t at = 0;
    for (int64_t i = 0; i < offsets.n; i++) {
      offsets.Set(i, at);
      if (i < bags) at += c.lengths[static_cast<size_t>(i)];
    }
    if (c.weighted) weights = Floats(GB_FLOAT32, n, r, c.strange);
    out = Data(c.out, bags * c.dim, c.shift);
    if (c.mode == GB_MAX) argmax = Data(GB_INT32, bags * c.dim);
    grad = Floats(c.dtype, bags * c.dim, r, c.strange, c.shift);
    keys = Data(GB_INT64, n);
    grads = Data(c.out, n * c.dim, c.shift);
  }
};

gb_bag_forward_args Forward(const BagCase& c, Bags& b) {
  gb_bag_forward_args a = Sized<gb_bag_forward_args>();
  a.mode = c.mode;
  a.dim = c.dim;
  a.padding = c.padding;
  a.policy = c.skip ? GB_SKIP : GB_REFUSE;
  a.open_offsets = c.open;
  a.rows = b.rows.In();
  a.ids = b.ids.In();
  a.offsets = b.offsets.In();
  a.weights = b.weights.In();
  a.out = b.out.Out();
  a.argmax = b.argmax.Out();
  return a;
}

gb_bag_backward_args Backward(const BagCase& c, Bags& b) {
  gb_bag_backward_args a = Sized<gb_bag_backward_args>();
  a.mode = c.mode;
  a.dim = c.dim;
  a.padding = c.padding;
  a.policy = c.skip ? GB_SKIP : GB_REFUSE;
  a.open_offsets = c.open;
  a.rows = c.rows;
  a.ids = b.ids.In();
  a.offsets = b.offsets.In();
  a.weights = b.weights.In();
  a.argmax = b.argmax.In();
  a.grad_out = b.grad.In();
  a.keys = b.keys.Out();
  a.out = b.grads.Out();
  return a;
}

// RunBags compares forward and, with what it found to be the winners, backward.
void RunBags(Both& both, const std::string& name, const BagCase& c, Random& r) {
  Bags b(c, r);
  gb_bag_forward_args f = Forward(c, b);
  const gb_status status = both.Compare(name + ", forward", f);
  if (c.mode == GB_MAX && status == GB_OK) {
    std::vector<char> memory(1 << 22);
    EXPECT(both.cpu.api->bag_forward(both.cpu.context, nullptr, &f, {memory.data(), memory.size()},
                                     nullptr) == GB_OK);
  }
  both.Compare(name + ", backward", Backward(c, b));
}

std::vector<int64_t> Ids(int64_t n, int64_t rows, Random& r) {
  std::vector<int64_t> ids(static_cast<size_t>(n));
  for (int64_t& id : ids) id = r.Below(rows);
  return ids;
}

// Lengths of random bags that hold n ids, some of them empty.
std::vector<int64_t> Lengths(int64_t n, int64_t most, Random& r) {
  std::vector<int64_t> lengths;
  while (n > 0) {
    const int64_t length = r.Below(4) == 0 ? 0 : std::min(n, r.Below(most) + 1);
    lengths.push_back(length);
    n -= length;
  }
  lengths.push_back(0);
  return lengths;
}

void RandomBags(Both& both) {
  Random r = {11};
  for (const int64_t dim : {1, 3, 4, 5, 16, 63, 64, 127, 128, 257}) {
    for (int turn = 0; turn < 6; turn++) {
      BagCase c;
      c.dim = dim;
      c.mode = static_cast<gb_mode>(turn % 3);
      c.dtype = kFloats[r.Below(3)];
      c.out = r.Below(2) == 0 ? kFloats[0] : c.dtype;
      c.id = r.Below(2) == 0 ? GB_INT32 : GB_INT64;
      c.offset = r.Below(2) == 0 ? GB_INT32 : GB_INT64;
      c.padding = r.Below(2) == 0 ? r.Below(c.rows) : GB_NO_PADDING;
      c.skip = r.Below(3) == 0;
      c.open = r.Below(2) == 0;
      c.weighted = c.mode == GB_SUM && r.Below(2) == 0;
      c.strange = r.Below(2) == 0;
      c.shift = r.Below(3) == 0 ? 1 : 0;
      const int64_t n = 40 + r.Below(100);
      c.ids = Ids(n, c.rows, r);
      if (c.skip) {
        for (int64_t i = 0; i < 5; i++) {
          c.ids[static_cast<size_t>(r.Below(n))] = r.Below(2) == 0 ? c.rows + r.Below(9) : -1 - i;
        }
      }
      c.lengths = Lengths(n, 40, r);
      RunBags(both, "random bags of dim " + std::to_string(dim) + ", turn " + std::to_string(turn),
              c, r);
    }
  }
}

// Segments beyond 512 places: begins in every position to the windows, next to short ones.
void LongBags(Both& both) {
  Random r = {12};
  for (int turn = 0; turn < 9; turn++) {
    BagCase c;
    c.dim = turn % 3 == 0 ? 3 : turn % 3 == 1 ? 8 : 36;
    c.rows = 7;
    c.mode = static_cast<gb_mode>(turn / 3);
    c.strange = turn % 2 == 0;
    c.padding = turn % 4 == 0 ? 3 : GB_NO_PADDING;
    c.lengths = {r.Below(70), 513 + r.Below(300), r.Below(3), 600, 0, 512, 513, 5000, r.Below(64)};
    int64_t n = 0;
    for (const int64_t length : c.lengths) n += length;
    c.ids = Ids(n, c.rows, r);
    RunBags(both, "long bags, turn " + std::to_string(turn), c, r);
  }
}

void EdgeBags(Both& both) {
  Random r = {13};
  for (const gb_mode mode : {GB_SUM, GB_MEAN, GB_MAX}) {
    const std::string of = ", mode " + std::to_string(mode);
    BagCase c;
    c.mode = mode;
    c.lengths = {0, 0, 0};
    RunBags(both, "only empty bags" + of, c, r);
    c.lengths = {};
    RunBags(both, "no bags" + of, c, r);
    c.open = true;
    RunBags(both, "no bags, open" + of, c, r);
    c.open = false;
    c.ids = Ids(200, c.rows, r);
    c.lengths = {200};
    RunBags(both, "one bag" + of, c, r);
    c.lengths.assign(200, 1);
    RunBags(both, "bags of one" + of, c, r);
    for (size_t i = 0; i < 50; i++) c.ids[i] = 49 - static_cast<int64_t>(i);
    c.ids.resize(50);
    c.lengths = {20, 30};
    RunBags(both, "descending" + of, c, r);
    c.ids.assign(50, 7);
    RunBags(both, "all equal" + of, c, r);
    c.padding = 7;
    RunBags(both, "all padding" + of, c, r);
    c.padding = GB_NO_PADDING;
    c.skip = true;
    c.ids.assign(50, 99);
    RunBags(both, "all skipped" + of, c, r);
    c.rows = 0;
    RunBags(both, "all skipped of no rows" + of, c, r);
    c.rows = 1;
    c.ids.assign(50, 0);
    RunBags(both, "one row" + of, c, r);
  }
}

// What must be refused, and how it is reported.
void BadBags(Both& both) {
  Random r = {14};
  for (int turn = 0; turn < 12; turn++) {
    BagCase c;
    c.open = turn % 2 != 0;
    c.id = turn % 3 == 0 ? GB_INT32 : GB_INT64;
    c.offset = turn % 3 == 1 ? GB_INT32 : GB_INT64;
    c.ids = Ids(90, c.rows, r);
    c.lengths = {30, 30, 30};
    Bags b(c, r);
    switch (turn / 2) {
      case 0:
        b.offsets.Set(0, 1);
        break;
      case 1:
        b.offsets.Set(1, 70);  // so that the next one falls
        b.offsets.Set(2, 40);
        b.ids.Set(3, -1);
        break;
      case 2:
        b.offsets.Set(b.offsets.n - 1, 91);
        break;
      case 3:
        b.ids.Set(50, c.rows);
        b.ids.Set(60, -5);
        break;
      case 4:
        b.ids.Set(0, -1);
        break;
      case 5:
        b.offsets.Set(1, -3);
        break;
    }
    const std::string name = "bad bags, turn " + std::to_string(turn);
    EXPECT(both.Compare(name, Forward(c, b)) != GB_OK);
    EXPECT(both.Compare(name, Backward(c, b)) != GB_OK);
  }
  BagCase c;
  c.ids = Ids(90, c.rows, r);
  c.lengths = {90};
  Bags b(c, r);
  b.keys.n = 3;
  EXPECT(both.Compare("little room", Backward(c, b)) == GB_ROOM);
  b.keys.n = 0;
  b.grads.n = 0;
  EXPECT(both.Compare("no room", Backward(c, b)) == GB_ROOM);
}

void Coalesces(Both& both) {
  Random r = {15};
  constexpr gb_dtype kKeys[] = {GB_UINT64, GB_INT64, GB_INT32};
  for (int turn = 0; turn < 24; turn++) {
    const gb_dtype key = kKeys[turn % 3], dtype = kFloats[turn / 3 % 3];
    const int64_t n = turn < 3 ? 0 : turn < 6 ? 1 : turn > 20 ? 3000 : 150;
    const int64_t dim = turn % 2 == 0 ? 8 : 5, shift = turn % 5 == 0 ? 1 : 0;
    Data keys(key, n), out_keys(key, n);
    for (int64_t i = 0; i < n; i++) {
      int64_t x = r.Below(turn > 20 ? 3 : 40);
      if (turn % 4 == 0) x = n - i;
      if (turn % 4 == 1) x = 77;
      if (key == GB_UINT64 && turn > 10) x -= 20;  // very large ones
      keys.Set(i, x);
    }
    Data rows = Floats(dtype, n * dim, r, turn % 2 == 0, shift);
    Data out_rows(turn % 2 == 0 ? kFloats[0] : dtype, n * dim, shift);
    gb_coalesce_args a = Sized<gb_coalesce_args>();
    a.weight = turn % 4 == 0 ? 0 : turn % 4 == 1 ? 8 : 3;
    a.dim = dim;
    a.keys = keys.In();
    a.rows = rows.In();
    a.out_keys = out_keys.Out();
    a.out_rows = out_rows.Out();
    const std::string name = "coalesce, turn " + std::to_string(turn);
    EXPECT(both.Compare(name, a) == GB_OK);
    if (n < 150) continue;
    if (key != GB_UINT64) {
      keys.Set(n / 2, -3);
      EXPECT(both.Compare(name + " with a negative key", a) == GB_ID);
    } else if (turn % 4 == 0) {
      a.out_keys.n = 10;
      EXPECT(both.Compare(name + " without room", a) == GB_ROOM);
    }
  }
}

// Terms of nodes in lane order: each lane, or, with pairs, some nodes of two.
struct MergeCase {
  std::vector<gb_rows_term> terms;
  std::vector<Data> arrays;
  Data out_keys, out_rows;
  gb_merge_args a = Sized<gb_merge_args>();

  MergeCase(int64_t lanes, int64_t dim, gb_dtype dtype, gb_dtype out, bool pairs, int64_t most,
            int64_t shift, Random& r) {
    int64_t total = 0;
    arrays.reserve(static_cast<size_t>(2 * lanes));
    for (int64_t lane = 0; lane < lanes; lane++) {
      const bool pair = pairs && lane % 2 == 0 && lane + 1 < lanes && r.Below(2) == 0;
      if (r.Below(5) == 0) continue;
      std::vector<int64_t> keys;
      for (int64_t k = r.Below(3); static_cast<int64_t>(keys.size()) < most; k += 1 + r.Below(3)) {
        keys.push_back(k);
      }
      if (r.Below(6) == 0) keys.clear();
      const int64_t n = static_cast<int64_t>(keys.size());
      total += n;
      arrays.emplace_back(GB_UINT64, n);
      for (int64_t i = 0; i < n; i++) arrays.back().Set(i, keys[static_cast<size_t>(i)]);
      gb_rows_term t = {{static_cast<uint32_t>(lane), pair ? 2u : 1u}, arrays.back().In(), {}};
      arrays.push_back(Floats(dtype, n * dim, r, r.Below(2) == 0, shift));
      t.rows = arrays.back().In();
      terms.push_back(t);
      lane += pair ? 1 : 0;
    }
    out_keys = Data(GB_UINT64, total);
    out_rows = Data(out, total * dim, shift);
    a.dim = dim;
    a.lanes = lanes;
    a.terms = terms.data();
    a.terms_n = static_cast<int64_t>(terms.size());
    a.out_keys = out_keys.Out();
    a.out_rows = out_rows.Out();
  }
};

void Merges(Both& both) {
  Random r = {16};
  int turn = 0;
  for (const int64_t lanes : {1, 2, 3, 5, 8, 9, 13, 16, 17, 100, 129, 300, 1500}) {
    for (int i = 0; i < 3; i++, turn++) {
      const gb_dtype dtype = kFloats[turn % 3], out = turn % 2 == 0 ? kFloats[0] : dtype;
      MergeCase m(lanes, turn % 4 == 0 ? 5 : 12, dtype, out, i == 1, 20, turn % 5 == 0 ? 1 : 0, r);
      m.a.weight = i == 0 ? 0 : i == 1 ? 4 : 5;
      const std::string name =
          "merge of " + std::to_string(lanes) + " lanes, turn " + std::to_string(turn);
      EXPECT(both.Compare(name, m.a) == GB_OK);
      if (m.a.terms_n == 0 || m.terms.back().keys.n < 10) continue;
      m.a.out_keys.n = 3;
      EXPECT(both.Compare(name + " without room", m.a) == GB_ROOM);
      m.a.out_keys.n = m.out_keys.n;
      static_cast<uint64_t*>(const_cast<void*>(m.terms.back().keys.data))[7] = 1;
      EXPECT(both.Compare(name + " out of order", m.a) == GB_ORDER);
    }
  }
}

// ApplyCase is a table with an optimizer and gradients by key.
struct ApplyCase {
  Data table, keys, rows, last, out_keys, out, last_after;
  std::vector<Data> slots, slots_after;
  std::vector<gb_slot> named;
  gb_sgd sgd = {0.1f, 0.9f, 0.1f, 0.01f, 1, 0};
  gb_adagrad adagrad = {0.1f, 1e-6f, 0.02f, 0};
  gb_adam adam = {0.01f, 0.9f, 0.99f, 1e-6f, 0.03f, 0, 5};
  gb_ftrl ftrl = {0.1f, 1, 0.3f, 0.2f};
  gb_coalesce_apply_args a = Sized<gb_coalesce_apply_args>();

  ApplyCase(uint32_t kind, int64_t dim, gb_dtype dtype, gb_dtype grad, bool in_place, bool steps,
            bool exact, int64_t n, bool strange, int64_t shift, Random& r) {
    const int64_t all = 30;
    table = Floats(dtype, all * dim, r, false, shift);
    keys = Data(GB_INT64, n);
    for (int64_t i = 0; i < n; i++) keys.Set(i, r.Below(4) == 0 ? 3 : r.Below(all));
    rows = Floats(grad, n * dim, r, strange, shift);
    out = Data(dtype, n * dim, shift);
    out_keys = Data(GB_INT64, n);
    last = Data(GB_INT64, steps ? all : 0);
    for (int64_t i = 0; i < last.n; i++) last.Set(i, r.Below(7));
    last_after = Data(GB_INT64, steps ? n : 0);
    a.weight = 3;
    a.dim = dim;
    a.table = table.In();
    a.keys = keys.In();
    a.rows = rows.In();
    a.out_keys = out_keys.Out();
    a.out = in_place ? table.Out() : out.Out();
    a.steps.last = last.In();
    a.steps.last_after = in_place ? last.Out() : last_after.Out();
    a.steps.step = steps ? 7 : 0;
    a.steps.exact = exact;
    const bool row_wise = kind == GB_ROWWISE_ADAGRAD;
    std::vector<const char*> names;
    if (kind == GB_SGD && sgd.momentum != 0) names = {"momentum"};
    if (row_wise || kind == GB_ADAGRAD) names = {"sum"};
    const bool is_adam = kind == GB_ADAM || kind == GB_ADAMW;
    if (is_adam) names = {"square", "mean"};  // by name, in any order
    if (kind == GB_FTRL) names = {"n", "z"};
    slots.reserve(2), slots_after.reserve(2);
    for (const char* name : names) {
      const gb_dtype type = row_wise ? kFloats[0] : dtype;
      const int64_t values = row_wise ? 1 : dim;
      slots.push_back(Floats(type, all * values, r, false, shift));
      Data& s = slots.back();  // sums and squares are not negative
      for (int64_t i = 0; i < s.n; i++) s.at()[(i + 1) * gradbus::BytesOf(type) - 1] &= 0x7f;
      slots_after.emplace_back(type, n * values, shift);
      named.push_back({name, s.In(), in_place ? s.Out() : slots_after.back().Out()});
    }
    const void* hyper = &sgd;
    uint32_t bytes = sizeof sgd;
    if (row_wise || kind == GB_ADAGRAD) hyper = &adagrad, bytes = sizeof adagrad;
    if (is_adam) hyper = &adam, bytes = sizeof adam;
    if (kind == GB_FTRL) hyper = &ftrl, bytes = sizeof ftrl;
    const gb_clip clips[] = {
        {GB_CLIP_NONE, 0}, {GB_CLIP_SCALE, 0.3f}, {GB_CLIP_VALUE, 0.2f}, {GB_CLIP_ROW, 0.9f}};
    const int64_t slots_n = static_cast<int64_t>(named.size());
    a.optimizer = {kind, bytes, hyper, named.data(), slots_n, clips[r.Below(4)]};
  }
};

void Applies(Both& both) {
  Random r = {17};
  int turn = 0;
  for (const uint32_t kind : {GB_SGD, GB_ROWWISE_ADAGRAD, GB_ADAM, GB_ADAGRAD, GB_ADAMW, GB_FTRL}) {
    for (const int64_t dim : {1, 5, 8, 20, 64, 130, 264}) {
      for (int i = 0; i < 4; i++, turn++) {
        const gb_dtype dtype = kFloats[turn % 3], grad = i % 2 == 0 ? kFloats[0] : dtype;
        const bool steps = i >= 2, exact = i == 3 && (kind < GB_ADAM || kind == GB_ADAGRAD);
        ApplyCase c(kind, dim, dtype, grad, turn % 2 == 0, steps, exact, turn % 7 == 0 ? 1700 : 60,
                    turn % 4 == 0, turn % 5 == 0 ? 1 : 0, r);
        const std::string name = "coalesce_apply of kind " + std::to_string(kind) + ", dim " +
                                 std::to_string(dim) + ", turn " + std::to_string(turn);
        for (const gb_nonfinite policy :
             {GB_NONFINITE_IGNORE, GB_NONFINITE_COUNT, GB_NONFINITE_REFUSE}) {
          c.a.nonfinite = policy;
          both.Compare(name + ", not finite: " + std::to_string(policy), c.a);
        }
        c.keys.Set(9, -4);
        c.keys.Set(11, 30);
        EXPECT(both.Compare(name + " with bad keys", c.a) == GB_ID);
        c.a.policy = GB_SKIP;
        c.a.nonfinite = GB_NONFINITE_COUNT;
        EXPECT(both.Compare(name + " skipping", c.a) == GB_OK);
        c.a.out_keys.n = 3;
        EXPECT(both.Compare(name + " without room", c.a) == GB_ROOM);
      }
    }
  }
}

void Large(Both& both) {
  Random r = {18};
  BagCase c;
  c.dim = 1;
  c.rows = 3;
  c.lengths.assign(1000000, 0);
  RunBags(both, "a million empty bags", c, r);
  c.lengths = {7, 300000, 5};
  c.ids = Ids(300012, c.rows, r);
  RunBags(both, "a bag of 300000", c, r);
}

}  // namespace

int main() {
  Both both;
  EdgeBags(both);
  RandomBags(both);
  LongBags(both);
  BadBags(both);
  Coalesces(both);
  Merges(both);
  Applies(both);
  Large(both);
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
