// Fibres: one stack for each thread of a block, and the switch between them.
#ifndef GRADBUS_EMU_FIBRE_H_
#define GRADBUS_EMU_FIBRE_H_

#include <cstddef>

#if !defined(__x86_64__) || defined(GRADBUS_EMU_UCONTEXT)
#define GB_EMU_UCONTEXT 1
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define GB_EMU_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define GB_EMU_TSAN 1
#endif

namespace gradbus {
namespace emu {
namespace internal {

// Stack is memory above a page that no one may touch.
struct Stack {
  char* low = nullptr;
  size_t bytes = 0;
};

// TakeStack returns an unused stack, or one without memory if there is none. Stacks are
// kept and given again; they may hold what the last fibre left.
Stack TakeStack();
void GiveStack(Stack stack);

// Context is a place where execution waits: in a fibre, or in the thread that runs the fibres.
struct Context {
#ifdef GB_EMU_UCONTEXT
  ucontext_t at;
#else
  void* sp = nullptr;
#endif
  const void* bottom = nullptr;  // of the stack, for the sanitizer
  size_t bytes = 0;
  void* fake = nullptr;
};

// Prepare makes of context a fibre that begins with start, which must never return.
void Prepare(Context* context, Stack stack, void (*start)());

// Arrived is the first call of a fibre: home is who switched to it.
void Arrived(Context* home);

// Switch goes on at to. Where ends is true, from is never gone back to.
void Switch(Context* from, Context* to, bool ends);

}  // namespace internal
}  // namespace emu
}  // namespace gradbus

#endif  // GRADBUS_EMU_FIBRE_H_
