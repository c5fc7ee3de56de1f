// Which table of maps a processor runs.
#include <cstring>

#include "cpu/isa.h"
#include "gradbus_dense.h"

namespace gradbus {
extern const gb_maps kMapsBaseline;
#ifdef GRADBUS_X86
extern const gb_maps kMapsAvx2;
extern const gb_maps kMapsAvx512;
#endif
}  // namespace gradbus

const gb_maps* gb_maps_of(const char* isa) {
  using namespace gradbus;
  const gb_maps* found = &kMapsBaseline;
#ifdef GRADBUS_X86
  // From the least to the best, up to the one that is named.
  const auto better = [&](const gb_maps& maps, bool runs) {
    if (runs && std::strcmp(found->isa, isa) != 0) found = &maps;
  };
  better(kMapsAvx2, RunsAvx2());
  better(kMapsAvx512, RunsAvx512());
#endif
  (void)isa;
  return found;
}
