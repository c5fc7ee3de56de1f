// coalesce: see segments.cuh for the sums.
#include "cuda/segments.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

struct HostParts {
  Pair *pairs,
      *spare;  // one more than the keys: the array the sort leaves free becomes index and begin
  HostParts(Arena& arena, const gb_coalesce_args& a)
      : pairs(arena.Take<Pair>(a.keys.n + 1)), spare(arena.Take<Pair>(a.keys.n + 1)) {}
};

}  // namespace

uint64_t NeedsOf(const gb_coalesce_args& a) {
  Arena arena;
  HostParts parts(arena, a);
  return arena.needed();
}

gb_status Coalesce(gb_context* context, gb_stream* stream, const gb_coalesce_args* a,
                   gb_workspace w, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const HostParts host(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  const int64_t n = a->keys.n;
  for (int64_t i = 0; i < n; i++) host.pairs[i] = {Keys(a->keys)[i], i};
  const Pair* sorted = SortPairs(host.pairs, host.spare, n);
  const int64_t distinct = Distinct(sorted, n);
  if (distinct > a->out_keys.n) {
    return Fail(report, GB_ROOM, "too little room for the distinct keys", -1, distinct,
                a->out_keys.n);
  }
  const Segments s(sorted, n, distinct, sorted == host.pairs ? host.spare : host.pairs);
  for (int64_t i = 0; i < distinct; i++) {
    static_cast<uint64_t*>(a->out_keys.data)[i] = sorted[s.begin[i]].key;
  }
  return RunSegments(context, s, a->rows, a->dim, nullptr, 0, Floats(a->out_rows), report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
