// The emulation of CUDA shows what it is there to show: each test plants a mistake in a kernel of
// its own and sees it caught, beside the right kernel that passes.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/expect.h"

namespace {

using gradbus::emu::Barriers;
using gradbus::emu::Drop;
using gradbus::emu::Faults;
using gradbus::emu::LaunchKernel;
using gradbus::emu::Reset;
using gradbus::emu::Seed;

constexpr unsigned kAll = 0xffffffffu;
constexpr int kSeeds = 20;

// Array is device memory.
template <typename T>
struct Array {
  T* data = nullptr;
  size_t n;
  explicit Array(size_t count) : n(count) { EXPECT(cudaMalloc(&data, n * sizeof(T)) == 0); }
  explicit Array(const std::vector<T>& from) : Array(from.size()) {
    EXPECT(cudaMemcpy(data, from.data(), n * sizeof(T), cudaMemcpyHostToDevice) == 0);
  }
  ~Array() { cudaFree(data); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  std::vector<T> Host() const {
    std::vector<T> to(n);
    cudaMemcpy(to.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost);
    return to;
  }
};

// ---- Barriers, and what happens without them.

__global__ void tree_kernel(const int* in, int* out) {
  GB_SHARED(int, part, 64);
  for (int round = 0; round < 2; round++) {
    part[threadIdx.x] = in[threadIdx.x] + round;
    __syncthreads();
    for (unsigned w = blockDim.x / 2; w > 0; w /= 2) {
      if (threadIdx.x < w) part[threadIdx.x] += part[threadIdx.x + w];
      __syncthreads();
    }
    if (threadIdx.x == 1) out[2 * blockIdx.x + round] = part[0];
    __syncthreads();
  }
}

__global__ void warp_kernel(const int* in, int* out) {
  GB_SHARED(int, part, 64);
  const unsigned lane = threadIdx.x % 32;
  int x = in[threadIdx.x];
  for (int w = 16; w > 0; w /= 2) {
    x += __shfl_xor_sync(kAll, x, w);
  }
  const unsigned odd = __ballot_sync(kAll, in[threadIdx.x] % 2);
  const int big = __any_sync(kAll, in[threadIdx.x] > 60);
  const int low = __all_sync(kAll, in[threadIdx.x] < 40);
  const int up = __shfl_up_sync(kAll, in[threadIdx.x], 3);
  const int down = __shfl_down_sync(kAll, in[threadIdx.x], 5, 16);
  const int first = __shfl_sync(kAll, in[threadIdx.x], 7, 8);
  part[threadIdx.x] = x ^ up ^ down ^ first;
  __syncwarp();
  const int next = part[threadIdx.x / 32 * 32 + (lane + 1) % 32];
  __syncwarp(kAll);
  part[threadIdx.x] = next;
  __syncwarp();
  out[blockIdx.x * blockDim.x + threadIdx.x] =
      part[threadIdx.x / 32 * 32 + (lane + 1) % 32] + static_cast<int>(odd % 1000) + 2 * big + low;
}

std::vector<int> Numbers(int n) {
  std::vector<int> v(static_cast<size_t>(n));
  for (int i = 0; i < n; i++) v[static_cast<size_t>(i)] = i * 37 % 64;
  return v;
}

// Whether a kernel over 64 threads and two blocks gives want, with that seed.
bool Gives(void (*kernel)(const int*, int*), const std::vector<int>& want, uint64_t seed) {
  Seed(seed);
  const Array<int> in(Numbers(64)), out(want.size());
  const bool ok = LaunchKernel(2u, 64u, kernel, static_cast<const int*>(in.data), out.data) == 0;
  return ok && out.Host() == want;
}

std::vector<int> WantOfWarps() {
  const std::vector<int> in = Numbers(64);
  std::vector<int> mixed(64), want(128);
  for (int w = 0; w < 64; w += 32) {
    int sum = 0, big = 0, low = 1;
    unsigned odd = 0;
    for (int l = 0; l < 32; l++) {
      const int x = in[static_cast<size_t>(w + l)];
      sum += x;
      odd |= static_cast<unsigned>(x % 2) << l;
      big |= x > 60;
      low &= x < 40;
    }
    const auto at = [&](int l) { return in[static_cast<size_t>(w + l)]; };
    for (int l = 0; l < 32; l++) {
      mixed[static_cast<size_t>(w + l)] =
          sum ^ at(l < 3 ? l : l - 3) ^ at(l % 16 + 5 < 16 ? l + 5 : l) ^ at(l / 8 * 8 + 7);
    }
    for (int l = 0; l < 32; l++) {
      want[static_cast<size_t>(w + l)] = mixed[static_cast<size_t>(w + (l + 2) % 32)] +
                                         static_cast<int>(odd % 1000) + 2 * big + low;
    }
  }
  std::copy(want.begin(), want.begin() + 64, want.begin() + 64);  // the other block
  return want;
}

void EachBarrierMatters(void (*kernel)(const int*, int*), const std::vector<int>& want) {
  const size_t known = Barriers().size();
  for (uint64_t seed = 0; seed < kSeeds; seed++) EXPECT(Gives(kernel, want, seed));
  if (!Faults().empty()) std::printf("%s\n", Faults().c_str());
  EXPECT(Faults().empty());
  const std::vector<std::string> all = Barriers();
  EXPECT(all.size() > known);
  for (size_t site = known; site < all.size(); site++) {
    int noticed = 0;
    for (uint64_t seed = 0; seed < kSeeds; seed++) {
      Drop(static_cast<int>(site));
      noticed += Gives(kernel, want, seed) ? 0 : 1;
      Reset();
    }
    std::printf("%-28s dropped: %d of %d seeds notice\n", all[site].c_str(), noticed, kSeeds);
    EXPECT(noticed > 0);
  }
}

void TestBarriers() {
  int sum = 0;
  for (int x : Numbers(64)) sum += x;
  EachBarrierMatters(tree_kernel, {sum, sum + 64, sum, sum + 64});
  EachBarrierMatters(warp_kernel, WantOfWarps());
}

// ---- What a GPU would hang at, or do as it likes.

__global__ void wrong_kernel(int what, int* out) {
  const unsigned t = threadIdx.x;
  int x = static_cast<int>(t);
  switch (what) {
    case 0:  // leaves before the barrier
      if (t == 5) return;
      __syncthreads();
      break;
    case 1:  // two barriers
      if (t < 40) {
        __syncthreads();
      } else {
        __syncthreads();
      }
      break;
    case 2:  // leaves before the shuffle
      if (t == 5) return;
      x = __shfl_xor_sync(kAll, x, 1);
      break;
    case 3:  // not in its own mask
      x = __shfl_xor_sync(0xfffffffeu, x, 2);
      break;
    case 4:  // two shuffles
      if (t % 2 == 0) {
        x = __shfl_xor_sync(kAll, x, 2);
      } else {
        x = __shfl_xor_sync(kAll, x, 2);
      }
      break;
    case 5:  // two masks
      x = __shfl_xor_sync(t % 32 < 16 ? kAll : 0xffff0000u, x, 1);
      break;
    case 6:  // waits for a thread at the other barrier
      if (t == 7) {
        __syncthreads();
      } else {
        __syncwarp();
      }
      break;
    case 7:  // reads a lane that does not take part
      if (t % 32 < 16) x = __shfl_down_sync(0xffffu, x, 4);
      break;
    case 8:  // waits in a ring: none with a mask that names it is at the same place as it
      if (t == 0) __syncwarp(3);
      if (t == 1) __syncwarp(6);
      if (t == 2) __syncwarp(5);
      break;
    case 9: {
      GB_SHARED(double, big, 7000);
      big[t] = x;
      break;
    }
    case 10:
      if (t == 9) __trap();
      break;
    case 11:  // a vote with one that has left
      if (t == 31) return;
      x = __any_sync(kAll, x);
      break;
    default:
      break;
  }
  out[blockIdx.x * blockDim.x + t] = x;
}

__global__ void half_warp_kernel(int* out) {
  out[threadIdx.x] = __shfl_sync(kAll, static_cast<int>(threadIdx.x), 0);
}

void TestFaults() {
  // Which side of a fault comes first is chance.
  const std::vector<const char*> want[] = {
      {"a thread left", "of the block have left"},
      {"wait at the one of"},
      {"a thread left", "that have left"},
      {"does not name"},
      {"threads of it wait at the shuffle of"},
      {"threads of it wait at the shuffle of", "a thread left"},
      {"waits at __syncthreads", "wait at __syncthreads", "of the block have left"},
      {"which the mask 0000ffff does not name"},
      {"no thread can go on"},
      {"bytes of shared memory"},
      {"trapped"},
      {"a thread left", "that have left"}};
  for (int what = 0; what < 12; what++) {
    int faults = 0;
    for (uint64_t seed = 0; seed < kSeeds; seed++) {
      Seed(seed);
      const Array<int> out(128);
      const cudaError_t e = LaunchKernel(2u, 64u, wrong_kernel, what, out.data);
      const std::string text = Faults();
      faults += e == cudaErrorLaunchFailure && !text.empty();
      const bool named = std::any_of(want[what].begin(), want[what].end(), [&](const char* part) {
        return text.find(part) != std::string::npos;
      });
      if (seed == 0 || !named) std::printf("%2d: %s\n", what, text.c_str());
      EXPECT(named);
      EXPECT(cudaGetLastError() == cudaErrorLaunchFailure);
      EXPECT(cudaGetLastError() == cudaErrorLaunchFailure);  // the device is lost
      EXPECT(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
      Reset();
    }
    EXPECT(faults == kSeeds);
  }
  const Array<int> out(48);
  EXPECT(LaunchKernel(1u, 48u, half_warp_kernel, out.data) == cudaErrorLaunchFailure);
  EXPECT(Faults().find("has not") != std::string::npos);
  Reset();
  EXPECT(LaunchKernel(1u, 32u, half_warp_kernel, out.data) == cudaSuccess && Faults().empty());
}

// ---- Poison.

__global__ void poison_kernel(unsigned* out) {
  GB_SHARED(unsigned, word, 3);
  if (threadIdx.x == 0) out[blockIdx.x] = word[2];
  word[2] = 7;
}

void TestPoison() {
  const Array<unsigned> out(20);
  EXPECT(out.Host() == std::vector<unsigned>(20, kAll));
  EXPECT(LaunchKernel(20u, 1u, poison_kernel, out.data) == cudaSuccess);
  EXPECT(out.Host() == std::vector<unsigned>(20, kAll));
  void* pinned = nullptr;
  EXPECT(cudaHostAlloc(&pinned, 4, cudaHostAllocDefault) == cudaSuccess);
  EXPECT(static_cast<unsigned char*>(pinned)[3] == 0xff);
  EXPECT(cudaFreeHost(pinned) == cudaSuccess);
}

// ---- Order.

__global__ void order_kernel(unsigned* next, unsigned* at) {
  at[atomicAdd(next, 1u)] = blockIdx.x * blockDim.x + threadIdx.x;
}

// A counter that is read, passed a place where others may come in between, and written.
__global__ void lost_update_kernel(unsigned* count, unsigned* other) {
  const unsigned before = *count;
  atomicAdd(other, 1u);
  *count = before + 1;
}

std::vector<unsigned> Order(uint64_t seed) {
  Seed(seed);
  const Array<unsigned> next(std::vector<unsigned>{0}), at(7 * 64);
  EXPECT(LaunchKernel(7u, 64u, order_kernel, next.data, at.data) == cudaSuccess);
  return at.Host();
}

void TestOrder() {
  EXPECT(Order(3) == Order(3));
  EXPECT(Order(3) != Order(4));
  std::vector<bool> first(7);
  for (uint64_t seed = 0; seed < 60; seed++) {
    std::vector<unsigned> order = Order(seed);
    first[order[0] / 64] = true;
    std::sort(order.begin(), order.end());
    for (unsigned i = 0; i < order.size(); i++) EXPECT(order[i] == i);
  }
  EXPECT(std::count(first.begin(), first.end(), true) == 7);  // each block comes first at times
  if (gradbus::emu::Watches()) return;                        // which sees the race itself
  const Array<unsigned> count(std::vector<unsigned>{0}), other(std::vector<unsigned>{0});
  EXPECT(LaunchKernel(4u, 256u, lost_update_kernel, count.data, other.data) == cudaSuccess);
  EXPECT(count.Host()[0] < 1024 && other.Host()[0] == 1024);
}

// ---- Races, where the kernels are compiled for it: what no order of threads brings to light.

__global__ void race_kernel(int what, int* out, int* last) {
  const unsigned t = threadIdx.x;
  switch (what) {
    case 0:  // right: every thread reads, all meet, one writes
      out[t] = *last;
      __syncthreads();
      if (t == 0) *last = 7;
      break;
    case 1: {  // a shuffle orders no memory
      const int x = *last;
      out[t] = __shfl_xor_sync(kAll, x, 1);
      if (t == 0) *last = 7;
      break;
    }
    case 2:  // blocks are not ordered, though the value is the same
      *last = 5;
      break;
    case 3:  // an atomic operation beside a plain one
      if (t == 0) atomicAdd(last, 1);
      if (t == 1) out[0] = *last;
      break;
    case 4:  // right: atomic operations among themselves
      atomicMax(last, static_cast<int>(t));
      break;
    case 5:  // a barrier of one half of the warp is none between the halves
      if (t < 16) out[t] = 1;
      if (t < 32) __syncwarp(t < 16 ? 0xffffu : 0xffff0000u);
      if (t >= 16 && t < 32) *last = out[t - 16];
      break;
    case 6:  // right: what lane 0 wrote comes to lane 20 by way of lane 10
      if (t == 0) out[0] = 3;
      if (t == 0 || t == 10) __syncwarp(1u | 1u << 10);
      if (t == 10 || t == 20) __syncwarp(1u << 10 | 1u << 20);
      if (t == 20) *last = out[0];
      break;
    default:
      break;
  }
}

void TestRaces() {
  if (!gradbus::emu::Watches()) return;
  for (int what = 0; what < 7; what++) {
    const bool right = what == 0 || what == 4 || what == 6;
    for (uint64_t seed = 0; seed < kSeeds; seed++) {
      Seed(seed);
      const Array<int> out(64), last(std::vector<int>{1});
      const cudaError_t e =
          LaunchKernel(what == 2 ? 2u : 1u, 64u, race_kernel, what, out.data, last.data);
      EXPECT((e == cudaSuccess) == right);
      EXPECT((Faults().find("race: ") != std::string::npos) != right);
      Reset();
    }
  }
}

// ---- Several threads of the host.

void TestThreads() {
  int sum = 0;
  for (int x : Numbers(64)) sum += x;
  const std::vector<int> want = {sum, sum + 64, sum, sum + 64};
  bool good[4] = {};
  std::vector<std::thread> threads;
  for (bool& ok : good) {
    threads.emplace_back([&ok, &want] {
      ok = true;
      for (uint64_t i = 0; i < 10; i++) ok = Gives(tree_kernel, want, i) && ok;
    });
  }
  for (std::thread& t : threads) t.join();
  for (bool ok : good) EXPECT(ok);
}

}  // namespace

int main() {
  TestBarriers();
  TestFaults();
  TestPoison();
  TestOrder();
  TestRaces();
  TestThreads();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
