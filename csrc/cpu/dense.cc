// copy and first_nonfinite: one pass over values.
#include <cstring>

#include "cpu/cpu.h"

namespace gradbus {

uint64_t NeedsOf(const gb_context&, const gb_copy_args&) { return 0; }
uint64_t NeedsOf(const gb_context&, const gb_first_nonfinite_args&) { return 0; }

gb_status CpuCopy(gb_context* context, gb_stream* stream, const gb_copy_args* a, gb_workspace,
                  gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  if (a->bytes > 0) std::memcpy(a->to, a->from, static_cast<size_t>(a->bytes));
  return Done(report);
}

gb_status CpuFirstNonFinite(gb_context* context, gb_stream* stream,
                            const gb_first_nonfinite_args* a, gb_workspace, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  return Done(report, 0, context->kernels->first_nonfinite(Floats(a->values), a->values.n));
}

}  // namespace gradbus
