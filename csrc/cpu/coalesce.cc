// coalesce.
//
// Bytes moved: every row is read once and every sum written once; 16 bytes a key and pass of the
// sort, which for ids below 2^22 has two.
#include "core/check.h"
#include "cpu/segments.h"

namespace gradbus {
namespace {

SortRequest RequestOf(const gb_coalesce_args& a) {
  SortRequest s = {};
  s.keys = a.keys;
  if (a.keys.dtype != GB_UINT64) s.limit = uint64_t{1} << 63;  // not negative
  return s;
}

struct CoalesceParts {
  SortParts sort;
  SegmentParts segments;
  CoalesceParts(Arena& arena, const gb_context& c, const gb_coalesce_args& a)
      : sort(arena, c, RequestOf(a)), segments(arena, a.keys.n, a.dim) {}
};

void KeepKey(const gb_out& keys, int64_t at, uint64_t key) {
  if (keys.dtype == GB_INT32) {
    static_cast<int32_t*>(keys.data)[at] = static_cast<int32_t>(key);
  } else {
    static_cast<uint64_t*>(keys.data)[at] = key;
  }
}

}  // namespace

void WriteSums(gb_context& c, const Segments& s, const RowSource& source, float weight,
               const gb_out& keys, const gb_out& rows) {
  const int64_t bytes = source.dim * BytesOf(rows.dtype);
  const Kernels& k = *c.kernels;
  char* const out = static_cast<char*>(rows.data);
  const bool stream = s.distinct * bytes >= kAroundBytes;
  EachSegment(
      c, s, source,
      [&](Span& span, int) {
        span.run.out_type = rows.dtype;
        span.run.out = out + span.rank * bytes;
        span.run.by = weight;
        span.run.stream = stream;
        k.bags.sum(span.run);
        for (int64_t i = 0; i < span.run.segments; i++) {
          KeepKey(keys, span.rank + i, s.sorted->KeyOf(span.WordOf(i)));
        }
      },
      [&](const LongSegment& l, const float* sums, int) {
        k.bags.total(sums, l.supers(), source.dim, weight, out + l.rank * bytes, rows.dtype);
        KeepKey(keys, l.rank, s.sorted->KeyOf(s.sorted->words[l.lo]));
      });
}

uint64_t NeedsOf(const gb_context& c, const gb_coalesce_args& a) {
  Arena arena;
  CoalesceParts parts(arena, c, a);
  return arena.needed();
}

gb_status CpuCoalesce(gb_context* context, gb_stream* stream, const gb_coalesce_args* a,
                      gb_workspace w, gb_report* report) {
  GB_BEGIN_SHAPES(context, stream, a, report);
  Arena arena(w);
  const CoalesceParts parts(arena, *context, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  Sorted sorted;
  if (const gb_status s = SortKeys(*context, RequestOf(*a), parts.sort, &sorted, report);
      s != GB_OK) {
    return s;
  }
  const Segments s = FindSegments(context->pool, sorted, parts.segments);
  if (s.distinct > a->out_keys.n) {
    return Fail(report, GB_ROOM, "too little room for the distinct keys", -1, s.distinct,
                a->out_keys.n);
  }
  const RowSource source = {a->rows.data, a->rows.dtype, a->dim};
  WriteSums(*context, s, source, a->weight, a->out_keys, a->out_rows);
  return Done(report, s.distinct);
}

}  // namespace gradbus
