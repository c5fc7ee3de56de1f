// What the parts of the emulation ask of its switches; tests use emu.h.
#ifndef GRADBUS_EMU_SWITCHES_H_
#define GRADBUS_EMU_SWITCHES_H_

#include <cstdint>
#include <string>

#include "emu/runtime.h"

namespace gradbus {
namespace emu {
namespace internal {

struct Seeded {
  uint64_t number;  // of the call of Seed, so that each thread notices
  uint64_t seed;
};
Seeded SeedNow();
int Dropped();
bool Deferred();
const char* SiteName(int site);

void NoteFault(const std::string& text);

// Call counts one call of the runtime and gives the error it must answer with: that of a lost
// device, or the one that FailAt asks for.
cudaError_t Call();

// Lost is the error that the device was lost by.
cudaError_t Lost();

// Return notes an error as the thread's last, and loses the device where the error is of that kind.
cudaError_t Return(cudaError_t e);

}  // namespace internal
}  // namespace emu
}  // namespace gradbus

#endif  // GRADBUS_EMU_SWITCHES_H_
