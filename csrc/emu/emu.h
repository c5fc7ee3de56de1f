// The switches of the emulation, for tests.
//
// The emulated device is one for the whole process, and so are these switches: a test that turns
// them does so while nothing else runs on the device.
#ifndef GRADBUS_EMU_EMU_H_
#define GRADBUS_EMU_EMU_H_

#include <cstdint>
#include <string>
#include <vector>

namespace gradbus {
namespace emu {

// Seed chooses the order of blocks and threads from here on.
void Seed(uint64_t seed);

// Faults is the text of the first fault since Reset, or empty.
std::string Faults();

// Barriers are the places of barriers, shuffles and votes met so far, as "file:line". An index into
// it names one.
std::vector<std::string> Barriers();

// Drop lets the barrier of that index do nothing: a barrier does not wait, a shuffle gives a thread
// its own value, a vote counts the thread's own. -1 drops none.
void Drop(int barrier);

// FailAt lets the n-th call of the runtime from here on fail with that error, launches among them;
// n is from 1, and 0 lets none fail. An error that a device does not survive stays until Reset.
void FailAt(int64_t n, int error);

// Calls is how many calls of the runtime there were.
int64_t Calls();

// Defer lets work on a stream wait until something asks for it, as on a device that is busy. What a
// call should have read before it returned is then read too late, which shows.
void Defer(bool on);

// Watches says whether races between threads are faults too: in a program whose kernels are
// compiled for it, see races.cc.
bool Watches();

// Reset forgets faults, switches and the loss of the device. Memory and streams stay.
void Reset();

}  // namespace emu
}  // namespace gradbus

#endif  // GRADBUS_EMU_EMU_H_
