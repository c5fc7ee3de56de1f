// The asynchronous form of the CUDA backend, on an emulated device that does its work late, and
// devices that fail.
#include <cuda_runtime.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tests/call.h"
#include "tests/expect.h"

namespace {

using gradbus::emu::Calls;
using gradbus::emu::Defer;
using gradbus::emu::FailAt;
using gradbus::emu::Faults;
using gradbus::emu::Reset;
using gradbus::tests::Backend;
using gradbus::tests::Case;
using gradbus::tests::Cases;
using gradbus::tests::Opened;

// Work that is queued and done at once, or only when it is waited for: by then the arguments of the
// call are spoiled.
void TestStreams(const Backend& cpu, const Backend& emu) {
  for (const bool late : {false, true}) {
    int wrong = 0;
    const std::vector<Case> cases = Cases(8);
    for (const Case& c : cases) {
      const std::string want = c.run(cpu, c.seed);
      Defer(late);
      const std::string got = c.run(emu, c.seed);
      Defer(false);
      if (got == want && Faults().empty()) continue;
      if (wrong++ < 5) {
        std::printf("%s on a stream%s: %s\n     want %.150s\n     got  %.150s\n", c.name.c_str(),
                    late ? ", late" : "", Faults().c_str(), want.c_str(), got.c_str());
      }
      Reset();
    }
    std::printf("on a stream%s: %d of %d cases differ\n", late ? ", late" : "", wrong,
                static_cast<int>(cases.size()));
    failures += wrong;
  }
}

// One case of each operation that asks the device for something.
std::vector<Case> OneOfEach() {
  std::map<std::string, Case> one;
  for (const Case& c : Cases(3)) {
    const std::string name = c.name.substr(0, c.name.find(' '));
    const int64_t before = Calls();
    const Opened emu(gb_emu_backend(GB_ABI), nullptr);
    const int64_t opening = Calls() - before;
    c.run(emu.sync(), c.seed);
    if (Calls() - before > opening + 2) one[name] = c;
  }
  std::vector<Case> all;
  for (const auto& o : one) all.push_back(o.second);
  return all;
}

// Whatever call of the runtime fails, the operation says so, and so does every later one.
void TestLost() {
  for (const Case& c : OneOfEach()) {
    for (const bool on_stream : {false, true}) {
      int lost = 0;
      for (int64_t n = 1;; n++) {
        const Opened emu(gb_emu_backend(GB_ABI), nullptr);
        const Backend backend = on_stream ? emu.async() : emu.sync();
        const int64_t before = Calls();
        FailAt(n, cudaErrorLaunchFailure);
        const std::string got = c.run(backend, c.seed);
        const bool reached = Calls() - before >= n;
        FailAt(0, 0);
        if (!reached) {
          Reset();
          break;
        }
        // Where arrays are brought and fetched by the test itself the failure may be one of memory.
        const bool said = got.rfind("status 10", 0) == 0 || got.rfind("status of a copy", 0) == 0 ||
                          (on_stream && got.rfind("status 9", 0) == 0);
        // A failure in what frees the test's memory comes after the call's end.
        const bool after = got.rfind("status 0", 0) == 0 && on_stream;
        if (!said && !after) {
          std::printf("%s%s, call %d fails: %.60s\n", c.name.c_str(),
                      on_stream ? " on a stream" : "", static_cast<int>(n), got.c_str());
          failures++;
        }
        if (!on_stream) EXPECT(c.run(backend, c.seed).rfind("status 10", 0) == 0);
        lost++;
        Reset();
      }
      std::printf("%s%s: lost at each of %d calls\n", c.name.c_str(),
                  on_stream ? " on a stream" : "", lost);
      EXPECT(lost > 2);
    }
  }
}

// A device without memory is not lost.
void TestNoMemory() {
  for (const Case& c : OneOfEach()) {
    const Opened emu(gb_emu_backend(GB_ABI), nullptr);
    const std::string want = c.run(Opened(gb_backend(GB_ABI), "baseline").sync(), c.seed);
    int refused = 0;
    for (int64_t n = 1; n < 12; n++) {
      FailAt(n, cudaErrorMemoryAllocation);
      const std::string got = c.run(emu.sync(), c.seed);
      FailAt(0, 0);
      refused += got.rfind("status 9", 0) == 0;
      EXPECT(got.rfind("status 9", 0) == 0 || got.rfind("status 10", 0) == 0 || got == want);
      EXPECT(c.run(emu.sync(), c.seed) == want);
      Reset();
    }
    EXPECT(refused > 0);
  }
}

// A device that fails while it is opened is no device, and leaves nothing behind.
void TestOpening() {
  const gb_api* api = gb_emu_backend(GB_ABI);
  for (int64_t n = 1;; n++) {
    gb_open_args a = {};
    a.size = sizeof a;
    gb_report report = {};
    report.size = sizeof report;
    gb_context* context = nullptr;
    const int64_t before = Calls();
    FailAt(n, cudaErrorLaunchFailure);
    const gb_status s = api->open(&a, &context, &report);
    const bool reached = Calls() - before >= n;
    Reset();
    if (s == GB_OK) api->close(context);
    if (!reached) {
      EXPECT(s == GB_OK && n > 2);
      break;
    }
    EXPECT(s == GB_NO_DEVICE || s == GB_DEVICE || s == GB_MEMORY);
    EXPECT(s == GB_OK || context == nullptr);
  }
}

// What a caller sees while the device works.
void TestBusy() {
  const Opened emu(gb_emu_backend(GB_ABI), nullptr);
  const Backend b = emu.async();
  void *memory = nullptr, *there = nullptr;
  gb_report report = {};
  report.size = sizeof report;
  EXPECT(b.api->alloc(b.context, 4096, &memory, &report) == GB_OK);
  EXPECT(b.api->device_alloc(b.context, 64, &there, &report) == GB_OK);
  gb_report* pinned = static_cast<gb_report*>(memory);
  pinned->size = sizeof *pinned;
  char* data = static_cast<char*>(memory) + 1024;
  data[0] = 7;
  gb_copy_args to = {}, back = {};
  to.size = back.size = sizeof to;
  to.from = data;
  to.to = there;
  back.from = there;
  back.to = data + 1024;
  to.bytes = back.bytes = 64;
  const int fd = eventfd(0, EFD_NONBLOCK);
  uint64_t count = 0;
  Defer(true);
  EXPECT(b.api->copy(b.context, b.stream, &to, {nullptr, 0}, nullptr) == GB_OK);
  EXPECT(b.api->copy(b.context, b.stream, &back, {nullptr, 0}, pinned) == GB_OK);
  EXPECT(b.api->stream_notify(b.context, b.stream, fd, &report) == GB_OK);
  EXPECT(pinned->status == GB_BUSY && read(fd, &count, sizeof count) < 0);
  EXPECT(b.api->stream_query(b.context, b.stream, &report) == GB_BUSY);
  int turns = 0;
  while (b.api->stream_query(b.context, b.stream, &report) == GB_BUSY && turns < 100) turns++;
  EXPECT(turns < 100 && pinned->status == GB_OK && data[1024] == 7);
  EXPECT(read(fd, &count, sizeof count) == sizeof count && count == 1);
  // A device that fails is found at the wait, and a waiter on the descriptor is woken.
  EXPECT(b.api->copy(b.context, b.stream, &to, {nullptr, 0}, pinned) == GB_OK);
  EXPECT(b.api->stream_notify(b.context, b.stream, fd, &report) == GB_OK);
  FailAt(1, cudaErrorLaunchFailure);
  EXPECT(b.api->stream_wait(b.context, b.stream, &report) == GB_DEVICE);
  EXPECT(report.value == cudaErrorLaunchFailure);
  EXPECT(b.api->copy(b.context, b.stream, &to, {nullptr, 0}, pinned) == GB_DEVICE);
  EXPECT(read(fd, &count, sizeof count) == sizeof count && count == 1);
  Reset();
  close(fd);
  b.api->device_free(b.context, there);
  b.api->free(b.context, memory, 4096);
}

}  // namespace

int main() {
  {
    const Opened cpu(gb_backend(GB_ABI), "baseline"), emu(gb_emu_backend(GB_ABI), nullptr);
    TestStreams(cpu.sync(), emu.async());
  }
  TestBusy();
  TestOpening();
  TestLost();
  TestNoMemory();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
