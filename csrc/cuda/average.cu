// average: bytes moved of n float32 values in t terms: 4n(t + 1).
#include "cuda/average.cuh"
#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

template <int kDepth, Access kAccess>
__global__ void __launch_bounds__(TreeThreads(kDepth), kTreeBlocks)
    average_kernel(const GB_CONSTANT Terms terms, Quotient weight, int64_t n, void* out,
                   gb_dtype dtype) {
  const int64_t vectors = kAccess == kSingles ? (n + 3) / 4 : n / 4;
  GB_EACH(v, vectors) {
    const int count = ColumnsOf(n, v);
    const Four sum = TreeSum<kDepth, kAccess>(terms, 4 * v, count);
    Store<kAccess, kStreamed>(out, dtype, 4 * v, count, Divided(weight, sum));
  }
  if (kAccess != kSingles && blockIdx.x == 0 && threadIdx.x < n % 4) {
    const int64_t at = n - n % 4 + threadIdx.x;
    const Four sum = TreeSum<kDepth, kSingles>(terms, at, 1);
    Store<kSingles>(out, dtype, at, 1, Divided(weight, sum));
  }
}

template <int kDepth>
void LaunchAverage(Queue& queue, Access access, const Terms& terms, const Quotient& weight,
                   const gb_out& out) {
  constexpr unsigned kMine = TreeThreads(kDepth);
  const unsigned blocks = queue.Blocks((out.n + 3) / 4, kMine);
  if (access == kFloats) {
    Launch(queue, blocks, kMine, average_kernel<kDepth, kFloats>, terms, weight, out.n, out.data,
           out.dtype);
  } else if (access == kVectors) {
    Launch(queue, blocks, kMine, average_kernel<kDepth, kVectors>, terms, weight, out.n, out.data,
           out.dtype);
  } else {
    Launch(queue, blocks, kMine, average_kernel<kDepth, kSingles>, terms, weight, out.n, out.data,
           out.dtype);
  }
}

struct Op {
  using Args = gb_average_args;

  struct Parts {
    TermParts terms;
    Parts(Arena& arena, const Context&, const Args& a) : terms(arena, a.terms_n) {}
  };

  static bool Nothing(const Args& a) { return a.out.n == 0; }

  static void Stage(Travel& travel, Args& a) {
    const gb_term* was = a.terms;
    StageTerms(travel, a.terms, a.terms_n);
    for (int64_t i = 0; i < a.terms_n; i++) {
      if (was[i].values.data != a.out.data) continue;
      return travel.Over(a.out, was[i].values, a.terms[i].values);
    }
    travel.Out(a.out);
  }

  static void Run(Queue& queue, const Parts& parts, const Args& a, gb_report* report) {
    Terms terms;
    const int depth = PlanTerms(queue, parts.terms, a.terms, a.terms_n, a.lanes, &terms);
    QueueAverage(queue, terms, depth, AccessOfTerms(a.terms, a.terms_n), QuotientOf(a.weight),
                 a.out);
    Report(queue, nullptr, Verdict(), report);
  }
};

}  // namespace

void StageTerms(Travel& travel, const gb_term*& terms, int64_t n) {
  gb_term* there = travel.Host<gb_term>(n);
  for (int64_t i = 0; i < n; i++) {
    gb_term t = terms[i];
    travel.Near(t.values);
    if (!travel.counting()) there[i] = t;
  }
  if (!travel.counting()) terms = there;
}

AccessOf AccessOfTerms(const gb_term* terms, int64_t n) {
  AccessOf access(4);
  for (int64_t i = 0; i < n; i++) access.And(terms[i].values);
  return access;
}

void QueueAverage(Queue& queue, const Terms& terms, int depth, AccessOf access,
                  const Quotient& weight, const gb_out& out) {
  access.And(out);
  if (depth <= kStackSmall) {
    LaunchAverage<kStackSmall>(queue, access.best(), terms, weight, out);
  } else {
    LaunchAverage<kStackMax>(queue, access.best(), terms, weight, out);
  }
}

uint64_t NeedsOf(const Context& context, const gb_average_args& a) { return Needs<Op>(context, a); }

gb_status Average(gb_context* context, gb_stream* stream, const gb_average_args* a, gb_workspace w,
                  gb_report* report) {
  return Call<Op>(context, stream, a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
