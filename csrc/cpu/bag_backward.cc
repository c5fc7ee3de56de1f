// bag_backward: the gradients of bags, summed over the ids that name a row.
//
// Bytes moved: grad_out once for every id that counts (from the caches, where ids of one bag are
// close), every sum once; with mean grad_out twice more.
#include "core/check.h"
#include "cpu/segments.h"

namespace gradbus {
namespace {

// ByPosition says that a row's place in ids is needed beside its bag.
bool ByPosition(const gb_bag_backward_args& a) { return a.mode == GB_MAX || a.weights.n > 0; }

// Request is what to sort; bags and bag_of are filled in where they are known.
SortRequest RequestOf(const gb_bag_backward_args& a, const Bags* bags, uint32_t* bag_of) {
  SortRequest s = {};
  s.keys = a.ids;
  s.limit = static_cast<uint64_t>(a.rows);
  s.padding = a.padding;
  s.skip = a.policy == GB_SKIP;
  s.bags = bags;
  s.row_is_bag = !ByPosition(a);
  s.bag_of = bag_of;
  return s;
}

struct BackwardParts {
  Bags bags;
  uint32_t* bag_of;  // of every position
  float* scaled;     // grad_out divided by the lengths of the bags
  SortParts sort;
  SegmentParts segments;
  BackwardParts(Arena& arena, const gb_context& c, const gb_bag_backward_args& a)
      : bags(a),
        bag_of(ByPosition(a) ? arena.Take<uint32_t>(a.ids.n) : nullptr),
        scaled(a.mode == GB_MEAN ? arena.Take<float>(a.grad_out.n) : nullptr),
        sort(arena, c, RequestOf(a, &bags, bag_of)),
        segments(arena, a.ids.n, a.dim) {}
};

// Counted is how many positions of a bag count.
int64_t Counted(const gb_bag_backward_args& a, const Bags& bags, int64_t bag) {
  const int64_t lo = bags.Begin(bag), end = bags.Begin(bag + 1);
  if (a.padding == GB_NO_PADDING && a.policy != GB_SKIP) return end - lo;
  int64_t n = 0;
  for (int64_t i = lo; i < end; i++) {
    const int64_t id = a.ids.dtype == GB_INT32 ? static_cast<const int32_t*>(a.ids.data)[i]
                                               : static_cast<const int64_t*>(a.ids.data)[i];
    n += static_cast<uint64_t>(id) < static_cast<uint64_t>(a.rows) &&
         (id != a.padding || a.padding == GB_NO_PADDING);
  }
  return n;
}

// Scale divides the gradient of every bag by its length.
void Scale(gb_context& c, const gb_bag_backward_args& a, const BackwardParts& p) {
  constexpr int64_t kCost = 4096;
  const int64_t row = a.dim * BytesOf(a.grad_out.dtype);
  const char* const grad = static_cast<const char*>(a.grad_out.data);
  RunFor(c.pool, p.bags.bags * row, p.bags.Cost() / kCost + 1, [&](int64_t part, int) {
    const int64_t end = p.bags.Cut((part + 1) * kCost);
    for (int64_t b = p.bags.Cut(part * kCost); b < end; b++) {
      const int64_t n = Counted(a, p.bags, b);
      if (n == 0) continue;
      c.kernels->bags.scale(grad + b * row, a.grad_out.dtype, static_cast<float>(n), a.dim,
                            p.scaled + b * a.dim);
    }
  });
}

RowSource SourceOf(const gb_bag_backward_args& a, const BackwardParts& p) {
  RowSource source = {a.grad_out.data, a.grad_out.dtype, a.dim};
  if (a.mode == GB_MEAN) {
    source.base = p.scaled;
    source.type = GB_FLOAT32;
  }
  if (ByPosition(a)) source.bag_of = p.bag_of;
  if (a.weights.n > 0) source.weights = Floats(a.weights);
  if (a.mode == GB_MAX) source.argmax = static_cast<const int32_t*>(a.argmax.data);
  return source;
}

}  // namespace

uint64_t NeedsOf(const gb_context& c, const gb_bag_backward_args& a) {
  Arena arena;
  BackwardParts parts(arena, c, a);
  return arena.needed();
}

gb_status CpuBagBackward(gb_context* context, gb_stream* stream, const gb_bag_backward_args* a,
                         gb_workspace w, gb_report* report) {
  GB_BEGIN_SHAPES(context, stream, a, report);
  GB_TRY(CheckOffsets(a->offsets, a->open_offsets != 0, a->ids.n, report));
  Arena arena(w);
  const BackwardParts p(arena, *context, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  Sorted sorted;
  GB_TRY(SortKeys(*context, RequestOf(*a, &p.bags, p.bag_of), p.sort, &sorted, report));
  const Segments s = FindSegments(context->pool, sorted, p.segments);
  if (s.distinct > a->keys.n) {
    return Fail(report, GB_ROOM, "too little room for the distinct ids", -1, s.distinct, a->keys.n);
  }
  if (a->mode == GB_MEAN) Scale(*context, *a, p);
  WriteSums(*context, s, SourceOf(*a, p), 0, a->keys, a->out);
  Done(report, s.distinct);
  if (report != nullptr) report->skipped = sorted.skipped;
  return GB_OK;
}

}  // namespace gradbus
