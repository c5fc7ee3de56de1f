// The union of the keys of sparse terms, and the plan by which the rows of one key are added along
// the lane tree.
#ifndef GRADBUS_CORE_UNION_H_
#define GRADBUS_CORE_UNION_H_

#include "core/core.h"

namespace gradbus {

constexpr int64_t kScanTerms =
    8;  // up to here the heads of the terms are compared one by one; beyond, keys are sorted

// UnionParts is the memory of a walk over the union of the terms' keys.
struct UnionParts {
  int64_t* heads;   // how many keys of each term are done
  int32_t* gaps;    // gaps[i] is the depth at which terms i and i+1 part
  int64_t* active;  // terms that have the present key
  Step* steps;
  Pair *pairs = nullptr, *spare = nullptr;  // all keys, where there are many terms
  UnionParts(Arena& arena, const gb_merge_args& a)
      : heads(arena.Take<int64_t>(a.terms_n)),
        gaps(arena.Take<int32_t>(a.terms_n)),
        active(arena.Take<int64_t>(a.terms_n)),
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
int64_t ScanUnion(const gb_merge_args& a, const UnionParts& p, Visit&& visit) {
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
int64_t SortUnion(const gb_merge_args& a, const UnionParts& p, Visit&& visit) {
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
int64_t Union(const gb_merge_args& a, const UnionParts& p, Visit&& visit) {
  return a.terms_n <= kScanTerms ? ScanUnion(a, p, visit) : SortUnion(a, p, visit);
}

// Lowest is the depth at which two terms part: that of the highest gap between them.
inline int Lowest(const int32_t* gaps, int64_t from, int64_t to) {
  int low = gaps[from];
  for (int64_t i = from + 1; i < to; i++) low = gaps[i] < low ? gaps[i] : low;
  return low;
}

// CheckRoom refuses outputs that cannot hold the distinct keys.
inline gb_status CheckRoom(const gb_merge_args& a, const UnionParts& p, gb_report* report) {
  if (UnionParts::Total(a) <= a.out_keys.n) return GB_OK;
  const int64_t distinct = Union(a, p, [](int64_t, uint64_t, int64_t) {});
  if (distinct <= a.out_keys.n) return GB_OK;
  return Fail(report, GB_ROOM, "too little room for the distinct keys", -1, distinct, a.out_keys.n);
}

// FillGaps must run before PlanOf.
inline void FillGaps(const gb_merge_args& a, const UnionParts& p) {
  for (int64_t i = 0; i + 1 < a.terms_n; i++) {
    p.gaps[i] = PartDepth(a.terms[i].node, a.terms[i + 1].node, a.lanes);
  }
}

// PlanOf plans the sum of the first n active terms; a step i stands for the i-th of them.
inline void PlanOf(const UnionParts& p, int64_t n, Planner& plan) {
  plan.Reset();
  for (int64_t i = 0; i < n; i++) {
    plan.Push(static_cast<int32_t>(i), i == 0 ? 0 : Lowest(p.gaps, p.active[i - 1], p.active[i]));
  }
  plan.End();
}

}  // namespace gradbus

#endif  // GRADBUS_CORE_UNION_H_
