// The 16-bit floats as they lie in memory. Nothing here is a function, so that files compiled for
// one instruction set may include it (cpu/vector.h says why).
#ifndef GRADBUS_CORE_DTYPE_H_
#define GRADBUS_CORE_DTYPE_H_

#include <cstdint>

namespace gradbus {

struct Float16 {  // IEEE 754 binary16
  uint16_t bits;
};

struct BFloat16 {  // the upper half of a float32
  uint16_t bits;
};

}  // namespace gradbus

#endif  // GRADBUS_CORE_DTYPE_H_
