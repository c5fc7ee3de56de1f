// Sums of dense terms along the lane tree: every value by one plan, which the host works out and
// passes with the kernel's parameters.
#ifndef GRADBUS_CUDA_TREE_CUH_
#define GRADBUS_CUDA_TREE_CUH_

#include "cuda/load.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

constexpr int kTermsHere = 64;  // as many travel as parameters; more lie in device memory

// Terms are the arrays in lane order. After term t has been pushed onto the stack of sums, the two
// topmost are added adds[t] times.
struct Terms {
  const void* at[kTermsHere];
  uint8_t adds[kTermsHere];
  const void* const* more_at;  // null: those above
  const uint8_t* more_adds;
  int64_t n;
  gb_dtype dtype;
};

// TermParts is the workspace of a call with many terms.
struct TermParts {
  const void** at;
  uint8_t* adds;
  TermParts(Arena& arena, int64_t terms);
};

// PlanTerms fills in the terms and returns how deep the stack becomes.
int PlanTerms(Queue& queue, const TermParts& parts, const gb_term* terms, int64_t n, int64_t lanes,
              Terms* out);

// What the kernels are compiled for: a stack of 5 is enough for 16 lanes.
constexpr int kStackSmall = 5;

// Threads of a block, and blocks that a multiprocessor can hold with such a stack in registers.
constexpr unsigned TreeThreads(int depth) { return depth <= kStackSmall ? kThreads : kThreads / 2; }
constexpr unsigned kTreeBlocks = 3;

// StackOf is a bound on the depth of the stack that needs only what sizes may depend on.
inline int StackOf(int64_t terms, int64_t lanes) {
  int depth = 1;
  while (depth < terms && (int64_t{1} << (depth - 1)) < lanes) depth++;
  return depth;
}

// TreeSum is the sum of the vector at. The stack is shifted, so that it stays in registers; terms
// are fetched several at a time, before the first of them is used.
template <int kDepth, Access kAccess>
__device__ __forceinline__ Four TreeSum(const Terms& terms, int64_t at, int count) {
  constexpr int kFlight = 4;
  Four stack[kDepth];
#pragma unroll
  for (int i = 0; i < kDepth; i++) stack[i] = {{0, 0, 0, 0}};
  for (int64_t begin = 0; begin < terms.n; begin += kFlight) {
    Bits bits[kFlight];
#pragma unroll
    for (int u = 0; u < kFlight; u++) {
      const int64_t t = begin + u;
      if (t >= terms.n) continue;
      const void* term = terms.more_at != nullptr ? terms.more_at[t] : terms.at[t];
      bits[u] = Fetch<kAccess, true>(term, terms.dtype, at, count);
    }
#pragma unroll
    for (int u = 0; u < kFlight; u++) {
      const int64_t t = begin + u;
      if (t >= terms.n) continue;
#pragma unroll
      for (int i = kDepth - 1; i > 0; i--) stack[i] = stack[i - 1];
      stack[0] = Widen<kAccess>(bits[u], terms.dtype);
      int adds = terms.more_adds != nullptr ? terms.more_adds[t] : terms.adds[t];
      for (; adds > 0; adds--) {
#pragma unroll
        for (int c = 0; c < 4; c++) stack[0].x[c] = stack[1].x[c] + stack[0].x[c];
#pragma unroll
        for (int i = 1; i < kDepth - 1; i++) stack[i] = stack[i + 1];
      }
    }
  }
  return stack[0];
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_TREE_CUH_
