// Sorting and scanning, which are CUB's, and the segments of equal keys that come out of a sort.
#ifndef GRADBUS_CUDA_SORT_CUH_
#define GRADBUS_CUDA_SORT_CUH_

#include "cuda/segments.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

// ScanBytes is the workspace of Scan, which makes to[i] = from[0] + ... + from[i-1].
uint64_t ScanBytes(const Context& context, int64_t n);
void Scan(Queue& queue, void* work, uint64_t bytes, const uint32_t* from, uint32_t* to, int64_t n);

// SortKeys says how keys are sorted: as 32 or 64 bits, of which the lowest bits matter.
struct SortKeys {
  bool wide;
  int bits;
};

// KeysBelow is for keys below limit and, with one_more, limit itself.
SortKeys KeysBelow(int64_t limit, bool one_more);

// SortParts is the workspace of sorting n keys and finding their segments: dim is that of the sums.
struct SortParts {
  void* sorted;     // keys
  uint32_t* order;  // the values, in the order of their keys
  uint32_t* heads;  // [n], 1 where a segment begins
  uint32_t* rank;   // [n], how many begin before
  uint32_t* begin;  // [n + 1]
  void* work;       // CUB's
  uint64_t work_bytes;
  SegmentParts segments;
  SortParts(Arena& arena, const Context& context, int64_t n, int64_t dim, SortKeys k);
};

// SortRuns queues the sort of keys with values, stable, and finds the runs of equal keys below
// limit (unbounded: all). Their number goes to state's count; more than room is a fault.
struct RunsOf {
  SortKeys sort;
  bool bounded;
  uint64_t limit;
  int64_t room;
};
Segments SortRuns(Queue& queue, State* state, const SortParts& parts, const RunsOf& runs,
                  const void* keys, const uint32_t* values, int64_t n);

// FindRuns does the second half, for keys that are in order already.
Segments FindRuns(Queue& queue, State* state, const SortParts& parts, const RunsOf& runs,
                  int64_t n);

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_SORT_CUH_
