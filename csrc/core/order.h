// The constants of the canonical order. Apart from core.h, because the files that are compiled for
// one instruction set may not include inline functions that others share (cpu/vector.h says why).
#ifndef GRADBUS_CORE_ORDER_H_
#define GRADBUS_CORE_ORDER_H_

#include <cstdint>

namespace gradbus {

constexpr int64_t kBlock = 64;           // terms of a block
constexpr int64_t kSuper = 64 * kBlock;  // terms of a superblock
constexpr int kStackMax = 14;            // sums that can wait while the lane tree is added up
constexpr int32_t kAdd = -1;             // the step of a plan that adds the two topmost sums

// PowerOfTwo reports whether dividing by x > 0 equals multiplying by its reciprocal, bit for bit.
bool PowerOfTwo(float x);

}  // namespace gradbus

#endif  // GRADBUS_CORE_ORDER_H_
