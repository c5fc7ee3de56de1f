// first_nonfinite: the least index wins an integer minimum, whose result does not depend on the
// order.
#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

__global__ void first_nonfinite_kernel(const float* __restrict__ values, int64_t n,
                                       unsigned long long* first) {
  GB_EACH(i, n) {
    if (!(values[i] - values[i] == 0)) atomicMin(first, static_cast<unsigned long long>(i));
  }
}

struct Parts {
  float* values;
  unsigned long long* first;
  Parts(Arena& arena, const gb_first_nonfinite_args& a)
      : values(arena.Take<float>(a.values.n)), first(arena.Take<unsigned long long>(1)) {}
};

}  // namespace

gb_status FirstNonFinite(gb_context* context, gb_stream* stream, const gb_first_nonfinite_args* a,
                         gb_workspace, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  if (a->values.n == 0) return Done(report);
  Use device(context, report);
  const Parts p = device.Reserve<Parts>(*a);
  const unsigned long long none = ~0ull;
  unsigned long long first = none;
  device.Upload(p.values, Floats(a->values), a->values.n);
  device.Upload(p.first, &none, 1);
  device.Launch(first_nonfinite_kernel, a->values.n, p.values, a->values.n, p.first);
  device.Download(&first, p.first, 1);
  return device.End(0, first == none ? -1 : static_cast<int64_t>(first));
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
