// The kernels that pool chosen rows, a table of them per instruction set. Their callers have
// checked every argument. Plain data only, see vector.h.
#ifndef GRADBUS_CPU_BAG_KERNELS_H_
#define GRADBUS_CPU_BAG_KERNELS_H_

#include <cstdint>

#include "gradbus.h"

namespace gradbus {

// RowsRun is a list of rows, each given by its address, cut into segments that follow one another.
struct RowsRun {
  gb_dtype type, out_type;  // one of them float32, or both the same
  int64_t dim;
  int64_t ahead;          // at[i + ahead] is fetched while at[i] is added
  const void* const* at;  // as many rows as the segments have, and ahead more of any kind
  const uint32_t* ends;   // where each segment ends; the first begins at 0
  int64_t segments;
  const float* weights;         // of each row, or null
  const int32_t* positions;     // of each row, where marks or argmax are given
  const int32_t* const* marks;  // of each row, or null: a column counts only where its mark is the
                                // row's position, and is +0 elsewhere
  float by;                     // every sum is divided by it; 0: not divided
  bool mean;                    // every sum is divided by its number of rows, if there is one
  bool stream;                  // what is written is too much for the caches
  void* out;                    // segments x dim
  int32_t* argmax;  // segments x dim, or null: the position of the row that max took, -1 for none
};

struct BagKernels {
  void (*sum)(const RowsRun& run);  // canonical sums
  void (*max)(const RowsRun& run);
  // out[0, dim) = the n rows of sums, one after the other, from +0, and divided by by (0: not).
  void (*total)(const float* sums, int64_t n, int64_t dim, float by, void* out, gb_dtype out_type);
  // out = x / by, n values of a type.
  void (*scale)(const void* x, gb_dtype type, float by, int64_t n, float* out);
  // at[i] = base + ids[i] * row_bytes; ids are int32 or 64 bits wide.
  void (*addresses)(const void* ids, gb_dtype type, int64_t n, const void* base, int64_t row_bytes,
                    const void** at);
  // at[i] = base + (words[i] & mask) * row_bytes.
  void (*word_addresses)(const uint64_t* words, uint64_t mask, int64_t n, const void* base,
                         int64_t row_bytes, const void** at);
  // The first of n ids that is limit or more as an unsigned number of 64 bits and not padding; n
  // where there is none. ids are int32 or 64 bits wide.
  int64_t (*first_above)(const void* ids, gb_dtype type, int64_t n, uint64_t limit,
                         int64_t padding);
};

}  // namespace gradbus

#endif  // GRADBUS_CPU_BAG_KERNELS_H_
