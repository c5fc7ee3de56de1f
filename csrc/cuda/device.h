// What the operations of the CUDA backend share: the opened device, its memory, and launches.
//
// The same sources are compiled twice: by nvcc for a GPU, and by the C++ compiler with
// emu/cuda_runtime.h, which runs the kernels on the CPU so that tests can compare their bits on a
// machine without a GPU. Kernels therefore keep to what the emulation knows: no shared memory, no
// barriers, one thread per output value.
//
// This version has only the synchronous form: an operation copies its arguments to the device,
// runs, and copies the results back. Calls on one context run one after the other. That is right,
// and slower than the CPU for small work: streams and memory that stays on the device are what will
// make it fast.
#ifndef GRADBUS_CUDA_DEVICE_H_
#define GRADBUS_CUDA_DEVICE_H_

#ifdef GRADBUS_EMU
#include "emu/cuda_runtime.h"
#define GB_DEVICE_NAMESPACE emu
#else
#include <cuda_runtime.h>
#define GB_DEVICE_NAMESPACE cuda
#endif

#include <mutex>

#include "core/core.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

struct Context {
  int device;
  char isa[24];
  std::mutex busy;   // held during an operation: its memory is shared by all
  char* memory;      // on the device
  uint64_t bytes;    // of it
  cudaError_t lost;  // not 0: the device failed, and every call says so
};

inline Context* Of(gb_context* context) {
  return static_cast<Context*>(static_cast<void*>(context));
}

// Use is one operation on the device: it holds the context and its memory, and remembers the first
// fault.
class Use {
 public:
  Use(gb_context* context, gb_report* report);
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  // Reserve gives device memory for an operation: the parts are counted and handed out as from a
  // workspace.
  template <typename Parts, typename... Args>
  Parts Reserve(const Args&... args) {
    Arena count;
    Parts counted(count, args...);
    Arena arena(Memory(count.needed()));
    return ok() ? Parts(arena, args...) : counted;
  }
  template <typename T>
  void Upload(T* to, const T* from, int64_t n) {
    if (ok() && n > 0) Note(cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyHostToDevice));
  }
  template <typename T>
  void Download(T* to, const T* from, int64_t n) {
    if (ok() && n > 0) Note(cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyDeviceToHost));
  }
  // Launch runs a kernel with enough threads for n values; kernels loop, so there may be fewer
  // threads than values.
  template <typename... Params, typename... Args>
  void Launch(void (*kernel)(Params...), int64_t n, Args... args) {
    if (!ok() || n == 0) return;
    const int64_t blocks = (n + kThreads - 1) / kThreads;
    const unsigned grid = static_cast<unsigned>(blocks < kBlocksMost ? blocks : kBlocksMost);
#ifdef GRADBUS_EMU
    EmuLaunch(grid, kThreads, kernel, args...);
#else
    // The formatter would take the chevrons apart.
    // clang-format off
    kernel<<<grid, kThreads>>>(static_cast<Params>(args)...);
    // clang-format on
#endif
    Note(cudaGetLastError());
  }
  bool ok() const { return fault_ == cudaSuccess; }
  gb_status End(int64_t count = 0, int64_t position = -1);

 private:
  static constexpr int kThreads = 128;
  static constexpr int64_t kBlocksMost = 1 << 16;
  gb_workspace Memory(uint64_t bytes);
  void Note(cudaError_t e);

  Context* context_;
  std::lock_guard<std::mutex> lock_;
  gb_report* report_;
  cudaError_t fault_;
};

gb_status Begin(gb_context* context, gb_stream* stream, gb_report* report);
gb_status TooSmall(const Arena& arena, gb_workspace w, gb_report* report);

#define GB_BEGIN(context, stream, args, report)                                    \
  if (const gb_status s_ = Begin(context, stream, report); s_ != GB_OK) return s_; \
  if (const gb_status s_ = Check(args, report); s_ != GB_OK) return s_

// GB_EACH is the loop over the values of a kernel, each thread taking every so many.
#define GB_EACH(i, n)                                                                    \
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < (n); \
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)

gb_status BagForward(gb_context*, gb_stream*, const gb_bag_forward_args*, gb_workspace, gb_report*);
gb_status BagBackward(gb_context*, gb_stream*, const gb_bag_backward_args*, gb_workspace,
                      gb_report*);
gb_status Coalesce(gb_context*, gb_stream*, const gb_coalesce_args*, gb_workspace, gb_report*);
gb_status Merge(gb_context*, gb_stream*, const gb_merge_args*, gb_workspace, gb_report*);
gb_status ApplyRows(gb_context*, gb_stream*, const gb_apply_rows_args*, gb_workspace, gb_report*);
gb_status ApplyDense(gb_context*, gb_stream*, const gb_apply_dense_args*, gb_workspace, gb_report*);
gb_status Average(gb_context*, gb_stream*, const gb_average_args*, gb_workspace, gb_report*);
gb_status MatMul(gb_context*, gb_stream*, const gb_matmul_args*, gb_workspace, gb_report*);
gb_status Softmax(gb_context*, gb_stream*, const gb_softmax_args*, gb_workspace, gb_report*);
gb_status FirstNonFinite(gb_context*, gb_stream*, const gb_first_nonfinite_args*, gb_workspace,
                         gb_report*);

uint64_t NeedsOf(const gb_bag_backward_args& a);
uint64_t NeedsOf(const gb_coalesce_args& a);
uint64_t NeedsOf(const gb_merge_args& a);
uint64_t NeedsOf(const gb_average_args& a);
uint64_t NeedsOf(const gb_apply_rows_args& a);

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_DEVICE_H_
