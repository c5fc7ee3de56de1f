// Streams, and memory of the device.
#include <unistd.h>

#include <cstring>
#include <new>

#include "cuda/memory.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// A runtime call outside a queue: the device is made current, and what it answers is reported.
template <typename F>
gb_status Ask(Context* c, cudaStream_t stream, gb_report* report, F&& call) {
  cudaError_t e = static_cast<cudaError_t>(c->lost.load(std::memory_order_relaxed));
  if (e == cudaSuccess) e = cudaSetDevice(c->device);
  if (e == cudaSuccess) e = call();
  return e == cudaSuccess ? Done(report) : DeviceFault(c, stream, e, report);
}

void Tell(int fd) {
  const uint64_t one = 1;
  // An eventfd takes 8 bytes or, when its counter is full, none, and then it is readable anyway.
  ssize_t written = write(fd, &one, sizeof one);
  (void)written;
}

// cudaLaunchHostFunc would not be called after a fault of the device, and the waiter would not
// wake; a callback is.
void CUDART_CB TellCallback(cudaStream_t, cudaError_t, void* fd) {
  Tell(static_cast<int>(reinterpret_cast<intptr_t>(fd)));
}
cudaError_t Notify(cudaStream_t stream, void* fd) {
  return cudaStreamAddCallback(stream, TellCallback, fd, 0);
}

}  // namespace

gb_status Alloc(gb_context* context, uint64_t bytes, void** memory, gb_report* report) {
  if (context == nullptr || memory == nullptr) return Fail(report, GB_ARGUMENT, "memory");
  *memory = nullptr;
  if (bytes == 0) return Done(report);
  if (bytes > UINT64_MAX / 2) return Fail(report, GB_MEMORY, "no pinned memory");
  Context* c = Of(context);
  const gb_status s = Ask(c, c->stream, report, [&] {
    return cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  });
  if (s == GB_MEMORY) return Fail(report, GB_MEMORY, "no pinned memory");
  if (s != GB_OK) return s;
  std::memset(*memory, 0, bytes);
  return GB_OK;
}

void Free(gb_context* context, void* memory, uint64_t) {
  if (context == nullptr || memory == nullptr) return;
  cudaSetDevice(Of(context)->device);
  cudaFreeHost(memory);
}

gb_status DeviceAlloc(gb_context* context, uint64_t bytes, void** memory, gb_report* report) {
  if (context == nullptr || memory == nullptr) return Fail(report, GB_ARGUMENT, "memory");
  *memory = nullptr;
  if (bytes == 0) return Done(report);
  if (bytes > UINT64_MAX / 2) return Fail(report, GB_MEMORY, "the device has too little memory");
  Context* c = Of(context);
  gb_status s = Ask(c, c->stream, report, [&] { return cudaMalloc(memory, bytes); });
  if (s != GB_OK) return s;
  // Zeroed before any stream can use it.
  s = Ask(c, c->stream, report, [&] {
    const cudaError_t e = cudaMemsetAsync(*memory, 0, bytes, c->stream);
    return e == cudaSuccess ? cudaStreamSynchronize(c->stream) : e;
  });
  if (s != GB_OK) {
    cudaFree(*memory);
    *memory = nullptr;
  }
  return s;
}

void DeviceFree(gb_context* context, void* memory) {
  if (context == nullptr || memory == nullptr) return;
  cudaSetDevice(Of(context)->device);
  cudaFree(memory);
}

gb_status StreamOpen(gb_context* context, gb_stream** out, gb_report* report) {
  if (context == nullptr || out == nullptr) return Fail(report, GB_ARGUMENT, "stream");
  *out = nullptr;
  Context* c = Of(context);
  Stream* stream = new (std::nothrow) Stream{c, nullptr};
  if (stream == nullptr) return Fail(report, GB_MEMORY, "out of memory");
  const gb_status s = Ask(c, c->stream, report, [&] {
    return cudaStreamCreateWithFlags(&stream->handle, cudaStreamNonBlocking);
  });
  if (s != GB_OK) {
    delete stream;
    return s;
  }
  *out = static_cast<gb_stream*>(static_cast<void*>(stream));
  return GB_OK;
}

void StreamClose(gb_context* context, gb_stream* stream) {
  if (context == nullptr || stream == nullptr) return;
  cudaSetDevice(Of(context)->device);
  cudaStreamSynchronize(Of(stream)->handle);
  cudaStreamDestroy(Of(stream)->handle);
  delete Of(stream);
}

gb_status StreamQuery(gb_context* context, gb_stream* stream, gb_report* report) {
  if (context == nullptr || stream == nullptr) return Fail(report, GB_ARGUMENT, "stream");
  bool busy = false;
  const gb_status s = Ask(Of(context), Of(stream)->handle, report, [&] {
    const cudaError_t e = cudaStreamQuery(Of(stream)->handle);
    busy = e == cudaErrorNotReady;
    return busy ? cudaSuccess : e;
  });
  return busy ? Fail(report, GB_BUSY, nullptr) : s;
}

gb_status StreamWait(gb_context* context, gb_stream* stream, gb_report* report) {
  if (context == nullptr || stream == nullptr) return Fail(report, GB_ARGUMENT, "stream");
  return Ask(Of(context), Of(stream)->handle, report,
             [&] { return cudaStreamSynchronize(Of(stream)->handle); });
}

gb_status StreamNotify(gb_context* context, gb_stream* stream, int fd, gb_report* report) {
  if (context == nullptr || stream == nullptr) return Fail(report, GB_ARGUMENT, "stream");
  return Ask(Of(context), Of(stream)->handle, report, [&] {
    return Notify(Of(stream)->handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  });
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
