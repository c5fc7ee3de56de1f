#define GB_ISA isa_baseline
#define GB_WIDTH 4
#define GB_MAPS kMapsBaseline
#define GB_NAME "baseline"
#include "dense/maps_impl.h"
