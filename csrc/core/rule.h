// The optimizers, taken apart: what a step computes, as plain data for the kernels of every
// backend. No inline functions here: kernels that are compiled for one instruction set include it.
//
// For each value, with d = grad/weight, clipped, and, where decay is not 0, d = d + decay*p, every
// product rounded before it is added:
//   sgd      m = first ? d : mu*m + keep*d;  u = nesterov ? d + mu*m : m (without momentum: d)
//            p = p - lr*u
//   rowwise  s = s + columns(d*d)/dim;  p = p - lr*(d/(sqrt(s) + eps))
//   adagrad  s = s + d*d;  p = p - lr*(d/(sqrt(s) + eps))
//   adam     mean = beta1*mean + keep1*d;  square = beta2*square + (keep2*d)*d
//            p = p*shrink - rate*(mean/(sqrt(square)/b2 + eps))
//   ftrl     where n is 0: z = -(p*base + T(p)), T(x) being l1 with the sign of x, and x for 0
//            n' = n + d*d;  z = (z + lr*d) - (sqrt(n') - sqrt(n))*p
//            p = n' is 0 ? p : |z| <= l1 ? 0 : (T(z) - z)/(sqrt(n') + base)
#ifndef GRADBUS_CORE_RULE_H_
#define GRADBUS_CORE_RULE_H_

#include <cstdint>

#include "gradbus.h"

namespace gradbus {

// Rule is passed to kernels by value. Fields that the kind has no use for are zero.
struct Rule {
  uint32_t kind;       // GB_SGD, GB_ROWWISE_ADAGRAD, ...
  bool momentum;       // sgd: momentum is not 0, so there is a slot
  bool nesterov;       // sgd
  float lr, mu, keep;  // keep is 1 - dampening
  float decay;         // weight decay
  float eps;           // adagrads, adams
  float beta1, keep1;  // adams; keep1 is 1 - beta1
  float beta2, keep2;  // adams; keep2 is 1 - beta2
  float rate;          // adams: lr/b1
  float b2;            // adams: sqrt(1 - beta2^step)
  float shrink;        // adamw: 1 - lr*weight_decay, adam: 1
  float l1, base;      // ftrl: lr times that of the caller; beta + lr*l2
  uint32_t clip;       // GB_CLIP_NONE, ...
  float by;            // of the clip
};

// RuleOf takes apart an optimizer that CheckOptimizer has accepted.
Rule RuleOf(const gb_optimizer& optimizer);

// Slots are an optimizer's slots in canonical order, whatever order the caller named them in: sgd
// momentum; adagrads sum; adams mean, square; ftrl z, n.
constexpr int kSlotsMax = 2;
struct Slots {
  const gb_slot* at[kSlotsMax];
  int n;
};
Slots SlotsOf(const gb_optimizer& optimizer);

// SlotValues is how many values of a slot belong to a row of dim values: dim, or 1 (row-wise
// Adagrad).
int64_t SlotValues(const Rule& rule, int64_t dim);

// CheckOptimizer checks kind, hyperparameters, clip, weight and the names of the slots, not their
// lengths.
gb_status CheckOptimizer(const gb_optimizer& optimizer, float weight, gb_report* report);

}  // namespace gradbus

#endif  // GRADBUS_CORE_RULE_H_
