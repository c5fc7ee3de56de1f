// Operations that are not written yet answer UNSUPPORTED; a line goes when its operation comes.
#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

#define GB_PENDING(Name, Args)                                                       \
  gb_status Name(gb_context*, gb_stream*, const Args*, gb_workspace, gb_report* r) { \
    return Fail(r, GB_UNSUPPORTED, "not on the device yet");                         \
  }                                                                                  \
  uint64_t NeedsOf(const Context&, const Args&) { return 0; }

GB_PENDING(BagForward, gb_bag_forward_args)
GB_PENDING(BagBackward, gb_bag_backward_args)
GB_PENDING(Coalesce, gb_coalesce_args)
GB_PENDING(Merge, gb_merge_args)
GB_PENDING(CoalesceApply, gb_coalesce_apply_args)

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
