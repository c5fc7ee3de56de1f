// The threads of one opened CPU backend.
//
// A job is a number of parts; the caller and the pool's own threads take them one by one. What a
// part computes may not depend on who runs it. Several callers may come at once: the first gets the
// pool, the others run their parts themselves, so no caller waits for another. Nothing is allocated
// after the opening.
#ifndef GRADBUS_CPU_POOL_H_
#define GRADBUS_CPU_POOL_H_

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <type_traits>

namespace gradbus {

constexpr int kThreadsMost = 256;

class Pool {
 public:
  // threads counts the caller. Where the system gives fewer, the pool is smaller.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Run calls f(part, worker) for every part in [0, parts), in any order and at the same time;
  // worker is in [0, threads()), and no two calls that run at once share it.
  template <typename F>
  void Run(int64_t parts, F&& f) {
    if (threads_ == 1 || parts <= 1 || !Lock()) {
      for (int64_t part = 0; part < parts; part++) f(part, 0);
      return;
    }
    RunJob(
        parts,
        [](void* at, int64_t part, int worker) {
          (*static_cast<std::remove_reference_t<F>*>(at))(part, worker);
        },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Call = void (*)(void* at, int64_t part, int worker);
  struct Start {
    Pool* pool;
    int worker;
  };
  static void* Work(void* start);
  void WorkerLoop(int worker);
  uint64_t Await(uint64_t done);
  bool Enter(uint64_t job);
  void Leave();
  void TakeParts(int worker);
  bool Lock() { return !busy_.load(std::memory_order_relaxed) && !busy_.exchange(true); }
  void RunJob(int64_t parts, Call call, void* at);

  // state_ is (number of the job, closed bit, workers inside): a worker that comes late finds the
  // job closed, or another one, and touches nothing of it.
  static constexpr uint64_t kClosed = 1u << 16, kInside = kClosed - 1, kJob = 1u << 17;

  int threads_ = 1;
  alignas(64) std::atomic<bool> busy_{false};
  alignas(64) std::atomic<uint64_t> state_{kClosed};
  std::atomic<int> asleep_{0};
  std::atomic<bool> stop_{false};
  Call call_ = nullptr;
  void* at_ = nullptr;
  int64_t parts_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t wake_ = PTHREAD_COND_INITIALIZER;
  Start starts_[kThreadsMost];
  pthread_t handles_[kThreadsMost];
};

}  // namespace gradbus

#endif  // GRADBUS_CPU_POOL_H_
