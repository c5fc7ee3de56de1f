#include "cpu/segments.h"

namespace gradbus {

void RowSource::Fill(const Kernels& k, const Sorted& s, int64_t from, int64_t n, Batch& b,
                     RowsRun* run) const {
  const int64_t bytes = row_bytes();
  run->type = type;
  run->dim = dim;
  run->ahead = FetchAhead(bytes);
  run->at = b.at;
  const int64_t rest = s.n - from - n;
  const int64_t more = run->ahead < rest ? run->ahead : rest;
  const uint64_t* words = s.words + from;
  if (bag_of == nullptr) {
    k.bags.word_addresses(words, s.mask, n + more, base, bytes, b.at);
  } else {
    for (int64_t i = 0; i < n + more; i++) {
      const uint64_t position = s.RowOf(words[i]);
      const int64_t bag = bag_of[position];
      b.at[i] = static_cast<const char*>(base) + bag * bytes;
      if (weights != nullptr) b.weights[i] = weights[position];
      if (argmax != nullptr) {
        b.positions[i] = static_cast<int32_t>(position);
        b.marks[i] = argmax + bag * dim;
      }
    }
    run->weights = weights != nullptr ? b.weights : nullptr;
    run->positions = b.positions;
    run->marks = argmax != nullptr ? b.marks : nullptr;
  }
  for (int64_t i = n + more; i < n + run->ahead; i++) b.at[i] = b.at[n + more - 1];
}

SegmentParts::SegmentParts(Arena& arena, int64_t n, int64_t dim)
    : parts(arena.Take<PartOfWords>(n / kPart + 1)),
      longs(arena.Take<LongSegment>(n / kPart + 1)),
      // A long segment has at least half a superblock, so rounding up at most doubles them.
      supers(arena.Take<float>(Times(n / kPart, dim))) {}

namespace {

// FindLongs looks for parts in which nothing begins: the segment before them goes through.
void FindLongs(Segments& s) {
  const PartOfWords* parts = s.memory.parts;
  int64_t open = -1;  // the part with the last beginning so far
  for (int64_t i = 0; i < s.parts; i++) {
    if (parts[i].count == 0) continue;
    const bool skipped = open >= 0 && i > open + 1;
    if (skipped) {
      LongSegment& l = s.memory.longs[s.longs++];
      l = {parts[open].last, parts[i].first, parts[i].rank - 1, s.supers};
      s.supers += l.supers();
    }
    open = i;
  }
  if (open >= 0 && open < s.parts - 1) {
    LongSegment& l = s.memory.longs[s.longs++];
    l = {parts[open].last, s.sorted->n, s.distinct - 1, s.supers};
    s.supers += l.supers();
  }
}

}  // namespace

Segments FindSegments(Pool& pool, const Sorted& sorted, const SegmentParts& memory) {
  Segments s = {&sorted, memory};
  const int64_t n = sorted.n;
  const uint64_t* words = sorted.words;
  const int shift = sorted.shift;
  s.parts = (n + kPart - 1) / kPart;
  constexpr int64_t kTogether = 16;  // parts of one turn
  pool.Run((s.parts + kTogether - 1) / kTogether, [&](int64_t turn, int) {
    const int64_t end = (turn + 1) * kTogether < s.parts ? (turn + 1) * kTogether : s.parts;
    for (int64_t i = turn * kTogether; i < end; i++) {
      const int64_t lo = i * kPart, hi = lo + kPart < n ? lo + kPart : n;
      uint32_t count = 0;
      int64_t first = hi, last = lo;
      for (int64_t j = lo + (lo == 0); j < hi; j++) {
        count += words[j] >> shift != words[j - 1] >> shift;
      }
      const auto begins = [&](int64_t j) {
        return j == 0 || words[j] >> shift != words[j - 1] >> shift;
      };
      count += lo == 0;
      if (count > 0) {
        for (first = lo; !begins(first); first++) {
        }
        for (last = hi - 1; !begins(last); last--) {
        }
      }
      memory.parts[i] = {count, static_cast<uint32_t>(first), static_cast<uint32_t>(last), 0};
    }
  });
  for (int64_t i = 0; i < s.parts; i++) {
    memory.parts[i].rank = s.distinct;
    s.distinct += memory.parts[i].count;
  }
  FindLongs(s);
  return s;
}

void MakeSpan(const Kernels& k, const Segments& s, const RowSource& source, int64_t part, Batch& b,
              Span* span) {
  const PartOfWords& p = s.memory.parts[part];
  *span = {};
  span->rank = p.rank;
  if (p.count == 0) return;
  const Sorted& sorted = *s.sorted;
  const uint64_t* words = sorted.words;
  const int shift = sorted.shift;
  // The part's last segment ends where the next part's first begins, unless that part has none.
  const bool goes_through = part + 1 < s.parts && s.memory.parts[part + 1].count == 0;
  const int64_t first = p.first;
  int64_t end = part + 1 == s.parts ? sorted.n : s.memory.parts[part + 1].first;
  if (goes_through) end = p.last;
  if (end == first) return;
  span->words = words + first;
  uint32_t* ends = b.ends;
  int64_t segments = 0;
  const int64_t inside = goes_through ? end : static_cast<int64_t>(p.last) + 1;
  for (int64_t i = first + 1; i < inside; i++) {
    ends[segments] = static_cast<uint32_t>(i - first);
    segments += words[i] >> shift != words[i - 1] >> shift;
  }
  ends[segments++] = static_cast<uint32_t>(end - first);
  source.Fill(k, sorted, first, end - first, b, &span->run);
  span->run.ends = ends;
  span->run.segments = segments;
}

void SumSuper(const Kernels& k, const Segments& s, const RowSource& source, int64_t i, Batch& b) {
  int64_t l = 0;  // the long segment that has it; there are few
  while (l + 1 < s.longs && s.memory.longs[l + 1].super <= i) l++;
  const LongSegment& segment = s.memory.longs[l];
  const int64_t lo = segment.lo + (i - segment.super) * kSuper;
  const int64_t n = segment.hi - lo < kSuper ? segment.hi - lo : kSuper;
  RowsRun run = {};
  source.Fill(k, *s.sorted, lo, n, b, &run);
  b.ends[0] = static_cast<uint32_t>(n);
  run.ends = b.ends;
  run.segments = 1;
  run.out_type = GB_FLOAT32;
  run.out = s.memory.supers + i * source.dim;
  k.bags.sum(run);
}

}  // namespace gradbus
