// merge: the keys of all terms are brought in order, equal ones in the order of their terms, and
// the runs of equal keys are added along the lane tree.
//
// A few terms are merged by counting, for each key, the smaller ones of the other terms; many are
// sorted. Bytes moved: the rows of all terms read, those of the union written, keys a few times.
#include "cuda/sort.cuh"
#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

constexpr int64_t kCountTerms = 8;  // up to here counting is cheaper than eight passes of a sort

// MergeTerm is a term on the device. Its keys are numbered from begin on among those of all terms;
// behind the last term comes one that only has a begin.
struct MergeTerm {
  const uint64_t* keys;
  const char* rows;
  uint32_t begin;
  uint32_t lane;
};

struct MergeTerms {
  const MergeTerm* at;
  int64_t n;
  int64_t row_bytes;
};

__device__ __forceinline__ int64_t TermAt(const MergeTerms& terms, uint32_t i) {
  int64_t low = 0, high = terms.n;  // begin low <= i < begin high
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (terms.at[middle].begin <= i) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Below counts the keys of a term that are below key or, with equal, not above it.
__device__ __forceinline__ uint32_t Below(const MergeTerms& terms, int64_t t, uint64_t key,
                                          bool equal) {
  uint32_t low = 0, high = terms.at[t + 1].begin - terms.at[t].begin;
  const uint64_t* keys = terms.at[t].keys;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (keys[middle] < key || (equal && keys[middle] == key)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// gather_kernel checks the order of each term's keys, and puts key and number of each where it
// belongs: with count, in order, else one term behind the other.
__global__ void gather_kernel(State* state, MergeTerms terms, uint32_t n, bool count,
                              uint64_t* keys, uint32_t* numbers) {
  GB_EACH(i, static_cast<int64_t>(n)) {
    const uint32_t number = static_cast<uint32_t>(i);
    const int64_t t = TermAt(terms, number);
    const uint32_t at = number - terms.at[t].begin;
    const uint64_t key = terms.at[t].keys[at];
    if (at > 0 && key <= terms.at[t].keys[at - 1]) Raise(&state->flags, kBadOrder, t, at);
    uint32_t to = number;
    if (count) {
      to = at;
      for (int64_t u = 0; u < terms.n; u++) {
        if (u != t) to += Below(terms, u, key, u < t);
      }
    }
    keys[to] = key;
    numbers[to] = number;
  }
}

// LaneSum adds rows along the lane tree. The tree over lanes is the trie of their binary digits:
// two terms part at the highest digit in which their lanes differ. What waits for its right sibling
// at digit d is waiting[d], so that all stays in registers.
template <int kDigits>
struct LaneSum {
  Four waiting[kDigits], now;
  unsigned waits;
  uint32_t lane;

  __device__ __forceinline__ void Fold(int digits) {
#pragma unroll
    for (int d = 0; d < kDigits; d++) {
      if (d < digits && (waits >> d & 1) != 0) {
#pragma unroll
        for (int i = 0; i < 4; i++) now.x[i] = waiting[d].x[i] + now.x[i];
      }
    }
    waits = waits >> digits << digits;
  }
  __device__ __forceinline__ void Begin(const Four& x, uint32_t first) {
    now = x;
    waits = 0;
    lane = first;
  }
  __device__ __forceinline__ void Take(const Four& x, uint32_t next) {
    const int digit = 31 - __clz(static_cast<int>(lane ^ next));
    Fold(digit);
#pragma unroll
    for (int d = 0; d < kDigits; d++) {
      if (d == digit) waiting[d] = now;
    }
    waits |= 1u << digit;
    now = x;
    lane = next;
  }
  __device__ __forceinline__ Four Total() {
    Fold(kDigits);
    return now;
  }
};

struct TermRow {
  uint64_t row;  // its address
  uint32_t lane;
};

template <int kDigits, Reading kReading, typename Look>
__device__ __forceinline__ Four SumLanes(gb_dtype dtype, const Group& g, int64_t column,
                                         int64_t dim, const Range& r, const TermRow& first,
                                         Look&& look) {
  LaneSum<kDigits> sum = {};
  const Columns<kReading> columns(column, dim);
  const auto pass = [&](const TermRow& p, int from) -> TermRow {
    const int size = static_cast<int>(g.size);
    return {__shfl_sync(g.mask, p.row, from, size), __shfl_sync(g.mask, p.lane, from, size)};
  };
  const auto visit = [&](auto rows, uint32_t at, uint32_t left, auto&& place) {
    constexpr int kRows = decltype(rows)::value;
    Bits bits[kRows];
    uint32_t lane[kRows];
#pragma unroll
    for (int k = 0; k < kRows; k++) {
      const TermRow p = place(k);
      lane[k] = p.lane;
      bits[k] = columns.Read(reinterpret_cast<const char*>(p.row));
    }
#pragma unroll
    for (int k = 0; k < kRows; k++) Columns<kReading>::Hold(bits[k]);
#pragma unroll
    for (int k = 0; k < kRows; k++) {
      if (static_cast<uint32_t>(k) >= left) continue;
      const Four x = Columns<kReading>::Wide(bits[k], dtype);
      if (at + static_cast<uint32_t>(k) == r.begin) {
        sum.Begin(x, lane[k]);
      } else {
        sum.Take(x, lane[k]);
      }
    }
  };
  EachChunk(g, r.begin, r.end, first, look, pass, visit);
  return sum.Total();
}

// As SumBlocks.
template <int kDigits>
constexpr int kMergeBlocks = kDigits > 7 ? 3 : 4;

template <int kDigits, Reading kReading>
__global__ void __launch_bounds__(kSumThreads, kMergeBlocks<kDigits>)
    merge_kernel(const Flags* flags, MergeTerms terms, gb_dtype dtype, const uint32_t* order,
                 Segments s, Tiling tiling, RowsOut out) {
  if (Refused(flags)) return;
  const Group g = GroupOf(tiling.width);
  const auto look = [&](uint32_t at) -> TermRow {
    const uint32_t number = order[at];
    const MergeTerm t = terms.at[TermAt(terms, number)];
    const char* row = t.rows + static_cast<int64_t>(number - t.begin) * terms.row_bytes;
    return {reinterpret_cast<uint64_t>(row), t.lane};
  };
  const auto first = [&](const Range& r) {
    return look(r.begin + g.t < r.end ? r.begin + g.t : r.end - 1);
  };
  EachSegment(s, tiling, g, first,
              [&](int64_t segment, const Range& r, int64_t column, const TermRow& found) {
                const Four sum =
                    SumLanes<kDigits, kReading>(dtype, g, column, tiling.dim, r, found, look);
                out.End(g, segment, r, column, {}, sum);
              });
}

struct MergeOp {
  using Args = gb_merge_args;

  static int64_t Total(const Args& a) {
    int64_t n = 0;
    for (int64_t i = 0; i < a.terms_n; i++) n += a.terms[i].keys.n;
    return n;
  }
  static constexpr SortKeys kKeys = {true, 64};

  struct Parts {
    State* state;
    MergeTerm* terms;
    uint64_t* keys;  // of all terms, where they are sorted
    uint32_t* numbers;
    SortParts sort;
    Parts(Arena& arena, const Context& context, const Args& a)
        : state(arena.Take<State>(1)),
          terms(arena.Take<MergeTerm>(a.terms_n + 1)),
          keys(a.terms_n > kCountTerms ? arena.Take<uint64_t>(Total(a)) : nullptr),
          numbers(a.terms_n > kCountTerms ? arena.Take<uint32_t>(Total(a)) : nullptr),
          sort(arena, context, Total(a), a.dim, kKeys) {}
  };

  static bool Nothing(const Args& a) { return Total(a) == 0; }

  static void Stage(Travel& travel, Args& a) {
    gb_rows_term* terms = travel.Host<gb_rows_term>(a.terms_n);
    for (int64_t i = 0; i < a.terms_n; i++) {
      gb_rows_term t = a.terms[i];
      travel.In(t.keys);
      travel.Near(t.rows);
      if (!travel.counting()) terms[i] = t;
    }
    if (!travel.counting()) a.terms = terms;
    travel.Out(a.out_keys, 1);
    travel.Out(a.out_rows, a.dim);
  }

  // Bring puts the terms on the device and finds their type and how they may be read.
  static gb_dtype Bring(Queue& queue, const Parts& p, const Args& a, AccessOf& access) {
    constexpr int64_t kHere = 64;
    MergeTerm here[kHere] = {};
    gb_dtype dtype = GB_FLOAT32;
    uint32_t begin = 0;
    for (int64_t from = 0; from <= a.terms_n; from += kHere) {
      const int64_t n = a.terms_n + 1 - from < kHere ? a.terms_n + 1 - from : kHere;
      for (int64_t i = 0; i < n; i++) {
        here[i] = {nullptr, nullptr, begin, 0};
        if (from + i == a.terms_n) break;
        const gb_rows_term& t = a.terms[from + i];
        if (t.keys.n == 0) continue;
        here[i] = {static_cast<const uint64_t*>(t.keys.data), static_cast<const char*>(t.rows.data),
                   begin, t.node.first};
        begin += static_cast<uint32_t>(t.keys.n);
        dtype = t.rows.dtype;
        access.And(t.rows);
      }
      queue.Bring(p.terms + from, here, static_cast<uint64_t>(n) * sizeof here[0]);
    }
    return dtype;
  }

  template <int kDigits>
  static auto Kernel(Reading reading) {
    switch (reading) {
      case kFours32:
        return merge_kernel<kDigits, kFours32>;
      case kFours16:
        return merge_kernel<kDigits, kFours16>;
      case kOnes32:
        return merge_kernel<kDigits, kOnes32>;
      default:
        return merge_kernel<kDigits, kOnes16>;
    }
  }

  static Segments Order(Queue& queue, const Parts& p, const Args& a, const MergeTerms& terms) {
    const int64_t n = Total(a);
    const bool count = p.keys == nullptr;
    const RunsOf runs = {kKeys, false, 0, a.out_keys.n};
    Launch(queue, queue.Blocks(n, kThreads), kThreads, gather_kernel, p.state, terms,
           static_cast<uint32_t>(n), count, count ? static_cast<uint64_t*>(p.sort.sorted) : p.keys,
           count ? p.sort.order : p.numbers);
    Segments s = count ? FindRuns(queue, p.state, p.sort, runs, n)
                       : SortRuns(queue, p.state, p.sort, runs, p.keys, p.numbers, n);
    s.longs = nullptr;  // a key has at most one row of each term: one group adds them all
    return s;
  }

  static void Run(Queue& queue, const Parts& p, const Args& a, gb_report* report) {
    AccessOf access(a.dim);
    queue.Zero(p.state, sizeof *p.state);
    const gb_dtype dtype = Bring(queue, p, a, access);
    const MergeTerms terms = {p.terms, a.terms_n, a.dim * (dtype == GB_FLOAT32 ? 4 : 2)};
    const Segments s = Order(queue, p, a, terms);
    RowsOut out = RowsOutOf(a.out_rows, a.dim);
    out.keys = a.out_keys.data;
    out.keys_type = GB_UINT64;
    out.sorted = {p.sort.sorted, true};
    if (a.weight != 0) out.divide = Divide::kWeight;
    out.weight = QuotientOf(a.weight);
    const Tiling tiling = TilingOf(a.dim);
    const Reading reading = ReadingOf(access.best(), dtype);
    auto* kernel = a.lanes <= 16    ? Kernel<4>(reading)
                   : a.lanes <= 128 ? Kernel<7>(reading)
                                    : Kernel<12>(reading);
    const int each = a.lanes <= 128 ? kMergeBlocks<7> : kMergeBlocks<12>;
    Launch(queue, BlocksFor(queue, s.most, tiling, each), kSumThreads, kernel, &p.state->flags,
           terms, dtype, p.sort.order, s, tiling, out);
    Verdict verdict;
    verdict.has_terms = 1;
    verdict.Order(kTextKeyOrder);
    verdict.Room(a.out_keys.n, kTextRoomKeys);
    Report(queue, &p.state->flags, verdict, report);
  }
};

static_assert(kLanesMax == 1 << 12, "twelve digits");

}  // namespace

uint64_t NeedsOf(const Context& context, const gb_merge_args& a) {
  return Needs<MergeOp>(context, a);
}

gb_status Merge(gb_context* context, gb_stream* stream, const gb_merge_args* a, gb_workspace w,
                gb_report* report) {
  return Call<MergeOp>(context, stream, a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
