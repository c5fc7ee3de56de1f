// merge and average: sums of sparse and of dense terms along the lane tree.
//
// Bytes moved: every term once, every output once, keys twice.
#include "cpu/cpu.h"

namespace gradbus {
namespace {

constexpr int64_t kScanTerms =
    8;  // up to here the heads of the terms are compared one by one; beyond, keys are sorted

struct MergeParts {
  int64_t* heads;      // how many keys of each term are done
  int32_t* gaps;       // gaps[i] is the depth at which terms i and i+1 part
  int64_t* active;     // terms that have the present key
  const float** rows;  // and their rows
  Step* steps;
  Pair *pairs = nullptr, *spare = nullptr;  // all keys, where there are many terms
  MergeParts(Arena& arena, const gb_merge_args& a)
      : heads(arena.Take<int64_t>(a.terms_n)),
        gaps(arena.Take<int32_t>(a.terms_n)),
        active(arena.Take<int64_t>(a.terms_n)),
        rows(arena.Take<const float*>(a.terms_n)),
        steps(arena.Take<Step>(2 * a.terms_n)) {
    if (a.terms_n <= kScanTerms) return;
    pairs = arena.Take<Pair>(Total(a));
    spare = arena.Take<Pair>(Total(a));
  }
  static int64_t Total(const gb_merge_args& a) {
    int64_t n = 0;
    for (int64_t i = 0; i < a.terms_n; i++) n += a.terms[i].keys.n;
    return n;
  }
};

// Union visits the union of the keys, ascending: visit(position, key, active terms, their number),
// with heads naming where the key stands in each term. It returns the number of keys.
template <typename Visit>
int64_t ScanUnion(const gb_merge_args& a, const MergeParts& p, Visit&& visit) {
  for (int64_t i = 0; i < a.terms_n; i++) p.heads[i] = 0;
  for (int64_t position = 0;; position++) {
    int64_t n = 0;
    uint64_t key = 0;
    for (int64_t i = 0; i < a.terms_n; i++) {
      if (p.heads[i] == a.terms[i].keys.n) continue;
      const uint64_t k = Keys(a.terms[i].keys)[p.heads[i]];
      if (n == 0 || k < key) {
        p.active[0] = i;
        n = 1;
        key = k;
      } else if (k == key) {
        p.active[n++] = i;
      }
    }
    if (n == 0) return position;
    visit(position, key, n);
    for (int64_t i = 0; i < n; i++) p.heads[p.active[i]]++;
  }
}

// SortUnion does the same for many terms: the keys of all terms are sorted, equal ones staying in
// the order of terms.
template <typename Visit>
int64_t SortUnion(const gb_merge_args& a, const MergeParts& p, Visit&& visit) {
  int64_t total = 0;
  for (int64_t i = 0; i < a.terms_n; i++) {
    p.heads[i] = -1;
    for (int64_t j = 0; j < a.terms[i].keys.n; j++) {
      p.pairs[total++] = {Keys(a.terms[i].keys)[j], i};
    }
  }
  const Pair* sorted = SortPairs(p.pairs, p.spare, total);
  int64_t position = 0;
  for (int64_t lo = 0; lo < total; position++) {
    int64_t n = 0;
    const uint64_t key = sorted[lo].key;
    for (; lo < total && sorted[lo].key == key; lo++) {
      p.active[n++] = sorted[lo].row;
      p.heads[sorted[lo].row]++;
    }
    visit(position, key, n);
  }
  return position;
}

template <typename Visit>
int64_t Union(const gb_merge_args& a, const MergeParts& p, Visit&& visit) {
  return a.terms_n <= kScanTerms ? ScanUnion(a, p, visit) : SortUnion(a, p, visit);
}

// Lowest is the depth at which two terms part: that of the highest gap between them.
int Lowest(const int32_t* gaps, int64_t from, int64_t to) {
  int low = gaps[from];
  for (int64_t i = from + 1; i < to; i++) low = gaps[i] < low ? gaps[i] : low;
  return low;
}

struct AverageParts {
  const float** terms;
  Step* steps;
  AverageParts(Arena& arena, const gb_average_args& a)
      : terms(arena.Take<const float*>(a.terms_n)), steps(arena.Take<Step>(2 * a.terms_n)) {}
};

}  // namespace

uint64_t NeedsOf(const gb_merge_args& a) {
  Arena arena;
  MergeParts parts(arena, a);
  return arena.needed();
}

uint64_t NeedsOf(const gb_average_args& a) {
  Arena arena;
  AverageParts parts(arena, a);
  return arena.needed();
}

gb_status CpuMerge(gb_context* context, gb_stream* stream, const gb_merge_args* a, gb_workspace w,
                   gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const MergeParts p(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  if (MergeParts::Total(*a) > a->out_keys.n) {  // there may still be room for the distinct ones
    const int64_t distinct = Union(*a, p, [](int64_t, uint64_t, int64_t) {});
    if (distinct > a->out_keys.n) {
      return Fail(report, GB_ROOM, "too little room for the distinct keys", -1, distinct,
                  a->out_keys.n);
    }
  }
  for (int64_t i = 0; i + 1 < a->terms_n; i++) {
    p.gaps[i] = PartDepth(a->terms[i].node, a->terms[i + 1].node, a->lanes);
  }
  Planner plan(p.steps);
  const int64_t count = Union(*a, p, [&](int64_t position, uint64_t key, int64_t n) {
    static_cast<uint64_t*>(a->out_keys.data)[position] = key;
    plan.Reset();
    for (int64_t i = 0; i < n; i++) {
      const int64_t t = p.active[i];
      p.rows[i] = Floats(a->terms[t].rows) + p.heads[t] * a->dim;
      plan.Push(static_cast<int32_t>(i), i == 0 ? 0 : Lowest(p.gaps, p.active[i - 1], t));
    }
    plan.End();
    context->kernels->run_plan(p.rows, plan.steps(), plan.count(), 1.0f, a->dim,
                               Floats(a->out_rows) + position * a->dim);
  });
  return Done(report, count);
}

gb_status CpuAverage(gb_context* context, gb_stream* stream, const gb_average_args* a,
                     gb_workspace w, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const AverageParts p(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  Planner plan(p.steps);
  for (int64_t i = 0; i < a->terms_n; i++) {
    p.terms[i] = Floats(a->terms[i].values);
    plan.Push(static_cast<int32_t>(i),
              i == 0 ? 0 : PartDepth(a->terms[i - 1].node, a->terms[i].node, a->lanes));
  }
  plan.End();
  context->kernels->run_plan(p.terms, plan.steps(), plan.count(), a->weight, a->out.n,
                             Floats(a->out));
  return Done(report);
}

}  // namespace gradbus
