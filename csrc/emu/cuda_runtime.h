// As much of CUDA as csrc/cuda uses, on a CPU, so that tests run the very kernels that a GPU runs:
// the same sources are compiled with this folder first on the include path.
//
// What it shows: missing barriers, masks that name threads which do not come, shared and device
// memory read before it was written, results that hang on an order of threads or blocks, pointers
// of the wrong side, and, with the sanitizers, accesses out of bounds or out of line. What it
// cannot show: the device's own arithmetic, what nvcc makes of the source, and a race between
// blocks or between barriers that no order of whole threads brings to light.
#ifndef GRADBUS_EMU_CUDA_RUNTIME_H_
#define GRADBUS_EMU_CUDA_RUNTIME_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

#include "emu/emu.h"
#include "emu/intrinsics.h"
#include "emu/kernel.h"
#include "emu/runtime.h"
#include "emu/vectors.h"

#endif  // GRADBUS_EMU_CUDA_RUNTIME_H_
