// The host's side of the emulation of CUDA: errors, streams, memory, cub, half floats.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <cub/cub.cuh>
#include <string>
#include <vector>

#include "tests/expect.h"

namespace {

using gradbus::emu::Calls;
using gradbus::emu::Defer;
using gradbus::emu::FailAt;
using gradbus::emu::Faults;
using gradbus::emu::LaunchKernel;
using gradbus::emu::Reset;

template <typename T>
T* Device(const std::vector<T>& from) {
  T* there = nullptr;
  EXPECT(cudaMalloc(&there, from.size() * sizeof(T)) == cudaSuccess);
  EXPECT(cudaMemcpy(there, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice) ==
         cudaSuccess);
  return there;
}

template <typename T>
std::vector<T> Host(const T* there, size_t n) {
  std::vector<T> to(n);
  EXPECT(cudaMemcpy(to.data(), there, n * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
  return to;
}

struct Deep {
  int n;
  const int* at;
};

__global__ void add_kernel(int* to, int n, int by) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < static_cast<unsigned>(n);
       i += gridDim.x * blockDim.x) {
    to[i] += by;
  }
}
__global__ void deep_kernel(Deep from, int* to) { to[threadIdx.x] = from.at[threadIdx.x]; }

void TestErrors() {
  Reset();
  int* memory = Device(std::vector<int>{1, 2, 3});
  EXPECT(LaunchKernel(0u, 1u, add_kernel, memory, 3, 1) == cudaErrorInvalidConfiguration);
  EXPECT(LaunchKernel(1u, 1025u, add_kernel, memory, 3, 1) == cudaErrorInvalidConfiguration);
  EXPECT(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
  EXPECT(LaunchKernel(1u, 2u, add_kernel, memory, 3, 1) == cudaSuccess);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);  // until it is read
  EXPECT(cudaGetLastError() == cudaSuccess);
  EXPECT((Host(memory, 3) == std::vector<int>{2, 3, 4}));
  // An error that a device survives comes once, another one for good.
  const int64_t calls = Calls();
  FailAt(2, cudaErrorMemoryAllocation);
  EXPECT(cudaSetDevice(0) == cudaSuccess);
  EXPECT(cudaSetDevice(0) == cudaErrorMemoryAllocation);
  EXPECT(cudaSetDevice(0) == cudaSuccess && Calls() == calls + 3);
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
  FailAt(1, cudaErrorECCUncorrectable);
  EXPECT(LaunchKernel(1u, 2u, add_kernel, memory, 3, 1) == cudaErrorECCUncorrectable);
  EXPECT(cudaGetLastError() == cudaErrorECCUncorrectable);
  EXPECT(cudaStreamSynchronize(nullptr) == cudaErrorECCUncorrectable);
  void* more = nullptr;
  EXPECT(cudaMalloc(&more, 8) == cudaErrorECCUncorrectable);
  Reset();
  EXPECT(cudaGetLastError() == cudaSuccess);
  EXPECT((Host(memory, 3) == std::vector<int>{2, 3, 4}));
  EXPECT(cudaFree(memory) == cudaSuccess);
  int devices = 0, major = 0;
  EXPECT(cudaGetDeviceCount(&devices) == cudaSuccess && devices == 1);
  EXPECT(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
  EXPECT(major == 9 && cudaSetDevice(1) == cudaErrorInvalidDevice);
  EXPECT(std::string(cudaGetErrorString(cudaErrorLaunchFailure)) != "no error");
  Reset();
}

void TestMemory() {
  const std::vector<int> host = {1, 2, 3, 4};
  int* there = Device(host);
  int* to = Device(std::vector<int>(4));
  // A kernel must not be given the host's memory, however it is wrapped.
  EXPECT(LaunchKernel(1u, 4u, deep_kernel, Deep{0, there}, to) == cudaSuccess &&
         Host(to, 4) == host);
  EXPECT(LaunchKernel(1u, 4u, add_kernel, const_cast<int*>(host.data()), 4, 1) ==
         cudaErrorIllegalAddress);
  EXPECT(!Faults().empty());
  Reset();
  EXPECT(LaunchKernel(1u, 4u, deep_kernel, Deep{0, host.data()}, to) == cudaErrorIllegalAddress);
  Reset();
  const int on_stack[4] = {};
  EXPECT(LaunchKernel(1u, 4u, deep_kernel, Deep{0, on_stack}, to) == cudaErrorIllegalAddress);
  Reset();
  // Memory ends where it ends, and lies where it lies.
  EXPECT(cudaMemcpy(to, host.data(), 17, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  EXPECT(cudaMemcpy(to, host.data(), 17, cudaMemcpyDefault) == cudaErrorInvalidValue);
  EXPECT(cudaMemcpy(const_cast<int*>(host.data()), to, 16, cudaMemcpyHostToDevice) ==
         cudaErrorInvalidValue);
  EXPECT(cudaMemset(to + 1, 0, 16) == cudaErrorInvalidValue);
  EXPECT(cudaMemset(to + 1, 0, 12) == cudaSuccess && (Host(to, 4) == std::vector<int>{1, 0, 0, 0}));
  EXPECT(cudaFree(to + 1) == cudaErrorInvalidValue && cudaFreeHost(to) == cudaErrorInvalidValue);
  cudaPointerAttributes a;
  EXPECT(cudaPointerGetAttributes(&a, to + 3) == cudaSuccess && a.type == cudaMemoryTypeDevice);
  EXPECT(cudaPointerGetAttributes(&a, &host) == cudaSuccess &&
         a.type == cudaMemoryTypeUnregistered);
  void* none = to;
  EXPECT(cudaMalloc(&none, 0) == cudaSuccess && none == nullptr);
  EXPECT(cudaMalloc(&none, SIZE_MAX / 2) == cudaErrorMemoryAllocation);
  EXPECT(cudaFree(nullptr) == cudaSuccess);
  EXPECT(cudaFree(there) == cudaSuccess && cudaFree(to) == cudaSuccess);
  Reset();
}

void CountUp(void* count) { ++*static_cast<int*>(count); }

void Called(cudaStream_t, cudaError_t e, void* what) { *static_cast<int*>(what) = e; }

void TestStreams() {
  int* memory = Device(std::vector<int>{0});
  cudaStream_t a = nullptr, b = nullptr;
  cudaEvent_t event = nullptr;
  EXPECT(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking) == cudaSuccess);
  EXPECT(cudaStreamCreate(&b) == cudaSuccess);
  EXPECT(cudaEventCreate(&event) == cudaSuccess);
  int count = 0;
  EXPECT(cudaLaunchHostFunc(a, CountUp, &count) == cudaSuccess && count == 1);
  EXPECT(cudaStreamQuery(a) == cudaSuccess);

  Defer(true);
  EXPECT(LaunchKernel(a, 1u, 1u, add_kernel, memory, 1, 5) == cudaSuccess);
  EXPECT(cudaLaunchHostFunc(a, CountUp, &count) == cudaSuccess);
  EXPECT(cudaEventRecord(event, a) == cudaSuccess);
  EXPECT(count == 1 && cudaEventQuery(event) == cudaErrorNotReady);
  EXPECT(cudaStreamQuery(a) == cudaErrorNotReady && count == 1);
  EXPECT(cudaStreamQuery(a) == cudaErrorNotReady && count == 2);
  EXPECT(cudaStreamQuery(a) == cudaErrorNotReady && cudaStreamQuery(a) == cudaSuccess);
  EXPECT(cudaEventQuery(event) == cudaSuccess);
  EXPECT(Host(memory, 1)[0] == 5);
  // Another stream waits for an event; the default stream waits for those that are blocking.
  EXPECT(LaunchKernel(a, 1u, 1u, add_kernel, memory, 1, 1) == cudaSuccess);
  EXPECT(cudaEventRecord(event, a) == cudaSuccess);
  EXPECT(Host(memory, 1)[0] == 5);
  EXPECT(cudaStreamWaitEvent(b, event) == cudaSuccess);
  EXPECT(cudaLaunchHostFunc(b, CountUp, &count) == cudaSuccess && count == 2);
  EXPECT(Host(memory, 1)[0] == 6 && count == 3);
  // A fault shows when the work is waited for. Callbacks are called all the same, host functions
  // are not.
  int called = 0;
  EXPECT(cudaStreamAddCallback(a, Called, &called, 0) == cudaSuccess && called == 0);
  FailAt(2, cudaErrorLaunchFailure);
  EXPECT(cudaLaunchHostFunc(a, CountUp, &count) == cudaSuccess);
  EXPECT(cudaStreamSynchronize(a) == cudaErrorLaunchFailure);
  EXPECT(called == cudaErrorLaunchFailure && count == 3);
  Reset();
  EXPECT(cudaEventDestroy(event) == cudaSuccess);
  EXPECT(cudaStreamDestroy(a) == cudaSuccess && count == 3);
  EXPECT(cudaStreamDestroy(b) == cudaSuccess && cudaFree(memory) == cudaSuccess);
}

void TestSort() {
  const std::vector<unsigned long long> keys = {0x113, 0x201, 0x312, 0x401, 0x512, 0x600};
  const std::vector<int> values = {0, 1, 2, 3, 4, 5};
  auto* k = Device(keys);
  auto* k2 = Device(keys);
  int* v = Device(values);
  int* v2 = Device(values);
  size_t bytes = 0;
  EXPECT(cub::DeviceRadixSort::SortPairs(nullptr, bytes, k, k2, v, v2, 6, 0, 8) == cudaSuccess);
  EXPECT(bytes > 0);
  char* room = Device(std::vector<char>(bytes));
  size_t less = bytes - 1;
  EXPECT(cub::DeviceRadixSort::SortPairs(room, less, k, k2, v, v2, 6, 0, 8) ==
         cudaErrorInvalidValue);
  Reset();
  EXPECT(cub::DeviceRadixSort::SortPairs(room, bytes, k, k, v, v2, 6) == cudaErrorInvalidValue);
  Reset();
  // Only the named bits count, and equal ones stay in order.
  EXPECT(cub::DeviceRadixSort::SortPairs(room, bytes, k, k2, v, v2, 6, 0, 8) == cudaSuccess);
  EXPECT((Host(v2, 6) == std::vector<int>{5, 1, 3, 2, 4, 0}) && Host(k, 6) == keys);
  EXPECT(static_cast<unsigned char>(Host(room, 1)[0]) == 0xa5);
  for (const int bits : {8, 16}) {
    const std::vector<int> sorted =
        bits == 8 ? std::vector<int>{5, 1, 3, 2, 4, 0} : std::vector<int>{0, 1, 2, 3, 4, 5};
    cudaMemcpy(k, keys.data(), 48, cudaMemcpyHostToDevice);
    cudaMemcpy(v, values.data(), 24, cudaMemcpyHostToDevice);
    cub::DoubleBuffer<unsigned long long> both(k, k2);
    cub::DoubleBuffer<int> both_values(v, v2);
    EXPECT(cub::DeviceRadixSort::SortPairs(nullptr, bytes, both, both_values, 6, 0, bits) ==
           cudaSuccess);
    EXPECT(both.Current() == k);
    EXPECT(cub::DeviceRadixSort::SortPairs(room, bytes, both, both_values, 6, 0, bits) ==
           cudaSuccess);
    EXPECT(Host(both_values.Current(), 6) == sorted);
    EXPECT(both.Current() == (bits == 8 ? k2 : k) && Host(both.Alternate(), 1)[0] >> 60 == 0xa);
  }
  std::vector<int> outside(6);
  EXPECT(cub::DeviceRadixSort::SortPairs(nullptr, bytes, k, k2, v, v2, 6) == cudaSuccess);
  EXPECT(cub::DeviceRadixSort::SortPairs(room, bytes, k, k2, v, outside.data(), 6) ==
         cudaErrorIllegalAddress);
  Reset();
  for (void* p : {static_cast<void*>(k), static_cast<void*>(k2), static_cast<void*>(v),
                  static_cast<void*>(v2), static_cast<void*>(room)}) {
    EXPECT(cudaFree(p) == cudaSuccess);
  }
}

struct Odd {
  __device__ bool operator()(int x) const { return x % 2 != 0; }
};

void TestOtherCub() {
  int* in = Device(std::vector<int>{3, 3, 4, 5, 5, 5});
  int* flags = Device(std::vector<int>{1, 0, 0, 1, 0, 1});
  int* out = Device(std::vector<int>(6, -1));
  int* lengths = Device(std::vector<int>(6, -1));
  int* n = Device(std::vector<int>{-1});
  char* room = Device(std::vector<char>(4096));
  size_t bytes = 4096;
  EXPECT(cub::DeviceScan::ExclusiveSum(room, bytes, in, out, 6) == cudaSuccess);
  EXPECT((Host(out, 6) == std::vector<int>{0, 3, 6, 10, 15, 20}));
  EXPECT(cub::DeviceScan::InclusiveSum(room, bytes, in, in, 6) == cudaSuccess);  // in place
  EXPECT((Host(in, 6) == std::vector<int>{3, 6, 10, 15, 20, 25}));
  EXPECT(cub::DeviceScan::ExclusiveScan(room, bytes, in, out, cub::Max(), 7, 3) == cudaSuccess);
  EXPECT((Host(out, 3) == std::vector<int>{7, 7, 7}));
  cub::CountingInputIterator<int> numbers(10);
  EXPECT(cub::DeviceSelect::Flagged(room, bytes, numbers, flags, out, n, 6) == cudaSuccess);
  EXPECT((Host(out, 3) == std::vector<int>{10, 13, 15}) && Host(n, 1)[0] == 3);
  EXPECT(cub::DeviceSelect::If(room, bytes, in, out, n, 6, Odd()) == cudaSuccess);
  EXPECT((Host(out, 3) == std::vector<int>{3, 15, 25}) && Host(n, 1)[0] == 3);
  cudaMemcpy(in, std::vector<int>{3, 3, 4, 5, 5, 5}.data(), 24, cudaMemcpyHostToDevice);
  EXPECT(cub::DeviceRunLengthEncode::Encode(room, bytes, in, out, lengths, n, 6) == cudaSuccess);
  EXPECT((Host(out, 3) == std::vector<int>{3, 4, 5}) && Host(n, 1)[0] == 3);
  EXPECT((Host(lengths, 3) == std::vector<int>{2, 1, 3}));
  EXPECT(cub::DeviceReduce::Sum(room, bytes, in, n, 6) == cudaSuccess && Host(n, 1)[0] == 25);
  EXPECT(cub::DeviceReduce::Max(room, bytes, in, n, 6) == cudaSuccess && Host(n, 1)[0] == 5);
  for (int* p : {in, flags, out, lengths, n}) EXPECT(cudaFree(p) == cudaSuccess);
  EXPECT(cudaFree(room) == cudaSuccess);
}

void TestHalf() {
  for (unsigned bits = 0; bits < 0x10000; bits++) {
    const __half h = __ushort_as_half(static_cast<unsigned short>(bits));
    const bool nan = (bits & 0x7fff) > 0x7c00;
    const float f = __half2float(h);
    EXPECT(nan ? f != f : __half_as_ushort(__float2half_rn(f)) == bits);
    if (nan || (bits & 0x7fff) >= 0x7bff) continue;
    // Half way to the next one goes to the even one, a little more or less to the nearer one.
    const float next = __half2float(__ushort_as_half(static_cast<unsigned short>(bits + 1)));
    const float middle = (f + next) / 2;
    const unsigned even = bits % 2 == 0 ? bits : bits + 1;
    EXPECT(__half_as_ushort(__float2half_rn(middle)) == even);
    EXPECT(__half_as_ushort(__float2half_rn(std::nextafter(middle, f))) == bits);
    EXPECT(__half_as_ushort(__float2half_rn(std::nextafter(middle, next))) == bits + 1);
  }
  EXPECT(__half_as_ushort(__float2half_rn(65519.996f)) == 0x7bff);
  EXPECT(__half_as_ushort(__float2half_rn(-65520.0f)) == 0xfc00);
  EXPECT(__half_as_ushort(__float2half_rn(2.9802322e-8f)) == 0);  // half the least one
  EXPECT(__half_as_ushort(__float2half_rn(2.9802326e-8f)) == 1);
}

}  // namespace

int main() {
  TestErrors();
  TestMemory();
  TestStreams();
  TestSort();
  TestOtherCub();
  TestHalf();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
