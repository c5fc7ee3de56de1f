// Which table of maps a processor runs.
#include <cstring>

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
  const bool baseline = std::strcmp(isa, kMapsBaseline.isa) == 0;
#ifdef GRADBUS_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx2 && (std::strcmp(isa, kMapsAvx2.isa) == 0 || (!baseline && !avx512))) return &kMapsAvx2;
  if (avx512 && !baseline) return &kMapsAvx512;
#endif
  (void)baseline;
  return &kMapsBaseline;
}
