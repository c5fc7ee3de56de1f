#define GB_ISA isa_avx512
#define GB_WIDTH 16
#define GB_SUFFIX Avx512
#define GB_NAME "avx512"
#include "cpu/kernels_impl.h"
