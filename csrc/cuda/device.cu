#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

gb_status Begin(gb_context* context, gb_stream* stream, gb_report* report) {
  if (context == nullptr) return Fail(report, GB_ARGUMENT, "no context");
  if (stream != nullptr) return Fail(report, GB_UNSUPPORTED, "streams are not written yet");
  return GB_OK;
}

gb_status TooSmall(const Arena& arena, gb_workspace w, gb_report* report) {
  return Fail(report, GB_WORKSPACE, "workspace is too small", -1,
              static_cast<int64_t>(arena.needed()), static_cast<int64_t>(w.bytes));
}

Use::Use(gb_context* context, gb_report* report)
    : context_(Of(context)), lock_(context_->busy), report_(report), fault_(context_->lost) {
  Note(cudaSetDevice(context_->device));  // a thread's current device is the thread's own
}

// Memory makes the context's memory at least so large. It grows by doubling, so a steady state
// allocates nothing.
gb_workspace Use::Memory(uint64_t bytes) {
  if (ok() && bytes > context_->bytes) {
    const uint64_t wanted = bytes > 2 * context_->bytes ? bytes : 2 * context_->bytes;
    Note(cudaFree(context_->memory));
    context_->memory = nullptr;
    context_->bytes = 0;
    void* memory = nullptr;
    if (ok()) Note(cudaMalloc(&memory, wanted));
    if (ok()) {
      context_->memory = static_cast<char*>(memory);
      context_->bytes = wanted;
    }
  }
  return {context_->memory, context_->bytes};
}

void Use::Note(cudaError_t e) {
  if (fault_ == cudaSuccess) fault_ = e;
}

gb_status Use::End(int64_t count, int64_t position) {
  if (ok()) return Done(report_, count, position);
  if (fault_ == cudaErrorMemoryAllocation) {  // the device itself is well
    cudaGetLastError();
    return Fail(report_, GB_MEMORY, "the device has too little memory", -1, fault_);
  }
  context_->lost = fault_;
  return Fail(report_, GB_DEVICE, cudaGetErrorString(fault_), -1, fault_);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
