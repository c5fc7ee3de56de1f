// The functions of the CUDA runtime that host code calls. Work on a stream runs at once, or, after
// Defer, when something waits for it.
//
// Device memory is memory of the process that only kernels, copies and cub may touch: under the
// address sanitizer the host is caught at it, and a kernel is refused arguments that point to
// anything else. It is all ones at first, which are NaNs.
#ifndef GRADBUS_EMU_RUNTIME_H_
#define GRADBUS_EMU_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#define CUDART_VERSION 11080
#define CUDART_CB

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3
};
enum : unsigned {
  cudaHostAllocDefault = 0,
  cudaHostAllocPortable = 1,
  cudaHostAllocMapped = 2,
  cudaStreamDefault = 0,
  cudaStreamNonBlocking = 1,
  cudaEventDefault = 0,
  cudaEventBlockingSync = 1,
  cudaEventDisableTiming = 2,
  cudaDeviceScheduleBlockingSync = 4
};

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef void (*cudaHostFn_t)(void*);
typedef void (*cudaStreamCallback_t)(cudaStream_t, cudaError_t, void*);

struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void* devicePointer;
  void* hostPointer;
};
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
  int regsPerBlock, warpSize, maxThreadsPerBlock;
  int major, minor, multiProcessorCount, maxThreadsPerMultiProcessor, l2CacheSize;
  int memoryClockRate, memoryBusWidth, clockRate;
};

cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorName(cudaError_t e);
const char* cudaGetErrorString(cudaError_t e);

cudaError_t cudaGetDeviceCount(int* n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);

cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaMallocHost(void** memory, size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = nullptr);

cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
// Of a lost device the host functions are not called, the callbacks are.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* with);
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* with,
                                  unsigned flags);

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);

cudaError_t FuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value);
template <typename F>
cudaError_t cudaFuncSetAttribute(F* function, cudaFuncAttribute attribute, int value) {
  return FuncSetAttribute(reinterpret_cast<const void*>(function), attribute, value);
}
template <typename F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F, int, size_t) {
  return *blocks = 2, cudaSuccess;
}
template <typename T>
cudaError_t cudaMalloc(T** memory, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(memory), bytes);
}
template <typename T>
cudaError_t cudaHostAlloc(T** memory, size_t bytes, unsigned flags) {
  return cudaHostAlloc(reinterpret_cast<void**>(memory), bytes, flags);
}

namespace gradbus {
namespace emu {
namespace internal {

// Work is a piece of a stream's work. It is told why the device is lost; where it is, only that
// work is done which is to be done always.
struct Work {
  std::function<cudaError_t(cudaError_t lost)> run;
  bool always;
};

// Enqueue runs work on the stream, in its turn. What work answers is the stream's error.
cudaError_t Enqueue(cudaStream_t stream, Work work);
cudaError_t Enqueue(cudaStream_t stream, std::function<cudaError_t()> work);

// RunAll does the work of all streams; of those that are not blocking only where asked.
cudaError_t RunAll(bool not_blocking);

// Launch checks and enqueues a launch; good is false where an argument is not for the device.
cudaError_t Launch(cudaStream_t stream, unsigned blocks, unsigned threads, bool good,
                   std::function<void()> kernel);

// Fail is the answer to a call that is refused, FailAddress to work that would touch memory of the
// wrong side.
cudaError_t Fail(cudaError_t e);
cudaError_t FailAddress(const char* what);

// HoldsNoHostPointer looks for pointers in the bytes of a kernel's argument. Where they are not
// known to be a pointer they are taken for one if they name memory of the process.
bool HoldsNoHostPointer(const void* argument, size_t bytes, bool pointer);

// IsDevice says whether n bytes at memory may be touched by the device: memory of cudaMalloc or
// cudaHostAlloc, to its end. No bytes may lie anywhere.
bool IsDevice(const void* memory, size_t bytes);

// Fits is the same, but for memory that the device does not know of, which it leaves alone.
bool Fits(const void* memory, size_t bytes);

// OnDevice is the time in which the memory of the device may be touched.
class OnDevice {
 public:
  OnDevice();
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
};

}  // namespace internal
}  // namespace emu
}  // namespace gradbus

#endif  // GRADBUS_EMU_RUNTIME_H_
