#include <cstring>

#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// Kernel parameters may be 4096 bytes.
struct Piece {
  static constexpr unsigned kMost = 3968;
  unsigned char bytes[kMost];
};

__global__ void bring_kernel(Piece piece, unsigned bytes, unsigned char* to) {
  GB_EACH(i, bytes) to[i] = piece.bytes[i];
}

}  // namespace

Queue::Queue(Context* context, cudaStream_t stream)
    : context_(context), stream_(stream), fault_(cudaSuccess) {
  Note(static_cast<cudaError_t>(context->lost.load(std::memory_order_relaxed)));
  if (ok()) Note(cudaSetDevice(context->device));  // a thread's current device is the thread's own
}

unsigned Queue::Blocks(int64_t n, int64_t per_block) const {
  const int64_t blocks = n <= 0 ? 0 : (n - 1) / per_block + 1;
  return static_cast<unsigned>(blocks < context_->blocks_most ? blocks : context_->blocks_most);
}

void Queue::Zero(void* memory, uint64_t bytes) {
  if (ok() && bytes > 0) Note(cudaMemsetAsync(memory, 0, bytes, stream_));
}

void Queue::Copy(void* to, const void* from, uint64_t bytes) {
  if (ok() && bytes > 0) Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
}

void Queue::Bring(void* to, const void* from, uint64_t bytes) {
  const unsigned char* at = static_cast<const unsigned char*>(from);
  unsigned char* there = static_cast<unsigned char*>(to);
  Piece piece;
  while (bytes > 0) {
    const unsigned n = bytes < Piece::kMost ? static_cast<unsigned>(bytes) : Piece::kMost;
    std::memcpy(piece.bytes, at, n);
    std::memset(piece.bytes + n, 0, Piece::kMost - n);
    Launch(*this, 1, kThreads, bring_kernel, piece, n, there);
    at += n;
    there += n;
    bytes -= n;
  }
}

void Queue::Wait() {
  if (ok()) Note(cudaStreamSynchronize(stream_));
}

gb_status Queue::End(gb_report* report) {
  return ok() ? gb_status{GB_OK} : DeviceFault(context_, stream_, fault_, report);
}

gb_status Queue::Break(bool written, gb_report* report) {
  cudaStreamSynchronize(stream_);
  if (!written) return End(report);
  cudaGetLastError();
  context_->lost.store(fault_, std::memory_order_relaxed);
  return Fail(report, GB_DEVICE, cudaGetErrorString(fault_), -1, fault_);
}

gb_status DeviceFault(Context* context, cudaStream_t stream, cudaError_t e, gb_report* report) {
  if (e == cudaErrorMemoryAllocation) {  // the device itself is well
    cudaGetLastError();
    return Fail(report, GB_MEMORY, "the device has too little memory", -1, e);
  }
  cudaGetLastError();
  const cudaError_t still = cudaStreamQuery(stream);
  if (still != cudaSuccess && still != cudaErrorNotReady) {
    context->lost.store(still, std::memory_order_relaxed);
  }
  return Fail(report, GB_DEVICE, cudaGetErrorString(e), -1, e);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
