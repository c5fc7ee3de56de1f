// Times of the CPU backend's sparse operations, through the C interface, for work on the kernels.
//
//   cmake --build build --target gradbus_bench && build/gradbus_bench [isa] [rows] [dim]
//
// Each line: the median and the least of several runs for one and two threads, the bytes by the
// formula (each distinct row once) over the median. What the project promises is measured by
// psbench and compare_torch.py.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <unordered_set>
#include <vector>

#include "gradbus.h"

namespace {

double Now() {
  const auto t = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(t).count();
}

struct Times {
  double median, least;
};

template <typename F>
Times Measure(F&& f) {
  double seconds[21];
  f();
  for (double& s : seconds) {
    const double from = Now();
    f();
    s = Now() - from;
  }
  std::sort(std::begin(seconds), std::end(seconds));
  return {seconds[10], seconds[0]};
}

void Must(gb_status status, const gb_report& r) {
  if (status == GB_OK) return;
  std::printf("status %d: %s\n", status, r.message == nullptr ? "" : r.message);
  std::exit(1);
}

struct Backend {
  const gb_api* api = gb_backend(GB_ABI);
  gb_context* context = nullptr;
  gb_report report = {};
  Backend(const char* isa, uint32_t threads) {
    report.size = sizeof report;
    gb_open_args a = {};
    a.size = sizeof a;
    a.threads = threads;
    a.isa = isa;
    Must(api->open(&a, &context, &report), report);
  }
  ~Backend() { api->close(context); }
  template <typename T>
  T* Alloc(int64_t n) {
    void* memory = nullptr;
    Must(api->alloc(context, static_cast<uint64_t>(n) * sizeof(T), &memory, &report), report);
    std::memset(memory, 0, static_cast<size_t>(n) * sizeof(T));
    return static_cast<T*>(memory);
  }
};

void Say(const char* what, int64_t dim, int threads, Times t, double bytes) {
  std::printf("%-30s dim %4lld threads %d  %8.3f ms (least %8.3f)  %6.2f GB/s\n", what,
              static_cast<long long>(dim), threads, t.median * 1e3, t.least * 1e3,
              bytes / t.median / 1e9);
}

// Zipf draws from [0, n) with exponent 1.05 by the inverse of the continuous distribution.
int64_t Zipf(std::mt19937_64& random, int64_t n) {
  const double s = 1.05, u = static_cast<double>(random() >> 11) / 9007199254740992.0;
  const double most = std::pow(static_cast<double>(n), 1 - s);
  const double x = std::pow(1 - u * (1 - most), 1 / (1 - s));
  return std::min(n - 1, static_cast<int64_t>(x) - 1);
}

// Scattered gives ids an order that has nothing to do with how often they come.
int64_t Scattered(int64_t id, int64_t n) { return (id * 7919 + 12345) % n; }

struct Sizes {
  int64_t rows = 1000000, dim = 64;
};

void Forward(const char* isa, int threads, Sizes s, int64_t bags, int64_t length, bool zipf) {
  Backend b(isa, static_cast<uint32_t>(threads));
  std::mt19937_64 random(1);
  const int64_t n = bags * length;
  float* table = b.Alloc<float>(s.rows * s.dim);
  float* out = b.Alloc<float>(bags * s.dim);
  int64_t* ids = b.Alloc<int64_t>(n);
  int64_t* offsets = b.Alloc<int64_t>(bags + 1);
  std::unordered_set<int64_t> distinct;
  for (int64_t i = 0; i < n; i++) {
    ids[i] = zipf ? Scattered(Zipf(random, s.rows), s.rows)
                  : static_cast<int64_t>(random() % static_cast<uint64_t>(s.rows));
    distinct.insert(ids[i]);
  }
  for (int64_t i = 0; i <= bags; i++) offsets[i] = i * length;
  gb_bag_forward_args a = {};
  a.size = sizeof a;
  a.dim = s.dim;
  a.padding = GB_NO_PADDING;
  a.rows = {table, s.rows * s.dim, GB_FLOAT32, 0};
  a.ids = {ids, n, GB_INT64, 0};
  a.offsets = {offsets, bags + 1, GB_INT64, 0};
  a.out = {out, bags * s.dim, GB_FLOAT32, 0};
  const uint64_t bytes = b.api->workspace(b.context, GB_OP_BAG_FORWARD, &a);
  const gb_workspace w = {b.Alloc<char>(static_cast<int64_t>(bytes)), bytes};
  const Times t =
      Measure([&] { Must(b.api->bag_forward(b.context, nullptr, &a, w, &b.report), b.report); });
  char name[64];
  std::snprintf(name, sizeof name, "forward %lldx%lld %s", static_cast<long long>(bags),
                static_cast<long long>(length), zipf ? "zipf" : "uniform");
  const double moved = static_cast<double>(distinct.size()) * s.dim * 4. + bags * s.dim * 4. +
                       static_cast<double>(n) * 8;
  Say(name, s.dim, threads, t, moved);
}

void Coalesce(const char* isa, int threads, Sizes s, int64_t n, bool zipf) {
  Backend b(isa, static_cast<uint32_t>(threads));
  std::mt19937_64 random(1);
  float* rows = b.Alloc<float>(n * s.dim);
  float* out = b.Alloc<float>(n * s.dim);
  int64_t* keys = b.Alloc<int64_t>(n);
  int64_t* out_keys = b.Alloc<int64_t>(n);
  for (int64_t i = 0; i < n; i++) {
    keys[i] = zipf ? Scattered(Zipf(random, s.rows), s.rows)
                   : static_cast<int64_t>(random() % static_cast<uint64_t>(s.rows));
  }
  gb_coalesce_args a = {};
  a.size = sizeof a;
  a.dim = s.dim;
  a.keys = {keys, n, GB_INT64, 0};
  a.rows = {rows, n * s.dim, GB_FLOAT32, 0};
  a.out_keys = {out_keys, n, GB_INT64, 0};
  a.out_rows = {out, n * s.dim, GB_FLOAT32, 0};
  const uint64_t bytes = b.api->workspace(b.context, GB_OP_COALESCE, &a);
  const gb_workspace w = {b.Alloc<char>(static_cast<int64_t>(bytes)), bytes};
  const Times t =
      Measure([&] { Must(b.api->coalesce(b.context, nullptr, &a, w, &b.report), b.report); });
  char name[64];
  std::snprintf(name, sizeof name, "coalesce %lld to %lld", static_cast<long long>(n),
                static_cast<long long>(b.report.count));
  Say(name, s.dim, threads, t, static_cast<double>(n + b.report.count) * (s.dim * 4. + 8));
}

void Stream(const char* isa, int threads) {
  Backend b(isa, static_cast<uint32_t>(threads));
  const int64_t n = int64_t{1} << 30;
  char* from = b.Alloc<char>(n);
  char* to = b.Alloc<char>(n);
  gb_copy_args copy = {sizeof(gb_copy_args), 0, from, to, n};
  gb_first_nonfinite_args read = {sizeof(gb_first_nonfinite_args), 0, {from, n / 4, 0, 0}};
  const gb_workspace none = {nullptr, 0};
  double seconds[2] = {1e9, 1e9};
  for (int i = 0; i < 5; i++) {
    double start = Now();
    Must(b.api->copy(b.context, nullptr, &copy, none, &b.report), b.report);
    seconds[0] = std::min(seconds[0], Now() - start);
    start = Now();
    Must(b.api->first_nonfinite(b.context, nullptr, &read, none, &b.report), b.report);
    seconds[1] = std::min(seconds[1], Now() - start);
  }
  std::printf("threads %d: copy %.1f GB/s, read %.1f GB/s\n", threads,
              2 * static_cast<double>(n) / seconds[0] / 1e9,
              static_cast<double>(n) / seconds[1] / 1e9);
  b.api->free(b.context, from, static_cast<uint64_t>(n));
  b.api->free(b.context, to, static_cast<uint64_t>(n));
}

}  // namespace

int main(int argc, char** argv) {
  const char* isa = argc > 1 ? argv[1] : "";
  Sizes s;
  if (argc > 2) s.rows = std::atoll(argv[2]);
  if (argc > 3) s.dim = std::atoll(argv[3]);
  for (const int threads : {1, 2}) {
    Stream(isa, threads);
    Forward(isa, threads, s, 8192, 20, false);
    Forward(isa, threads, s, 8192, 20, true);
    Forward(isa, threads, s, 65536, 1, false);
    Coalesce(isa, threads, s, 8192 * 20, true);
    Coalesce(isa, threads, s, 8192 * 20, false);
  }
  return 0;
}
