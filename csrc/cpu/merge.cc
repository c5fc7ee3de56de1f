// merge: the sum of sparse terms along the lane tree.
//
// Bytes moved: every term's rows once, every sum once; 16 bytes a key and pass of the sort.
#include <cstring>

#include "cpu/segments.h"

namespace gradbus {
namespace {

int64_t TotalOf(const gb_merge_args& a) {
  int64_t n = 0;
  for (int64_t i = 0; i < a.terms_n; i++) n += a.terms[i].keys.n;
  return n;
}

SortRequest RequestOf(const gb_merge_args& a, const uint64_t* keys) {
  SortRequest s = {};
  s.keys = {keys, TotalOf(a), GB_UINT64, 0};
  return s;
}

// All keys, one term after the other, are sorted; those of one row then stand together, in the
// order of the terms.
struct MergeParts {
  uint64_t* keys;
  uint16_t* term_of;  // of every key
  int64_t* begins;    // where each term's keys begin
  int32_t* gaps;      // gaps[i] is the depth at which terms i and i+1 part
  Step* steps;        // of every worker, for one row, as are the terms' addresses
  const void** rows;
  SortParts sort;
  SegmentParts segments;
  MergeParts(Arena& arena, const gb_context& c, const gb_merge_args& a)
      : keys(arena.Take<uint64_t>(TotalOf(a))),
        term_of(arena.Take<uint16_t>(TotalOf(a))),
        begins(arena.Take<int64_t>(a.terms_n)),
        gaps(arena.Take<int32_t>(a.terms_n)),
        steps(arena.Take<Step>(Times(2 * a.terms_n, c.pool.threads()))),
        rows(arena.Take<const void*>(Times(a.terms_n, c.pool.threads()))),
        sort(arena, c, RequestOf(a, keys)),
        segments(arena, TotalOf(a), 0) {}
};

// Merge is one call.
struct Merge {
  const Kernels& k;
  const gb_merge_args& a;
  const MergeParts& p;
  Segments s;
  gb_dtype type;
  int64_t row_bytes, out_bytes;

  void Part(int64_t part, int worker) const;
  void Row(int64_t rank, const uint64_t* words, int64_t n, int worker) const;
};

// Gather puts the keys of all terms together.
void Gather(const gb_merge_args& a, const MergeParts& p) {
  int64_t begin = 0;
  for (int64_t t = 0; t < a.terms_n; t++) {
    const gb_in& keys = a.terms[t].keys;
    p.begins[t] = begin;
    if (keys.n > 0) std::memcpy(p.keys + begin, keys.data, keys.n * sizeof(uint64_t));
    for (int64_t i = 0; i < keys.n; i++) p.term_of[begin + i] = static_cast<uint16_t>(t);
    begin += keys.n;
    if (t > 0) p.gaps[t - 1] = PartDepth(a.terms[t - 1].node, a.terms[t].node, a.lanes);
  }
}

// Row adds up the n terms that have one key.
void Merge::Row(int64_t rank, const uint64_t* words, int64_t n, int worker) const {
  const void** rows = p.rows + worker * a.terms_n;
  Planner plan(p.steps + 2 * worker * a.terms_n);
  int64_t before = 0;
  for (int64_t i = 0; i < n; i++) {
    const int64_t at = static_cast<int64_t>(s.sorted->RowOf(words[i]));
    const int64_t term = p.term_of[at];
    rows[i] = static_cast<const char*>(a.terms[term].rows.data) + (at - p.begins[term]) * row_bytes;
    int depth = 0;  // at which the term parts from the one before: that of the highest gap
    if (i > 0) {
      depth = p.gaps[before];
      for (int64_t g = before + 1; g < term; g++) depth = p.gaps[g] < depth ? p.gaps[g] : depth;
    }
    plan.Push(static_cast<int32_t>(i), depth);
    before = term;
  }
  plan.End();
  PlanRun run = {};
  run.terms = rows;
  run.type = type;
  run.out_type = a.out_rows.dtype;
  run.steps = plan.steps();
  run.steps_n = plan.count();
  run.by = a.weight == 0 ? 1 : a.weight;
  run.n = a.dim;
  run.out = static_cast<char*>(a.out_rows.data) + rank * out_bytes;
  k.steps.run_plan(run);
  static_cast<uint64_t*>(a.out_keys.data)[rank] = s.sorted->KeyOf(words[0]);
}

// Part adds up the rows whose first word lies in a part.
void Merge::Part(int64_t part, int worker) const {
  const PartOfWords& own = p.segments.parts[part];
  if (own.count == 0) return;
  const uint64_t* words = s.sorted->words;
  const int64_t n = s.sorted->n;
  const int shift = s.sorted->shift;
  int64_t lo = own.first;
  for (int64_t i = 0; i < own.count; i++) {
    int64_t end = lo + 1;
    while (end < n && words[end] >> shift == words[lo] >> shift) end++;
    Row(own.rank + i, words + lo, end - lo, worker);
    lo = end;
  }
}

}  // namespace

uint64_t NeedsOf(const gb_context& c, const gb_merge_args& a) {
  if (a.terms_n < 0 || (a.terms_n > 0 && a.terms == nullptr)) return UINT64_MAX;
  Arena arena;
  MergeParts parts(arena, c, a);
  return arena.needed();
}

gb_status CpuMerge(gb_context* context, gb_stream* stream, const gb_merge_args* a, gb_workspace w,
                   gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const MergeParts p(arena, *context, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  Gather(*a, p);
  Sorted sorted;
  if (const gb_status status = SortKeys(*context, RequestOf(*a, p.keys), p.sort, &sorted, report);
      status != GB_OK) {
    return status;
  }
  const Segments s = FindSegments(context->pool, sorted, p.segments);
  if (s.distinct > a->out_keys.n) {
    return Fail(report, GB_ROOM, "too little room for the distinct keys", -1, s.distinct,
                a->out_keys.n);
  }
  gb_dtype type = GB_FLOAT32;  // of the terms that have rows
  for (int64_t i = 0; i < a->terms_n; i++) {
    if (a->terms[i].rows.n > 0) type = a->terms[i].rows.dtype;
  }
  const Merge merge = {*context->kernels,
                       *a,
                       p,
                       s,
                       type,
                       a->dim * BytesOf(type),
                       a->dim * BytesOf(a->out_rows.dtype)};
  RunFor(context->pool, Times(sorted.n, merge.row_bytes), s.parts,
         [&](int64_t part, int worker) { merge.Part(part, worker); });
  return Done(report, s.distinct);
}

}  // namespace gradbus
