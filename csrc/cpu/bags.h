// Offsets of bags, whichever of the forms they come in.
#ifndef GRADBUS_CPU_BAGS_H_
#define GRADBUS_CPU_BAGS_H_

#include "core/core.h"

namespace gradbus {

struct Bags {
  const int32_t* narrow = nullptr;  // one of the two is given
  const int64_t* wide = nullptr;
  int64_t bags = 0;
  int64_t ids = 0;
  int64_t known = 0;  // offsets given; the one behind them is the number of ids

  template <typename Args>
  explicit Bags(const Args& a)
      : bags(a.offsets.n - (a.open_offsets != 0 ? 0 : 1)), ids(a.ids.n), known(a.offsets.n) {
    if (a.offsets.dtype == GB_INT32) {
      narrow = static_cast<const int32_t*>(a.offsets.data);
    } else {
      wide = static_cast<const int64_t*>(a.offsets.data);
    }
  }
  // Begin is where a bag begins; that of the number of bags is the number of ids.
  int64_t Begin(int64_t bag) const {
    if (bag >= known) return ids;
    return narrow != nullptr ? narrow[bag] : wide[bag];
  }
  int64_t Length(int64_t bag) const { return Begin(bag + 1) - Begin(bag); }
  // Of is the bag that holds a position.
  int64_t Of(int64_t position) const {
    return FirstFrom(position + 1, [this](int64_t bag) { return Begin(bag); }) - 1;
  }
  // Cut is the first bag of a share of the work, where a bag costs as much as an id, so that bags
  // of all lengths, empty ones too, spread evenly.
  int64_t Cut(int64_t cost) const {
    return FirstFrom(cost, [this](int64_t bag) { return Begin(bag) + bag; });
  }
  int64_t Cost() const { return ids + bags; }

 private:
  template <typename F>
  int64_t FirstFrom(int64_t bound, F&& value) const {
    int64_t lo = 0, hi = bags;
    while (lo < hi) {
      const int64_t middle = lo + (hi - lo) / 2;
      if (value(middle) < bound) {
        lo = middle + 1;
      } else {
        hi = middle;
      }
    }
    return lo;
  }
};

}  // namespace gradbus

#endif  // GRADBUS_CPU_BAGS_H_
