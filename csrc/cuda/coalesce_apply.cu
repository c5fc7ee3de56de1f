// coalesce_apply: the sums of coalesce, with the optimizer where they would be written. The row of
// the table and its slots are fetched before the gradients are, so that all come together.
//
// In two passes go: calls that may be refused for what a sum turns out to be, rows that are clipped
// by their norm, and row-wise Adagrad on rows that no group of threads holds. The sums then lie in
// the workspace, as float32.
//
// Bytes moved of n keys, m of them distinct, with s slots of dim values: the keys sorted, n rows
// read, m * (1 + s) rows of the table read and written.
#include "cuda/adagrad.cuh"
#include "cuda/rows.cuh"
#include "cuda/sort.cuh"
#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// order_kernel checks the keys, makes those that are skipped the limit, and numbers the positions.
__global__ void number_kernel(State* state, Ids ids, bool wide, void* keys, uint32_t* values) {
  unsigned skipped = 0;
  GB_EACH(i, ids.n) {
    const int64_t id = IntAt(ids.data, ids.dtype, i);
    const bool counts = CheckId(&state->flags, ids, i, id, &skipped);
    const uint64_t key = static_cast<uint64_t>(counts ? id : ids.limit);
    if (wide) {
      static_cast<uint64_t*>(keys)[i] = key;
    } else {
      static_cast<uint32_t*>(keys)[i] = static_cast<uint32_t>(key);
    }
    values[i] = static_cast<uint32_t>(i);
  }
  AddCount(&state->flags.skipped, skipped);
}

// Step is what the optimizer is given of the call.
struct Step {
  Target target;
  Rule rule;
  Quotient weight;
  Past past;
  SortedKeys sorted;
  int64_t* out_keys;            // nullptr: not wanted
  unsigned long long* counted;  // nullptr: values that are not finite are not counted
  bool in_place;
  bool whole;  // one group has the whole row
};

// StepOut is the epilogue that applies the optimizer. kPast: rows have a last step.
template <Kind kKind, Access kAccess, bool kPast>
struct StepOut {
  static constexpr bool kHeavy = true;  // in registers
  Step s;

  struct Held {
    int64_t from;
    When when;
    GB_DEVICE_NAMESPACE::Held row;
  };

  typedef uint64_t Key;
  __device__ __forceinline__ Key Look(const Range& r) const { return KeyAt(s.sorted, r.begin); }

  __device__ __forceinline__ Held Begin(Key key, int64_t segment, int64_t column) const {
    Held h;  // a value for threads without columns would be one to wait for, see places.cuh
    h.from = static_cast<int64_t>(key);
    h.when = {false, 0, 0};
    const int count = CountFrom(column, s.target.dim);
    if (count > 0) {
      h.row = FetchRow<kKind, kAccess, false>(s.target, h.from * s.target.dim + column, count);
    }
    if (kPast) h.when = WhenOf(s.past, h.from, segment);
    return h;
  }

  __device__ __forceinline__ void End(const Group& g, int64_t segment, const Range&, int64_t column,
                                      const Held& h, const Four& sum) const {
    const int64_t to = s.in_place ? h.from : segment, dim = s.target.dim;
    const int count = CountFrom(column, dim);
    const Four d = Divided(s.weight, Present(sum, count));
    if (column == 0 && s.out_keys != nullptr) s.out_keys[segment] = h.from;
    if (s.counted != nullptr && count > 0) {
      const unsigned bad = CountNonFinite(d);
      if (bad != 0) atomicAdd(s.counted, static_cast<unsigned long long>(bad));
    }
    if constexpr (kKind == kRowwise) {
      Bits p;
#pragma unroll
      for (int i = 0; i < 4; i++) p.w[i] = count > 0 ? h.row.p.w[i] : 0;
      AdagradNarrow<kAccess, false>(g, s.target, s.rule, h.when, p, d, h.from, to);
    } else if (count > 0) {
      FinishRow<kKind, kAccess, false>(s.target, s.rule, h.when, h.row, d, to * dim + column,
                                       count);
    }
    if (kPast && s.whole) EndRow(s.past, g, to);
  }
};

// With several groups to a row, its last step is written when all have read it.
__global__ void mark_kernel(const Flags* flags, Step s, Segments segments) {
  if (Refused(flags)) return;
  GB_EACH(i, static_cast<int64_t>(*segments.count)) {
    const int64_t row = static_cast<int64_t>(KeyAt(s.sorted, segments.begin[i]));
    s.past.last_after[s.in_place ? row : i] = s.past.step;
  }
}

// The keys of the second pass go out when nothing can be refused any more.
__global__ void keys_kernel(const Flags* flags, const unsigned long long* count,
                            const int64_t* from, int64_t* to) {
  if (Refused(flags)) return;
  GB_EACH(i, static_cast<int64_t>(*count)) to[i] = from[i];
}

struct CoalesceApplyOp {
  using Args = gb_coalesce_apply_args;

  static SortKeys KeysOf(const Args& a) {
    return KeysBelow(a.table.n / a.dim, a.policy == GB_SKIP);
  }
  static bool TwoPasses(const Args& a) {
    const bool wide = TilingOf(a.dim).tiles > 1;
    return a.nonfinite == GB_NONFINITE_REFUSE || a.optimizer.clip.kind == GB_CLIP_ROW ||
           (a.optimizer.kind == GB_ROWWISE_ADAGRAD && wide);
  }

  struct Parts {
    State* state;
    void* keys;
    uint32_t* values;
    SortParts sort;
    float* sums;  // of the first of two passes, and their keys
    int64_t* sum_keys;
    Parts(Arena& arena, const Context& context, const Args& a)
        : state(arena.Take<State>(1)),
          keys(KeysOf(a).wide ? static_cast<void*>(arena.Take<uint64_t>(a.keys.n))
                              : arena.Take<uint32_t>(a.keys.n)),
          values(arena.Take<uint32_t>(a.keys.n)),
          sort(arena, context, a.keys.n, a.dim, KeysOf(a)),
          sums(TwoPasses(a) ? arena.Take<float>(a.keys.n * a.dim) : nullptr),
          sum_keys(TwoPasses(a) ? arena.Take<int64_t>(a.keys.n) : nullptr) {}
  };

  static bool Nothing(const Args& a) { return a.keys.n == 0; }

  static void StageOut(Travel& travel, const Args& a, gb_out& out, const gb_in& was,
                       const gb_in& now, int64_t per_key) {
    if (a.out.data == a.table.data) return travel.Over(out, was, now);
    travel.Out(out, per_key);
  }

  static void Stage(Travel& travel, Args& a) {
    const Args was = a;
    travel.In(a.keys);
    travel.Near(a.rows);
    travel.Near(a.table);
    travel.Near(a.steps.last);
    StageOut(travel, was, a.out, was.table, a.table, a.dim);
    StageOut(travel, was, a.steps.last_after, was.steps.last, a.steps.last, 1);
    travel.Out(a.out_keys, 1);
    gb_slot* slots = travel.Host<gb_slot>(a.optimizer.slots_n);
    for (int64_t i = 0; i < a.optimizer.slots_n; i++) {
      gb_slot s = a.optimizer.slots[i];
      const gb_in before = s.before;
      const int64_t rows = was.out.n / was.dim;  // that may come back
      travel.Near(s.before);
      StageOut(travel, was, s.after, before, s.before, rows == 0 ? 0 : s.after.n / rows);
      if (!travel.counting()) slots[i] = s;
    }
    if (!travel.counting()) a.optimizer.slots = slots;
  }

  static Step StepOf(const Parts& p, const Args& a) {
    Step s = {};
    s.target = TargetOf(a.table, a.out, a.optimizer, a.dim);
    s.rule = RuleOf(a.optimizer);
    s.weight = QuotientOf(a.weight);
    s.past = PastOf(a.steps, nullptr);
    s.sorted = {p.sort.sorted, KeysOf(a).wide};
    s.out_keys = a.out_keys.n > 0 ? static_cast<int64_t*>(a.out_keys.data) : nullptr;
    if (a.nonfinite == GB_NONFINITE_COUNT) s.counted = &p.state->flags.nonfinite;
    s.in_place = a.out.data == a.table.data;
    s.whole = TilingOf(a.dim).tiles == 1;
    return s;
  }

  template <Kind kKind, Access kAccess, Reading kReading>
  static void OnePass(Queue& queue, const Flags* flags, const Sources& t, const Segments& s,
                      const Step& step) {
    const StepOut<kKind, kSingles, true> longs = {step};
    if (step.past.last != nullptr || step.past.last_after != nullptr) {
      RunSums<Term::kPlain, kReading, false>(queue, flags, t, s,
                                             StepOut<kKind, kAccess, true>{step}, longs);
    } else {
      RunSums<Term::kPlain, kReading, false>(queue, flags, t, s,
                                             StepOut<kKind, kAccess, false>{step}, longs);
    }
  }

  template <Kind kKind>
  static void WithKind(Queue& queue, const Flags* flags, const Sources& t, const Segments& s,
                       const Step& step) {
    AccessOf access(t.dim);
    access.And(t.rows, t.dtype);
    const bool wide = t.dtype == GB_FLOAT32;
    switch (And(access, step.target, kKind).best()) {
      case kFloats:
        return OnePass<kKind, kFloats, kFours32>(queue, flags, t, s, step);
      case kVectors:
        return wide ? OnePass<kKind, kVectors, kFours32>(queue, flags, t, s, step)
                    : OnePass<kKind, kVectors, kFours16>(queue, flags, t, s, step);
      default:
        return wide ? OnePass<kKind, kSingles, kOnes32>(queue, flags, t, s, step)
                    : OnePass<kKind, kSingles, kOnes16>(queue, flags, t, s, step);
    }
  }

  static void Fused(Queue& queue, const Flags* flags, const Sources& t, const Segments& s,
                    const Step& step) {
    switch (KindOf(step.rule)) {
      case kSgd:
        WithKind<kSgd>(queue, flags, t, s, step);
        break;
      case kMomentum:
        WithKind<kMomentum>(queue, flags, t, s, step);
        break;
      case kAdagrad:
        WithKind<kAdagrad>(queue, flags, t, s, step);
        break;
      case kFtrl:
        WithKind<kFtrl>(queue, flags, t, s, step);
        break;
      case kRowwise:
        WithKind<kRowwise>(queue, flags, t, s, step);
        break;
      case kAdam:
        WithKind<kAdam>(queue, flags, t, s, step);
        break;
    }
    if (step.whole || step.past.last_after == nullptr) return;
    Launch(queue, queue.Blocks(s.most, kThreads), kThreads, mark_kernel, flags, step, s);
  }

  static void InTwoPasses(Queue& queue, const Parts& p, const Args& a, const Sources& t,
                          const Segments& s, const Step& step) {
    RowsOut out = RowsOutOf({p.sums, a.keys.n * a.dim, GB_FLOAT32, 0}, a.dim);
    out.keys = p.sum_keys;
    out.keys_type = GB_INT64;
    out.sorted = step.sorted;
    SumInto(queue, &p.state->flags, Term::kPlain, t, s, out);
    RowsCall call = {};
    call.target = step.target;
    call.rule = step.rule;
    call.weight = step.weight;
    call.past = step.past;
    call.index = p.sum_keys;
    call.index_dtype = GB_INT64;
    call.grad = p.sums;
    call.grad_dtype = GB_FLOAT32;
    call.n = s.most;
    call.count = s.count;
    call.rows = a.table.n / a.dim;
    call.in_place = step.in_place;
    call.flags = &p.state->flags;
    call.nonfinite = a.nonfinite;
    QueueRows(queue, call);
    if (step.out_keys == nullptr) return;
    Launch(queue, queue.Blocks(s.most, kThreads), kThreads, keys_kernel, &p.state->flags, s.count,
           p.sum_keys, step.out_keys);
  }

  static void Run(Queue& queue, const Parts& p, const Args& a, gb_report* report) {
    const int64_t n = a.keys.n, limit = a.table.n / a.dim;
    const bool in_place = a.out.data == a.table.data;
    const Ids ids = {a.keys.data, a.keys.dtype, a.policy == GB_SKIP, n, limit, GB_NO_PADDING};
    const SortKeys keys = KeysOf(a);
    queue.Zero(p.state, sizeof *p.state);
    Launch(queue, queue.Blocks(n, kThreads), kThreads, number_kernel, p.state, ids, keys.wide,
           p.keys, p.values);
    const int64_t room = in_place && a.out_keys.n == 0 ? n : a.out_keys.n;
    const RunsOf runs = {keys, true, static_cast<uint64_t>(limit), room};
    const Segments s = SortRuns(queue, p.state, p.sort, runs, p.keys, p.values, n);
    Sources t = {};
    t.rows = a.rows.data;
    t.dtype = a.rows.dtype;
    t.index = p.sort.order;
    t.dim = a.dim;
    const Step step = StepOf(p, a);
    if (TwoPasses(a)) {
      InTwoPasses(queue, p, a, t, s, step);
    } else {
      Fused(queue, &p.state->flags, t, s, step);
    }
    Verdict verdict;
    verdict.Ids(a.keys, limit);
    verdict.Room(room, kTextRoomKeys);
    verdict.NonFinite();
    Report(queue, &p.state->flags, verdict, report);
  }
};

}  // namespace

uint64_t NeedsOf(const Context& context, const gb_coalesce_apply_args& a) {
  return Needs<CoalesceApplyOp>(context, a);
}

gb_status CoalesceApply(gb_context* context, gb_stream* stream, const gb_coalesce_apply_args* a,
                        gb_workspace w, gb_report* report) {
  return Call<CoalesceApplyOp>(context, stream, a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
