// average_apply: the sum along the lane tree stays in registers and goes straight into the
// optimizer. It goes through the workspace where the whole gradient is needed first, that is for
// row-wise rules and where one value may refuse the call, and where a large tree's stack leaves the
// optimizer no registers: then the terms are so many that the two more passes hardly count.
//
// Bytes moved of n float32 values in t terms: average's 4nt, and apply_dense's without its
// gradient.
#include "cuda/average.cuh"
#include "cuda/dense.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

template <Kind kKind, Access kAccess>
__global__ void __launch_bounds__(kThreads, kTreeBlocks)
    average_apply_kernel(const GB_CONSTANT Terms terms, DenseCall c) {
  const int64_t vectors = kAccess == kSingles ? (c.n + 3) / 4 : c.n / 4;
  const When when = {c.first != 0, 0, 0};
  unsigned bad = 0;
  GB_EACH(v, vectors) {
    const int count = ColumnsOf(c.n, v);
    const Held held = FetchRow<kKind, kAccess, true>(c.target, 4 * v, count);
    const Four d = Divided(c.weight, TreeSum<kStackSmall, kAccess>(terms, 4 * v, count));
    if (c.nonfinite == GB_NONFINITE_COUNT) bad += CountNonFinite(d);
    FinishRow<kKind, kAccess, true>(c.target, c.rule, when, held, d, 4 * v, count);
  }
  if (kAccess != kSingles && blockIdx.x == 0 && threadIdx.x < c.n % 4) {
    const int64_t at = c.n - c.n % 4 + threadIdx.x;
    const Held held = FetchRow<kKind, kSingles, false>(c.target, at, 1);
    const Four d = Divided(c.weight, TreeSum<kStackSmall, kSingles>(terms, at, 1));
    if (c.nonfinite == GB_NONFINITE_COUNT) bad += CountNonFinite(d);
    FinishRow<kKind, kSingles, false>(c.target, c.rule, when, held, d, at, 1);
  }
  if (c.nonfinite == GB_NONFINITE_COUNT) AddCount(&c.flags->nonfinite, bad);
}

template <Kind kKind>
void LaunchFused(Queue& queue, Access access, const Terms& terms, const DenseCall& c) {
  const unsigned blocks = queue.Blocks((c.n + 3) / 4, kThreads);
  if (access == kFloats) {
    Launch(queue, blocks, kThreads, average_apply_kernel<kKind, kFloats>, terms, c);
  } else if (access == kVectors) {
    Launch(queue, blocks, kThreads, average_apply_kernel<kKind, kVectors>, terms, c);
  } else {
    Launch(queue, blocks, kThreads, average_apply_kernel<kKind, kSingles>, terms, c);
  }
}

void QueueFused(Queue& queue, Access access, Kind kind, const Terms& terms, const DenseCall& c) {
  switch (kind) {
    case kSgd:
      return LaunchFused<kSgd>(queue, access, terms, c);
    case kMomentum:
      return LaunchFused<kMomentum>(queue, access, terms, c);
    case kAdagrad:
      return LaunchFused<kAdagrad>(queue, access, terms, c);
    case kFtrl:
      return LaunchFused<kFtrl>(queue, access, terms, c);
    default:
      return LaunchFused<kAdam>(queue, access, terms, c);
  }
}

bool Fuses(const gb_average_apply_args& a) {
  return a.optimizer.kind != GB_ROWWISE_ADAGRAD && a.nonfinite != GB_NONFINITE_REFUSE &&
         StackOf(a.terms_n, a.lanes) <= kStackSmall;
}

struct Op {
  using Args = gb_average_apply_args;

  struct Parts {
    TermParts terms;
    Flags* flags;
    float* sum;  // null where the sum stays in registers
    Parts(Arena& arena, const Context&, const Args& a)
        : terms(arena, a.terms_n),
          flags(a.nonfinite == GB_NONFINITE_IGNORE ? nullptr : arena.Take<Flags>(1)),
          sum(Fuses(a) ? nullptr : arena.Take<float>(a.param.n)) {}
  };

  static bool Nothing(const Args& a) { return a.param.n == 0; }

  static void Stage(Travel& travel, Args& a) {
    const gb_in param = a.param;
    StageTerms(travel, a.terms, a.terms_n);
    travel.Near(a.param);
    travel.Over(a.out, param, a.param);
    StageSlots(travel, a.optimizer);
  }

  static void Run(Queue& queue, const Parts& parts, const Args& a, gb_report* report) {
    DenseCall call = {};
    call.target = DenseTarget(a.param, a.out, a.optimizer, a.dim);
    call.rule = RuleOf(a.optimizer);
    call.weight = QuotientOf(a.weight);
    call.first = a.first;
    call.n = a.param.n;
    call.flags = parts.flags;
    call.nonfinite = a.nonfinite;
    if (parts.flags != nullptr) ZeroFlags(queue, parts.flags);
    Terms terms;
    const int depth = PlanTerms(queue, parts.terms, a.terms, a.terms_n, a.lanes, &terms);
    AccessOf access = AccessOfTerms(a.terms, a.terms_n);
    if (parts.sum != nullptr) {
      QueueAverage(queue, terms, depth, access, QuotientOf(0), {parts.sum, call.n, GB_FLOAT32, 0});
      call.grad = parts.sum;
      call.grad_dtype = GB_FLOAT32;
      QueueDense(queue, call);
    } else {
      const Kind kind = KindOf(call.rule);
      And(access, call.target, kind);
      QueueFused(queue, access.best(), kind, terms, call);
    }
    Verdict verdict;
    verdict.NonFinite();
    Report(queue, parts.flags, verdict, report);
  }
};

}  // namespace

uint64_t NeedsOf(const Context& context, const gb_average_apply_args& a) {
  return Needs<Op>(context, a);
}

gb_status AverageApply(gb_context* context, gb_stream* stream, const gb_average_apply_args* a,
                       gb_workspace w, gb_report* report) {
  return Call<Op>(context, stream, a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
