// The optimizers, taken apart: what a step computes, as plain data for the kernels of every
// backend. No inline functions here: kernels that are compiled for one instruction set include it.
//
// For each value, with d = grad/weight and, where decay is not 0, d = d + decay*p, every product
// rounded before it is added:
//   sgd      m = first ? d : mu*m + keep*d;  u = nesterov ? d + mu*m : m (without momentum: d)
//            p = p - lr*u
//   adagrad  s = s + columns(d*d)/dim;  p = p - lr*(d/(sqrt(s) + eps))
//   adam     mean = beta1*mean + keep1*d;  square = beta2*square + (keep2*d)*d
//            p = p - rate*(mean/(sqrt(square)/b2 + eps))
#ifndef GRADBUS_CORE_RULE_H_
#define GRADBUS_CORE_RULE_H_

#include <cstdint>

#include "gradbus.h"

namespace gradbus {

// Rule is passed to kernels by value. Fields that the kind has no use for are zero.
struct Rule {
  uint32_t kind;       // GB_SGD, GB_ROWWISE_ADAGRAD or GB_ADAM
  bool momentum;       // sgd: momentum is not 0, so there is a slot
  bool nesterov;       // sgd
  float lr, mu, keep;  // keep is 1 - dampening
  float decay;         // weight decay
  float eps;           // adagrad, adam
  float beta1, keep1;  // adam; keep1 is 1 - beta1
  float beta2, keep2;  // adam; keep2 is 1 - beta2
  float rate;          // adam: lr/b1
  float b2;            // adam: sqrt(1 - beta2^step)
};

// RuleOf takes apart an optimizer that CheckOptimizer has accepted.
Rule RuleOf(const gb_optimizer& optimizer);

// Slots are an optimizer's slots in canonical order, whatever order the caller named them in: sgd
// momentum; adagrad sum; adam mean, square.
constexpr int kSlotsMax = 2;
struct Slots {
  const gb_slot* at[kSlotsMax];
  int n;
};
Slots SlotsOf(const gb_optimizer& optimizer);

// SlotValues is how many values of a slot belong to a row of dim values: dim, or 1 (adagrad).
int64_t SlotValues(const Rule& rule, int64_t dim);

// CheckOptimizer checks kind, hyperparameters, weight and the names of the slots, not their
// lengths.
gb_status CheckOptimizer(const gb_optimizer& optimizer, float weight, gb_report* report);

}  // namespace gradbus

#endif  // GRADBUS_CORE_RULE_H_
