// The optimizer on a dense tensor whose gradient comes in pieces: apply_dense reads it, and
// average_apply adds it up.
#ifndef GRADBUS_CPU_DENSE_STEP_H_
#define GRADBUS_CPU_DENSE_STEP_H_

#include <atomic>

#include "cpu/stepper.h"

namespace gradbus {

// Beyond so many bytes an output that is not also an input goes around the caches: it would be
// gone from them anyway, and reading it first would cost half as much again.
constexpr int64_t kStreamBytes = 4 << 20;

struct DenseStep {
  gb_context* context;
  const gb_optimizer* optimizer;
  float weight;
  int64_t dim;
  bool first;
  gb_nonfinite nonfinite;
  gb_in param;
  gb_out out;
  int64_t gradient_bytes;  // read per value, to judge what the work is worth
  bool whole_gradients;    // the source gives pieces of any length
};

// RunDense does the step; source(at, n, tile) gives the gradient of values [at, at+n), which it may
// put into the tile.
template <typename Source>
gb_status RunDense(const DenseStep& d, Source&& source, gb_report* report);

// NonFinite is what the threads of a call find together.
struct NonFinite {
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> first{INT64_MAX};
  void Found(int64_t n, int64_t position) {
    count.fetch_add(n, std::memory_order_relaxed);
    int64_t seen = first.load(std::memory_order_relaxed);
    while (position < seen && !first.compare_exchange_weak(seen, position)) {
    }
  }
  gb_status Refused(gb_report* report) const {
    Fail(report, GB_NONFINITE, "the gradient is not finite", first, count);
    if (report != nullptr) report->nonfinite = count;
    return GB_NONFINITE;
  }
};

template <typename Source>
class DenseRun {
 public:
  DenseRun(const DenseStep& d, const Source& source)
      : d_(d),
        source_(source),
        pool_(d.context->pool),
        stepper_(*d.context->kernels, *d.optimizer, d.weight, d.param.dtype) {
    const Slots slots = SlotsOf(*d.optimizer);
    at_.p = static_cast<const char*>(d.param.data);
    at_.out = static_cast<char*>(d.out.data);
    bool apart = at_.p != at_.out;
    for (int i = 0; i < slots.n; i++) {
      at_.s[i] = static_cast<const char*>(slots.at[i]->before.data);
      at_.out_s[i] = static_cast<char*>(slots.at[i]->after.data);
      apart = apart && at_.s[i] != at_.out_s[i];
    }
    const bool counts = d.nonfinite == GB_NONFINITE_COUNT;
    const bool whole = d.whole_gradients && !stepper_.narrow() && !counts;
    piece_ = whole ? d.param.n : kTile;
    stream_ = apart && !stepper_.narrow() && d.param.n * 4 >= kStreamBytes;
    bytes_ = d.gradient_bytes + 8 + 8 * stepper_.slots();
  }

  gb_status Run(gb_report* report) {
    if (d_.nonfinite == GB_NONFINITE_REFUSE) {
      Look();
      if (found_.count > 0) return found_.Refused(report);
    }
    stepper_.rowwise() ? Rows() : Elements();
    Done(report);
    if (report != nullptr) report->nonfinite = found_.count;
    return GB_OK;
  }

 private:
  // Each calls f(at, n, gradient) for the pieces of [lo, hi).
  template <typename F>
  void Each(int64_t lo, int64_t hi, int64_t piece, float* tile, F&& f) {
    for (int64_t at = lo; at < hi; at += piece) {
      const int64_t n = hi - at < piece ? hi - at : piece;
      f(at, n, source_(at, n, tile));
    }
  }

  void Look() {
    const Parts parts(pool_, d_.param.n, d_.gradient_bytes, kTile);
    pool_.Run(parts.count, [&](int64_t part, int) {
      float tile[kTile];
      StepRun run = stepper_.Start();
      Each(parts.Lo(part), parts.Hi(part), kTile, tile, [&](int64_t at, int64_t n, const float* g) {
        run.g = g;
        const int64_t bad = stepper_.CountNonFinite(run, n);
        if (bad > 0) found_.Found(bad, at + stepper_.FirstNonFinite(run, n));
      });
    });
  }

  // Step does values [lo, hi).
  void Step(StepRun& run, int64_t lo, int64_t hi, Tiles& t) {
    const bool counts = d_.nonfinite == GB_NONFINITE_COUNT;
    run.first = d_.first;
    run.stream = stream_;
    run.dense = !stepper_.narrow();
    Each(lo, hi, piece_, t.g, [&](int64_t at, int64_t n, const float* g) {
      run.g = g;
      if (counts) found_.count += stepper_.CountNonFinite(run, n);
      stepper_.Piece(run, at_, at, n, t);
    });
  }

  void Elements() {
    const Parts parts(pool_, d_.param.n, bytes_, kTile);
    pool_.Run(parts.count, [&](int64_t part, int) {
      Tiles t;
      StepRun run = stepper_.Start();
      Step(run, parts.Lo(part), parts.Hi(part), t);
    });
  }

  // Sum does the first half of a row-wise step of one row.
  void Sum(StepRun& run, int64_t row, int64_t dim, Tiles& t) {
    float sums[kColumnSums] = {};
    Each(row * dim, row * dim + dim, kTile, t.g, [&](int64_t at, int64_t n, const float* g) {
      run.g = g;
      stepper_.Squares(run, at_, at, n, t, sums);
    });
    Sums(at_.out_s[0])[row] =
        stepper_.NewSum(reinterpret_cast<const float*>(at_.s[0])[row], sums, dim);
  }

  void Rows() {
    constexpr int64_t kLong = 64 << 10;  // values of a row that no longer stays in the caches
    const int64_t n = d_.param.n, dim = d_.dim > 0 ? d_.dim : n;
    if (n == 0) return;
    const int64_t rows = n / dim, blocks = dim > kLong ? (dim + kLong - 1) / kLong : 1;
    const auto second = [&](StepRun& run, int64_t row, int64_t block, Tiles& t) {
      const int64_t lo = block * kLong, hi = lo + kLong < dim ? lo + kLong : dim;
      run.root = stepper_.RootOf(Sums(at_.out_s[0])[row]);
      Step(run, row * dim + lo, row * dim + hi, t);
    };
    const Parts parts(pool_, rows, dim * bytes_);
    pool_.Run(parts.count, [&](int64_t part, int) {
      Tiles t;
      StepRun run = stepper_.Start();
      for (int64_t row = parts.Lo(part); row < parts.Hi(part); row++) {
        Sum(run, row, dim, t);
        if (blocks == 1) second(run, row, 0, t);
      }
    });
    if (blocks == 1) return;
    pool_.Run(rows * blocks, [&](int64_t part, int) {
      Tiles t;
      StepRun run = stepper_.Start();
      second(run, part / blocks, part % blocks, t);
    });
  }

  static float* Sums(char* s) { return reinterpret_cast<float*>(s); }

  const DenseStep& d_;
  const Source& source_;
  Pool& pool_;
  Stepper stepper_;
  Spot at_ = {};
  int64_t piece_, bytes_;
  bool stream_;
  NonFinite found_;
};

template <typename Source>
gb_status RunDense(const DenseStep& d, Source&& source, gb_report* report) {
  return DenseRun<std::remove_reference_t<Source>>(d, source).Run(report);
}

}  // namespace gradbus

#endif  // GRADBUS_CPU_DENSE_STEP_H_
