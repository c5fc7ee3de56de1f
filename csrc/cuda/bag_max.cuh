// The largest of each column over the rows of a bag: as segments.cuh, with a comparison in the
// place of the addition.
#ifndef GRADBUS_CUDA_BAG_MAX_CUH_
#define GRADBUS_CUDA_BAG_MAX_CUH_

#include "cuda/segments.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

// MaxInto queues the maxima of segments into out, and the positions of the winners into argmax,
// where it is not empty. positions are those of places (nullptr: the places themselves); winners
// has room for SlotsOf(s.places) rows.
void MaxInto(Queue& queue, const Flags* flags, const Sources& t, const Segments& s,
             const uint32_t* positions, int32_t* winners, const gb_out& out, const gb_out& argmax);

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_BAG_MAX_CUH_
