// Finds races in the memory of the device: two threads at one place, one of them writing, and no
// barrier between the two that both passed.
//
// The kernels are compiled with -fsanitize=thread, which puts a call before each access to memory;
// the calls end here and not in that sanitizer's library, since what orders the threads of a block
// are its barriers. Shuffles and votes order nothing, which is what CUDA promises of them; threads
// of different blocks are not ordered at all within a launch; atomic operations may meet each
// other. Of each four bytes the last write and two of the reads are remembered: a race may be
// missed, but what is reported is one.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "emu/machine.h"
#include "emu/runtime.h"

namespace gradbus {
namespace emu {
namespace internal {
namespace {

constexpr uintptr_t kPageBytes = 4096;

// Mark is an access: by which thread, in which block of which launch, after how many barriers.
struct Mark {
  uint32_t run;  // 0: none
  uint32_t epoch, tick;
  uint16_t thread;
  uint8_t bytes : 4;  // which of the four
  uint8_t atomic : 1, shared : 1;
};

struct Cell {
  Mark write, reads[2];
};

struct Page {
  Cell cells[kPageBytes / 4];
  uint32_t writable;  // the launch in which a thread was allowed to write here
};

struct Shadow {
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
  uintptr_t last_number = 0;
  Page* last = nullptr;

  Page* Of(uintptr_t at) {
    const uintptr_t number = at / kPageBytes;
    if (last == nullptr || number != last_number) {
      std::unique_ptr<Page>& page = pages[number];
      if (page == nullptr) page.reset(new Page());
      last_number = number;
      last = page.get();
    }
    return last;
  }
};

Shadow& Here() {
  static thread_local Shadow shadow;
  return shadow;
}

// Shared memory is another one for every block, though it lies at the same place.
bool Ordered(const Machine& m, const Mark& before) {
  if (!m.InLaunch(before.run)) return true;
  if (before.run != m.run()) return before.shared != 0;
  if (before.thread == m.at() || before.epoch < m.epoch()) return true;
  return before.thread / kWarp == m.at() / kWarp && before.tick <= m.Passed(before.thread % kWarp);
}

bool Clash(const Machine& m, const Mark& before, const Mark& now) {
  return before.run != 0 && (before.bytes & now.bytes) != 0 &&
         (before.atomic == 0 || now.atomic == 0) && !Ordered(m, before);
}

void Report(Machine& m, const void* at, const char* now, const char* then, const Mark& before,
            const void* code) {
  m.Fault("race: %s at %p, which thread %u of %s block %s, with no barrier between them (code %p)",
          now, at, before.thread, before.run == m.run() ? "the same" : "another", then, code);
}

void Touch(Machine& m, Cell& cell, Mark now, bool write, const void* at, const void* code) {
  if (Clash(m, cell.write, now)) {
    return Report(m, at, write ? "writes" : "reads", "wrote", cell.write, code);
  }
  if (write) {
    for (Mark& r : cell.reads) {
      if (Clash(m, r, now)) return Report(m, at, "writes", "reads", r, code);
      r.run = 0;
    }
    cell.write = now;
    return;
  }
  Mark& first = cell.reads[0];
  const bool keeps = first.run != 0 && first.thread != now.thread && !Ordered(m, first);
  (keeps ? cell.reads[1] : first) = now;
}

// The data of the program itself: what the emulation keeps there is none of the device's.
extern "C" char __data_start, _end;

bool IsOfProgram(const void* at) {
  const char* p = static_cast<const char*>(at);
  return p >= &__data_start && p < &_end;
}

bool MayWrite(Machine& m, Page* page, const void* at, size_t bytes) {
  if (page->writable == m.launch()) return true;
  if (!m.IsShared(at) && !IsDevice(at, bytes)) return false;
  page->writable = m.launch();
  return true;
}

void Access(const void* at, size_t bytes, bool write, bool atomic, const void* code) {
  Machine& m = Machine::Here();
  if (!m.running() || m.OnStack(at) || IsOfProgram(at)) return;
  uintptr_t from = reinterpret_cast<uintptr_t>(at);
  const uintptr_t to = from + bytes;
  Shadow& shadow = Here();
  const bool shared = m.IsShared(at);
  if (write && !MayWrite(m, shadow.Of(from), at, bytes)) {
    return m.Fault("writes %p, which is not the device's memory (code %p)", at, code);
  }
  while (from < to) {
    const uintptr_t next = (from | 3) + 1, end = next < to ? next : to;
    const unsigned mask = ((1u << (end - from)) - 1) << (from & 3);
    const Mark now = {m.run(),
                      m.epoch(),
                      m.tick(),
                      static_cast<uint16_t>(m.at()),
                      static_cast<uint8_t>(mask & 15),
                      atomic,
                      shared};
    Touch(m, shadow.Of(from)->cells[from % kPageBytes / 4], now, write, at, code);
    from = next;
  }
}

}  // namespace
}  // namespace internal
}  // namespace emu
}  // namespace gradbus

#define GB_CODE __builtin_return_address(0)
#define GB_ACCESS(name, bytes, write)                                 \
  extern "C" void __tsan_##name(void* at) {                           \
    gradbus::emu::internal::Access(at, bytes, write, false, GB_CODE); \
  }
#define GB_ACCESSES(bytes)                       \
  GB_ACCESS(read##bytes, bytes, false)           \
  GB_ACCESS(write##bytes, bytes, true)           \
  GB_ACCESS(unaligned_read##bytes, bytes, false) \
  GB_ACCESS(unaligned_write##bytes, bytes, true) \
  GB_ACCESS(volatile_read##bytes, bytes, false)  \
  GB_ACCESS(volatile_write##bytes, bytes, true)
GB_ACCESSES(1)
GB_ACCESSES(2)
GB_ACCESSES(4)
GB_ACCESSES(8)
GB_ACCESSES(16)

extern "C" {
void __tsan_init() { gradbus::emu::internal::Machine::WatchAll(); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* at, size_t bytes) {
  gradbus::emu::internal::Access(at, bytes, false, false, GB_CODE);
}
void __tsan_write_range(void* at, size_t bytes) {
  gradbus::emu::internal::Access(at, bytes, true, false, GB_CODE);
}
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}
}

// What the emulation's atomic operations are made of, and the guards of static variables.
#define GB_ATOMICS(bits, T)                                                                    \
  extern "C" T __tsan_atomic##bits##_load(const volatile T* at, int) {                         \
    gradbus::emu::internal::Access(const_cast<const T*>(at), sizeof(T), false, true, GB_CODE); \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                              \
  }                                                                                            \
  extern "C" void __tsan_atomic##bits##_store(volatile T* at, T value, int) {                  \
    gradbus::emu::internal::Access(const_cast<const T*>(at), sizeof(T), true, true, GB_CODE);  \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                             \
  }                                                                                            \
  extern "C" bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* at, T* expected,   \
                                                                T value, int, int) {           \
    gradbus::emu::internal::Access(const_cast<const T*>(at), sizeof(T), true, true, GB_CODE);  \
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST,           \
                                       __ATOMIC_SEQ_CST);                                      \
  }
GB_ATOMICS(8, uint8_t)
GB_ATOMICS(16, uint16_t)
GB_ATOMICS(32, uint32_t)
GB_ATOMICS(64, uint64_t)
