// The runs of equal keys among sorted words, and the sums of their rows.
//
// The words are cut into parts of equal length; a segment belongs to the part it begins in. One
// that covers a whole part is long: its superblocks are summed on their own, by all threads, and
// added up at the end, so that one key with a million rows keeps no thread waiting.
#ifndef GRADBUS_CPU_SEGMENTS_H_
#define GRADBUS_CPU_SEGMENTS_H_

#include "core/order.h"
#include "cpu/sort.h"

namespace gradbus {

constexpr int64_t kPart = 2048;        // words of a part: half a superblock
constexpr int64_t kAheadMost = 256;    // rows fetched ahead
constexpr int64_t kFetchBytes = 8192;  // bytes fetched ahead

// FetchAhead is how many rows ahead of its use a row is fetched.
inline int64_t FetchAhead(int64_t row_bytes) {
  const int64_t rows = kFetchBytes / row_bytes;
  return rows < 2 ? 2 : rows > kAheadMost ? kAheadMost : rows;
}

// Batch is the rows of one call of a kernel. A segment that is not long has no more than 2*kPart,
// and neither has a superblock.
struct Batch {
  static constexpr int64_t kRoom = 2 * kPart + kAheadMost;
  const void* at[kRoom];
  float weights[kRoom];
  int32_t positions[kRoom];
  const int32_t* marks[kRoom];
  uint32_t ends[kPart];
};

// RowSource says which row a word stands for.
struct RowSource {
  const void* base;
  gb_dtype type;
  int64_t dim;
  const uint32_t* bag_of = nullptr;  // null: a word's row is a row of base; else a position, whose
                                     // row is that of its bag
  const float* weights = nullptr;    // of positions
  const int32_t* argmax = nullptr;   // of bags

  int64_t row_bytes() const { return dim * BytesOf(type); }
  // Fill gives the rows of n words, and then those of what follows them, to be fetched.
  void Fill(const Kernels& k, const Sorted& s, int64_t from, int64_t n, Batch& b,
            RowsRun* run) const;
};

// LongSegment is one that covers a whole part.
struct LongSegment {
  int64_t lo, hi;  // words
  int64_t rank;    // among the distinct keys
  int64_t super;   // its first superblock among those of all long segments
  int64_t supers() const { return (hi - lo + kSuper - 1) / kSuper; }
};

struct PartOfWords {
  uint32_t count;        // segments that begin in it
  uint32_t first, last;  // where the first and the last of them begin
  int64_t rank;          // segments that begin before it
};

struct SegmentParts {
  PartOfWords* parts;
  LongSegment* longs;
  float* supers;  // sums of the superblocks of long segments
  // n is the greatest number of words.
  SegmentParts(Arena& arena, int64_t n, int64_t dim);
};

// Segments are what FindSegments found.
struct Segments {
  const Sorted* sorted;
  SegmentParts memory;
  int64_t parts = 0;
  int64_t longs = 0;
  int64_t supers = 0;
  int64_t distinct = 0;
};
Segments FindSegments(Pool& pool, const Sorted& sorted, const SegmentParts& memory);

// Span is a list of short segments: run has all that says which rows to sum, and nothing of by and
// out. words are those of run's rows, rank is that of the first segment.
struct Span {
  RowsRun run;
  const uint64_t* words;
  int64_t rank;
  // KeyAt is the word of a segment.
  uint64_t WordOf(int64_t segment) const { return words[segment == 0 ? 0 : run.ends[segment - 1]]; }
};

// MakeSpan makes the span of a part, whose memory is the batch.
void MakeSpan(const Kernels& k, const Segments& s, const RowSource& source, int64_t part, Batch& b,
              Span* span);
// SumSuper sums superblock number i of the long segments.
void SumSuper(const Kernels& k, const Segments& s, const RowSource& source, int64_t i, Batch& b);

// EachSegment calls short_ones(span, worker) for all spans, and long_one(segment, sums, worker) for
// every long segment, sums being those of its superblocks, to be given to BagKernels::total. The
// calls come in any order and at the same time.
template <typename Short, typename Long>
void EachSegment(gb_context& c, const Segments& s, const RowSource& source, Short&& short_ones,
                 Long&& long_one) {
  const Kernels& k = *c.kernels;
  c.pool.Run(s.supers, [&](int64_t i, int) {
    Batch batch;
    SumSuper(k, s, source, i, batch);
  });
  c.pool.Run(s.longs, [&](int64_t i, int worker) {
    const LongSegment& segment = s.memory.longs[i];
    long_one(segment, s.memory.supers + segment.super * source.dim, worker);
  });
  const auto part = [&](int64_t i, int worker) {
    Batch batch;
    Span span;
    MakeSpan(k, s, source, i, batch, &span);
    if (span.run.segments > 0) short_ones(span, worker);
  };
  RunFor(c.pool, Times(s.sorted->n, source.row_bytes()), s.parts, part);
}

// WriteSums writes keys and sums, each divided by weight (0: not), of all segments.
void WriteSums(gb_context& c, const Segments& s, const RowSource& source, float weight,
               const gb_out& keys, const gb_out& rows);

}  // namespace gradbus

#endif  // GRADBUS_CPU_SEGMENTS_H_
