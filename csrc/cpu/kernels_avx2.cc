#define GB_ISA isa_avx2
#define GB_WIDTH 8
#define GB_SUFFIX Avx2
#define GB_NAME "avx2"
#include "cpu/kernels_impl.h"
