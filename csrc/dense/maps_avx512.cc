#define GB_ISA isa_avx512
#define GB_WIDTH 16
#define GB_MAPS kMapsAvx512
#define GB_NAME "avx512"
#include "dense/maps_impl.h"
