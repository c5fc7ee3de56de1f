// One call of an operation, the same for every backend: its arrays lie on the host or, where there
// is a stream, on the device; what it gave is text that can be compared.
#ifndef GRADBUS_TESTS_CALL_H_
#define GRADBUS_TESTS_CALL_H_

#include <cstdint>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "gradbus.h"

namespace gradbus {
namespace tests {

// Backend is an opened backend, and a stream of it where calls are to be asynchronous.
struct Backend {
  const gb_api* api;
  gb_context* context;
  gb_stream* stream;
};

// Random numbers: the same ones everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : x_(seed * 0xd6e8feb86659fd93u + 1) {}
  uint64_t Next();
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  // Value is a float of some size and sign, now and then zero, -0 or a subnormal.
  float Value();
  template <typename T>
  T Of(std::initializer_list<T> list) {
    return list.begin()[Below(static_cast<int64_t>(list.size()))];
  }

 private:
  uint64_t x_;
};

// Call keeps the arrays of one call. What it made is Outcome, when it has run.
class Call {
 public:
  Call(const Backend& backend, uint64_t seed) : random(seed), backend_(backend) {}
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Random random;

  // Inputs: n random values, or these numbers.
  gb_in Values(int64_t n, gb_dtype dtype);
  gb_in Floats(const std::vector<float>& values, gb_dtype dtype);
  gb_in Ints(const std::vector<int64_t>& values, gb_dtype dtype);
  // Outputs: room for n elements; with per_key > 0 only report.count times as many are compared.
  gb_out Room(int64_t n, gb_dtype dtype, int64_t per_key = 0);
  gb_out Over(const gb_in& in);

  // Host gives memory of the host that the call reads before it returns: it is spoiled afterwards.
  template <typename T>
  T* Host(size_t n) {
    host_.emplace_back(n * sizeof(T) + 1);
    return reinterpret_cast<T*>(host_.back().data());
  }

  template <typename Args>
  using Function = gb_status (*)(gb_context*, gb_stream*, const Args*, gb_workspace, gb_report*);

  // Run calls the function, and waits where there is a stream.
  template <typename Args>
  std::string Run(gb_op op, Function<Args> function, Args args) {
    args.size = sizeof args;
    Args* copy = Host<Args>(1);
    std::memcpy(copy, &args, sizeof args);
    const gb_workspace w = Workspace(backend_.api->workspace(backend_.context, op, copy));
    if (!failed_) End(function(backend_.context, backend_.stream, copy, w, report_));
    return Outcome();
  }

 private:
  struct Output {
    char* at;
    int64_t n, per_key;
    gb_dtype dtype;
  };
  char* Place(const void* from, int64_t n, gb_dtype dtype);
  gb_workspace Workspace(uint64_t bytes);
  void* Memory(uint64_t bytes, bool device);
  void Copy(void* to, const void* from, uint64_t bytes);
  void End(gb_status status);
  std::string Outcome();

  const Backend& backend_;
  std::deque<std::vector<char>> host_, arrays_;
  std::vector<void*> device_;
  std::vector<std::pair<void*, uint64_t>> pinned_;
  std::vector<Output> outputs_;
  gb_report own_report_ = {};
  gb_report* report_ = nullptr;
  gb_status status_ = GB_OK;
  bool failed_ = false;
};

// Case is a call with a name.
struct Case {
  std::string name;
  std::string (*run)(const Backend&, uint64_t seed);
  uint64_t seed;
};

// Cases are all operations, each so many times with different arguments.
std::vector<Case> Cases(int each);

// Opened opens a backend and closes it.
class Opened {
 public:
  Opened(const gb_api* api, const char* isa);
  ~Opened();
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  Backend sync() const { return {api_, context_, nullptr}; }
  Backend async() const { return {api_, context_, stream_}; }

 private:
  const gb_api* api_;
  gb_context* context_ = nullptr;
  gb_stream* stream_ = nullptr;
};

}  // namespace tests
}  // namespace gradbus

extern "C" const gb_api* gb_emu_backend(uint32_t abi);

#endif  // GRADBUS_TESTS_CALL_H_
