// The table of the CPU backend, and the choice of the instruction set.
#include <cstring>
#include <new>

#include "cpu/cpu.h"
#include "cpu/isa.h"

namespace gradbus {
namespace {

const Kernels* const isas[] = {
    // from the least to the best
    &kKernelsBaseline,
#ifdef GRADBUS_X86
    &kKernelsAvx2,
    &kKernelsAvx512,
#endif
};

// Runs says whether this machine has an instruction set.
bool Runs(const Kernels& k) {
#ifdef GRADBUS_X86
  if (&k == &kKernelsAvx2) return RunsAvx2();
  if (&k == &kKernelsAvx512) return RunsAvx512();
#endif
  return &k == &kKernelsBaseline;
}

gb_status Open(const gb_open_args* a, gb_context** out, gb_report* report) {
  if (const gb_status s = CheckSize(a, sizeof *a, report); s != GB_OK) return s;
  if (out == nullptr) return Fail(report, GB_ARGUMENT, "no place for the context");
  if (a->threads > kThreadsMost) {
    return Fail(report, GB_ARGUMENT, "threads", -1, a->threads, kThreadsMost);
  }
  const bool best = a->isa == nullptr || a->isa[0] == 0;
  bool known = false;
  const Kernels* found = nullptr;
  for (const Kernels* k : isas) {
    const bool named = !best && std::strcmp(k->isa, a->isa) == 0;
    known = known || named;
    if ((best || named) && Runs(*k)) found = k;
  }
  if (found == nullptr) {
    return known ? Fail(report, GB_NO_DEVICE, "this processor lacks the instruction set")
                 : Fail(report, GB_ARGUMENT, "no such instruction set in this library");
  }
  const int threads = a->threads == 0 ? 1 : static_cast<int>(a->threads);
  *out = new (std::nothrow) gb_context{found, Pool(threads)};
  if (*out == nullptr) return Fail(report, GB_MEMORY, "out of memory");
  return Done(report);
}

void Close(gb_context* c) { delete c; }

const char* Isa(const gb_context* c) { return c->kernels->isa; }

template <typename Args>
uint64_t Needs(const gb_context& c, const void* args) {
  return CheckSize(args, sizeof(Args), nullptr) == GB_OK
             ? NeedsOf(c, *static_cast<const Args*>(args))
             : UINT64_MAX;
}

uint64_t Workspace(gb_context* c, gb_op op, const void* args) {
  if (c == nullptr || args == nullptr) return UINT64_MAX;
  switch (op) {
    case GB_OP_BAG_FORWARD:
      return Needs<gb_bag_forward_args>(*c, args);
    case GB_OP_BAG_BACKWARD:
      return Needs<gb_bag_backward_args>(*c, args);
    case GB_OP_COALESCE:
      return Needs<gb_coalesce_args>(*c, args);
    case GB_OP_MERGE:
      return Needs<gb_merge_args>(*c, args);
    case GB_OP_APPLY_ROWS:
      return Needs<gb_apply_rows_args>(*c, args);
    case GB_OP_COALESCE_APPLY:
      return Needs<gb_coalesce_apply_args>(*c, args);
    case GB_OP_APPLY_DENSE:
      return Needs<gb_apply_dense_args>(*c, args);
    case GB_OP_AVERAGE:
      return Needs<gb_average_args>(*c, args);
    case GB_OP_AVERAGE_APPLY:
      return Needs<gb_average_apply_args>(*c, args);
    case GB_OP_COPY:
      return Needs<gb_copy_args>(*c, args);
    case GB_OP_GATHER:
      return Needs<gb_gather_args>(*c, args);
    case GB_OP_MATMUL:
      return Needs<gb_matmul_args>(*c, args);
    case GB_OP_SOFTMAX:
      return Needs<gb_softmax_args>(*c, args);
    case GB_OP_FIRST_NONFINITE:
      return Needs<gb_first_nonfinite_args>(*c, args);
    default:
      return UINT64_MAX;
  }
}

extern const gb_api api;

gb_status Submit(gb_context* c, gb_stream* s, const gb_command* commands, int64_t n, gb_workspace w,
                 int64_t* done, gb_report* report) {
  if (done == nullptr || n < 0 || (n > 0 && commands == nullptr)) {
    return Fail(report, GB_ARGUMENT, "commands");
  }
  Done(report);
  for (*done = 0; *done < n; ++*done) {
    const gb_command& command = commands[*done];
    gb_report* const own = command.report != nullptr ? command.report : report;
    const gb_status status = RunCommand(api, c, s, command, w, own);
    PassReport(own, report);
    if (status != GB_OK) return status;
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
    CpuAlloc,
    CpuFree,
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
    CpuCoalesceApply,
    CpuAverageApply,
    CpuCopy,
    Submit,
    nullptr,  // memory and streams of a device of its own, from here on
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    CpuGather,
};

}  // namespace
}  // namespace gradbus

extern "C" const gb_api* gb_backend(uint32_t abi) {
  return abi == GB_ABI ? &gradbus::api : nullptr;
}
