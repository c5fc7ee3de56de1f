#define GB_ISA isa_baseline
#define GB_WIDTH 4
#define GB_SUFFIX Baseline
#define GB_NAME "baseline"
#include "cpu/kernels_impl.h"
