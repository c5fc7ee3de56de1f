#include "cpu/pool.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

namespace gradbus {
namespace {

constexpr int kSpins = 400;  // some ten microseconds: longer than between two calls of one batch

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// The workers block all signals: those are the caller's runtime's business.
Pool::Pool(int threads) {
  if (threads > kThreadsMost) threads = kThreadsMost;
  sigset_t all, before;
  sigfillset(&all);
  if (threads > 1) pthread_sigmask(SIG_SETMASK, &all, &before);
  int made = 1;
  for (; made < threads; made++) {
    starts_[made] = {this, made};
    if (pthread_create(&handles_[made], nullptr, Work, &starts_[made]) != 0) break;
  }
  if (threads > 1) pthread_sigmask(SIG_SETMASK, &before, nullptr);
  threads_ = made;
}

Pool::~Pool() {
  pthread_mutex_lock(&mutex_);
  stop_.store(true);
  pthread_cond_broadcast(&wake_);
  pthread_mutex_unlock(&mutex_);
  for (int i = 1; i < threads_; i++) pthread_join(handles_[i], nullptr);
  pthread_cond_destroy(&wake_);
  pthread_mutex_destroy(&mutex_);
}

void* Pool::Work(void* start) {
  const Start s = *static_cast<const Start*>(start);
  s.pool->WorkerLoop(s.worker);
  return nullptr;
}

void Pool::WorkerLoop(int worker) {
  uint64_t done = 0;  // the last job looked at
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t job = Await(done);
    if (job == done) return;
    done = job;
    if (!Enter(job)) continue;
    TakeParts(worker);
    Leave();
  }
}

// Await returns the number of a job after done, or done where the pool ends.
uint64_t Pool::Await(uint64_t done) {
  for (int i = 0; i < kSpins; i++) {
    const uint64_t job = state_.load() / kJob;
    if (job != done || stop_.load(std::memory_order_relaxed)) return job;
    Pause();
  }
  pthread_mutex_lock(&mutex_);
  asleep_.fetch_add(1);
  uint64_t job;
  while ((job = state_.load() / kJob) == done && !stop_.load()) {
    pthread_cond_wait(&wake_, &mutex_);
  }
  asleep_.fetch_sub(1);
  pthread_mutex_unlock(&mutex_);
  return job;
}

bool Pool::Enter(uint64_t job) {
  uint64_t state = state_.load();
  while (state / kJob == job && (state & kClosed) == 0) {
    if (state_.compare_exchange_weak(state, state + 1)) return true;
  }
  return false;
}

void Pool::Leave() { state_.fetch_sub(1); }

void Pool::TakeParts(int worker) {
  for (;;) {
    const int64_t part = next_.fetch_add(1, std::memory_order_relaxed);
    if (part >= parts_) return;
    call_(at_, part, worker);
  }
}

void Pool::RunJob(int64_t parts, Call call, void* at) {
  call_ = call;
  at_ = at;
  parts_ = parts;
  next_.store(0, std::memory_order_relaxed);
  const uint64_t job = state_.load(std::memory_order_relaxed) / kJob + 1;
  state_.store(job * kJob);  // publishes the job
  if (asleep_.load() > 0) {
    pthread_mutex_lock(&mutex_);
    pthread_cond_broadcast(&wake_);
    pthread_mutex_unlock(&mutex_);
  }
  TakeParts(0);
  state_.fetch_or(kClosed);
  // All parts are taken, so those inside are at their last one.
  for (int i = 0; (state_.load() & kInside) != 0; i++) i < 1 << 14 ? Pause() : (void)sched_yield();
  busy_.store(false);
}

}  // namespace gradbus
