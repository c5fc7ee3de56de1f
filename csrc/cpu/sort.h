// Sorting of keys, each with the row that came with it.
//
// A key and its row lie in one word of 64 bits, key above row. Only the bits in which the keys
// differ count: the upper ones put every word into a bucket of some hundreds, in one pass over
// memory, and each bucket is then sorted by the others in L1. Keys that fill a word by themselves
// are sorted as pairs and then numbered.
#ifndef GRADBUS_CPU_SORT_H_
#define GRADBUS_CPU_SORT_H_

#include "cpu/bags.h"
#include "cpu/cpu.h"

namespace gradbus {

// SortRequest says what to sort. What comes with a key is its position, or the bag of its position.
struct SortRequest {
  gb_in keys;                       // int32, int64 or uint64
  uint64_t limit = UINT64_MAX;      // keys are below it; UINT64_MAX: any
  int64_t padding = GB_NO_PADDING;  // keys to leave out
  bool skip = false;                // keys out of range are left out too, and counted
  const Bags* bags = nullptr;       // of the positions, or null
  bool row_is_bag = false;          // the bag comes with a key, not its position
  uint32_t* bag_of = nullptr;       // not null: gets the bag of every position

  bool filtered() const { return skip || padding != GB_NO_PADDING; }
  int64_t payload_most() const { return (row_is_bag ? bags->bags : keys.n) - 1; }
};

constexpr int kChunksMost = 16;  // shares of a sort

// SortParts is the memory of a sort; its size depends on lengths, types and limit.
struct SortParts {
  char *first, *second;  // words, or pairs where those may be needed
  uint32_t* counts;      // of every digit, for every chunk
  SortParts(Arena& arena, const gb_context& c, const SortRequest& s);
};

// Sorted is a list of words, ascending by key; equal keys in the order they came in.
struct Sorted {
  const uint64_t* words = nullptr;
  int64_t n = 0;  // those left out are not among them
  int shift = 0;
  uint64_t mask = 0;
  uint64_t common = 0;              // the bits that all keys share
  const uint64_t* names = nullptr;  // not null: the words hold numbers of keys
  int64_t skipped = 0;              // out of range, where those are skipped

  uint64_t KeyOf(uint64_t word) const {
    return names != nullptr ? names[word >> shift] : word >> shift | common;
  }
  uint64_t RowOf(uint64_t word) const { return word & mask; }
};

// SortKeys checks the keys against the limit (GB_ID) and sorts them.
gb_status SortKeys(gb_context& c, const SortRequest& s, const SortParts& parts, Sorted* sorted,
                   gb_report* report);

}  // namespace gradbus

#endif  // GRADBUS_CPU_SORT_H_
