// coalesce_apply.
#include "cpu/cpu.h"

namespace gradbus {

uint64_t NeedsOf(const gb_context&, const gb_coalesce_apply_args&) { return 0; }

gb_status CpuCoalesceApply(gb_context* context, gb_stream* stream, const gb_coalesce_apply_args* a,
                           gb_workspace, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  return Fail(report, GB_UNSUPPORTED, "coalesce_apply");
}

}  // namespace gradbus
