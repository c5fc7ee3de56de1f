// The table of the CPU backend, and the choice of the instruction set.
#include <cstdlib>
#include <cstring>

#include "cpu/cpu.h"

namespace gradbus {
namespace {

gb_context contexts[] = {
    {&kKernelsBaseline},
#ifdef GRADBUS_X86
    {&kKernelsAvx2},
    {&kKernelsAvx512},
#endif
};

// Runs says whether this machine has an instruction set. The answer includes the operating system's
// support.
bool Runs(const Kernels& k) {
#ifdef GRADBUS_X86
  if (&k == &kKernelsAvx2) return __builtin_cpu_supports("avx2");
  if (&k == &kKernelsAvx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return &k == &kKernelsBaseline;
}

gb_status Open(const gb_open_args* a, gb_context** out, gb_report* report) {
  if (const gb_status s = CheckSize(a, sizeof *a, report); s != GB_OK) return s;
  if (out == nullptr) return Fail(report, GB_ARGUMENT, "no place for the context");
  if (a->threads > 1) {
    return Fail(report, GB_UNSUPPORTED, "more than one thread", -1, a->threads, 1);
  }
  const bool best = a->isa == nullptr || a->isa[0] == 0;
  bool known = false;
  gb_context* found = nullptr;
  for (gb_context& c : contexts) {  // from the least to the best
    const bool named = !best && std::strcmp(c.kernels->isa, a->isa) == 0;
    known = known || named;
    if ((best || named) && Runs(*c.kernels)) found = &c;
  }
  if (found == nullptr) {
    return known ? Fail(report, GB_NO_DEVICE, "this processor lacks the instruction set")
                 : Fail(report, GB_ARGUMENT, "no such instruction set in this library");
  }
  *out = found;
  return Done(report);
}

void Close(gb_context*) {}

const char* Isa(const gb_context* c) { return c->kernels->isa; }

gb_status Alloc(gb_context*, uint64_t bytes, void** memory, gb_report* report) {
  if (memory == nullptr || bytes > (UINT64_MAX >> 1)) return Fail(report, GB_ARGUMENT, "memory");
  *memory = nullptr;
  if (bytes == 0) return Done(report);
  const uint64_t rounded = (bytes + 63) / 64 * 64;
  *memory = std::aligned_alloc(64, rounded);
  if (*memory == nullptr) return Fail(report, GB_MEMORY, "out of memory", -1, rounded);
  std::memset(*memory, 0, rounded);
  return Done(report);
}

void Free(gb_context*, void* memory, uint64_t) { std::free(memory); }

template <typename Args>
const Args& As(const void* args) {
  return *static_cast<const Args*>(args);
}

uint64_t Workspace(gb_context* c, gb_op op, const void* args) {
  if (c == nullptr || args == nullptr) return UINT64_MAX;
  switch (op) {
    case GB_OP_BAG_FORWARD:
      return NeedsOf(As<gb_bag_forward_args>(args));
    case GB_OP_BAG_BACKWARD:
      return NeedsOf(As<gb_bag_backward_args>(args));
    case GB_OP_COALESCE:
      return NeedsOf(As<gb_coalesce_args>(args));
    case GB_OP_MERGE:
      return NeedsOf(As<gb_merge_args>(args));
    case GB_OP_AVERAGE:
      return NeedsOf(As<gb_average_args>(args));
    case GB_OP_MATMUL:
      return NeedsOf(*c, As<gb_matmul_args>(args));
    case GB_OP_SOFTMAX:
      return NeedsOf(*c, As<gb_softmax_args>(args));
    case GB_OP_APPLY_ROWS:
    case GB_OP_APPLY_DENSE:
    case GB_OP_FIRST_NONFINITE:
      return 0;
    default:
      return UINT64_MAX;
  }
}

gb_status Run(gb_context* c, gb_stream* s, const gb_command& command, gb_workspace w,
              gb_report* report) {
  const void* a = command.args;
  switch (command.op) {
    case GB_OP_BAG_FORWARD:
      return CpuBagForward(c, s, static_cast<const gb_bag_forward_args*>(a), w, report);
    case GB_OP_BAG_BACKWARD:
      return CpuBagBackward(c, s, static_cast<const gb_bag_backward_args*>(a), w, report);
    case GB_OP_COALESCE:
      return CpuCoalesce(c, s, static_cast<const gb_coalesce_args*>(a), w, report);
    case GB_OP_MERGE:
      return CpuMerge(c, s, static_cast<const gb_merge_args*>(a), w, report);
    case GB_OP_APPLY_ROWS:
      return CpuApplyRows(c, s, static_cast<const gb_apply_rows_args*>(a), w, report);
    case GB_OP_APPLY_DENSE:
      return CpuApplyDense(c, s, static_cast<const gb_apply_dense_args*>(a), w, report);
    case GB_OP_AVERAGE:
      return CpuAverage(c, s, static_cast<const gb_average_args*>(a), w, report);
    case GB_OP_MATMUL:
      return CpuMatMul(c, s, static_cast<const gb_matmul_args*>(a), w, report);
    case GB_OP_SOFTMAX:
      return CpuSoftmax(c, s, static_cast<const gb_softmax_args*>(a), w, report);
    case GB_OP_FIRST_NONFINITE:
      return CpuFirstNonFinite(c, s, static_cast<const gb_first_nonfinite_args*>(a), w, report);
    default:
      return Fail(report, GB_UNSUPPORTED, "unknown operation", -1, command.op);
  }
}

gb_status Submit(gb_context* c, gb_stream* s, const gb_command* commands, int64_t n, gb_workspace w,
                 int64_t* done, gb_report* report) {
  if (done == nullptr || n < 0 || (n > 0 && commands == nullptr)) {
    return Fail(report, GB_ARGUMENT, "commands");
  }
  Done(report);
  for (*done = 0; *done < n; ++*done) {
    if (const gb_status status = Run(c, s, commands[*done], w, report); status != GB_OK) {
      return status;
    }
  }
  return GB_OK;
}

const gb_api api = {
    sizeof(gb_api),
    GB_ABI,
    "cpu",
    Open,
    Close,
    Isa,
    Alloc,
    Free,
    Workspace,
    CpuBagForward,
    CpuBagBackward,
    CpuCoalesce,
    CpuMerge,
    CpuApplyRows,
    CpuApplyDense,
    CpuAverage,
    CpuMatMul,
    CpuSoftmax,
    CpuFirstNonFinite,
    Submit,
};

}  // namespace
}  // namespace gradbus

extern "C" const gb_api* gb_backend(uint32_t abi) {
  return abi == GB_ABI ? &gradbus::api : nullptr;
}
