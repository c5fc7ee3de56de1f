#include "cpu/sort.h"

#include <cstring>

#include "cpu/buckets.h"

namespace gradbus {
namespace {

constexpr int64_t kSmall = 64;            // fewer are sorted by insertion
constexpr int64_t kChunkLeast = 1 << 13;  // keys worth a thread's turn
constexpr int64_t kBucket = 512;          // keys of a bucket, if they are spread evenly
constexpr int64_t kBucketMost = 1 << 15;  // beyond, all threads sort a bucket together

int PayloadBits(const SortRequest& s) {
  const int64_t most = s.payload_most();
  return most > 0 ? BitsOf(static_cast<uint64_t>(most)) : 1;
}

// Fits says, from lengths and types alone, that a key and its row fit a word.
bool Fits(const SortRequest& s) {
  const int bits = s.keys.dtype == GB_INT32 ? 31 : s.limit == 0 ? 0 : BitsOf(s.limit - 1);
  return bits + PayloadBits(s) <= 64;
}

int ChunksOf(const Pool& pool, int64_t n) {
  int64_t chunks = n / kChunkLeast;
  if (chunks > pool.threads()) chunks = pool.threads();
  if (chunks > kChunksMost) chunks = kChunksMost;
  return chunks < 1 ? 1 : static_cast<int>(chunks);
}

// Chunk is one thread's share of the keys, and what it learns about them.
struct Chunk {
  int64_t lo, hi;
  int64_t bad;                 // the first bad key, or hi
  uint64_t ones = 0;           // bits that are 1 in some key
  uint64_t all = ~uint64_t{};  // bits that are 1 in all
  int64_t kept = 0, skipped = 0;
};

template <typename Id>
bool Keeps(const SortRequest& s, Id id) {
  const int64_t key = static_cast<int64_t>(id);
  return static_cast<uint64_t>(key) < s.limit && (key != s.padding || s.padding == GB_NO_PADDING);
}

// Scan learns the range of a chunk's keys.
template <typename Id>
void Scan(const Kernels& k, const SortRequest& s, Chunk& c) {
  const Id* ids = static_cast<const Id*>(s.keys.data);
  c.bad = c.hi;
  if (!s.skip && s.limit != UINT64_MAX) {
    c.bad = c.lo + k.bags.first_above(ids + c.lo, s.keys.dtype, c.hi - c.lo, s.limit, s.padding);
    if (c.bad < c.hi) return;
  }
  uint64_t ones = 0, all = ~uint64_t{};
  if (!s.filtered()) {
    for (int64_t i = c.lo; i < c.hi; i++) {
      ones |= static_cast<uint64_t>(ids[i]);
      all &= static_cast<uint64_t>(ids[i]);
    }
    c.kept = c.hi - c.lo;
  } else {
    for (int64_t i = c.lo; i < c.hi; i++) {
      const int64_t key = static_cast<int64_t>(ids[i]);
      if (!Keeps(s, ids[i])) {
        c.skipped += key != s.padding || s.padding == GB_NO_PADDING;
        continue;
      }
      ones |= static_cast<uint64_t>(key);
      all &= static_cast<uint64_t>(key);
      c.kept++;
    }
  }
  c.ones = ones;
  c.all = all;
}

// Digit is the upper bits of a key, which choose its bucket.
struct Digit {
  uint64_t own;  // the bits that keys do not share
  int shift, bits;
  uint64_t operator()(uint64_t key) const { return (key & own) >> shift; }
};

// Count counts the keys of a chunk by their bucket.
template <typename Id>
void Count(const SortRequest& s, const Chunk& c, const Digit& digit, uint32_t* counts) {
  const Id* ids = static_cast<const Id*>(s.keys.data);
  std::memset(counts, 0, sizeof *counts << digit.bits);
  const bool filtered = s.filtered();
  for (int64_t i = c.lo; i < c.hi; i++) {
    if (filtered && !Keeps(s, ids[i])) continue;
    counts[digit(static_cast<uint64_t>(ids[i]))]++;
  }
}

// EachKept visits the keys of a chunk that count: visit(key, payload).
template <typename Id, typename Visit>
void EachKept(const SortRequest& s, const Chunk& c, Visit&& visit) {
  const Id* ids = static_cast<const Id*>(s.keys.data);
  const bool filtered = s.filtered();
  const Bags* bags = s.bags;
  if (bags == nullptr) {
    for (int64_t i = c.lo; i < c.hi; i++) {
      if (filtered && !Keeps(s, ids[i])) continue;
      visit(static_cast<uint64_t>(ids[i]), static_cast<uint64_t>(i));
    }
    return;
  }
  if (c.lo == c.hi) return;
  int64_t bag = bags->Of(c.lo);
  for (int64_t i = c.lo; i < c.hi; bag++) {
    const int64_t begin_next = bags->Begin(bag + 1);
    const int64_t end = begin_next < c.hi ? begin_next : c.hi;
    for (; i < end; i++) {
      if (s.bag_of != nullptr) s.bag_of[i] = static_cast<uint32_t>(bag);
      if (filtered && !Keeps(s, ids[i])) continue;
      visit(static_cast<uint64_t>(ids[i]), static_cast<uint64_t>(s.row_is_bag ? bag : i));
    }
  }
}

// Starts turns the counts of all chunks into where each chunk puts the first of each digit.
void Starts(uint32_t* counts, int chunks, int digits) {
  uint32_t total = 0;
  for (int d = 0; d < digits; d++) {
    for (int c = 0; c < chunks; c++) {
      uint32_t& at = counts[c * kDigits + d];
      const uint32_t count = at;
      at = total;
      total += count;
    }
  }
}

// Pass sorts n elements by one digit, stably, from one place to another, with all threads.
template <typename T>
void Pass(Pool& pool, int chunks, const T* from, T* to, int64_t n, int shift, uint32_t* counts) {
  const auto digit = [shift](const T& x) { return SortedBy(x) >> shift & (kDigits - 1); };
  const auto lo = [=](int64_t c) { return n * c / chunks; };
  pool.Run(chunks, [&](int64_t c, int) {
    uint32_t* count = counts + c * kDigits;
    std::memset(count, 0, kDigits * sizeof *count);
    for (int64_t i = lo(c); i < lo(c + 1); i++) count[digit(from[i])]++;
  });
  Starts(counts, chunks, kDigits);
  pool.Run(chunks, [&](int64_t c, int) {
    uint32_t* at = counts + c * kDigits;
    for (int64_t i = lo(c); i < lo(c + 1); i++) to[at[digit(from[i])]++] = from[i];
  });
}

// SortTogether sorts a large bucket where it is, with all threads.
template <typename T>
void SortTogether(Pool& pool, int chunks, T* x, T* spare, int64_t n, int shift, uint32_t* counts) {
  const uint64_t differ = Differ(x, n, shift);
  T* from = x;
  T* to = spare;
  for (int d = 0; d < 64 - shift; d += kDigitBits) {
    if ((differ >> d & (kDigits - 1)) == 0) continue;
    Pass(pool, chunks, from, to, n, shift + d, counts);
    T* const sorted = to;
    to = from;
    from = sorted;
  }
  if (from != x) std::memcpy(static_cast<void*>(x), from, n * sizeof(T));
}

// Number writes words with the numbers of the keys, and their names, into the place that the pairs
// are not in.
void Number(const WidePair* pairs, int64_t n, char* place, Sorted* sorted) {
  uint64_t* const words = reinterpret_cast<uint64_t*>(place);
  uint64_t* const names = words + n;
  uint64_t number = 0;
  for (int64_t i = 0; i < n; i++) {
    if (i == 0 || pairs[i].key != pairs[i - 1].key) {
      if (i > 0) number++;
      names[number] = pairs[i].key;
    }
    words[i] = number << sorted->shift | pairs[i].row;
  }
  sorted->words = words;
  sorted->names = names;
}

// Sharing is what the parts of a sort have in common.
struct Sharing {
  Pool& pool;
  const SortRequest& request;
  const SortParts& parts;
  const Chunk* chunks;
  int count;
  int64_t n;     // keys that are kept
  uint64_t own;  // the bits that keys do not share
  int bits;      // from the highest of them down
};

// Buckets sorts the elements x, which lie in the order of their buckets: ends says where those end.
template <typename T>
void Buckets(const Sharing& s, T* x, T* spare, int shift, int buckets, const uint32_t* ends) {
  constexpr int kTurn = 8;  // buckets of a thread's turn
  const auto lo = [ends](int64_t b) { return b == 0 ? 0 : static_cast<int64_t>(ends[b - 1]); };
  const int64_t most = s.count > 1 ? kBucketMost : INT64_MAX;
  RunFor(s.pool, s.n * static_cast<int64_t>(sizeof(T)), (buckets + kTurn - 1) / kTurn,
         [&](int64_t turn, int) {
           for (int64_t b = turn * kTurn; b < (turn + 1) * kTurn && b < buckets; b++) {
             const int64_t n = ends[b] - lo(b);
             if (n <= most) SortBucket(x + lo(b), spare + lo(b), n, shift);
           }
         });
  // The last chunk's counters hold the ends, and those of the first are free.
  for (int64_t b = 0; b < buckets && s.count > 1; b++) {
    const int64_t n = ends[b] - lo(b);
    if (n <= most) continue;
    SortTogether(s.pool, s.count - 1, x + lo(b), spare + lo(b), n, shift, s.parts.counts);
  }
}

// SortElements puts what make(key, row) gives for every key that is kept into place, sorted by the
// bits of SortedBy above shift.
template <typename Id, typename T, typename Make>
void SortElements(const Sharing& s, T* to, T* spare, int shift, Make&& make) {
  if (s.request.keys.n <= kSmall) {
    int64_t n = 0;
    EachKept<Id>(s.request, s.chunks[0],
                 [&](uint64_t key, uint64_t row) { to[n++] = make(key, row); });
    return InsertionSort(to, n, shift);
  }
  int top = BitsOf(static_cast<uint64_t>(s.n / kBucket));
  top = top > kDigitBits ? kDigitBits : top;
  top = top > s.bits ? s.bits : top;
  const Digit digit = {top > 0 ? s.own : 0, top > 0 ? s.bits - top : 0, top};
  uint32_t* const counts = s.parts.counts;
  s.pool.Run(s.count, [&](int64_t c, int) {
    Count<Id>(s.request, s.chunks[c], digit, counts + c * kDigits);
  });
  Starts(counts, s.count, 1 << top);
  s.pool.Run(s.count, [&](int64_t c, int) {
    uint32_t* at = counts + c * kDigits;
    EachKept<Id>(s.request, s.chunks[c],
                 [&](uint64_t key, uint64_t row) { to[at[digit(key)]++] = make(key, row); });
  });
  Buckets(s, to, spare, shift, 1 << top, counts + (s.count - 1) * kDigits);
}

template <typename Id>
void SortPairs(const Sharing& s, Sorted* sorted) {
  WidePair* const to = reinterpret_cast<WidePair*>(s.parts.first);
  WidePair* const spare = reinterpret_cast<WidePair*>(s.parts.second);
  SortElements<Id>(s, to, spare, 0, [](uint64_t key, uint64_t row) { return WidePair{key, row}; });
  sorted->common = 0;
  Number(to, sorted->n, s.parts.second, sorted);
}

template <typename Id>
void SortWords(const Sharing& s, Sorted* sorted) {
  uint64_t* const to = reinterpret_cast<uint64_t*>(s.parts.first);
  uint64_t* const spare = reinterpret_cast<uint64_t*>(s.parts.second);
  const uint64_t own = s.own;
  const int shift = sorted->shift;
  SortElements<Id>(s, to, spare, shift,
                   [own, shift](uint64_t key, uint64_t row) { return (key & own) << shift | row; });
  sorted->words = to;
}

// Learn scans the keys and puts together what the chunks know; GB_ID names the first bad one.
template <typename Id>
gb_status Learn(gb_context& context, const SortRequest& s, Chunk* chunks, int count, int* bits,
                Sorted* sorted, gb_report* report) {
  const int64_t n = s.keys.n;
  context.pool.Run(count, [&](int64_t c, int) {
    chunks[c].lo = n * c / count;
    chunks[c].hi = n * (c + 1) / count;
    Scan<Id>(*context.kernels, s, chunks[c]);
  });
  uint64_t ones = 0, all = ~uint64_t{};
  for (int c = 0; c < count; c++) {
    if (chunks[c].bad < chunks[c].hi) {
      const int64_t bad = chunks[c].bad;
      return Fail(report, GB_ID, "id out of range", bad,
                  static_cast<int64_t>(static_cast<const Id*>(s.keys.data)[bad]),
                  s.limit > INT64_MAX ? INT64_MAX : static_cast<int64_t>(s.limit));
    }
    ones |= chunks[c].ones;
    all &= chunks[c].all;
    sorted->n += chunks[c].kept;
    sorted->skipped += chunks[c].skipped;
  }
  // The bits above the highest that differs are the same in all keys.
  *bits = sorted->n == 0 ? 0 : BitsOf(ones & ~all);
  sorted->common = sorted->n == 0 || *bits == 64 ? 0 : all >> *bits << *bits;
  return GB_OK;
}

template <typename Id>
gb_status SortIds(gb_context& context, const SortRequest& s, const SortParts& p, Sorted* sorted,
                  gb_report* report) {
  Chunk chunks[kChunksMost];
  const int count = ChunksOf(context.pool, s.keys.n);
  int bits = 0;
  *sorted = {};
  sorted->shift = PayloadBits(s);
  sorted->mask = (uint64_t{1} << sorted->shift) - 1;
  if (const gb_status status = Learn<Id>(context, s, chunks, count, &bits, sorted, report);
      status != GB_OK) {
    return status;
  }
  const Sharing sharing = {context.pool, s, p, chunks, count, sorted->n, ~sorted->common, bits};
  if (bits + sorted->shift > 64) {
    SortPairs<Id>(sharing, sorted);
  } else {
    SortWords<Id>(sharing, sorted);
  }
  return GB_OK;
}

}  // namespace

SortParts::SortParts(Arena& arena, const gb_context& c, const SortRequest& s) {
  const int64_t n = s.keys.n;
  const int64_t bytes = Times(n, Fits(s) ? sizeof(uint64_t) : sizeof(WidePair));
  first = arena.Take<char>(bytes);
  second = arena.Take<char>(bytes);
  counts = n <= kSmall ? nullptr : arena.Take<uint32_t>(ChunksOf(c.pool, n) * int64_t{kDigits});
}

gb_status SortKeys(gb_context& c, const SortRequest& s, const SortParts& parts, Sorted* sorted,
                   gb_report* report) {
  switch (s.keys.dtype) {
    case GB_INT32:
      return SortIds<int32_t>(c, s, parts, sorted, report);
    case GB_INT64:
      return SortIds<int64_t>(c, s, parts, sorted, report);
    default:
      return SortIds<uint64_t>(c, s, parts, sorted, report);
  }
}

}  // namespace gradbus
