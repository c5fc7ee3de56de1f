// coalesce.
#include <cstddef>

#include "cpu/cpu.h"

namespace gradbus {
namespace {

struct CoalesceParts {
  Pair *pairs, *spare;
  CoalesceParts(Arena& arena, const gb_coalesce_args& a)
      : pairs(arena.Take<Pair>(a.keys.n)), spare(arena.Take<Pair>(a.keys.n)) {}
};

// SumSegments sums the rows of each run of equal keys. The rows of a run lie a Pair apart in
// memory.
template <typename Key>
void SumSegments(const Kernels& k, const Pair* sorted, int64_t n, const float* rows, int64_t dim,
                 Key* keys, float* out) {
  constexpr int64_t kStride = sizeof(Pair) / sizeof(int64_t);
  static_assert(offsetof(Pair, row) == 8 && sizeof(Pair) == 16, "rows are read by their stride");
  for (int64_t lo = 0, segment = 0; lo < n; segment++) {
    int64_t end = lo + 1;
    while (end < n && sorted[end].key == sorted[lo].key) end++;
    keys[segment] = static_cast<Key>(sorted[lo].key);
    k.bags.sum_rows(rows, dim, &sorted[lo].row, kStride, end - lo, out + segment * dim);
    lo = end;
  }
}

}  // namespace

uint64_t NeedsOf(const gb_context&, const gb_coalesce_args& a) {
  Arena arena;
  CoalesceParts parts(arena, a);
  return arena.needed();
}

gb_status CpuCoalesce(gb_context* context, gb_stream* stream, const gb_coalesce_args* a,
                      gb_workspace w, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  if (a->weight != 0 || a->rows.dtype != GB_FLOAT32 || a->out_rows.dtype != GB_FLOAT32 ||
      (a->keys.n > 0 && a->keys.dtype != GB_UINT64)) {
    return Fail(report, GB_UNSUPPORTED, "not written yet");
  }
  Arena arena(w);
  const CoalesceParts parts(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  const int64_t n = a->keys.n;
  for (int64_t i = 0; i < n; i++) parts.pairs[i] = {Keys(a->keys)[i], i};
  const Pair* sorted = SortPairs(parts.pairs, parts.spare, n);
  const int64_t distinct = Distinct(sorted, n);
  if (distinct > a->out_keys.n) {
    return Fail(report, GB_ROOM, "too little room for the distinct keys", -1, distinct,
                a->out_keys.n);
  }
  SumSegments(*context->kernels, sorted, n, Floats(a->rows), a->dim,
              static_cast<uint64_t*>(a->out_keys.data), Floats(a->out_rows));
  return Done(report, distinct);
}

}  // namespace gradbus
