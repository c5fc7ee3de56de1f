// The element-wise operations of csrc/cuda in emulation, against the bits of the CPU backend: every
// optimizer, type, alignment, width, and way of writing and counting steps.
#include <cmath>

#include "both.h"

namespace {

const gb_dtype kFloat32 = GB_FLOAT32;

gb_dtype AFloat(Random& r, bool plain = false) {
  const gb_dtype types[] = {GB_FLOAT32, GB_FLOAT16, GB_BFLOAT16};
  return plain ? kFloat32 : types[r.Below(3)];
}

struct Optimizer {
  gb_sgd sgd = {};
  gb_adagrad adagrad = {};
  gb_adam adam = {};
  gb_ftrl ftrl = {};
  gb_clip clip = {};
  uint32_t kind = GB_SGD;
  int slots = 0;

  gb_optimizer Of(const gb_slot* s) const {
    switch (kind) {
      case GB_SGD:
        return {kind, sizeof sgd, &sgd, s, slots, clip};
      case GB_ADAM:
      case GB_ADAMW:
        return {kind, sizeof adam, &adam, s, slots, clip};
      case GB_FTRL:
        return {kind, sizeof ftrl, &ftrl, s, slots, clip};
      default:
        return {kind, sizeof adagrad, &adagrad, s, slots, clip};
    }
  }
  bool Exact() const { return kind != GB_ADAM && kind != GB_ADAMW && kind != GB_FTRL; }
  // Values of a slot that belong to a row.
  int64_t Width(int64_t dim) const { return kind == GB_ROWWISE_ADAGRAD ? 1 : dim; }
};

Optimizer AnOptimizer(Random& r, bool rows) {
  Optimizer o;
  switch (r.Below(6)) {
    case 0:
      o.clip = {GB_CLIP_SCALE, 0.37f};
      break;
    case 1:
      o.clip = {GB_CLIP_VALUE, 0.21f};
      break;
    case 2:
      if (rows) o.clip = {GB_CLIP_ROW, r.Below(2) == 0 ? 0.7f : 3.1f};
  }
  const float decay = r.Below(2) == 0 ? 0.0f : 0.01f;
  const float lr = 0.1f;
  switch (r.Below(5)) {
    case 0:
      o.sgd = {lr, 0, 0, decay, 0, 0};
      break;
    case 1:
      o.sgd = {lr, 0.9f, r.Below(2) == 0 ? 0.0f : 0.25f, decay, static_cast<uint32_t>(r.Below(2)),
               0};
      o.slots = 1;
      break;
    case 2:
      o.kind = r.Below(2) == 0 ? GB_ROWWISE_ADAGRAD : GB_ADAGRAD;
      o.adagrad = {lr, r.Below(4) == 0 ? 0.0f : 1e-6f, decay, 0};
      o.slots = 1;
      break;
    case 3:
      o.kind = GB_FTRL;
      o.ftrl = {lr, r.Below(2) == 0 ? 0.0f : 1.0f, 0.5f, decay};
      o.slots = 2;
      break;
    default:
      o.kind = r.Below(2) == 0 ? GB_ADAM : GB_ADAMW;
      o.adam = {lr, 0.9f, 0.999f, 1e-8f, decay, 0, 1 + static_cast<uint64_t>(r.Below(100))};
      o.slots = 2;
  }
  return o;
}

const char* const kSlotNames[7][2] = {{"", ""},           {"momentum", ""}, {"sum", ""},
                                      {"mean", "square"}, {"sum", ""},      {"mean", "square"},
                                      {"z", "n"}};

void Spoil(Random& r, Array& a, int64_t n) {
  const float values[] = {NAN, INFINITY, -INFINITY, -0.0f, 1e-40f, 6e4f, 3e38f};
  for (int64_t i = 0; i < n && a.n > 0; i++) SetFloat(a, r.Below(a.n), values[r.Below(7)]);
}

// Zeros, and values so small that a step of row-wise Adagrad moves them but not the row's sum.
void Fade(Random& r, Array& a) {
  for (int64_t i = 0; i < a.n; i++) SetFloat(a, i, r.Below(2) == 0 ? 0 : 1e-4f * r.Normal());
}

// A slot's values: squares and sums are never negative, and those of ftrl zero at times.
Array SlotValues(Random& r, const Optimizer& o, int which, int64_t n, int64_t shift) {
  const bool positive = o.kind == GB_ROWWISE_ADAGRAD || o.kind == GB_ADAGRAD || which == 1;
  const gb_dtype dtype = AFloat(r, o.kind == GB_ROWWISE_ADAGRAD);
  Array a = Floats(r, dtype, n, shift, positive);
  for (int64_t i = 0; o.kind == GB_FTRL && which == 1 && i < n; i += 1 + r.Below(6))
    SetFloat(a, i, 0);
  return a;
}

void Dense(Both& both, Random& r, bool plain) {
  const Optimizer o = AnOptimizer(r, false);
  const int64_t sizes[] = {0, 1, 3, 4, 5, 63, 64, 127, 257, 1000, 4097, 30000};
  int64_t n = sizes[r.Below(12)], dim = 0;
  if (r.Below(2) == 0) dim = 1 + r.Below(70), n = n / 20 * dim;
  const auto shift = [&] { return plain ? 0 : r.Below(4); };
  const bool in_place = r.Below(2) == 0;
  std::vector<Array> a;
  a.push_back(Floats(r, AFloat(r, plain), n, shift()));
  a.push_back(Floats(r, AFloat(r, plain), n, shift()));
  a.push_back(Zeros(a[0].dtype, n, shift()));
  if (r.Below(3) == 0) Spoil(r, a[1], 1 + r.Below(5));
  const int64_t slot_n = o.kind == GB_ROWWISE_ADAGRAD ? (dim > 0 ? n / dim : n > 0) : n;
  for (int s = 0; s < o.slots; s++) {
    a.push_back(SlotValues(r, o, s, slot_n, shift()));
    a.push_back(Zeros(a.back().dtype, slot_n, shift()));
  }
  gb_apply_dense_args args = Sized<gb_apply_dense_args>();
  args.weight = r.Below(2) == 0 ? 4.0f : 3.0f;
  args.dim = dim;
  args.first = static_cast<uint32_t>(r.Below(2));
  args.nonfinite = static_cast<gb_nonfinite>(r.Below(3));
  both.Compare("dense", a,
               [&](const gb_api* api, gb_context* c, gb_stream* s, const Placed& p, gb_workspace* w,
                   uint64_t* bytes, gb_report* report) {
                 gb_slot slots[2];
                 const uint32_t names = o.slots == 0 ? 0 : o.kind;
                 for (int i = 0; i < o.slots; i++) {
                   slots[i] = {kSlotNames[names][i], p.In(3 + 2 * i),
                               p.Out(in_place ? 3 + 2 * i : 4 + 2 * i)};
                 }
                 args.optimizer = o.Of(slots);
                 args.param = p.In(0);
                 args.grad = p.In(1);
                 args.out = p.Out(in_place ? 0 : 2);
                 if (w == nullptr)
                   return *bytes = api->workspace(c, GB_OP_APPLY_DENSE, &args), gb_status{GB_OK};
                 return api->apply_dense(c, s, &args, *w, report);
               });
}

// What a case of apply_rows is made of.
struct RowsCase {
  int64_t dim, rows, n;
  bool in_place, skip, lasts, firsts;
};

RowsCase ARowsCase(Random& r) {
  const int64_t dims[] = {1,  2,  3,  4,   5,   8,   12,  16,  17, 31,
                          32, 63, 64, 100, 127, 128, 132, 257, 300};
  RowsCase c;
  c.dim = dims[r.Below(19)];
  c.rows = 1 + r.Below(r.Below(3) == 0 ? 600 : 60);
  c.in_place = r.Below(2) == 0;
  c.n = r.Below(8) == 0 ? 0 : r.Below(c.in_place ? c.rows + 1 : 80);
  c.skip = r.Below(2) == 0;
  c.lasts = r.Below(2) == 0;
  c.firsts = !c.lasts && r.Below(2) == 0;
  return c;
}

std::vector<int64_t> AnIndex(Random& r, const RowsCase& c) {
  std::vector<int64_t> index;
  if (c.in_place) {
    for (int64_t i = 0; i < c.rows && static_cast<int64_t>(index.size()) < c.n; i++) {
      if (r.Below(3) != 0) index.push_back(i);
    }
  } else {
    for (int64_t i = 0; i < c.n; i++) index.push_back(r.Below(c.rows));
  }
  const int64_t n = static_cast<int64_t>(index.size());
  if (n > 0 && (c.skip || r.Below(6) == 0)) {
    for (int64_t i = r.Below(4); i > 0; i--) {
      index[static_cast<size_t>(r.Below(n))] =
          r.Below(2) == 0 ? -1 - r.Below(9) : c.rows + r.Below(9);
    }
  }
  if (n > 1 && r.Below(6) == 0) {
    const size_t i = static_cast<size_t>(r.Below(n));
    index[i] = index[static_cast<size_t>(r.Below(n))];
  }
  return index;
}

void Rows(Both& both, Random& r, bool plain) {
  const Optimizer o = AnOptimizer(r, true);
  const RowsCase k = ARowsCase(r);
  const auto shift = [&] { return plain ? 0 : r.Below(4); };
  const std::vector<int64_t> index = AnIndex(r, k);
  const int64_t n = static_cast<int64_t>(index.size());
  const int64_t out_rows = k.in_place ? k.rows : n;
  std::vector<Array> a;
  a.push_back(Floats(r, AFloat(r, plain), k.rows * k.dim, shift()));
  if (r.Below(3) == 0) Fade(r, a[0]);
  if (r.Below(2) == 0) {
    a.push_back(Ints(GB_INT32, std::vector<int32_t>(index.begin(), index.end()), shift()));
  } else {
    a.push_back(Ints(GB_INT64, index, shift()));
  }
  a.push_back(Floats(r, AFloat(r, plain), n * k.dim, shift()));
  if (r.Below(3) == 0) Spoil(r, a[2], 1 + r.Below(5));
  std::vector<uint8_t> first;
  for (int64_t i = 0; k.firsts && i < n; i++) first.push_back(static_cast<uint8_t>(r.Below(2) * 3));
  a.push_back(Ints(GB_UINT8, first));
  std::vector<int64_t> last;
  const int64_t step = 1 + r.Below(12);
  for (int64_t i = 0; k.lasts && i < k.rows; i++)
    last.push_back(r.Below(3) * r.Below(step + 2) - r.Below(2));
  a.push_back(Ints(GB_INT64, last));
  a.push_back(Floats(r, a[0].dtype, out_rows * k.dim, shift()));
  a.push_back(Zeros(GB_INT64, k.lasts ? out_rows : 0));
  for (int s = 0; s < o.slots; s++) {
    a.push_back(SlotValues(r, o, s, k.rows * o.Width(k.dim), shift()));
    a.push_back(Floats(r, a.back().dtype, out_rows * o.Width(k.dim), shift()));
  }
  gb_apply_rows_args args = Sized<gb_apply_rows_args>();
  args.weight = r.Below(2) == 0 ? 1.0f : 7.0f;
  args.dim = k.dim;
  args.policy = k.skip ? GB_SKIP : GB_REFUSE;
  args.nonfinite = static_cast<gb_nonfinite>(r.Below(3));
  args.steps.step = step;
  args.steps.exact = k.lasts && o.Exact() && r.Below(2) == 0;
  both.Compare("rows", a,
               [&](const gb_api* api, gb_context* c, gb_stream* s, const Placed& p, gb_workspace* w,
                   uint64_t* bytes, gb_report* report) {
                 gb_slot slots[2];
                 const uint32_t names = o.slots == 0 ? 0 : o.kind;
                 for (int i = 0; i < o.slots; i++) {
                   slots[i] = {kSlotNames[names][i], p.In(7 + 2 * i),
                               p.Out(k.in_place ? 7 + 2 * i : 8 + 2 * i)};
                 }
                 args.optimizer = o.Of(slots);
                 args.table = p.In(0);
                 args.index = p.In(1);
                 args.grad = p.In(2);
                 args.first = p.In(3);
                 args.steps.last = p.In(4);
                 args.out = p.Out(k.in_place ? 0 : 5);
                 args.steps.last_after = p.Out(k.in_place ? 4 : 6);
                 if (w == nullptr)
                   return *bytes = api->workspace(c, GB_OP_APPLY_ROWS, &args), gb_status{GB_OK};
                 return api->apply_rows(c, s, &args, *w, report);
               });
}

// Terms of a random part of the tree: the leaves, some nodes above them, and gaps.
void AddNodes(Random& r, uint32_t first, uint32_t count, std::vector<gb_node>* nodes) {
  if (r.Below(8) == 0) return;
  if (count == 1 || r.Below(6) == 0) return nodes->push_back({first, count});
  uint32_t half = 1;
  while (half * 2 < count) half *= 2;
  AddNodes(r, first, half, nodes);
  AddNodes(r, first + half, count - half, nodes);
}

void Averages(Both& both, Random& r, bool plain, bool apply) {
  const uint32_t lanes[] = {1, 2, 3, 5, 8, 16, 17, 33, 100, 300};
  const uint32_t count = lanes[r.Below(10)];
  std::vector<gb_node> nodes;
  while (nodes.empty()) AddNodes(r, 0, count, &nodes);
  const int64_t sizes[] = {0, 1, 3, 4, 7, 64, 65, 250, 4097};
  const int64_t n = sizes[r.Below(9)];
  const auto shift = [&] { return plain ? 0 : r.Below(4); };
  const gb_dtype dtype = AFloat(r, plain);
  const Optimizer o = AnOptimizer(r, false);
  std::vector<Array> a;
  a.push_back(Floats(r, apply ? AFloat(r) : dtype, n, shift()));  // param
  const bool in_place = r.Below(2) == 0;
  const gb_dtype out = apply ? a[0].dtype : in_place || r.Below(2) == 0 ? dtype : kFloat32;
  a.push_back(Zeros(out, n, shift()));
  const int64_t slot_n = o.kind == GB_ROWWISE_ADAGRAD ? n > 0 : n;
  for (int s = 0; apply && s < o.slots; s++) {
    a.push_back(SlotValues(r, o, s, slot_n, shift()));
    a.push_back(Zeros(a.back().dtype, slot_n, shift()));
  }
  const int begin = static_cast<int>(a.size());
  for (size_t i = 0; i < nodes.size(); i++) a.push_back(Floats(r, dtype, n, shift()));
  if (r.Below(3) == 0) Spoil(r, a.back(), 3);
  const int alias = begin + static_cast<int>(r.Below(static_cast<int64_t>(nodes.size())));
  const float weight = r.Below(2) == 0 ? 8.0f : 5.0f;
  const uint32_t first = static_cast<uint32_t>(r.Below(2));
  const gb_nonfinite nonfinite = static_cast<gb_nonfinite>(r.Below(3));
  both.Compare(apply ? "average_apply" : "average", a,
               [&](const gb_api* api, gb_context* c, gb_stream* s, const Placed& p, gb_workspace* w,
                   uint64_t* bytes, gb_report* report) {
                 std::vector<gb_term> terms;
                 for (size_t i = 0; i < nodes.size(); i++) {
                   terms.push_back({nodes[i], p.In(begin + static_cast<int>(i))});
                 }
                 if (!apply) {
                   gb_average_args args = Sized<gb_average_args>();
                   args.weight = weight;
                   args.lanes = count;
                   args.terms = terms.data();
                   args.terms_n = static_cast<int64_t>(terms.size());
                   args.out = p.Out(in_place ? alias : 1);
                   if (w == nullptr)
                     return *bytes = api->workspace(c, GB_OP_AVERAGE, &args), gb_status{GB_OK};
                   return api->average(c, s, &args, *w, report);
                 }
                 gb_slot slots[2];
                 const uint32_t names = o.slots == 0 ? 0 : o.kind;
                 for (int i = 0; i < o.slots; i++) {
                   slots[i] = {kSlotNames[names][i], p.In(2 + 2 * i),
                               p.Out(in_place ? 2 + 2 * i : 3 + 2 * i)};
                 }
                 gb_average_apply_args args = Sized<gb_average_apply_args>();
                 args.weight = weight;
                 args.first = first;
                 args.nonfinite = nonfinite;
                 args.lanes = count;
                 args.terms = terms.data();
                 args.terms_n = static_cast<int64_t>(terms.size());
                 args.optimizer = o.Of(slots);
                 args.param = p.In(0);
                 args.out = p.Out(in_place ? 0 : 1);
                 if (w == nullptr) {
                   return *bytes = api->workspace(c, GB_OP_AVERAGE_APPLY, &args), gb_status{GB_OK};
                 }
                 return api->average_apply(c, s, &args, *w, report);
               });
}

void Found(Both& both, Random& r) {
  const int64_t n = r.Below(5000);
  std::vector<Array> a;
  a.push_back(Floats(r, GB_FLOAT32, n, r.Below(4)));
  if (r.Below(3) != 0) {
    for (int64_t i = r.Below(4); i > 0 && n > 0; i--) SetFloat(a[0], r.Below(n), NAN);
  }
  both.Compare("first_nonfinite", a,
               [&](const gb_api* api, gb_context* c, gb_stream* s, const Placed& p, gb_workspace* w,
                   uint64_t* bytes, gb_report* report) {
                 gb_first_nonfinite_args args = Sized<gb_first_nonfinite_args>();
                 args.values = p.In(0);
                 if (w == nullptr)
                   return *bytes = api->workspace(c, GB_OP_FIRST_NONFINITE, &args),
                          gb_status{GB_OK};
                 return api->first_nonfinite(c, s, &args, *w, report);
               });
}

void Multiply(Both& both, Random& r) {
  gb_matmul_args args = Sized<gb_matmul_args>();
  args.m = r.Below(20);
  args.n = r.Below(20);
  args.k = r.Below(150);
  args.trans_a = static_cast<uint32_t>(r.Below(2));
  args.trans_b = static_cast<uint32_t>(r.Below(2));
  std::vector<Array> a;
  a.push_back(Floats(r, GB_FLOAT32, args.m * args.k, r.Below(4)));
  a.push_back(Floats(r, GB_FLOAT32, args.k * args.n, r.Below(4)));
  a.push_back(Floats(r, GB_FLOAT32, r.Below(2) * args.n, r.Below(4)));
  a.push_back(Zeros(GB_FLOAT32, args.m * args.n, r.Below(4)));
  both.Compare("matmul", a,
               [&](const gb_api* api, gb_context* c, gb_stream* s, const Placed& p, gb_workspace* w,
                   uint64_t* bytes, gb_report* report) {
                 args.a = p.In(0);
                 args.b = p.In(1);
                 args.bias = p.In(2);
                 args.c = p.Out(3);
                 if (w == nullptr)
                   return *bytes = api->workspace(c, GB_OP_MATMUL, &args), gb_status{GB_OK};
                 return api->matmul(c, s, &args, *w, report);
               });
}

void Softmaxes(Both& both, Random& r) {
  const int64_t classes = 1 + r.Below(80), samples = r.Below(20);
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < samples; i++) targets.push_back(static_cast<int32_t>(r.Below(classes)));
  if (samples > 0 && r.Below(4) == 0) {
    targets[static_cast<size_t>(r.Below(samples))] =
        r.Below(2) == 0 ? -3 : static_cast<int32_t>(classes);
  }
  std::vector<Array> a;
  a.push_back(Floats(r, GB_FLOAT32, samples * classes, r.Below(4)));
  a.push_back(Ints(GB_INT32, targets));
  a.push_back(Zeros(GB_FLOAT32, r.Below(2) * samples));
  a.push_back(Zeros(GB_FLOAT32, r.Below(2) * samples * classes));
  a.push_back(Zeros(GB_FLOAT32, r.Below(2) * samples * classes));
  both.Compare("softmax", a,
               [&](const gb_api* api, gb_context* c, gb_stream* s, const Placed& p, gb_workspace* w,
                   uint64_t* bytes, gb_report* report) {
                 gb_softmax_args args = Sized<gb_softmax_args>();
                 args.classes = classes;
                 args.logits = p.In(0);
                 args.targets = p.In(1);
                 args.loss = p.Out(2);
                 args.grad = p.Out(3);
                 args.probabilities = p.Out(4);
                 if (w == nullptr)
                   return *bytes = api->workspace(c, GB_OP_SOFTMAX, &args), gb_status{GB_OK};
                 return api->softmax_cross_entropy(c, s, &args, *w, report);
               });
}

void Round(Both& both, uint64_t seed, int i) {
  Random r = {seed + static_cast<uint64_t>(i) * 1000003};
  gradbus::emu::Seed(r.Next());
  gradbus::emu::Defer(i % 2 != 0);  // as on a device that is behind with its work
  const bool plain = i % 3 == 0;
  Dense(both, r, plain);
  Rows(both, r, plain);
  Averages(both, r, plain, false);
  Averages(both, r, plain, true);
  Found(both, r);
  Multiply(both, r);
  Softmaxes(both, r);
}

// Every barrier, shuffle and vote that the kernels have met must be needed: without it some round
// fails.
void Barriers(uint64_t seed, int rounds) {
  const std::vector<std::string> all = gradbus::emu::Barriers();
  quiet = true;
  for (size_t site = 0; site < all.size(); site++) {
    const int before = failures;
    {
      Both both;
      gradbus::emu::Drop(static_cast<int>(site));
      for (int i = 0; i < rounds && failures == before; i++) Round(both, seed, i);
    }
    gradbus::emu::Reset();
    const bool missed = failures == before;
    failures = before + missed;
    if (missed) std::printf("nothing fails without %s\n", all[site].c_str());
  }
  std::printf("%zu barriers\n", all.size());
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 150;
  Both both;
  for (int i = 0; i < rounds && failures < 20; i++) {
    const int before = failures;
    Round(both, seed, i);
    if (failures > before) std::printf("round %d of seed %lu\n", i, seed);
  }
  for (gb_status status = GB_OK; status <= GB_BUSY; status++) {
    if (both.Seen(status) > 0) std::printf("status %d: %ld cases\n", status, both.Seen(status));
  }
  if (failures == 0) Barriers(seed, 4 * rounds);
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
