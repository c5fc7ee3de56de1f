#define GB_ISA isa_avx2
#define GB_WIDTH 8
#define GB_MAPS kMapsAvx2
#define GB_NAME "avx2"
#include "dense/maps_impl.h"
