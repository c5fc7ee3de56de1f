// What the operations of the CUDA backend share: the opened device, the queue that an operation
// puts its work on, and launches.
//
// The same sources are compiled twice: by nvcc for a GPU, and by the C++ compiler with csrc/emu
// first on the include path, which runs the kernels on the CPU, so that tests can compare their
// bits on a machine without a GPU. Kernels keep to what the emulation knows: shared memory only
// through GB_SHARED, launches only through Launch, one-dimensional grids.
//
// How an operation is written (apply_dense.cu is the example):
//   - It has one implementation, the asynchronous one: Run(Queue&, parts, args, report) queues
//     kernels and nothing else. It never waits, never allocates, and follows no pointer of args but
//     those to slots and terms, which are the host's.
//   - Its workspace is a struct of parts whose constructor takes them from core's Arena, so the
//     size query and the call count the same bytes.
//   - What only the device can see goes wrong there: flags.cuh. Kernels that write look at the
//     flags first, and the last kernel turns them into the report.
//   - Stage says how its arrays travel when the caller's memory is the host's: stage.h. Call<Op>
//     makes both forms out of these.
#ifndef GRADBUS_CUDA_DEVICE_H_
#define GRADBUS_CUDA_DEVICE_H_

#include <cuda_runtime.h>

#include <atomic>
#include <mutex>

#include "core/core.h"

#ifdef GRADBUS_EMU  // has a GB_SHARED that is poisoned for every block
#define GB_DEVICE_NAMESPACE emu
#else
#define GB_DEVICE_NAMESPACE cuda
#define GB_SHARED(type, name, count) __shared__ type name[count]
#endif

// A kernel's parameter that is indexed, so that it is not copied to local memory first.
#ifdef __CUDACC__
#define GB_CONSTANT __grid_constant__
#else
#define GB_CONSTANT
#endif

// The loop over the values of a kernel, each thread taking every so many.
#define GB_EACH(i, n)                                                                    \
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < (n); \
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

constexpr unsigned kWarp = 32;
constexpr unsigned kThreads = 256;  // of a block, where nothing speaks for another number
// Blocks of kThreads that a multiprocessor should hold at once, for __launch_bounds__: 1024 threads
// with a few 16-byte accesses in flight each are more than its share of the memory's rate needs.
constexpr unsigned kBlocksEach = 4;

// Context is an opened device. What the synchronous form needs is one call's at a time.
struct Context {
  int device = 0;
  int multiprocessors = 1;
  int64_t blocks_most = 1;  // of a launch
  bool overlaps = false;    // kernels of LaunchAfter begin early
  char isa[24] = {};
  std::atomic<int> lost{0};  // the error after which the device answers nothing more

  const char** texts = nullptr;  // pinned: the messages of reports, which kernels may point at

  std::mutex busy;                // guards the rest
  cudaStream_t stream = nullptr;  // of the synchronous form
  char* memory = nullptr;         // on the device
  uint64_t bytes = 0;             // of it
  char* host = nullptr;           // pinned
  uint64_t host_bytes = 0;
  gb_report* report = nullptr;  // pinned; the kernels of a synchronous call write it
};

inline Context* Of(gb_context* context) {
  return static_cast<Context*>(static_cast<void*>(context));
}

// Queue is where one call puts its work: a stream, and the first error met there. After an error it
// takes nothing more.
class Queue {
 public:
  Queue(Context* context, cudaStream_t stream);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  cudaStream_t stream() const { return stream_; }
  const Context& context() const { return *context_; }
  bool ok() const { return fault_ == cudaSuccess; }
  void Note(cudaError_t e) {
    if (fault_ == cudaSuccess) fault_ = e;
  }
  // Blocks is how many blocks for n items, each block taking per_block of them in one turn. There
  // is a bound on it, since kernels loop; it is so high that the last blocks to run hardly count.
  unsigned Blocks(int64_t n, int64_t per_block) const;
  void Zero(void* memory, uint64_t bytes);
  void Copy(void* to, const void* from, uint64_t bytes);  // between any two memories
  // Bring copies what the host has to device memory by way of kernel parameters: it is read before
  // Bring returns, unlike what cudaMemcpyAsync may do, so it may lie on the stack.
  void Bring(void* to, const void* from, uint64_t bytes);
  void Wait();
  // End turns the queue's error into a status: GB_OK, GB_MEMORY or GB_DEVICE.
  gb_status End(gb_report* report);
  // Break is End of a call that has begun, when nothing of it runs any more. Where it may have
  // written what is the caller's, the device is lost, whatever the error.
  gb_status Break(bool written, gb_report* report);

 private:
  Context* context_;
  cudaStream_t stream_;
  cudaError_t fault_;
};

// Fault reports error e of a runtime call. An error that does not go away with reading it means
// that the device is lost, which every later call then says.
gb_status DeviceFault(Context* context, cudaStream_t stream, cudaError_t e, gb_report* report);

// Launch runs a kernel and notes whether that went well. No blocks are no launch.
template <typename... Params, typename... Args>
void Launch(Queue& queue, unsigned blocks, unsigned threads, void (*kernel)(Params...),
            Args... args) {
  if (!queue.ok() || blocks == 0) return;
#ifdef GRADBUS_EMU
  queue.Note(LaunchKernel(queue.stream(), blocks, threads, kernel, args...));
#else
  // The formatter would take the chevrons apart.
  // clang-format off
  kernel<<<blocks, threads, 0, queue.stream()>>>(static_cast<Params>(args)...);
  // clang-format on
  queue.Note(cudaGetLastError());
#endif
}

// LaunchAfter is Launch of a kernel that begins with Await: its blocks may be there, on devices
// that can, while the last ones of the kernel before are at work. So the next one need not be
// brought to the device when that has ended, which takes some microseconds.
template <typename... Params, typename... Args>
void LaunchAfter(Queue& queue, unsigned blocks, unsigned threads, void (*kernel)(Params...),
                 Args... args) {
#ifndef GRADBUS_EMU
  if (queue.context().overlaps) {
    if (!queue.ok() || blocks == 0) return;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = queue.stream();
    config.attrs = &early;
    config.numAttrs = 1;
    queue.Note(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
    return;
  }
#endif
  Launch(queue, blocks, threads, kernel, args...);
}

// Await waits until all that was queued before this kernel has ended, and can be seen.
__device__ __forceinline__ void Await() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

struct Stream {
  Context* context;
  cudaStream_t handle;
};

inline Stream* Of(gb_stream* stream) { return static_cast<Stream*>(static_cast<void*>(stream)); }

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
gb_status CoalesceApply(gb_context*, gb_stream*, const gb_coalesce_apply_args*, gb_workspace,
                        gb_report*);
gb_status AverageApply(gb_context*, gb_stream*, const gb_average_apply_args*, gb_workspace,
                       gb_report*);
gb_status Copy(gb_context*, gb_stream*, const gb_copy_args*, gb_workspace, gb_report*);

// Bytes of workspace.
uint64_t NeedsOf(const Context&, const gb_bag_forward_args&);
uint64_t NeedsOf(const Context&, const gb_bag_backward_args&);
uint64_t NeedsOf(const Context&, const gb_coalesce_args&);
uint64_t NeedsOf(const Context&, const gb_merge_args&);
uint64_t NeedsOf(const Context&, const gb_apply_rows_args&);
uint64_t NeedsOf(const Context&, const gb_apply_dense_args&);
uint64_t NeedsOf(const Context&, const gb_average_args&);
uint64_t NeedsOf(const Context&, const gb_matmul_args&);
uint64_t NeedsOf(const Context&, const gb_softmax_args&);
uint64_t NeedsOf(const Context&, const gb_first_nonfinite_args&);
uint64_t NeedsOf(const Context&, const gb_coalesce_apply_args&);
uint64_t NeedsOf(const Context&, const gb_average_apply_args&);

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_DEVICE_H_
