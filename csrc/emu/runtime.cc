// Streams, events, copies and launches.
#include "emu/runtime.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "emu/machine.h"
#include "emu/switches.h"

struct CUstream_st {
  std::recursive_mutex busy;  // held while its work runs, so that it runs in order
  std::deque<gradbus::emu::internal::Work> work;
  bool blocking = true;  // the default stream waits for it
};

struct CUevent_st {
  std::atomic<int> waiting{0};  // records that have not run
  std::atomic<cudaStream_t> stream{nullptr};
};

namespace gradbus {
namespace emu {
namespace internal {
namespace {

struct Streams {
  std::mutex busy;
  std::set<cudaStream_t> open;
};

Streams& Open() {
  static Streams* streams = new Streams;  // lives as long as the last thread that ends
  return *streams;
}

// Run does at most that many pieces of a stream's work.
cudaError_t Run(cudaStream_t stream, size_t most) {
  const std::lock_guard<std::recursive_mutex> lock(stream->busy);
  cudaError_t error = cudaSuccess;
  for (size_t i = 0; i < most && !stream->work.empty(); i++) {
    const Work work = std::move(stream->work.front());
    stream->work.pop_front();
    const cudaError_t lost = Lost();
    if (lost != cudaSuccess && !work.always) continue;
    const cudaError_t e = work.run(lost);
    if (error == cudaSuccess) error = e;
  }
  return error;
}

cudaError_t Copy(void* to, const void* from, size_t bytes) {
  const OnDevice here;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

}  // namespace

cudaError_t RunAll(bool not_blocking) {
  std::set<cudaStream_t> open;
  {
    const std::lock_guard<std::mutex> lock(Open().busy);
    open = Open().open;
  }
  cudaError_t error = cudaSuccess;
  for (cudaStream_t stream : open) {
    if (!stream->blocking && !not_blocking) continue;
    if (const cudaError_t e = Run(stream, SIZE_MAX); e != cudaSuccess) error = e;
  }
  return error;
}

cudaError_t Enqueue(cudaStream_t stream, Work work) {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  if (stream == nullptr) {
    if (const cudaError_t e = RunAll(false); e != cudaSuccess) return Return(e);
    return Return(work.run(cudaSuccess));
  }
  const std::lock_guard<std::recursive_mutex> lock(stream->busy);
  stream->work.push_back(std::move(work));
  return Deferred() ? cudaSuccess : Return(Run(stream, SIZE_MAX));
}

cudaError_t Enqueue(cudaStream_t stream, std::function<cudaError_t()> work) {
  return Enqueue(stream, Work{[work](cudaError_t) { return work(); }, false});
}

cudaError_t Fail(cudaError_t e) { return Return(e); }

cudaError_t FailAddress(const char* what) {
  NoteFault(what);
  return Return(cudaErrorIllegalAddress);
}

cudaError_t Launch(cudaStream_t stream, unsigned blocks, unsigned threads, bool good,
                   std::function<void()> kernel) {
  if (blocks == 0 || blocks > 0x7fffffffu || threads == 0 || threads > kThreadsMost) {
    return Return(cudaErrorInvalidConfiguration);
  }
  return Enqueue(stream, [=] {
    if (!good) {
      return FailAddress("an argument of a kernel points to memory that is not the device's");
    }
    const OnDevice here;
    return Return(Machine::Here().Run(blocks, threads, kernel) ? cudaSuccess
                                                               : cudaErrorLaunchFailure);
  });
}

}  // namespace internal
}  // namespace emu
}  // namespace gradbus

using gradbus::emu::internal::Call;
using gradbus::emu::internal::Enqueue;
using gradbus::emu::internal::Fits;
using gradbus::emu::internal::IsDevice;
using gradbus::emu::internal::OnDevice;
using gradbus::emu::internal::Open;
using gradbus::emu::internal::Return;

const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      return "cudaErrorEmulated";
  }
}

const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaSuccess ? "no error" : "emulated fault";
}

cudaError_t cudaGetDeviceCount(int* n) {
  *n = 1;
  return Return(Call());
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  return Return(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return Return(Call());
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  if (device != 0) return Return(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = gradbus::emu::internal::kThreadsMost;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(gradbus::emu::internal::kSharedBytes);
      break;
    case cudaDevAttrWarpSize:
      *value = gradbus::emu::internal::kWarp;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 4;  // few, so that the loops of kernels go round
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = 2048;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  if (device != 0) return Return(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated");
  properties->totalGlobalMem = size_t{4} << 30;
  properties->sharedMemPerBlock = gradbus::emu::internal::kSharedBytes;
  properties->sharedMemPerBlockOptin = gradbus::emu::internal::kSharedBytes;
  properties->regsPerBlock = 65536;
  properties->warpSize = gradbus::emu::internal::kWarp;
  properties->maxThreadsPerBlock = gradbus::emu::internal::kThreadsMost;
  properties->major = 9;
  properties->multiProcessorCount = 4;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->l2CacheSize = 1 << 20;
  properties->memoryClockRate = 1;
  properties->memoryBusWidth = 64;
  properties->clockRate = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  return Return(gradbus::emu::internal::RunAll(true));
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return Return(Call());
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{4} << 30;
  return Return(Call());
}

cudaError_t FuncSetAttribute(const void*, cudaFuncAttribute, int) { return Return(Call()); }

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool good = (to_device ? IsDevice(to, bytes) : Fits(to, bytes)) &&
                    (from_device ? IsDevice(from, bytes) : Fits(from, bytes));
  const auto copy = [=] {
    return good ? gradbus::emu::internal::Copy(to, from, bytes) : cudaErrorInvalidValue;
  };
  const cudaError_t e = Enqueue(stream, copy);
  // Memory that is not pinned is not read or written after the call.
  if (e == cudaSuccess && stream != nullptr && !(IsDevice(to, bytes) && IsDevice(from, bytes))) {
    return Return(gradbus::emu::internal::Run(stream, SIZE_MAX));
  }
  return e;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return Enqueue(stream, [=] {
    if (!IsDevice(to, bytes)) return cudaErrorInvalidValue;
    const OnDevice here;
    if (bytes > 0) std::memset(to, value, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  *stream = new CUstream_st;
  (*stream)->blocking = (flags & cudaStreamNonBlocking) == 0;
  const std::lock_guard<std::mutex> lock(Open().busy);
  Open().open.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t e = Call();
  if (stream == nullptr) return Return(cudaErrorInvalidValue);
  gradbus::emu::internal::Run(stream, SIZE_MAX);
  {
    const std::lock_guard<std::mutex> lock(Open().busy);
    Open().open.erase(stream);
  }
  delete stream;
  return Return(e);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  if (stream == nullptr) return Return(gradbus::emu::internal::RunAll(false));
  const std::lock_guard<std::recursive_mutex> lock(stream->busy);
  if (stream->work.empty()) return cudaSuccess;
  const cudaError_t e = gradbus::emu::internal::Run(stream, 1);  // work goes on meanwhile
  return e != cudaSuccess ? Return(e) : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  if (stream == nullptr) return Return(gradbus::emu::internal::RunAll(false));
  return Return(gradbus::emu::internal::Run(stream, SIZE_MAX));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* with) {
  return Enqueue(stream, [=] { return function(with), cudaSuccess; });
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* with,
                                  unsigned) {
  const auto call = [=](cudaError_t lost) { return function(stream, lost, with), cudaSuccess; };
  return Enqueue(stream, gradbus::emu::internal::Work{call, true});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  cudaEventSynchronize(event);
  delete event;
  return Return(Call());
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = stream;
  event->waiting++;
  return Enqueue(stream, [=] { return event->waiting--, cudaSuccess; });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  return event->waiting == 0 ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  if (event->waiting == 0) return cudaSuccess;
  return Return(gradbus::emu::internal::Run(event->stream, SIZE_MAX));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return Enqueue(stream, [=] { return cudaEventSynchronize(event); });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return Return(Call());
}
