#include "emu/machine.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <utility>

#include "emu/kernel.h"
#include "emu/switches.h"

#ifdef GB_EMU_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace gradbus {
namespace emu {
namespace internal {
namespace {

// A block that has gone on this often goes on for ever.
constexpr uint64_t kTurnsMost = uint64_t{1} << 32;

uint32_t BitOf(unsigned thread) { return uint32_t{1} << (thread % kWarp); }

std::atomic<bool> watches{false};
std::atomic<uint32_t> runs{1};

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kSync:
      return "__syncwarp";
    case Kind::kShuffle:
      return "shuffle";
    case Kind::kVote:
      return "vote";
  }
  return "";
}

}  // namespace

Machine& Machine::Here() {
  static thread_local Machine machine;
  return machine;
}

void Machine::WatchAll() { watches = true; }
bool Machine::Watches() { return watches; }

Machine::~Machine() {
  for (const Stack& stack : stacks_) GiveStack(stack);
}

uint64_t Machine::Random() {  // splitmix64
  uint64_t x = random_ += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool Machine::Run(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  if (seed_of_ != SeedNow().number) {
    seed_of_ = SeedNow().number;
    random_ = SeedNow().seed;
  }
  n_ = threads;
  kernel_ = &kernel;
  faulty_ = false;
  if (threads_.size() < threads) threads_.resize(threads);
  warps_.resize((threads + kWarp - 1) / kWarp);
  order_.resize(threads);
  rank_.resize(threads);
  ready_.resize((threads + 63) / 64);
  shared_.resize(kSharedBytes);
  first_run_ = runs.fetch_add(blocks);
  runs_ = blocks;
  gridDim = blocks;
  blockDim = threads;
  // Every so many blocks, in a step that shares no factor with their number.
  uint64_t step = Random() % blocks + 1;
  const auto common = [](uint64_t a, uint64_t b) {
    while (b != 0) a = std::exchange(b, a % b);
    return a;
  };
  while (common(step, blocks) != 1) step++;
  uint64_t block = Random() % blocks;
  for (unsigned i = 0; i < blocks && !faulty_; i++) {
    blockIdx = {static_cast<unsigned>(block), 0, 0};
    run_ = first_run_ + i;
    RunBlock();
    block = (block + step) % blocks;
  }
#ifdef GB_EMU_ASAN
  __asan_unpoison_memory_region(shared_.data(), shared_.size());
#endif
  for (Thread& t : threads_) {  // those that a fault has left behind
    if (t.stack.low != nullptr) stacks_.push_back(t.stack);
    t.stack = {};
  }
  for (const Stack& stack : stacks_) GiveStack(stack);
  stacks_.clear();
  return !faulty_;
}

// Begin readies all threads of a block, in an order of its own.
void Machine::Begin() {
  done_ = waiting_ = 0;
  barrier_ = -1;
  for (unsigned t = 0; t < n_; t++) {
    threads_[t].started = threads_[t].done = false;
    order_[t] = t;
  }
  for (unsigned w = 0; w < warps_.size(); w++) {
    const unsigned left = n_ - w * kWarp;
    warps_[w].rounds.clear();
    warps_[w].lanes = left >= kWarp ? ~uint32_t{0} : (uint32_t{1} << left) - 1;
    warps_[w].done = warps_[w].waiting = 0;
  }
  const uint64_t way = Random() % 4;
  anew_ = way == 0;
  const auto shuffle = [&](unsigned from, unsigned n) {
    for (unsigned i = n; i > 1; i--) {
      std::swap(order_[from + i - 1], order_[from + Random() % i]);
    }
  };
  if (way == 1 && n_ % kWarp == 0) {  // warps in a random order, and their lanes in another
    for (unsigned i = static_cast<unsigned>(warps_.size()); i > 1; i--) {
      const unsigned a = (i - 1) * kWarp, b = static_cast<unsigned>(Random() % i) * kWarp;
      for (unsigned l = 0; l < kWarp; l++) std::swap(order_[a + l], order_[b + l]);
    }
    for (unsigned w = 0; w < warps_.size(); w++) shuffle(w * kWarp, kWarp);
  } else {
    shuffle(0, n_);
  }
  for (uint64_t& bits : ready_) bits = 0;
  for (unsigned i = 0; i < n_; i++) {
    rank_[order_[i]] = i;
    ready_[i / 64] |= uint64_t{1} << (i % 64);
  }
  arrays_.clear();
  shared_used_ = 0;
  epoch_ = 0;
  if (watches) {
    clocks_.assign(size_t{kWarp} * warps_.size() * kWarp, 0);
    for (size_t t = 0; t < warps_.size() * kWarp; t++) clocks_[t * kWarp + t % kWarp] = 1;
  }
#ifdef GB_EMU_ASAN
  __asan_poison_memory_region(shared_.data(), shared_.size());
#endif
}

// Pick takes a thread that can run, or -1.
int Machine::Pick() {
  const size_t words = ready_.size();
  unsigned from = anew_ ? static_cast<unsigned>(Random() % n_) : 0;
  uint64_t mask = ~uint64_t{0} << (from % 64);
  for (size_t i = 0; i <= words; i++) {
    const size_t w = (from / 64 + i) % words;
    if (const uint64_t bits = ready_[w] & mask; bits != 0) {
      const unsigned rank = static_cast<unsigned>(w * 64) + __builtin_ctzll(bits);
      ready_[w] &= ~(uint64_t{1} << (rank % 64));
      return static_cast<int>(order_[rank]);
    }
    mask = ~uint64_t{0};
  }
  return -1;
}

void Machine::Ready(unsigned thread) {
  ready_[rank_[thread] / 64] |= uint64_t{1} << (rank_[thread] % 64);
}

bool Machine::RunBlock() {
  Begin();
  for (uint64_t turns = 0; done_ < n_ && !faulty_; turns++) {
    const int thread = Pick();
    if (thread < 0) {
      Fault("no thread can go on: %u of %u have left", done_, n_);
    } else if (turns == kTurnsMost) {
      Fault("the block does not end");
    } else {
      Resume(static_cast<unsigned>(thread));
    }
  }
  return !faulty_;
}

void Machine::Resume(unsigned thread) {
  Thread& t = threads_[thread];
  if (!t.started) {
    t.started = true;
    if (t.stack.low == nullptr && !stacks_.empty()) {
      t.stack = stacks_.back();
      stacks_.pop_back();
    }
    if (t.stack.low == nullptr) t.stack = TakeStack();
    if (t.stack.low == nullptr) return Fault("no memory for the stack of a thread");
    Prepare(&t.context, t.stack, &Machine::Start);
  }
  at_ = thread;
  current_ = &t;
  threadIdx = {thread, 0, 0};
  Switch(&home_, &t.context, false);
  current_ = nullptr;
  if (t.done) {
    stacks_.push_back(t.stack);
    t.stack = {};
  }
}

void Machine::Start() {
  Machine& m = Here();
  Arrived(&m.home_);
  (*m.kernel_)();
  m.Leave();
}

// Leave ends the running thread. No other thread may wait for it.
void Machine::Leave() {
  Thread& t = *current_;
  if (waiting_ > 0) {
    Fault("a thread left while %u wait at __syncthreads of %s", waiting_, SiteName(barrier_));
  }
  CheckRounds("left", -1);
  Warp& warp = warps_[at_ / kWarp];
  warp.done |= BitOf(at_);
  t.done = true;
  done_++;
  Switch(&t.context, &home_, true);
}

void Machine::Suspend() {
  Thread& t = *current_;
  Switch(&t.context, &home_, false);
}

// Demote makes the thread that runs the last one of the order, and the last one takes its place.
void Machine::Demote() {
  const unsigned mine = rank_[at_], last = n_ - 1, other = order_[last];
  if (mine == last) return;
  const bool other_ready = (ready_[last / 64] >> (last % 64) & 1) != 0;
  ready_[last / 64] &= ~(uint64_t{1} << (last % 64));
  std::swap(order_[mine], order_[last]);
  rank_[at_] = last;
  rank_[other] = mine;
  if (other_ready) Ready(other);
}

void Machine::Pause(unsigned one_in) {
  if (!running() || Random() % one_in != 0) return;
  if (!anew_) Demote();
  Ready(at_);
  Suspend();
}

// CheckRounds finds a round of the warp that waits for the thread that runs, which will not come.
void Machine::CheckRounds(const char* what, int site) {
  for (const Round& r : warps_[at_ / kWarp].rounds) {
    if ((r.mask & BitOf(at_)) == 0) continue;
    Fault("a thread %s%s%s, but the mask %08x of the %s at %s names it", what, site < 0 ? "" : " ",
          site < 0 ? "" : SiteName(site), r.mask, NameOf(r.kind), SiteName(r.site));
  }
}

void Machine::SyncThreads(int site) {
  if (!running()) return Fault("__syncthreads outside of a kernel");
  if (Dropped() == site) return;
  if (done_ > 0) {
    Fault("__syncthreads at %s, but %u threads of the block have left", SiteName(site), done_);
  }
  CheckRounds("waits at __syncthreads of", site);
  if (waiting_ > 0 && barrier_ != site) {
    Fault("__syncthreads at %s while %u threads wait at the one of %s", SiteName(site), waiting_,
          SiteName(barrier_));
  }
  barrier_ = site;
  warps_[at_ / kWarp].waiting |= BitOf(at_);
  if (++waiting_ == n_) {
    waiting_ = 0;
    barrier_ = -1;
    epoch_++;
    for (Warp& w : warps_) w.waiting = 0;
    for (unsigned t = 0; t < n_; t++) Ready(t);
  }
  Suspend();
}

uint64_t Machine::Meet(int site, Kind kind, uint32_t mask, uint64_t value, int source) {
  if (!running()) return Fault("a %s outside of a kernel", NameOf(kind)), 0;
  if (Dropped() == site) return kind == Kind::kVote ? value << (at_ % kWarp) : value;
  const unsigned warp_at = at_ / kWarp;
  Warp& warp = warps_[warp_at];
  const uint32_t me = BitOf(at_);
  if ((mask & me) == 0) {
    Fault("%s at %s: the mask %08x does not name the thread", NameOf(kind), SiteName(site), mask);
  }
  if ((mask & ~warp.lanes) != 0) {
    Fault("%s at %s: the mask %08x names threads that the block has not", NameOf(kind),
          SiteName(site), mask);
  }
  if ((mask & (warp.done | warp.waiting)) != 0) {
    Fault("%s at %s: the mask %08x names threads that %s: %08x", NameOf(kind), SiteName(site), mask,
          warp.done & mask ? "have left" : "wait at __syncthreads",
          mask & (warp.done | warp.waiting));
  }
  if ((mask >> source & 1) == 0) {
    Fault("%s at %s reads lane %d, which the mask %08x does not name", NameOf(kind), SiteName(site),
          source, mask);
  }
  current_->value = value;
  current_->source = source;
  size_t i = 0;
  while (i < warp.rounds.size() && (warp.rounds[i].site != site || warp.rounds[i].kind != kind ||
                                    warp.rounds[i].mask != mask)) {
    i++;
  }
  if (i == warp.rounds.size()) {
    for (const Round& r : warp.rounds) {  // each waits for the other
      if ((r.mask & me) == 0 || (r.arrived & mask) == 0) continue;
      Fault("%s at %s with mask %08x, while threads of it wait at the %s of %s with mask %08x",
            NameOf(kind), SiteName(site), mask, NameOf(r.kind), SiteName(r.site), r.mask);
    }
    warp.rounds.push_back({site, kind, mask, 0});
  }
  Round& round = warp.rounds[i];
  round.arrived |= me;
  if (round.arrived != mask) {
    Suspend();
  } else {
    const Round whole = round;
    warp.rounds.erase(warp.rounds.begin() + static_cast<ptrdiff_t>(i));
    Finish(warp_at, whole);
    Pause(4);
  }
  return threads_[at_].result;
}

// Join lets all that the threads of a mask did so far come before all that they do from now on.
void Machine::Join(unsigned warp, uint32_t mask) {
  uint32_t* const clocks = clocks_.data() + size_t{warp} * kWarp * kWarp;
  uint32_t all[kWarp] = {};
  for (unsigned l = 0; l < kWarp; l++) {
    for (unsigned o = 0; o < kWarp && (mask >> l & 1) != 0; o++) {
      if (clocks[l * kWarp + o] > all[o]) all[o] = clocks[l * kWarp + o];
    }
  }
  for (unsigned l = 0; l < kWarp; l++) {
    if ((mask >> l & 1) == 0) continue;
    std::memcpy(clocks + l * kWarp, all, sizeof all);
    clocks[l * kWarp + l]++;
  }
}

// Finish gives every thread of a round what it came for.
void Machine::Finish(unsigned warp, const Round& round) {
  const unsigned first = warp * kWarp;
  if (round.kind == Kind::kSync && watches) Join(warp, round.mask);
  uint64_t votes = 0;
  for (unsigned l = 0; l < kWarp && first + l < n_; l++) {
    if ((round.mask >> l & 1) != 0) votes |= threads_[first + l].value << l;
  }
  for (unsigned l = 0; l < kWarp && first + l < n_; l++) {
    if ((round.mask >> l & 1) == 0) continue;
    Thread& t = threads_[first + l];
    t.result =
        round.kind == Kind::kVote ? votes : threads_[first + static_cast<unsigned>(t.source)].value;
    if (first + l != at_) Ready(first + l);
  }
}

// Shared memory is all ones at first, and its arrays are aligned no better than their type asks.
void* Machine::Shared(const void* key, size_t bytes, size_t align) {
  if (!running()) return Fault("shared memory outside of a kernel"), nullptr;
  for (const SharedArray& a : arrays_) {
    if (a.key == key) return shared_.data() + a.at;
  }
  size_t at = (shared_used_ + 31) & ~size_t{15};
  if (align < 16) at += align < 4 ? 4 : align;
  if (at + bytes > kSharedBytes) {
    Fault("more than %zu bytes of shared memory", kSharedBytes);
  }
#ifdef GB_EMU_ASAN
  __asan_unpoison_memory_region(shared_.data() + at, bytes);
#endif
  std::memset(shared_.data() + at, 0xff, bytes);
  arrays_.push_back({key, at, bytes});
  shared_used_ = at + bytes;
  return shared_.data() + at;
}

void Machine::Fault(const char* format, ...) {
  char text[400];
  int n = 0;
  if (running()) {
    n = std::snprintf(text, sizeof text, "block %u, thread %u: ", blockIdx.x, at_);
  } else if (kernel_ != nullptr) {
    n = std::snprintf(text, sizeof text, "block %u: ", blockIdx.x);
  }
  va_list list;
  va_start(list, format);
  std::vsnprintf(text + n, sizeof text - static_cast<size_t>(n), format, list);
  va_end(list);
  NoteFault(text);
  faulty_ = true;
  if (running()) {
    Suspend();  // for good
  }
}

}  // namespace internal
}  // namespace emu
}  // namespace gradbus
