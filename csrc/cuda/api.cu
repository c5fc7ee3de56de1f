// The table of the CUDA backend, and the opening of a device.
#include <cstdio>
#include <new>

#include "cuda/flags.cuh"
#include "cuda/memory.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

constexpr int kOldest = 75;  // sm_75; older ones have no code in the library

gb_status NoDevice(cudaError_t e, gb_report* report) {
  switch (e) {
    case cudaErrorInsufficientDriver:
      return Fail(
          report, GB_NO_DEVICE,
          "no NVIDIA driver here, or one older than this library's CUDA; use the cpu backend", -1,
          e);
    case cudaErrorNoDevice:
      return Fail(report, GB_NO_DEVICE, "no CUDA device on this machine; use the cpu backend", -1,
                  e);
    default:
      return Fail(report, GB_NO_DEVICE, cudaGetErrorString(e), -1, e);
  }
}

void Close(gb_context* context) {
  if (context == nullptr) return;
  Context* c = Of(context);
  cudaSetDevice(c->device);
  if (c->stream != nullptr) cudaStreamDestroy(c->stream);
  cudaFree(c->memory);
  cudaFreeHost(c->host);
  cudaFreeHost(c->report);
  cudaFreeHost(c->texts);
  delete c;
}

// Pinned memory for the small things that kernels and host share.
template <typename T>
cudaError_t Pinned(T** memory, size_t n) {
  void* got = nullptr;
  const cudaError_t e =
      cudaHostAlloc(&got, n * sizeof(T), cudaHostAllocPortable | cudaHostAllocMapped);
  *memory = static_cast<T*>(got);
  return e;
}

// Equip gives a context what it keeps until it is closed.
gb_status Equip(Context* c, gb_report* report) {
  cudaError_t e = cudaSetDevice(c->device);
  if (e == cudaSuccess) {
    e = cudaDeviceGetAttribute(&c->multiprocessors, cudaDevAttrMultiProcessorCount, c->device);
  }
  if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
  if (e == cudaSuccess) e = Pinned(&c->report, 1);
  if (e == cudaSuccess) e = Pinned(&c->texts, kTexts);
  if (e != cudaSuccess) {
    cudaGetLastError();
    return e == cudaErrorMemoryAllocation
               ? Fail(report, GB_MEMORY, "the device has too little memory", -1, e)
               : NoDevice(e, report);
  }
  for (uint32_t i = 0; i < kTexts; i++) c->texts[i] = TextOf(static_cast<Text>(i));
#ifdef GRADBUS_EMU
  c->blocks_most = 3;  // so that the kernels' loops are exercised
#else
  c->blocks_most = static_cast<int64_t>(c->multiprocessors) * kBlocksEach * 32;
#endif
  c->overlaps = Overlaps();
  return Done(report);
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
  if (const gb_status s = Equip(c, report); s != GB_OK) {
    Close(static_cast<gb_context*>(static_cast<void*>(c)));
    return s;
  }
  *out = static_cast<gb_context*>(static_cast<void*>(c));
  return Done(report);
}

const char* Isa(const gb_context* c) {
  return static_cast<const Context*>(static_cast<const void*>(c))->isa;
}

// The size of a command's workspace.
template <typename Args>
uint64_t NeedsOf(Context* c, const void* args) {
  if (CheckSize(args, sizeof(Args), nullptr) != GB_OK) return UINT64_MAX;
  return NeedsOf(*c, *static_cast<const Args*>(args));
}

uint64_t Workspace(gb_context* context, gb_op op, const void* args) {
  if (context == nullptr || args == nullptr) return UINT64_MAX;
  Context* c = Of(context);
  cudaSetDevice(c->device);  // some sizes depend on the device
  switch (op) {
    case GB_OP_BAG_FORWARD:
      return NeedsOf<gb_bag_forward_args>(c, args);
    case GB_OP_BAG_BACKWARD:
      return NeedsOf<gb_bag_backward_args>(c, args);
    case GB_OP_COALESCE:
      return NeedsOf<gb_coalesce_args>(c, args);
    case GB_OP_MERGE:
      return NeedsOf<gb_merge_args>(c, args);
    case GB_OP_APPLY_ROWS:
      return NeedsOf<gb_apply_rows_args>(c, args);
    case GB_OP_COALESCE_APPLY:
      return NeedsOf<gb_coalesce_apply_args>(c, args);
    case GB_OP_APPLY_DENSE:
      return NeedsOf<gb_apply_dense_args>(c, args);
    case GB_OP_AVERAGE:
      return NeedsOf<gb_average_args>(c, args);
    case GB_OP_AVERAGE_APPLY:
      return NeedsOf<gb_average_apply_args>(c, args);
    case GB_OP_MATMUL:
      return NeedsOf<gb_matmul_args>(c, args);
    case GB_OP_SOFTMAX:
      return NeedsOf<gb_softmax_args>(c, args);
    case GB_OP_FIRST_NONFINITE:
      return NeedsOf<gb_first_nonfinite_args>(c, args);
    case GB_OP_COPY:
      return 0;
    default:
      return UINT64_MAX;
  }
}

const gb_api& Table();

// On a stream a command's report is written later, so the caller's says only how queueing went.
gb_status Submit(gb_context* c, gb_stream* s, const gb_command* commands, int64_t n, gb_workspace w,
                 int64_t* done, gb_report* report) {
  if (done == nullptr || n < 0 || (n > 0 && commands == nullptr)) {
    return Fail(report, GB_ARGUMENT, "commands");
  }
  Done(report);
  for (*done = 0; *done < n; ++*done) {
    const gb_command& command = commands[*done];
    gb_report* own = command.report;
    if (own == nullptr && s == nullptr) own = report;
    const gb_status status = RunCommand(Table(), c, s, command, w, own);
    if (s == nullptr || (status != GB_OK && own != nullptr)) PassReport(own, report);
    if (status != GB_OK) {
      if (own == nullptr) Fail(report, status, "a command without a report was not queued");
      return status;
    }
  }
  return GB_OK;
}

const gb_api api = {
    sizeof(gb_api), GB_ABI,        "cuda",       Open,        Close,       Isa,
    Alloc,          Free,          Workspace,    BagForward,  BagBackward, Coalesce,
    Merge,          ApplyRows,     ApplyDense,   Average,     MatMul,      Softmax,
    FirstNonFinite, CoalesceApply, AverageApply, Copy,        Submit,      DeviceAlloc,
    DeviceFree,     StreamOpen,    StreamClose,  StreamQuery, StreamWait,  StreamNotify,
    nullptr,  // gather: rows that leave a table in the host's memory need no device
};

const gb_api& Table() { return api; }

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
