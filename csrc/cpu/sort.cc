#include "cpu/sort.h"

#include <cstring>

namespace gradbus {
namespace {

constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;
constexpr int64_t kSmall = 64;            // fewer are sorted by insertion
constexpr int64_t kChunkLeast = 1 << 13;  // keys worth a thread's turn

int BitsOf(uint64_t x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

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

// Scan learns the range of a chunk's keys and counts their lowest digits, unless counts is null.
template <typename Id>
void Scan(const Kernels& k, const SortRequest& s, Chunk& c, uint32_t* counts) {
  const Id* ids = static_cast<const Id*>(s.keys.data);
  c.bad = c.hi;
  if (!s.skip && s.limit != UINT64_MAX) {
    c.bad = c.lo + k.bags.first_above(ids + c.lo, s.keys.dtype, c.hi - c.lo, s.limit, s.padding);
    if (c.bad < c.hi) return;
  }
  uint32_t none[1] = {};  // where nothing is counted, every digit is 0
  const uint64_t digit = counts != nullptr ? kDigits - 1 : 0;
  if (counts != nullptr) {
    std::memset(counts, 0, kDigits * sizeof *counts);
  } else {
    counts = none;
  }
  uint64_t ones = 0, all = ~uint64_t{};
  if (!s.filtered()) {
    for (int64_t i = c.lo; i < c.hi; i++) {
      const uint64_t key = static_cast<uint64_t>(ids[i]);
      ones |= key;
      all &= key;
      counts[key & digit]++;
    }
    c.kept = c.hi - c.lo;
  } else {
    for (int64_t i = c.lo; i < c.hi; i++) {
      const uint64_t key = static_cast<uint64_t>(static_cast<int64_t>(ids[i]));
      if (!Keeps(s, ids[i])) {
        c.skipped += static_cast<int64_t>(key) != s.padding || s.padding == GB_NO_PADDING;
        continue;
      }
      ones |= key;
      all &= key;
      counts[key & digit]++;
      c.kept++;
    }
  }
  c.ones = ones;
  c.all = all;
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
void Starts(uint32_t* counts, int chunks) {
  uint32_t total = 0;
  for (int d = 0; d < kDigits; d++) {
    for (int c = 0; c < chunks; c++) {
      uint32_t& at = counts[c * kDigits + d];
      const uint32_t count = at;
      at = total;
      total += count;
    }
  }
}

uint64_t SortedBy(uint64_t word) { return word; }
uint64_t SortedBy(const WidePair& pair) { return pair.key; }

// Pass sorts n elements by one digit, stably, from one place to another.
template <typename T>
void Pass(Pool& pool, int chunks, const T* from, T* to, int64_t n, int shift, uint32_t* counts) {
  const auto digit = [shift](const T& x) { return SortedBy(x) >> shift & (kDigits - 1); };
  const auto lo = [=](int64_t c) { return n * c / chunks; };
  pool.Run(chunks, [&](int64_t c, int) {
    uint32_t* count = counts + c * kDigits;
    std::memset(count, 0, kDigits * sizeof *count);
    for (int64_t i = lo(c); i < lo(c + 1); i++) count[digit(from[i])]++;
  });
  Starts(counts, chunks);
  pool.Run(chunks, [&](int64_t c, int) {
    uint32_t* at = counts + c * kDigits;
    for (int64_t i = lo(c); i < lo(c + 1); i++) to[at[digit(from[i])]++] = from[i];
  });
}

// Passes sorts by the digits above the lowest, skipping those in which all keys agree, and returns
// whichever place holds the result.
template <typename T>
T* Passes(Pool& pool, int chunks, T* from, T* to, int64_t n, int shift, uint64_t differ,
          uint32_t* counts) {
  for (int d = kDigitBits; d < 64; d += kDigitBits) {
    if ((differ >> d & (kDigits - 1)) == 0) continue;
    Pass(pool, chunks, from, to, n, shift + d, counts);
    T* const sorted = to;
    to = from;
    from = sorted;
  }
  return from;
}

// InsertionSort is for few elements, which are all that a chunk has.
template <typename T, typename Key>
void InsertionSort(T* x, int64_t n, Key&& key) {
  for (int64_t i = 1; i < n; i++) {
    const T one = x[i];
    int64_t j = i;
    for (; j > 0 && key(x[j - 1]) > key(one); j--) x[j] = x[j - 1];
    x[j] = one;
  }
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
  uint64_t differ;  // the bits in which keys differ
};

// Place puts the kept keys into elements made by make(key, row), sorted by the lowest digit.
template <typename Id, typename T, typename Make>
void Place(const Sharing& s, T* to, Make&& make) {
  s.pool.Run(s.count, [&](int64_t c, int) {
    uint32_t* at = s.parts.counts + c * kDigits;
    EachKept<Id>(s.request, s.chunks[c],
                 [&](uint64_t key, uint64_t row) { to[at[key % kDigits]++] = make(key, row); });
  });
}

template <typename Id>
void SortPairs(const Sharing& s, Sorted* sorted) {
  WidePair* const to = reinterpret_cast<WidePair*>(s.parts.first);
  WidePair* const spare = reinterpret_cast<WidePair*>(s.parts.second);
  const auto make = [](uint64_t key, uint64_t row) { return WidePair{key, row}; };
  const WidePair* pairs = to;
  if (s.request.keys.n <= kSmall) {
    int64_t n = 0;
    EachKept<Id>(s.request, s.chunks[0],
                 [&](uint64_t key, uint64_t row) { to[n++] = make(key, row); });
    InsertionSort(to, n, [](const WidePair& p) { return p.key; });
  } else {
    Place<Id>(s, to, make);
    pairs = Passes(s.pool, s.count, to, spare, sorted->n, 0, s.differ, s.parts.counts);
  }
  sorted->common = 0;
  Number(pairs, sorted->n, pairs == to ? s.parts.second : s.parts.first, sorted);
}

template <typename Id>
void SortWords(const Sharing& s, Sorted* sorted) {
  uint64_t* const to = reinterpret_cast<uint64_t*>(s.parts.first);
  uint64_t* const spare = reinterpret_cast<uint64_t*>(s.parts.second);
  const uint64_t own = ~sorted->common;
  const int shift = sorted->shift;
  const auto make = [=](uint64_t key, uint64_t row) { return (key & own) << shift | row; };
  sorted->words = to;
  if (s.request.keys.n <= kSmall) {
    int64_t n = 0;
    EachKept<Id>(s.request, s.chunks[0],
                 [&](uint64_t key, uint64_t row) { to[n++] = make(key, row); });
    InsertionSort(to, n, [shift](uint64_t word) { return word >> shift; });
    return;
  }
  Place<Id>(s, to, make);
  sorted->words = Passes(s.pool, s.count, to, spare, sorted->n, shift, s.differ, s.parts.counts);
}

// Learn scans the keys and puts together what the chunks know; GB_ID names the first bad one.
template <typename Id>
gb_status Learn(gb_context& context, const SortRequest& s, const SortParts& p, Chunk* chunks,
                int count, uint64_t* differ, Sorted* sorted, gb_report* report) {
  const int64_t n = s.keys.n;
  context.pool.Run(count, [&](int64_t c, int) {
    chunks[c].lo = n * c / count;
    chunks[c].hi = n * (c + 1) / count;
    Scan<Id>(*context.kernels, s, chunks[c], n <= kSmall ? nullptr : p.counts + c * kDigits);
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
  *differ = ones & ~all;
  // The bits above the highest that differs are the same in all keys.
  const int bits = BitsOf(*differ);
  sorted->common = sorted->n == 0 || bits == 64 ? 0 : all >> bits << bits;
  return GB_OK;
}

template <typename Id>
gb_status SortIds(gb_context& context, const SortRequest& s, const SortParts& p, Sorted* sorted,
                  gb_report* report) {
  Chunk chunks[kChunksMost];
  const int count = ChunksOf(context.pool, s.keys.n);
  uint64_t differ = 0;
  *sorted = {};
  sorted->shift = PayloadBits(s);
  sorted->mask = (uint64_t{1} << sorted->shift) - 1;
  if (const gb_status status = Learn<Id>(context, s, p, chunks, count, &differ, sorted, report);
      status != GB_OK) {
    return status;
  }
  const Sharing sharing = {context.pool, s, p, chunks, count, differ};
  if (s.keys.n > kSmall) Starts(p.counts, count);
  if (BitsOf(differ) + sorted->shift > 64) {
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
