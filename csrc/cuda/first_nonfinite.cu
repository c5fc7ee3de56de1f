// first_nonfinite: the least index wins an integer minimum, whose result does not depend on the
// order.
#include "cuda/flags.cuh"
#include "cuda/load.cuh"
#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

template <Access kAccess>
__device__ __forceinline__ void Find(const Bits& bits, gb_dtype dtype, int64_t at, Flags* flags) {
  const Four x = Widen<kAccess>(bits, dtype);
#pragma unroll
  for (int i = 3; i >= 0; i--) {
    if (!(x.x[i] - x.x[i] == 0)) Raise(flags, kFound, 0, at + i);
  }
}

template <Access kAccess>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    first_nonfinite_kernel(const void* __restrict__ values, gb_dtype dtype, int64_t n,
                           Flags* flags) {
  constexpr int kFlight = 4;
  const int64_t vectors = kAccess == kSingles ? (n + 3) / 4 : n / 4;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t me = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t begin = me; begin < vectors; begin += kFlight * stride) {
    Bits bits[kFlight];
#pragma unroll
    for (int u = 0; u < kFlight; u++) {
      const int64_t v = begin + u * stride;
      bits[u] = {{0, 0, 0, 0}};
      if (v < vectors) {
        const int64_t left = n - 4 * v;
        bits[u] = Fetch<kAccess, true>(values, dtype, 4 * v, left < 4 ? static_cast<int>(left) : 4);
      }
    }
#pragma unroll
    for (int u = 0; u < kFlight; u++)
      Find<kAccess>(bits[u], dtype, 4 * (begin + u * stride), flags);
  }
  if (kAccess != kSingles && me < n % 4) {
    const int64_t at = n - n % 4 + me;
    Find<kSingles>(Fetch<kSingles, false>(values, dtype, at, 1), dtype, at, flags);
  }
}

struct Op {
  using Args = gb_first_nonfinite_args;

  struct Parts {
    Flags* flags;
    Parts(Arena& arena, const Context&, const Args&) : flags(arena.Take<Flags>(1)) {}
  };

  static bool Nothing(const Args& a) { return a.values.n == 0; }
  static void Stage(Travel& travel, Args& a) { travel.Near(a.values); }

  static void Run(Queue& queue, const Parts& parts, const Args& a, gb_report* report) {
    ZeroFlags(queue, parts.flags);
    const gb_in& x = a.values;
    const unsigned blocks = queue.Blocks((x.n + 3) / 4, kThreads * 4);
    AccessOf access(4);
    access.And(x);
    if (access.best() == kFloats) {
      Launch(queue, blocks, kThreads, first_nonfinite_kernel<kFloats>, x.data, x.dtype, x.n,
             parts.flags);
    } else if (access.best() == kVectors) {
      Launch(queue, blocks, kThreads, first_nonfinite_kernel<kVectors>, x.data, x.dtype, x.n,
             parts.flags);
    } else {
      Launch(queue, blocks, kThreads, first_nonfinite_kernel<kSingles>, x.data, x.dtype, x.n,
             parts.flags);
    }
    Report(queue, parts.flags, Verdict(), report);
  }
};

}  // namespace

uint64_t NeedsOf(const Context& context, const gb_first_nonfinite_args& a) {
  return Needs<Op>(context, a);
}

gb_status FirstNonFinite(gb_context* context, gb_stream* stream, const gb_first_nonfinite_args* a,
                         gb_workspace w, gb_report* report) {
  return Call<Op>(context, stream, a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
