// What threads may not change: every result has the same bits whatever the number of threads of a
// context, and any number of callers may share one.
#include <pthread.h>

#include <cstdlib>
#include <vector>

#include "abi.h"

namespace {

uint64_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  return x;
}

// Job is input for one call of each operation, with keys that come once, often, and very often.
struct Job {
  int64_t n, dim, bags;
  std::vector<float> rows, weights;
  std::vector<int64_t> ids, offsets;
  std::vector<uint64_t> keys;

  Job(int64_t count, int64_t width, uint64_t seed) : n(count), dim(width), bags(count / 7 + 1) {
    rows.resize(n * dim);
    for (size_t i = 0; i < rows.size(); i++) {
      rows[i] = static_cast<float>(static_cast<int64_t>(Mix(seed + i) % 20001) - 10000) / 777;
    }
    for (int64_t i = 0; i < n; i++) {
      const uint64_t r = Mix(seed * 31 + i);
      ids.push_back(r % 3 == 0 ? 5 : static_cast<int64_t>(r / 3 % n));
      keys.push_back(r % 3 == 0 ? ~uint64_t{0} : r % 3 == 1 ? r : r % 97);
      weights.push_back(static_cast<float>(r % 1000) / 333);
    }
    // The first bag takes half of the ids.
    offsets.push_back(0);
    for (int64_t b = 1; b < bags; b++) offsets.push_back(n / 2 + (n - n / 2) * b / bags);
    offsets.push_back(n);
  }
};

struct Result {
  std::vector<float> bags, largest, sums, gradient;
  std::vector<int32_t> argmax;
  std::vector<uint64_t> keys;
  std::vector<int64_t> ids;
  int64_t distinct[2];
  bool operator==(const Result& r) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
    };
    return same(bags, r.bags) && same(largest, r.largest) && same(sums, r.sums) &&
           same(gradient, r.gradient) && same(argmax, r.argmax) && same(keys, r.keys) &&
           same(ids, r.ids) && distinct[0] == r.distinct[0] && distinct[1] == r.distinct[1];
  }
};

template <typename Args, typename Op>
void Call(const Opened& o, gb_op number, Op op, const Args& a, gb_report* report) {
  const uint64_t bytes = o.api->workspace(o.context, number, &a);
  void* const memory = std::malloc(bytes);
  EXPECT(op(o.context, nullptr, &a, gb_workspace{memory, bytes}, report) == GB_OK);
  std::free(memory);
}

void Forward(const Opened& o, const Job& j, gb_mode mode, Result* r, gb_report* report) {
  gb_bag_forward_args a = Sized<gb_bag_forward_args>();
  a.mode = mode;
  a.dim = j.dim;
  a.padding = 3;
  a.rows = In(j.rows.data(), j.n * j.dim);
  a.ids = In(j.ids.data(), j.n);
  a.offsets = In(j.offsets.data(), j.bags + 1);
  std::vector<float>& out = mode == GB_MAX ? r->largest : r->bags;
  out.assign(j.bags * j.dim, 0);
  a.out = Out(out.data(), j.bags * j.dim);
  if (mode == GB_MAX) {
    r->argmax.assign(j.bags * j.dim, 0);
    a.argmax = {r->argmax.data(), j.bags * j.dim, GB_INT32, 0};
  } else {
    a.padding = GB_NO_PADDING;
    a.weights = In(j.weights.data(), j.n);
  }
  Call(o, GB_OP_BAG_FORWARD, o.api->bag_forward, a, report);
}

void Backward(const Opened& o, const Job& j, Result* r, gb_report* report) {
  gb_bag_backward_args a = Sized<gb_bag_backward_args>();
  a.mode = GB_MEAN;
  a.dim = j.dim;
  a.padding = 3;
  a.rows = j.n;
  a.ids = In(j.ids.data(), j.n);
  a.offsets = In(j.offsets.data(), j.bags + 1);
  a.grad_out = In(j.rows.data(), j.bags * j.dim);
  r->ids.assign(j.n, 0);
  r->gradient.assign(j.n * j.dim, 0);
  a.keys = {r->ids.data(), j.n, GB_INT64, 0};
  a.out = Out(r->gradient.data(), j.n * j.dim);
  Call(o, GB_OP_BAG_BACKWARD, o.api->bag_backward, a, report);
  r->distinct[0] = report->count;
}

void Coalesce(const Opened& o, const Job& j, Result* r, gb_report* report) {
  gb_coalesce_args a = Sized<gb_coalesce_args>();
  a.dim = j.dim;
  a.weight = 3;
  a.keys = In(j.keys.data(), j.n);
  a.rows = In(j.rows.data(), j.n * j.dim);
  r->keys.assign(j.n, 0);
  r->sums.assign(j.n * j.dim, 0);
  a.out_keys = Out(r->keys.data(), j.n);
  a.out_rows = Out(r->sums.data(), j.n * j.dim);
  Call(o, GB_OP_COALESCE, o.api->coalesce, a, report);
  r->distinct[1] = report->count;
}

Result All(const Opened& o, const Job& j) {
  Result r;
  gb_report report = Sized<gb_report>();
  Forward(o, j, GB_SUM, &r, &report);
  Forward(o, j, GB_MAX, &r, &report);
  Backward(o, j, &r, &report);
  Coalesce(o, j, &r, &report);
  return r;
}

void SameBits(int64_t n, int64_t dim) {
  const Job job(n, dim, static_cast<uint64_t>(n));
  const Opened one("baseline", 1);
  const Result want = All(one, job);
  for (const char* isa : {"baseline", ""}) {
    for (const uint32_t threads : {1u, 2u, 3u, 7u}) {
      const Opened o(isa, threads);
      EXPECT(All(o, job) == want);
    }
  }
}

struct Caller {
  const Opened* o;
  const Job* job;
  const Result* want;
};

void* Repeat(void* at) {
  const Caller* c = static_cast<const Caller*>(at);
  for (int i = 0; i < 5; i++) EXPECT(All(*c->o, *c->job) == *c->want);
  return nullptr;
}

// Many callers on one pool: one of them has it, the others do without.
void Callers() {
  const Job large(20000, 16, 1), small(50, 3, 2);
  const Opened o(nullptr, 4);
  const Result want[2] = {All(o, large), All(o, small)};
  const Caller callers[2] = {{&o, &large, &want[0]}, {&o, &small, &want[1]}};
  pthread_t threads[6];
  for (int i = 0; i < 6; i++) {
    EXPECT(pthread_create(&threads[i], nullptr, Repeat, const_cast<Caller*>(&callers[i % 2])) == 0);
  }
  for (pthread_t t : threads) pthread_join(t, nullptr);
}

// A pool that is opened and closed at once has threads that never saw a job.
void OpenClose() {
  for (int i = 0; i < 50; i++) Opened(nullptr, 1 + i % 5);
}

}  // namespace

int main() {
  SameBits(40, 5);
  SameBits(400, 1);  // one bucket of keys that differ in every bit
  SameBits(3000, 33);
  SameBits(60000, 16);
  Callers();
  OpenClose();
  std::printf("%d failures\n", failures.load());
  return failures.load() == 0 ? 0 : 1;
}
