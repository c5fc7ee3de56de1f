// What goes wrong on the device, and how it reaches the caller's report.
//
// An operation that checks data there has one Flags in its workspace, zeroed first. Check kernels
// raise faults, later kernels return at once where one was raised and so write nothing, and the
// report kernel, the last one, tells the caller. All is integer minimum, maximum and addition, so
// the result does not depend on the order of threads.
#ifndef GRADBUS_CUDA_FLAGS_CUH_
#define GRADBUS_CUDA_FLAGS_CUH_

#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

// Kinds of fault, in the order in which the host's checks would meet them: of several the first is
// reported.
enum FaultKind : unsigned {
  kOffsetsStart = 0,  // offsets do not start at 0
  kOffsetsFall,       // offsets fall
  kOffsetsEnd,        // offsets do not end at the number of ids
  kBadId,             // id out of range
  kBadOrder,          // keys are not ascending
  kNoRoom,     // too little room for the distinct keys: position 0; Flags.count says how many
  kNonFinite,  // a gradient is not finite, where that refuses the call
  kFound,      // no fault: the position that first_nonfinite looks for
  kFaultKinds
};

struct Flags {
  unsigned long long fault;      // 0: none; see Raise
  unsigned long long skipped;    // bad ids
  unsigned long long nonfinite;  // values
  unsigned long long count;      // distinct keys
};

constexpr int kPositionBits = 47, kTermBits = 13;
constexpr unsigned long long kPositionMask = (1ull << kPositionBits) - 1;
constexpr unsigned long long kTermMask = (1ull << kTermBits) - 1;

// Raise reports a fault at a position of term (0, where an operation has no terms). The least
// (kind, term, position) wins: it is the greatest complement, so that zero can mean none.
__device__ inline void Raise(Flags* flags, FaultKind kind, int64_t term, int64_t position) {
  const unsigned long long code =
      (static_cast<unsigned long long>(kind) << (kPositionBits + kTermBits)) |
      (static_cast<unsigned long long>(term) << kPositionBits) |
      static_cast<unsigned long long>(position);
  atomicMax(&flags->fault, ~code);
}

// Refused says that a kernel launched before this one has raised a fault. Flags may be null.
__device__ inline bool Refused(const Flags* flags) { return flags != nullptr && flags->fault != 0; }

// Text is the message of a fault. The strings lie on the host; Context::texts has them by number.
enum Text : uint32_t {
  kNoText = 0,
  kTextOffsetsStart,
  kTextOffsetsFall,
  kTextOffsetsEnd,
  kTextId,
  kTextTarget,
  kTextKeyOrder,
  kTextIndexOrder,
  kTextRoomIds,
  kTextRoomKeys,
  kTextNonFinite,
  kTextOffsetsBeyond,
  kTextNegativeKey,
  kTexts
};
const char* TextOf(Text text);

// Overlaps says that the code which the current device runs has Await: that it was compiled for 9.0
// or later.
bool Overlaps();

// Verdict says how each kind of fault is reported.
struct Verdict {
  struct Line {
    const void* values;  // report.value is values[position], where they are given
    int64_t limit;
    gb_dtype dtype;
    uint32_t before;  // limit is values[position-1], as where offsets fall
    Text text;
  };
  Line lines[kFaultKinds] = {};
  uint32_t has_terms = 0;

  void Offsets(const gb_in& offsets, bool open, int64_t ids);
  void Ids(const gb_in& ids, int64_t limit, Text text = kTextId);
  void Order(Text text);
  void Room(int64_t room, Text text);
  void NonFinite();
};

// ZeroFlags queues the flags' beginning, Report their end. A null report asks for nothing; null
// flags are those of an operation that nothing can refuse.
void ZeroFlags(Queue& queue, Flags* flags);
void Report(Queue& queue, const Flags* flags, const Verdict& verdict, gb_report* report);

// SumOverWarp adds up a count of each of the 32 threads, all of which must call it.
__device__ inline unsigned SumOverWarp(unsigned n) {
  for (unsigned w = kWarp / 2; w > 0; w /= 2) n += __shfl_xor_sync(0xffffffffu, n, w);
  return n;
}

// AddCount adds every thread's count to a total of the flags; whole warps must call it.
__device__ inline void AddCount(unsigned long long* total, unsigned mine) {
  const unsigned n = SumOverWarp(mine);
  if (n != 0 && threadIdx.x % kWarp == 0) atomicAdd(total, static_cast<unsigned long long>(n));
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_FLAGS_CUH_
