// The operations with random arguments of all kinds: types, modes, optimizers, lengths on both
// sides of every border that a kernel has.
#include <algorithm>
#include <set>

#include "tests/call.h"

namespace gradbus {
namespace tests {
namespace {

typedef std::vector<int64_t> Numbers;

gb_dtype FloatType(Random& r) {
  return r.OneIn(2) ? GB_FLOAT32 : r.Of({GB_FLOAT32, GB_FLOAT16, GB_BFLOAT16});
}

// An output is float32 or of its input's type.
gb_dtype OutType(Random& r, gb_dtype in) { return r.OneIn(2) ? in : gb_dtype{GB_FLOAT32}; }

// Rows of more than 128 values are wider than a warp's turn.
int64_t Dim(Random& r) {
  return r.OneIn(4) ? r.Of<int64_t>({129, 132, 260})
                    : r.Of<int64_t>({1, 2, 3, 4, 5, 8, 12, 16, 20, 33, 64, 100});
}

// Ids are n numbers below rows; some come often, so that segments of every length arise.
Numbers Ids(Random& r, int64_t n, int64_t rows) {
  Numbers ids(static_cast<size_t>(n));
  const int64_t often = r.Below(rows);
  const int64_t share = r.Of<int64_t>({1, 2, 10, 1000000});
  for (int64_t& id : ids) id = r.Below(share + 1) >= share ? r.Below(rows) : often;
  if (share == 1000000) {
    for (int64_t& id : ids) id = r.Below(rows);
  }
  return ids;
}

// A number of places: few with wide rows, so that a case stays small.
int64_t Places(Random& r, int64_t dim) {
  const int64_t most = dim <= 4 ? 9000 : dim <= 33 ? 1200 : 700;
  return std::min(most, r.Of<int64_t>({0, 1, 7, 63, 64, 65, 600, 700, 4097, 9000}));
}

// ---- Bags.

struct Bags {
  gb_mode mode;
  int64_t dim, rows, padding = GB_NO_PADDING;
  gb_id_policy policy = GB_REFUSE;
  uint32_t open;
  gb_in ids, offsets, weights = {};
  int64_t bags;
};

Bags MakeBags(Call& c) {
  Random& r = c.random;
  Bags b;
  b.mode = r.Of<gb_mode>({GB_SUM, GB_MEAN, GB_MAX});
  b.dim = Dim(r);
  b.rows = r.Of<int64_t>({1, 5, 50});
  const int64_t n = Places(r, b.dim);
  Numbers ids = Ids(r, n, b.rows), offsets = {0};
  if (r.OneIn(3)) b.padding = r.Below(b.rows);
  if (r.OneIn(3)) {
    b.policy = GB_SKIP;
    for (int64_t& id : ids) id = r.OneIn(9) ? r.Of<int64_t>({-1, -7, b.rows, 1 << 30}) : id;
  } else if (n > 0 && r.OneIn(8)) {  // a call that is refused
    ids[static_cast<size_t>(r.Below(n))] = b.rows;
  }
  const int64_t most = r.Of<int64_t>({1, 10, 100, 20000});
  while (offsets.back() < n)
    offsets.push_back(std::min(n, offsets.back() + r.Below(most) + (most == 1)));
  if (r.OneIn(3)) offsets.push_back(n);
  if (n == 0 && r.OneIn(2)) offsets.push_back(0);
  b.bags = static_cast<int64_t>(offsets.size()) - 1;
  b.open = r.OneIn(3) && b.bags > 0;
  if (b.open) offsets.pop_back();
  b.ids = c.Ints(ids, r.Of<gb_dtype>({GB_INT32, GB_INT64}));
  b.offsets = c.Ints(offsets, r.Of<gb_dtype>({GB_INT32, GB_INT64}));
  if (b.mode == GB_SUM && r.OneIn(2)) b.weights = c.Values(n, GB_FLOAT32);
  return b;
}

std::string BagForward(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  const Bags b = MakeBags(c);
  const gb_dtype type = FloatType(c.random);
  gb_bag_forward_args a = {};
  a.mode = b.mode;
  a.dim = b.dim;
  a.padding = b.padding;
  a.policy = b.policy;
  a.open_offsets = b.open;
  a.rows = c.Values(b.rows * b.dim, type);
  a.ids = b.ids;
  a.offsets = b.offsets;
  a.weights = b.weights;
  a.out = c.Room(b.bags * b.dim, OutType(c.random, type));
  if (b.mode == GB_MAX && c.random.OneIn(2)) a.argmax = c.Room(b.bags * b.dim, GB_INT32);
  return c.Run(GB_OP_BAG_FORWARD, backend.api->bag_forward, a);
}

// One bag so long that the maxima of its blocks take several groups; id 0 is padding.
std::string LongMaximum(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  gb_bag_forward_args a = {};
  a.mode = GB_MAX;
  a.dim = c.random.Of<int64_t>({1, 4, 12});
  a.rows = c.Values(50 * a.dim, GB_FLOAT32);
  a.ids = c.Ints(Ids(c.random, 9000, 50), GB_INT64);
  a.offsets = c.Ints({0, 9000}, GB_INT64);
  a.out = c.Room(a.dim, GB_FLOAT32);
  return c.Run(GB_OP_BAG_FORWARD, backend.api->bag_forward, a);
}

std::string BagBackward(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  const Bags b = MakeBags(c);
  const gb_dtype type = FloatType(c.random);
  gb_bag_backward_args a = {};
  a.mode = b.mode;
  a.dim = b.dim;
  a.padding = b.padding;
  a.policy = b.policy;
  a.open_offsets = b.open;
  a.rows = b.rows;
  a.ids = b.ids;
  a.offsets = b.offsets;
  a.weights = b.weights;
  a.grad_out = c.Values(b.bags * b.dim, type);
  if (b.mode == GB_MAX) {
    Numbers winners(static_cast<size_t>(b.bags * b.dim));
    for (int64_t& w : winners) w = c.random.Below(b.ids.n + 1) - 1;
    a.argmax = c.Ints(winners, GB_INT32);
  }
  const int64_t room = std::min(b.rows, b.ids.n) + c.random.Below(2);
  a.keys = c.Room(room, GB_INT64, 1);
  a.out = c.Room(room * b.dim, OutType(c.random, type), b.dim);
  return c.Run(GB_OP_BAG_BACKWARD, backend.api->bag_backward, a);
}

// ---- Sums of rows.

std::string Coalesce(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  Random& r = c.random;
  const gb_dtype type = FloatType(r), keys = r.Of<gb_dtype>({GB_UINT64, GB_INT64, GB_INT32});
  gb_coalesce_args a = {};
  a.dim = Dim(r);
  a.weight = r.Of({0.0f, 1.0f, 3.0f, 8.0f});
  const int64_t n = Places(r, a.dim);
  Numbers ids = Ids(r, n, r.Of<int64_t>({1, 5, 40, 300}));
  for (int64_t& id : ids) id *= keys == GB_INT32 ? 65537 : int64_t{1} << 40;
  a.keys = c.Ints(ids, keys);
  a.rows = c.Values(n * a.dim, type);
  const int64_t room = static_cast<int64_t>(std::set<int64_t>(ids.begin(), ids.end()).size());
  a.out_keys = c.Room(room, keys, 1);
  a.out_rows = c.Room(room * a.dim, OutType(r, type), a.dim);
  return c.Run(GB_OP_COALESCE, backend.api->coalesce, a);
}

std::string Merge(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  Random& r = c.random;
  const gb_dtype type = FloatType(r);
  gb_merge_args a = {};
  a.dim = Dim(r);
  a.weight = r.Of({0.0f, 1.0f, 3.0f});
  a.lanes = r.Of<int64_t>({1, 3, 8, 21});
  gb_rows_term* terms = c.Host<gb_rows_term>(static_cast<size_t>(a.lanes));
  std::set<int64_t> all;
  for (int64_t lane = 0; lane < a.lanes; lane++) {
    if (r.OneIn(5)) continue;
    std::set<int64_t> some;
    for (int64_t i = r.Below(r.OneIn(3) ? 200 : 20); i > 0; i--) some.insert(r.Below(150));
    all.insert(some.begin(), some.end());
    gb_rows_term t = {{static_cast<uint32_t>(lane), 1}, {}, {}};
    t.keys = c.Ints(Numbers(some.begin(), some.end()), GB_UINT64);
    t.rows = c.Values(t.keys.n * a.dim, type);
    std::memcpy(terms + a.terms_n++, &t, sizeof t);
  }
  a.terms = terms;
  a.out_keys = c.Room(static_cast<int64_t>(all.size()), GB_UINT64, 1);
  a.out_rows = c.Room(static_cast<int64_t>(all.size()) * a.dim, OutType(r, type), a.dim);
  return c.Run(GB_OP_MERGE, backend.api->merge, a);
}

// ---- Optimizers.

// MakeOptimizer gives an optimizer with its slots: before of rows rows, after of rows_out, or over
// before.
gb_optimizer MakeOptimizer(Call& c, uint32_t kind, int64_t dim, int64_t rows, int64_t rows_out,
                           bool in_place) {
  Random& r = c.random;
  gb_optimizer o = {};
  o.kind = kind;
  gb_slot* slots = c.Host<gb_slot>(2);
  const gb_dtype type = FloatType(r);
  const float decay = r.Of({0.0f, 0.01f});
  const auto slot = [&](const char* name, int64_t each, gb_dtype dtype) {
    std::vector<float> values(static_cast<size_t>(rows * each));
    for (float& v : values) v = r.Value() * r.Value();
    if (kind != GB_SGD && std::strcmp(name, "mean") != 0 && std::strcmp(name, "z") != 0) {
      for (float& v : values) v = v < 0 || (kind == GB_FTRL && r.OneIn(4)) ? 0 : v;
    }
    gb_slot s = {name, c.Floats(values, dtype), {}};
    s.after = in_place ? c.Over(s.before) : c.Room(rows_out * each, dtype);
    std::memcpy(slots + o.slots_n++, &s, sizeof s);
  };
  if (kind == GB_SGD) {
    gb_sgd h = {0.1f, r.Of({0.0f, 0.9f}), 0, decay, 0, 0};
    if (h.momentum != 0) {
      h.nesterov = r.OneIn(2);
      h.dampening = h.nesterov ? 0 : r.Of({0.0f, 0.25f});
      slot("momentum", dim, type);
    }
    o.hyper = std::memcpy(c.Host<gb_sgd>(1), &h, sizeof h);
    o.hyper_bytes = sizeof h;
  } else if (kind == GB_ROWWISE_ADAGRAD || kind == GB_ADAGRAD) {
    const gb_adagrad h = {0.1f, 1e-3f, decay, 0};
    if (kind == GB_ADAGRAD) {
      slot("sum", dim, type);
    } else {
      slot("sum", 1, GB_FLOAT32);
    }
    o.hyper = std::memcpy(c.Host<gb_adagrad>(1), &h, sizeof h);
    o.hyper_bytes = sizeof h;
  } else if (kind == GB_FTRL) {
    const gb_ftrl h = {0.1f, 1, r.Of({0.0f, 0.3f}), decay};
    slot("n", dim, type);
    slot("z", dim, OutType(r, type));
    o.hyper = std::memcpy(c.Host<gb_ftrl>(1), &h, sizeof h);
    o.hyper_bytes = sizeof h;
  } else {
    const gb_adam h = {0.1f, 0.9f, 0.99f, 1e-3f, decay, 0, 7};
    slot("square", dim, type);
    slot("mean", dim, OutType(r, type));
    o.hyper = std::memcpy(c.Host<gb_adam>(1), &h, sizeof h);
    o.hyper_bytes = sizeof h;
  }
  o.slots = slots;
  if (r.OneIn(2)) return o;
  o.clip.kind = r.Of<uint32_t>({GB_CLIP_SCALE, GB_CLIP_VALUE, GB_CLIP_ROW});
  o.clip.by = r.Of({0.05f, 0.5f, 2.0f});
  return o;
}

bool HasExact(uint32_t kind) { return kind != GB_ADAM && kind != GB_ADAMW && kind != GB_FTRL; }

gb_steps MakeSteps(Call& c, uint32_t kind, int64_t rows, int64_t rows_out, bool in_place) {
  Random& r = c.random;
  gb_steps s = {};
  if (HasExact(kind) ? r.OneIn(3) : r.OneIn(2)) return s;
  Numbers last(static_cast<size_t>(rows));
  for (int64_t& l : last) l = r.Below(8);
  s.last = c.Ints(last, GB_INT64);
  s.last_after = in_place ? c.Over(s.last) : c.Room(rows_out, GB_INT64);
  s.step = 8;
  s.exact = HasExact(kind) && r.OneIn(2);
  return s;
}

// Some values of a gradient are not finite.
gb_in Gradient(Call& c, int64_t n, gb_dtype type, gb_nonfinite policy) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = c.random.Value();
  if (policy != GB_NONFINITE_IGNORE && n > 0 && c.random.OneIn(2)) {
    for (int i = 0; i < 3; i++) {
      values[static_cast<size_t>(c.random.Below(n))] = c.random.Of({1e38f * 10, -1e38f * 10});
    }
  }
  return c.Floats(values, type);
}

// Table has, at times, zeros four by four and small values: there the steps that an exact row makes
// up for move some threads' columns and leave those of others.
gb_in Table(Call& c, int64_t n, gb_dtype type) {
  if (c.random.OneIn(2)) return c.Values(n, type);
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); i++) {
    const bool zero = i % 4 == 0 ? c.random.OneIn(2) : values[i - 1] == 0;
    values[i] = zero ? 0 : c.random.Of({1e-4f, 2e-5f, 3e-4f});
  }
  return c.Floats(values, type);
}

gb_nonfinite NonFinite(Random& r) {
  return r.Of<gb_nonfinite>({GB_NONFINITE_IGNORE, GB_NONFINITE_COUNT, GB_NONFINITE_REFUSE});
}

uint32_t Kind(Random& r) {
  return r.Of<uint32_t>(
      {GB_SGD, GB_ROWWISE_ADAGRAD, GB_ROWWISE_ADAGRAD, GB_ADAM, GB_ADAGRAD, GB_ADAMW, GB_FTRL});
}

std::string ApplyRows(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  Random& r = c.random;
  const gb_dtype type = FloatType(r), grad = FloatType(r);
  gb_apply_rows_args a = {};
  a.dim = Dim(r);
  a.weight = r.Of({1.0f, 3.0f, 8.0f});
  a.nonfinite = NonFinite(r);
  const int64_t rows = r.Of<int64_t>({1, 9, 70, 300}), n = r.Of<int64_t>({0, 1, 9, 65, 150});
  const bool in_place = r.OneIn(3);
  Numbers index = Ids(r, n, rows);
  if (in_place) {
    const std::set<int64_t> some(index.begin(), index.end());
    index.assign(some.begin(), some.end());
  }
  if (r.OneIn(3)) {
    a.policy = GB_SKIP;
    if (!in_place) {
      for (int64_t& i : index) i = r.OneIn(9) ? r.Of<int64_t>({-1, rows}) : i;
    }
  }
  const int64_t m = static_cast<int64_t>(index.size()), room = in_place ? rows : m;
  const uint32_t kind = Kind(r);
  a.optimizer = MakeOptimizer(c, kind, a.dim, rows, room, in_place);
  a.steps = MakeSteps(c, kind, rows, room, in_place);
  a.table = Table(c, rows * a.dim, type);
  a.index = c.Ints(index, r.Of<gb_dtype>({GB_INT32, GB_INT64}));
  if (a.steps.last.n == 0 && r.OneIn(2)) {
    Numbers first(index.size());
    for (int64_t& f : first) f = r.Below(2);
    a.first = c.Ints(first, GB_UINT8);
  }
  a.grad = Gradient(c, m * a.dim, grad, a.nonfinite);
  a.out = in_place ? c.Over(a.table) : c.Room(m * a.dim, type);
  return c.Run(GB_OP_APPLY_ROWS, backend.api->apply_rows, a);
}

std::string CoalesceApply(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  Random& r = c.random;
  const gb_dtype type = FloatType(r), grad = FloatType(r);
  gb_coalesce_apply_args a = {};
  a.dim = Dim(r);
  a.weight = r.Of({1.0f, 3.0f, 8.0f});
  a.nonfinite = NonFinite(r);
  const int64_t rows = r.Of<int64_t>({1, 9, 70, 300}), n = Places(r, a.dim);
  const bool in_place = r.OneIn(3);
  Numbers keys = Ids(r, n, rows);
  std::set<int64_t> some(keys.begin(), keys.end());
  if (r.OneIn(3)) {
    a.policy = GB_SKIP;
    for (int64_t& k : keys) k = r.OneIn(9) ? rows + r.Below(5) : k;
  }
  const int64_t distinct = static_cast<int64_t>(some.size()), room = in_place ? rows : distinct;
  const uint32_t kind = Kind(r);
  a.optimizer = MakeOptimizer(c, kind, a.dim, rows, room, in_place);
  a.steps = MakeSteps(c, kind, rows, room, in_place);
  a.table = Table(c, rows * a.dim, type);
  a.keys = c.Ints(keys, r.Of<gb_dtype>({GB_INT32, GB_INT64, GB_UINT64}));
  a.rows = Gradient(c, n * a.dim, grad, a.nonfinite);
  if (!in_place || r.OneIn(2)) a.out_keys = c.Room(distinct, GB_INT64, 1);
  a.out = in_place ? c.Over(a.table) : c.Room(distinct * a.dim, type, a.dim);
  return c.Run(GB_OP_COALESCE_APPLY, backend.api->coalesce_apply, a);
}

std::string ApplyDense(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  Random& r = c.random;
  const gb_dtype type = FloatType(r);
  gb_apply_dense_args a = {};
  const int64_t dim = Dim(r), rows = r.Of<int64_t>({0, 1, 5, 40});
  a.weight = r.Of({1.0f, 3.0f});
  a.dim = rows == 1 && r.OneIn(2) ? 0 : dim;
  a.first = r.OneIn(3);
  a.nonfinite = NonFinite(r);
  const bool in_place = r.OneIn(2);
  a.optimizer = MakeOptimizer(c, Kind(r), dim, rows, rows, in_place);
  if (a.optimizer.clip.kind == GB_CLIP_ROW) a.optimizer.clip.kind = GB_CLIP_VALUE;
  a.param = c.Values(rows * dim, type);
  a.grad = Gradient(c, rows * dim, FloatType(r), a.nonfinite);
  a.out = in_place ? c.Over(a.param) : c.Room(rows * dim, type);
  return c.Run(GB_OP_APPLY_DENSE, backend.api->apply_dense, a);
}

// ---- Dense terms.

gb_term* MakeTerms(Call& c, int64_t lanes, int64_t n, gb_dtype type, int64_t* terms_n) {
  gb_term* terms = c.Host<gb_term>(static_cast<size_t>(lanes));
  for (int64_t lane = 0; lane < lanes; lane++) {
    if (lane > 0 && c.random.OneIn(4)) continue;
    const gb_term t = {{static_cast<uint32_t>(lane), 1}, c.Values(n, type)};
    std::memcpy(terms + (*terms_n)++, &t, sizeof t);
  }
  return terms;
}

std::string Average(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  Random& r = c.random;
  const gb_dtype type = FloatType(r);
  gb_average_args a = {};
  a.weight = r.Of({1.0f, 3.0f});
  a.lanes = r.Of<int64_t>({1, 2, 8, 21});
  const int64_t n = r.Of<int64_t>({0, 1, 7, 256, 1023});
  a.terms = MakeTerms(c, a.lanes, n, type, &a.terms_n);
  a.out = c.Room(n, OutType(r, type));
  return c.Run(GB_OP_AVERAGE, backend.api->average, a);
}

std::string AverageApply(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  Random& r = c.random;
  const gb_dtype type = FloatType(r);
  gb_average_apply_args a = {};
  const int64_t dim = Dim(r), rows = r.Of<int64_t>({0, 1, 5, 40});
  a.weight = r.Of({1.0f, 3.0f});
  a.dim = dim;
  a.first = r.OneIn(3);
  a.nonfinite = NonFinite(r);
  a.lanes = r.Of<int64_t>({1, 2, 8, 21});
  const bool in_place = r.OneIn(2);
  a.terms = MakeTerms(c, a.lanes, rows * dim, FloatType(r), &a.terms_n);
  a.optimizer = MakeOptimizer(c, Kind(r), dim, rows, rows, in_place);
  if (a.optimizer.clip.kind == GB_CLIP_ROW) a.optimizer.clip.kind = GB_CLIP_VALUE;
  a.param = c.Values(rows * dim, type);
  a.out = in_place ? c.Over(a.param) : c.Room(rows * dim, type);
  return c.Run(GB_OP_AVERAGE_APPLY, backend.api->average_apply, a);
}

// ---- The rest.

std::string MatMul(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  Random& r = c.random;
  gb_matmul_args a = {};
  a.m = r.Below(20);
  a.n = r.Below(20);
  a.k = r.Of<int64_t>({1, 5, 64, 200});
  a.trans_a = r.OneIn(2);
  a.trans_b = r.OneIn(2);
  a.a = c.Values(a.m * a.k, GB_FLOAT32);
  a.b = c.Values(a.k * a.n, GB_FLOAT32);
  if (r.OneIn(2)) a.bias = c.Values(a.n, GB_FLOAT32);
  a.c = c.Room(a.m * a.n, GB_FLOAT32);
  return c.Run(GB_OP_MATMUL, backend.api->matmul, a);
}

std::string Softmax(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  Random& r = c.random;
  gb_softmax_args a = {};
  a.classes = r.Of<int64_t>({1, 2, 10, 130});
  const int64_t samples = r.Below(40);
  Numbers targets(static_cast<size_t>(samples));
  for (int64_t& t : targets) t = r.Below(a.classes);
  a.logits = c.Values(samples * a.classes, GB_FLOAT32);
  a.targets = c.Ints(targets, GB_INT32);
  a.loss = c.Room(samples, GB_FLOAT32);
  a.grad = c.Room(samples * a.classes, GB_FLOAT32);
  if (r.OneIn(2)) a.probabilities = c.Room(samples * a.classes, GB_FLOAT32);
  return c.Run(GB_OP_SOFTMAX, backend.api->softmax_cross_entropy, a);
}

std::string FirstNonFinite(const Backend& backend, uint64_t seed) {
  Call c(backend, seed);
  gb_first_nonfinite_args a = {};
  a.values = Gradient(c, c.random.Of<int64_t>({0, 1, 300, 5000}), GB_FLOAT32, GB_NONFINITE_COUNT);
  return c.Run(GB_OP_FIRST_NONFINITE, backend.api->first_nonfinite, a);
}

}  // namespace

std::vector<Case> Cases(int each) {
  const struct {
    const char* name;
    std::string (*run)(const Backend&, uint64_t);
    int times;  // operations with more to choose from come more often
  } all[] = {{"bag_forward", BagForward, 3},
             {"bag_backward", BagBackward, 3},
             {"coalesce", Coalesce, 2},
             {"merge", Merge, 1},
             {"apply_rows", ApplyRows, 5},
             {"coalesce_apply", CoalesceApply, 3},
             {"apply_dense", ApplyDense, 2},
             {"average", Average, 1},
             {"average_apply", AverageApply, 2},
             {"matmul", MatMul, 1},
             {"softmax", Softmax, 1},
             {"first_nonfinite", FirstNonFinite, 1},
             {"long_maximum", LongMaximum, 1}};
  std::vector<Case> cases;
  for (int i = 0; i < each; i++) {
    for (const auto& op : all) {
      for (int t = 0; t < op.times; t++) {
        const uint64_t seed = static_cast<uint64_t>(i * 8 + t);
        cases.push_back({std::string(op.name) + " " + std::to_string(seed), op.run, seed});
      }
    }
  }
  return cases;
}

}  // namespace tests
}  // namespace gradbus
