// bag_backward: the positions are sorted by id on the host; see segments.cuh for the sums.
#include "cuda/segments.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

struct HostParts {
  Pair *pairs,
      *spare;      // one more than the ids: the array the sort leaves free becomes index and begin
  float* lengths;  // of the bags, without padding, where the mode is mean
  int64_t lengths_n;
  HostParts(Arena& arena, const gb_bag_backward_args& a)
      : pairs(arena.Take<Pair>(a.ids.n + 1)),
        spare(arena.Take<Pair>(a.ids.n + 1)),
        lengths(nullptr),
        lengths_n(a.mode == GB_MEAN ? a.offsets.n - 1 : 0) {
    if (lengths_n > 0) lengths = arena.Take<float>(lengths_n);
  }
};

}  // namespace

uint64_t NeedsOf(const gb_bag_backward_args& a) {
  Arena arena;
  HostParts parts(arena, a);
  return arena.needed();
}

gb_status BagBackward(gb_context* context, gb_stream* stream, const gb_bag_backward_args* a,
                      gb_workspace w, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const HostParts host(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  const int64_t *ids = Ints(a->ids), *offsets = Ints(a->offsets);
  int64_t n = 0;
  for (int64_t b = 0; b < a->offsets.n - 1; b++) {
    const int64_t before = n;
    for (int64_t i = offsets[b]; i < offsets[b + 1]; i++) {
      if (a->padding == GB_NO_PADDING || ids[i] != a->padding) {
        host.pairs[n++] = {static_cast<uint64_t>(ids[i]), b};
      }
    }
    if (host.lengths != nullptr) host.lengths[b] = static_cast<float>(n - before);
  }
  const Pair* sorted = SortPairs(host.pairs, host.spare, n);
  const int64_t distinct = Distinct(sorted, n);
  if (distinct > a->keys.n) {
    return Fail(report, GB_ROOM, "too little room for the distinct ids", -1, distinct, a->keys.n);
  }
  const Segments s(sorted, n, distinct, sorted == host.pairs ? host.spare : host.pairs);
  for (int64_t i = 0; i < distinct; i++) {
    static_cast<int64_t*>(a->keys.data)[i] = static_cast<int64_t>(sorted[s.begin[i]].key);
  }
  return RunSegments(context, s, a->grad_out, a->dim, host.lengths, host.lengths_n, Floats(a->out),
                     report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
