// coalesce_apply: sums of the rows of equal keys, and the optimizer on the rows that they name.
//
// A few rows are summed into memory that stays in L1, and the optimizer takes them from there; the
// table's rows and slots of the next few are prefetched.
//
// Bytes moved: every row of the gradient once, table and slots of the distinct keys read and
// written once; the keys several times, by the sort.
#include "cpu/cpu.h"
#include "cpu/dense_step.h"
#include "cpu/row_step.h"
#include "cpu/segments.h"

namespace gradbus {
namespace {

constexpr int64_t kSums = 4096;  // floats of a batch of summed rows: 16 KB

int64_t SumsOf(int64_t dim) { return dim > kSums ? dim : kSums; }

SortRequest RequestOf(const gb_coalesce_apply_args& a) {
  SortRequest s;
  s.keys = a.keys;
  s.limit = static_cast<uint64_t>(a.table.n / a.dim);
  s.skip = a.policy == GB_SKIP;
  return s;
}

struct CallParts {
  SortParts sort;
  SegmentParts segments;
  float* sums;  // of every worker
  CallParts(Arena& arena, const gb_context& c, const gb_coalesce_apply_args& a)
      : sort(arena, c, RequestOf(a)),
        segments(arena, a.keys.n, a.dim),
        sums(arena.Take<float>(SumsOf(a.dim) * c.pool.threads())) {}
};

class Call {
 public:
  Call(gb_context* c, const gb_coalesce_apply_args& a, const Segments& segments, float* sums)
      : context_(*c),
        a_(a),
        step_(*c->kernels, a.dim, a.weight, a.optimizer, a.steps, a.table, a.out, GB_FLOAT32),
        segments_(segments),
        source_{a.rows.data, a.rows.dtype, a.dim},
        sums_(sums),
        keys_(a.out_keys.n > 0 ? static_cast<int64_t*>(a.out_keys.data) : nullptr) {
    each_ = kSums / a.dim;
    each_ = each_ < 1 ? 1 : each_ > RowStep::kMany ? RowStep::kMany : each_;
  }

  gb_status Run(gb_report* report) {
    const int64_t distinct = segments_.distinct;
    if ((keys_ != nullptr || !step_.in_place()) && distinct > a_.out_keys.n) {
      return Fail(report, GB_ROOM, "too little room for the distinct keys", -1, distinct,
                  a_.out_keys.n);
    }
    if (a_.nonfinite == GB_NONFINITE_REFUSE) {
      Each([this](RowStep::Worker& w, const Few& few, const float* sums) { Look(w, few, sums); });
      if (found_.count > 0) return found_.Refused(report);
    }
    const bool count = a_.nonfinite == GB_NONFINITE_COUNT;
    Each([this, count](RowStep::Worker& w, const Few& few, const float* sums) {
      int64_t to[RowStep::kMany];
      for (int64_t i = 0; i < few.n; i++) {
        to[i] = step_.in_place() ? few.rows[i] : few.rank + i;
        if (keys_ != nullptr) keys_[few.rank + i] = few.rows[i];
      }
      step_.ApplyMany(w, few.rows, to, few.n, sums, nullptr, count);
    });
    Done(report, distinct);
    if (report != nullptr) {
      report->skipped = segments_.sorted->skipped;
      report->nonfinite = found_.count;
    }
    return GB_OK;
  }

 private:
  // Few is a few distinct keys: the rows of the table that they name, and the rank of the first.
  struct Few {
    int64_t rank, n;
    int64_t rows[RowStep::kMany];
  };

  void Look(RowStep::Worker& w, const Few& few, const float* sums) {
    for (int64_t i = 0; i < few.n; i++) {
      int64_t at = 0;
      const int64_t bad = step_.NonFinite(w, sums + i * a_.dim, &at);
      if (bad > 0) found_.Found(bad, (few.rank + i) * a_.dim + at);
    }
  }

  // Each calls f(worker, few, sums) until all distinct keys have been there.
  template <typename F>
  void Each(F&& f) {
    const BagKernels& k = context_.kernels->bags;
    const int64_t room = SumsOf(a_.dim);
    EachSegment(
        context_, segments_, source_,
        [&](const Span& span, int worker) { EachOf(span, sums_ + worker * room, f); },
        [&](const LongSegment& l, const float* supers, int worker) {
          float* const sum = sums_ + worker * room;
          k.total(supers, l.supers(), a_.dim, 0, sum, GB_FLOAT32);
          RowStep::Worker w;
          step_.Start(w);
          const uint64_t key = segments_.sorted->KeyOf(segments_.sorted->words[l.lo]);
          f(w, Few{l.rank, 1, {static_cast<int64_t>(key)}}, sum);
          found_.count += w.nonfinite;
        });
  }

  template <typename F>
  void EachOf(const Span& span, float* sums, F&& f) {
    RowStep::Worker w;
    step_.Start(w);
    Few now, next;
    Take(span, 0, &next);
    while (next.n > 0) {
      now = next;
      const int64_t lo = now.rank - span.rank;
      Take(span, lo + now.n, &next);
      Sum(span, lo, now.n, sums);
      f(w, now, sums);
    }
    found_.count += w.nonfinite;
  }

  // Take takes the next few keys of a span from segment lo on, and fetches their rows.
  void Take(const Span& span, int64_t lo, Few* few) const {
    const int64_t left = span.run.segments - lo;
    few->rank = span.rank + lo;
    few->n = left < each_ ? left : each_;
    for (int64_t i = 0; i < few->n; i++) {
      few->rows[i] = static_cast<int64_t>(segments_.sorted->KeyOf(span.WordOf(lo + i)));
      step_.Prefetch(few->rows[i]);
    }
  }

  // Sum sums n segments of a span.
  void Sum(const Span& span, int64_t lo, int64_t n, float* sums) const {
    const uint32_t begin = lo == 0 ? 0 : span.run.ends[lo - 1];
    uint32_t ends[RowStep::kMany];
    for (int64_t i = 0; i < n; i++) ends[i] = span.run.ends[lo + i] - begin;
    RowsRun run = span.run;
    run.at += begin;
    run.ends = ends;
    run.segments = n;
    run.out_type = GB_FLOAT32;
    run.out = sums;
    context_.kernels->bags.sum(run);
  }

  gb_context& context_;
  const gb_coalesce_apply_args& a_;
  RowStep step_;
  const Segments& segments_;
  RowSource source_;
  float* sums_;
  int64_t* keys_;
  int64_t each_;
  NonFinite found_;
};

}  // namespace

uint64_t NeedsOf(const gb_context& c, const gb_coalesce_apply_args& a) {
  Arena arena;
  CallParts parts(arena, c, a);
  return arena.needed();
}

gb_status CpuCoalesceApply(gb_context* context, gb_stream* stream, const gb_coalesce_apply_args* a,
                           gb_workspace w, gb_report* report) {
  if (const gb_status s = Begin(context, stream, report); s != GB_OK) return s;
  // The sort looks at the keys itself.
  if (const gb_status s = CheckShapes(a, report); s != GB_OK) return s;
  Arena arena(w);
  const CallParts parts(arena, *context, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  Sorted sorted;
  if (const gb_status s = SortKeys(*context, RequestOf(*a), parts.sort, &sorted, report);
      s != GB_OK) {
    return s;
  }
  const Segments segments = FindSegments(context->pool, sorted, parts.segments);
  Call call(context, *a, segments, parts.sums);
  return call.Run(report);
}

}  // namespace gradbus
