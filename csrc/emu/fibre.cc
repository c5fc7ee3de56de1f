#include "emu/fibre.h"

#include <sys/mman.h>

#include <cstdint>
#include <mutex>
#include <vector>

#ifdef GB_EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef GB_EMU_UCONTEXT
// Keeps what the C calling convention lets a function count on, and leaves the rest. The modes of
// floating point are the same in all fibres, so they are left alone too.
extern "C" void gradbus_emu_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl gradbus_emu_switch
.hidden gradbus_emu_switch
.type gradbus_emu_switch, @function
gradbus_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gradbus_emu_switch, .-gradbus_emu_switch
)");
#endif

namespace gradbus {
namespace emu {
namespace internal {
namespace {

#ifdef GB_EMU_ASAN
constexpr size_t kStackBytes = 256 << 10;  // frames have red zones
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kGuardBytes = 4096;

struct Pool {
  std::mutex busy;
  std::vector<Stack> free;
};

Pool& ThePool() {
  static Pool* pool = new Pool;  // lives as long as the last thread that ends
  return *pool;
}

}  // namespace

Stack TakeStack() {
  Pool& pool = ThePool();
  {
    const std::lock_guard<std::mutex> lock(pool.busy);
    if (!pool.free.empty()) {
      const Stack stack = pool.free.back();
      pool.free.pop_back();
      return stack;
    }
  }
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return {};
  if (mprotect(memory, kGuardBytes, PROT_NONE) != 0) {
    munmap(memory, kGuardBytes + kStackBytes);
    return {};
  }
  return {static_cast<char*>(memory) + kGuardBytes, kStackBytes};
}

void GiveStack(Stack stack) {
  Pool& pool = ThePool();
  const std::lock_guard<std::mutex> lock(pool.busy);
  pool.free.push_back(stack);
}

void Prepare(Context* context, Stack stack, void (*start)()) {
#ifdef GB_EMU_ASAN
  // A fibre that was given up left its frames' red zones behind.
  __asan_unpoison_memory_region(stack.low, stack.bytes);
#endif
  context->bottom = stack.low;
  context->bytes = stack.bytes;
  context->fake = nullptr;
#ifdef GB_EMU_UCONTEXT
  getcontext(&context->at);
  context->at.uc_stack.ss_sp = stack.low;
  context->at.uc_stack.ss_size = stack.bytes;
  context->at.uc_link = nullptr;
  makecontext(&context->at, start, 0);
#else
  // As if start had just been called: its return address, which is none, lies 8 below a multiple
  // of 16.
  void** top = reinterpret_cast<void**>(stack.low + stack.bytes) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(start);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  context->sp = top;
#endif
}

void Arrived(Context* home) {
#ifdef GB_EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &home->bottom, &home->bytes);
#else
  (void)home;
#endif
}

void Switch(Context* from, Context* to, bool ends) {
#ifdef GB_EMU_ASAN
  __sanitizer_start_switch_fiber(ends ? nullptr : &from->fake, to->bottom, to->bytes);
#else
  (void)ends;
#endif
#ifdef GB_EMU_UCONTEXT
  swapcontext(&from->at, &to->at);
#else
  gradbus_emu_switch(&from->sp, to->sp);
#endif
#ifdef GB_EMU_ASAN
  __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

}  // namespace internal
}  // namespace emu
}  // namespace gradbus
