#include "emu/switches.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include "emu/emu.h"
#include "emu/machine.h"

namespace gradbus {
namespace emu {
namespace {

struct State {
  std::mutex busy;                // of what is not atomic
  std::deque<std::string> sites;  // whose names stay where they are
  std::string fault;
  std::atomic<uint64_t> seed{1}, seeds{1};
  std::atomic<int> dropped{-1}, lost{0}, fail_with{0};
  std::atomic<int64_t> fail_in{0}, calls{0};
  std::atomic<bool> deferred{false};
};

State& Now() {
  static State* state = new State;  // lives as long as the last thread that ends
  return *state;
}

thread_local int last_error = 0;

// Loses says whether a device is gone after this error, as CUDA's errors of its program are.
bool Loses(int e) { return e >= 200 && e != cudaErrorNotReady && e != cudaErrorNotSupported; }

}  // namespace

void Seed(uint64_t seed) {
  Now().seed = seed;
  Now().seeds++;
}

std::string Faults() {
  const std::lock_guard<std::mutex> lock(Now().busy);
  return Now().fault;
}

std::vector<std::string> Barriers() {
  const std::lock_guard<std::mutex> lock(Now().busy);
  return {Now().sites.begin(), Now().sites.end()};
}

void Drop(int barrier) { Now().dropped = barrier; }

void FailAt(int64_t n, int error) {
  Now().fail_with = error;
  Now().fail_in = n;
}

int64_t Calls() { return Now().calls; }

void Defer(bool on) { Now().deferred = on; }

bool Watches() { return internal::Machine::Watches(); }

void Reset() {
  Drop(-1);
  FailAt(0, 0);
  Defer(false);
  Now().lost = 0;
  last_error = 0;
  const std::lock_guard<std::mutex> lock(Now().busy);
  Now().fault.clear();
}

namespace internal {

int Site(const char* file, int line) {
  const char* name = std::strstr(file, "csrc/");
  const std::string site =
      std::string(name == nullptr ? file : name + 5) + ":" + std::to_string(line);
  const std::lock_guard<std::mutex> lock(Now().busy);
  std::deque<std::string>& all = Now().sites;
  for (size_t i = 0; i < all.size(); i++) {
    if (all[i] == site) return static_cast<int>(i);
  }
  all.push_back(site);
  return static_cast<int>(all.size()) - 1;
}

Seeded SeedNow() { return {Now().seeds, Now().seed}; }
int Dropped() { return Now().dropped.load(std::memory_order_relaxed); }
bool Deferred() { return Now().deferred; }

const char* SiteName(int site) {
  const std::lock_guard<std::mutex> lock(Now().busy);
  return site < 0 ? "" : Now().sites[static_cast<size_t>(site)].c_str();
}

void NoteFault(const std::string& text) {
  const std::lock_guard<std::mutex> lock(Now().busy);
  if (Now().fault.empty()) Now().fault = text;
}

cudaError_t Call() {
  State& s = Now();
  s.calls++;
  if (s.fail_in > 0 && --s.fail_in == 0) return static_cast<cudaError_t>(s.fail_with.load());
  return static_cast<cudaError_t>(s.lost.load());
}

cudaError_t Lost() { return static_cast<cudaError_t>(Now().lost.load()); }

cudaError_t Return(cudaError_t e) {
  if (e == cudaSuccess) return e;
  last_error = e;
  if (Loses(e) && Now().lost.exchange(e) == 0) RunAll(true);  // waiting threads are woken
  return e;
}

}  // namespace internal
}  // namespace emu
}  // namespace gradbus

using gradbus::emu::last_error;

cudaError_t cudaPeekAtLastError() {
  const int lost = gradbus::emu::Now().lost;
  return static_cast<cudaError_t>(lost != 0 ? lost : last_error);
}

cudaError_t cudaGetLastError() {
  const cudaError_t e = cudaPeekAtLastError();
  last_error = 0;
  return e;
}
