// The table of the CUDA backend, and the opening of a device.
#include <cstdio>
#include <cstring>
#include <new>

#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

constexpr int kOldest = 75;  // sm_75; older ones have no code in the library

gb_status NoDevice(cudaError_t e, gb_report* report) {
  switch (e) {
    case cudaErrorInsufficientDriver:
      return Fail(
          report, GB_NO_DEVICE,
          "no NVIDIA driver on this machine, or one too old for CUDA 11.8; use the cpu backend", -1,
          e);
    case cudaErrorNoDevice:
      return Fail(report, GB_NO_DEVICE, "no CUDA device on this machine; use the cpu backend", -1,
                  e);
    default:
      return Fail(report, GB_NO_DEVICE, cudaGetErrorString(e), -1, e);
  }
}

gb_status Open(const gb_open_args* a, gb_context** out, gb_report* report) {
  if (const gb_status s = CheckSize(a, sizeof *a, report); s != GB_OK) return s;
  if (out == nullptr) return Fail(report, GB_ARGUMENT, "no place for the context");
  if (a->isa != nullptr && a->isa[0] != 0) {
    return Fail(report, GB_ARGUMENT, "the cuda backend has no choice of instruction set");
  }
  int devices = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&devices); e != cudaSuccess) {
    cudaGetLastError();
    return NoDevice(e, report);
  }
  if (a->device < 0 || a->device >= devices) {
    return Fail(report, GB_NO_DEVICE, "no device of that number", -1, a->device, devices);
  }
  int major = 0, minor = 0;
  cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, a->device);
  if (e == cudaSuccess) {
    e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, a->device);
  }
  if (e != cudaSuccess) return NoDevice(e, report);
  const int capability = major * 10 + minor;
  if (capability < kOldest) {
    return Fail(report, GB_NO_DEVICE, "the device is older than sm_75; use the cpu backend", -1,
                capability, kOldest);
  }
  Context* c = new (std::nothrow) Context();
  if (c == nullptr) return Fail(report, GB_MEMORY, "out of memory");
  c->device = a->device;
#ifdef GRADBUS_EMU
  std::snprintf(c->isa, sizeof c->isa, "emulated");
#else
  std::snprintf(c->isa, sizeof c->isa, "sm_%d", capability);
#endif
  *out = static_cast<gb_context*>(static_cast<void*>(c));
  return Done(report);
}

void Close(gb_context* context) {
  Context* c = Of(context);
  cudaSetDevice(c->device);
  cudaFree(c->memory);
  delete c;
}

const char* Isa(const gb_context* c) {
  return static_cast<const Context*>(static_cast<const void*>(c))->isa;
}

gb_status Alloc(gb_context* context, uint64_t bytes, void** memory, gb_report* report) {
  if (context == nullptr || memory == nullptr) return Fail(report, GB_ARGUMENT, "memory");
  *memory = nullptr;
  if (bytes == 0) return Done(report);
  cudaSetDevice(Of(context)->device);
  if (const cudaError_t e = cudaHostAlloc(memory, bytes, cudaHostAllocDefault); e != cudaSuccess) {
    cudaGetLastError();
    return Fail(report, GB_MEMORY, "no pinned memory", -1, e);
  }
  std::memset(*memory, 0, bytes);
  return Done(report);
}

void Free(gb_context*, void* memory, uint64_t) { cudaFreeHost(memory); }

template <typename Args>
const Args& As(const void* args) {
  return *static_cast<const Args*>(args);
}

uint64_t Workspace(gb_context*, gb_op op, const void* args) {
  if (args == nullptr) return UINT64_MAX;
  switch (op) {
    case GB_OP_BAG_BACKWARD:
      return NeedsOf(As<gb_bag_backward_args>(args));
    case GB_OP_COALESCE:
      return NeedsOf(As<gb_coalesce_args>(args));
    case GB_OP_MERGE:
      return NeedsOf(As<gb_merge_args>(args));
    case GB_OP_AVERAGE:
      return NeedsOf(As<gb_average_args>(args));
    case GB_OP_APPLY_ROWS:
      return NeedsOf(As<gb_apply_rows_args>(args));
    case GB_OP_BAG_FORWARD:
    case GB_OP_APPLY_DENSE:
    case GB_OP_MATMUL:
    case GB_OP_SOFTMAX:
    case GB_OP_FIRST_NONFINITE:
      return 0;
    default:
      return UINT64_MAX;
  }
}

const gb_api api = {
    sizeof(gb_api), GB_ABI,    "cuda",     Open,        Close,          Isa,   Alloc,
    Free,           Workspace, BagForward, BagBackward, Coalesce,       Merge, ApplyRows,
    ApplyDense,     Average,   MatMul,     Softmax,     FirstNonFinite,
    nullptr,  // submit: batches of commands come with streams
};

}  // namespace
}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#ifdef GRADBUS_EMU
// The emulated backend, for tests alone.
extern "C" GB_EXPORT const gb_api* gb_emu_backend(uint32_t abi) {
  return abi == GB_ABI ? &gradbus::emu::api : nullptr;
}
#else
extern "C" const gb_api* gb_cuda_backend(uint32_t abi) {
  return abi == GB_ABI ? &gradbus::cuda::api : nullptr;
}
#endif
