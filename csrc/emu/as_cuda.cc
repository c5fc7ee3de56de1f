// The emulated backend in the place of CUDA's, for a shared library with which programs run as on a
// GPU.
#include "gradbus.h"

extern "C" const gb_api* gb_emu_backend(uint32_t abi);

extern "C" const gb_api* gb_cuda_backend(uint32_t abi) { return gb_emu_backend(abi); }
