// Stands in for the CUDA backend in a library that was built without it.
#include "gradbus.h"

extern "C" const gb_api* gb_cuda_backend(uint32_t) { return nullptr; }
