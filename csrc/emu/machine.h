// The machine: runs the blocks of a launch one after the other, each thread of a block on a fibre
// of its own, up to its next barrier.
//
// Blocks come in a random order, and so do the threads that could run: some blocks pick each time
// anew, others keep an order of threads or of warps, so that one thread runs as far ahead of the
// others as barriers let it. A barrier that is missing therefore shows, sooner or later.
//
// Masks are taken at their word: every thread that a mask names must come to the same place with
// the same mask. What a GPU would forgive, or hang at, is a fault here: its text says where, the
// launch ends, and the device is lost until Reset.
#ifndef GRADBUS_EMU_MACHINE_H_
#define GRADBUS_EMU_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "emu/fibre.h"

namespace gradbus {
namespace emu {
namespace internal {

constexpr unsigned kWarp = 32;
constexpr unsigned kThreadsMost = 1024;
constexpr size_t kSharedBytes = 48 << 10;  // what a kernel may declare

// Site gives the number of a place in the sources.
int Site(const char* file, int line);

enum class Kind { kSync, kShuffle, kVote };

// Rounds of a warp that wait for more of their threads.
struct Round {
  int site;
  Kind kind;
  uint32_t mask, arrived;
};

struct Thread {
  Context context;
  Stack stack;
  bool started, done;
  int site;         // of the barrier it waits at
  uint64_t value;   // what it brings to a round
  uint64_t result;  // what it takes away
  int source;       // the lane that a shuffle reads
};

struct Warp {
  std::vector<Round> rounds;
  uint32_t lanes, done, waiting;  // those that exist, have left, and wait at a barrier of the block
};

struct SharedArray {
  const void* key;
  size_t at, bytes;
};

class Machine {
 public:
  // Here is the machine that runs on this thread.
  static Machine& Here();
  ~Machine();

  // Run is a launch; false after a fault.
  bool Run(unsigned blocks, unsigned threads, const std::function<void()>& kernel);

  bool running() const { return current_ != nullptr; }

  // For races.cc, which WatchAll turns on: who runs, and what is ordered before it. A run is a
  // block of a launch, its epoch the barriers that it has passed; a thread's tick are the barriers
  // of its warp that it has passed since then.
  static void WatchAll();
  static bool Watches();
  uint32_t run() const { return run_; }
  uint32_t launch() const { return first_run_; }
  bool InLaunch(uint32_t run) const { return run - first_run_ < runs_; }
  uint32_t epoch() const { return epoch_; }
  uint32_t at() const { return at_; }
  uint32_t tick() const { return Passed(at_ % kWarp); }
  // Passed is the tick of a lane of the warp up to which all it did comes before what runs now.
  uint32_t Passed(unsigned lane) const { return clocks_[at_ * kWarp + lane]; }
  bool OnStack(const void* at) const {
    const char* p = static_cast<const char*>(at);
    return p >= current_->stack.low && p < current_->stack.low + current_->stack.bytes;
  }
  bool IsShared(const void* at) const {
    const char* p = static_cast<const char*>(at);
    return p >= shared_.data() && p < shared_.data() + shared_.size();
  }
  void SyncThreads(int site);
  uint64_t Meet(int site, Kind kind, uint32_t mask, uint64_t value, int source);
  void* Shared(const void* key, size_t bytes, size_t align);
  // Pause lets another thread run now and then.
  void Pause(unsigned one_in);
  // Fault reports and, in a kernel, does not return.
  void Fault(const char* format, ...) __attribute__((format(printf, 2, 3)));

 private:
  bool RunBlock();
  void Begin();
  int Pick();
  void Resume(unsigned thread);
  void Leave();
  void Suspend();
  void Demote();
  void Ready(unsigned thread);
  void Finish(unsigned warp, const Round& round);
  void Join(unsigned warp, uint32_t mask);
  void CheckRounds(const char* what, int site);
  uint64_t Random();
  static void Start();

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> order_, rank_;  // which thread is the i-th, and its inverse
  std::vector<uint64_t> ready_;         // bits, by rank
  std::vector<Stack> stacks_;           // spare ones
  std::vector<SharedArray> arrays_;
  std::vector<char> shared_;
  Context home_;
  Thread* current_ = nullptr;
  const std::function<void()>* kernel_ = nullptr;
  unsigned n_ = 0, done_ = 0, waiting_ = 0, at_ = 0;
  int barrier_ = -1;  // where the block's threads wait
  size_t shared_used_ = 0;
  bool anew_ = false;  // picks a thread at random each time
  bool faulty_ = false;
  uint64_t random_ = 0, seed_of_ = 0;
  std::vector<uint32_t> clocks_;  // of each thread, by lane of its warp
  uint32_t run_ = 0, first_run_ = 0, runs_ = 0, epoch_ = 0;
};

}  // namespace internal
}  // namespace emu
}  // namespace gradbus

#endif  // GRADBUS_EMU_MACHINE_H_
