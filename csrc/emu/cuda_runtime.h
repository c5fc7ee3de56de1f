// As much of the CUDA runtime as csrc/cuda uses, on the CPU, so that tests can run the very kernels
// that a GPU runs. Device memory is host memory, and a launch runs its threads one after the other,
// blocks and threads from the last to the first: a kernel whose threads depend on each other's
// order shows it. There is no shared memory and no barrier.
//
// What it cannot show: races between threads, the device's own arithmetic, and what nvcc makes of
// the source.
#ifndef GRADBUS_EMU_CUDA_RUNTIME_H_
#define GRADBUS_EMU_CUDA_RUNTIME_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __global__
#define __device__

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76
};
enum { cudaHostAllocDefault = 0 };

namespace gradbus {
namespace emu {

struct Index {
  unsigned x;
};
inline thread_local Index blockIdx, threadIdx, blockDim, gridDim;

// EmuLaunch runs a kernel. It takes few blocks even for much work, so that the kernels' loops are
// exercised.
template <typename... Params, typename... Args>
void EmuLaunch(unsigned blocks, unsigned threads, void (*kernel)(Params...), Args... args) {
  gridDim.x = blocks < 3 ? blocks : 3;
  blockDim.x = threads;
  for (blockIdx.x = gridDim.x; blockIdx.x-- > 0;) {
    for (threadIdx.x = threads; threadIdx.x-- > 0;) kernel(static_cast<Params>(args)...);
  }
}

}  // namespace emu
}  // namespace gradbus

inline cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = 9, cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "emulated fault"; }
inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xff,
              bytes);  // NaNs: what a kernel reads without having been given it shows
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) { return std::free(memory), cudaSuccess; }
inline cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return cudaMalloc(memory, bytes);
}
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}

inline float __int_as_float(int bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
inline int __float_as_int(float f) {
  int bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}
inline void atomicMin(unsigned long long* at, unsigned long long value) {
  if (value < *at) *at = value;
}

#endif  // GRADBUS_EMU_CUDA_RUNTIME_H_
