// bag_forward: rows pooled into bags.
//
// Bytes moved: every distinct row is read once, as long as the caches hold it between two ids that
// name it; every bag is written once; ids are read twice, once to be checked.
#include <atomic>
#include <cstring>

#include "core/check.h"
#include "cpu/segments.h"

namespace gradbus {
namespace {

constexpr int64_t kTurnCost = 4096;  // ids and bags of a thread's turn
constexpr int64_t kTogether = 1024;  // ids given to the kernel at once

// LongBag has more ids than a superblock; its superblocks are pooled on their own, by all threads.
struct LongBag {
  int64_t bag;
  int64_t n;      // ids that count
  int64_t super;  // its first superblock among those of all long bags
  int64_t supers() const { return (n + kSuper - 1) / kSuper; }
};

struct ForwardParts {
  LongBag* longs;
  float* supers;     // what the superblocks come to
  int32_t* argmax;   // and, with max, which positions were taken
  int32_t* taken;    // of which superblock
  uint32_t* counts;  // where ids are left out: the positions that count, for long bags
  ForwardParts(Arena& arena, const gb_bag_forward_args& a)
      : longs(arena.Take<LongBag>(a.ids.n / kSuper)),
        supers(arena.Take<float>(Times(a.ids.n / kSuper * 2, a.dim))),
        argmax(a.argmax.n > 0 ? arena.Take<int32_t>(Times(a.ids.n / kSuper * 2, a.dim)) : nullptr),
        taken(a.mode == GB_MAX && a.ids.n > kSuper ? arena.Take<int32_t>(a.dim) : nullptr),
        counts(Filtered(a) && a.ids.n > kSuper ? arena.Take<uint32_t>(a.ids.n) : nullptr) {}
  static bool Filtered(const gb_bag_forward_args& a) {
    return a.policy == GB_SKIP || a.padding != GB_NO_PADDING;
  }
};

// Forward is one call.
class Forward {
 public:
  Forward(gb_context& c, const gb_bag_forward_args& a, const ForwardParts& p)
      : c_(c), k_(*c.kernels), a_(a), p_(p), bags_(a), filtered_(ForwardParts::Filtered(a)) {
    row_bytes_ = a.dim * BytesOf(a.rows.dtype);
    out_bytes_ = a.dim * BytesOf(a.out.dtype);
    limit_ = static_cast<uint64_t>(a.rows.n / a.dim);
    // No further than there are ids: the addresses up to there are filled in, which would be most
    // of a small call's cost.
    const int64_t ahead = FetchAhead(row_bytes_);
    ahead_ = ahead < a.ids.n ? ahead : a.ids.n > 0 ? a.ids.n : 1;
    positions_ = a.argmax.n > 0;
    stream_ = bags_.bags * out_bytes_ >= kAroundBytes;
  }
  gb_status Run(gb_report* report);

 private:
  bool Bad(gb_report* report) const;
  int64_t Id(int64_t i) const {
    return a_.ids.dtype == GB_INT32 ? static_cast<const int32_t*>(a_.ids.data)[i]
                                    : static_cast<const int64_t*>(a_.ids.data)[i];
  }
  bool Counts(int64_t id) const {
    return static_cast<uint64_t>(id) < limit_ && (id != a_.padding || a_.padding == GB_NO_PADDING);
  }
  int64_t FindLongs();
  int64_t Add(int64_t lo, int64_t hi, int64_t n, int64_t most, Batch& b, int64_t* skipped) const;
  void AddOne(int64_t i, int64_t n, Batch& b) const;
  void Finish(int64_t n, int64_t next, Batch& b, RowsRun* run) const;
  int64_t Turn(int64_t from, int64_t to) const;
  void Pool(RowsRun& run, int64_t first) const;
  void Super(int64_t i) const;
  void EndLong(const LongBag& l) const;

  gb_context& c_;
  const Kernels& k_;
  const gb_bag_forward_args& a_;
  const ForwardParts& p_;
  const Bags bags_;
  const bool filtered_;
  int64_t row_bytes_, out_bytes_, ahead_;
  uint64_t limit_;
  bool positions_, stream_;
  int64_t longs_ = 0, supers_ = 0;
};

// Bad looks for an id that is out of range.
bool Forward::Bad(gb_report* report) const {
  if (a_.policy == GB_SKIP) return false;
  constexpr int64_t kPiece = 1 << 16;
  const int64_t n = a_.ids.n, width = a_.ids.dtype == GB_INT32 ? 4 : 8;
  const int64_t pieces = (n + kPiece - 1) / kPiece;
  std::atomic<int64_t> first{n};
  RunFor(c_.pool, n * width, pieces, [&](int64_t piece, int) {
    const int64_t lo = piece * kPiece, hi = lo + kPiece < n ? lo + kPiece : n;
    const int64_t at = lo + k_.bags.first_above(static_cast<const char*>(a_.ids.data) + lo * width,
                                                a_.ids.dtype, hi - lo, limit_, a_.padding);
    if (at == hi) return;
    int64_t seen = first.load();
    while (at < seen && !first.compare_exchange_weak(seen, at)) {
    }
  });
  const int64_t at = first.load();
  if (at == n) return false;
  Fail(report, GB_ID, "id out of range", at, Id(at), static_cast<int64_t>(limit_));
  return true;
}

// FindLongs lists the long bags and, where ids are left out, the positions that count. It returns
// how many of their ids were skipped.
int64_t Forward::FindLongs() {
  if (a_.ids.n <= kSuper) return 0;
  int64_t skipped = 0;
  for (int64_t b = 0; b < bags_.bags; b++) {
    const int64_t lo = bags_.Begin(b), end = bags_.Begin(b + 1);
    if (end - lo <= kSuper) continue;
    int64_t n = end - lo;
    if (filtered_) {
      n = 0;
      for (int64_t i = lo; i < end; i++) {
        const int64_t id = Id(i);
        if (Counts(id)) {
          p_.counts[lo + n++] = static_cast<uint32_t>(i);
        } else {
          skipped += id != a_.padding || a_.padding == GB_NO_PADDING;
        }
      }
    }
    p_.longs[longs_++] = {b, n, supers_};
    supers_ += p_.longs[longs_ - 1].supers();
  }
  return skipped;
}

void Forward::AddOne(int64_t i, int64_t n, Batch& b) const {
  b.at[n] = static_cast<const char*>(a_.rows.data) + Id(i) * row_bytes_;
  if (a_.weights.n > 0) b.weights[n] = Floats(a_.weights)[i];
  if (positions_) b.positions[n] = static_cast<int32_t>(i);
}

// Add appends the rows of positions [lo, hi), up to most in all, to the n of a batch.
int64_t Forward::Add(int64_t lo, int64_t hi, int64_t n, int64_t most, Batch& b,
                     int64_t* skipped) const {
  if (filtered_) {
    for (int64_t i = lo; i < hi && n < most; i++) {
      const int64_t id = Id(i);
      if (Counts(id)) {
        AddOne(i, n++, b);
      } else {
        *skipped += id != a_.padding || a_.padding == GB_NO_PADDING;
      }
    }
    return n;
  }
  if (hi - lo > most - n) hi = lo + most - n;
  const int64_t width = a_.ids.dtype == GB_INT32 ? 4 : 8;
  k_.bags.addresses(static_cast<const char*>(a_.ids.data) + lo * width, a_.ids.dtype, hi - lo,
                    a_.rows.data, row_bytes_, b.at + n);
  if (a_.weights.n > 0) std::memcpy(b.weights + n, Floats(a_.weights) + lo, (hi - lo) * 4);
  if (positions_) {
    for (int64_t i = lo; i < hi; i++) b.positions[n + i - lo] = static_cast<int32_t>(i);
  }
  return n + hi - lo;
}

// Finish adds the rows that come next, to be fetched, and makes a run of the batch.
void Forward::Finish(int64_t n, int64_t next, Batch& b, RowsRun* run) const {
  int64_t none = 0;
  const int64_t far = bags_.ids - next < ahead_ ? bags_.ids : next + ahead_;
  int64_t more = Add(next, far, n, n + ahead_, b, &none);
  for (; more < n + ahead_; more++) b.at[more] = more > 0 ? b.at[more - 1] : a_.rows.data;
  run->type = a_.rows.dtype;
  run->out_type = a_.out.dtype;
  run->dim = a_.dim;
  run->ahead = ahead_;
  run->at = b.at;
  run->ends = b.ends;
  run->weights = a_.weights.n > 0 ? b.weights : nullptr;
  run->positions = b.positions;
}

// Pool runs the kernel on bags from first on.
void Forward::Pool(RowsRun& run, int64_t first) const {
  run.out = static_cast<char*>(a_.out.data) + first * out_bytes_;
  run.mean = a_.mode == GB_MEAN;
  run.stream = stream_;
  if (positions_) run.argmax = static_cast<int32_t*>(a_.argmax.data) + first * a_.dim;
  a_.mode == GB_MAX ? k_.bags.max(run) : k_.bags.sum(run);
}

// Turn pools the bags [from, to) but for long ones, and returns how many ids it skipped.
int64_t Forward::Turn(int64_t from, int64_t to) const {
  Batch batch;
  int64_t skipped = 0;
  for (int64_t bag = from; bag < to;) {
    if (bags_.Length(bag) > kSuper) {
      bag++;
      continue;
    }
    const int64_t first = bag, begin = bags_.Begin(bag);
    RowsRun run = {};
    int64_t n = 0, end = begin;
    while (bag < to && run.segments < kPart) {
      const int64_t next = bags_.Begin(bag + 1);
      if (next - end > kSuper || (bag > first && next - begin > kTogether)) break;
      if (filtered_) n = Add(end, next, n, Batch::kRoom, batch, &skipped);
      end = next;
      batch.ends[run.segments++] = static_cast<uint32_t>(filtered_ ? n : end - begin);
      bag++;
    }
    if (!filtered_) n = Add(begin, end, 0, Batch::kRoom, batch, &skipped);
    Finish(n, end, batch, &run);
    Pool(run, first);
  }
  return skipped;
}

// Super pools superblock number i of the long bags.
void Forward::Super(int64_t i) const {
  Batch batch;
  int64_t l = 0, none = 0;
  while (l + 1 < longs_ && p_.longs[l + 1].super <= i) l++;
  const LongBag& bag = p_.longs[l];
  const int64_t lo = (i - bag.super) * kSuper;
  const int64_t n = bag.n - lo < kSuper ? bag.n - lo : kSuper;
  const int64_t begin = bags_.Begin(bag.bag);
  if (filtered_) {
    for (int64_t j = 0; j < n; j++) AddOne(p_.counts[begin + lo + j], j, batch);
  } else {
    Add(begin + lo, begin + lo + n, 0, n, batch, &none);
  }
  RowsRun run = {};
  Finish(n, filtered_ ? bags_.ids : begin + lo + n, batch, &run);
  batch.ends[0] = static_cast<uint32_t>(n);
  run.segments = 1;
  run.out_type = GB_FLOAT32;
  run.out = p_.supers + i * a_.dim;
  if (positions_) run.argmax = p_.argmax + i * a_.dim;
  a_.mode == GB_MAX ? k_.bags.max(run) : k_.bags.sum(run);
}

// EndLong puts a long bag together from its superblocks.
void Forward::EndLong(const LongBag& l) const {
  char* const out = static_cast<char*>(a_.out.data) + l.bag * out_bytes_;
  const float* const sums = p_.supers + l.super * a_.dim;
  if (a_.mode != GB_MAX) {
    const float by = a_.mode == GB_MEAN ? static_cast<float>(l.n) : 0;
    k_.bags.total(sums, l.supers(), a_.dim, by, out, a_.out.dtype);
    return;
  }
  // The largest of the largest comes to lie in the first superblock's row, and is stored by the
  // kernel as if it were the bag's only one.
  float* const best = p_.supers + l.super * a_.dim;
  int32_t* const argmax =
      positions_ ? static_cast<int32_t*>(a_.argmax.data) + l.bag * a_.dim : nullptr;
  const uint32_t rows = l.n > 0 ? 1 : 0;
  const void* const at[2] = {best, best};
  const int32_t nowhere[1] = {0};
  RowsRun run = {};
  run.out_type = a_.out.dtype;
  run.dim = a_.dim;
  run.ahead = 1;
  run.at = at;
  run.ends = &rows;
  run.segments = 1;
  run.positions = nowhere;
  run.out = out;
  run.argmax = argmax;
  for (int64_t column = 0; column < a_.dim && rows > 0; column++) {
    p_.taken[column] = 0;
    for (int64_t i = 1; i < l.supers(); i++) {
      const float x = sums[i * a_.dim + column], y = best[column];
      if (!(x > y || (x != x && y == y))) continue;
      best[column] = x;
      p_.taken[column] = static_cast<int32_t>(i);
    }
  }
  k_.bags.max(run);
  for (int64_t column = 0; column < a_.dim && rows > 0 && positions_; column++) {
    argmax[column] = p_.argmax[(l.super + p_.taken[column]) * a_.dim + column];
  }
}

gb_status Forward::Run(gb_report* report) {
  if (Bad(report)) return GB_ID;
  std::atomic<int64_t> skipped{FindLongs()};
  c_.pool.Run(supers_, [&](int64_t i, int) { Super(i); });
  for (int64_t i = 0; i < longs_; i++) EndLong(p_.longs[i]);
  const int64_t bytes = bags_.ids * row_bytes_ + bags_.bags * out_bytes_;
  const int64_t turns = bags_.bags == 0 ? 0 : bags_.Cost() / kTurnCost + 1;
  RunFor(c_.pool, bytes, turns, [&](int64_t turn, int) {
    skipped += Turn(bags_.Cut(turn * kTurnCost), bags_.Cut((turn + 1) * kTurnCost));
  });
  Done(report);
  if (report != nullptr) report->skipped = skipped;
  return GB_OK;
}

}  // namespace

uint64_t NeedsOf(const gb_context&, const gb_bag_forward_args& a) {
  Arena arena;
  ForwardParts parts(arena, a);
  return arena.needed();
}

gb_status CpuBagForward(gb_context* context, gb_stream* stream, const gb_bag_forward_args* a,
                        gb_workspace w, gb_report* report) {
  GB_BEGIN_SHAPES(context, stream, a, report);
  GB_TRY(CheckOffsets(a->offsets, a->open_offsets != 0, a->ids.n, report));
  Arena arena(w);
  const ForwardParts parts(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  return Forward(*context, *a, parts).Run(report);
}

}  // namespace gradbus
