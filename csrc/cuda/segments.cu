#include "cuda/segments.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

__global__ void sum_segments_kernel(const float* __restrict__ rows,
                                    const int64_t* __restrict__ index,
                                    const int64_t* __restrict__ begin,
                                    const float* __restrict__ divisor, int64_t dim, int64_t values,
                                    float* __restrict__ out) {
  GB_EACH(i, values) {
    const int64_t segment = i / dim, column = i % dim;
    CanonicalSum sum;
    for (int64_t at = begin[segment]; at < begin[segment + 1]; at++) {
      const int64_t row = index[at];
      const float term = rows[row * dim + column];
      sum.Add(divisor == nullptr ? term : term / divisor[row]);
    }
    out[i] = sum.Total();
  }
}

namespace {

struct Parts {
  float *rows, *divisor, *out;
  int64_t *index, *begin;
  Parts(Arena& arena, const gb_in& in, const Segments& s, int64_t dim, int64_t divisors)
      : rows(arena.Take<float>(in.n)),
        divisor(divisors == 0 ? nullptr : arena.Take<float>(divisors)),
        out(arena.Take<float>(s.distinct * dim)),
        index(arena.Take<int64_t>(s.n)),
        begin(arena.Take<int64_t>(s.distinct + 1)) {}
};

}  // namespace

Segments::Segments(const Pair* sorted, int64_t count, int64_t different, void* memory)
    : index(static_cast<int64_t*>(memory)), begin(index + count), n(count), distinct(different) {
  int64_t segment = 0;
  for (int64_t i = 0; i < n; i++) {
    index[i] = sorted[i].row;
    if (i == 0 || sorted[i].key != sorted[i - 1].key) begin[segment++] = i;
  }
  begin[segment] = n;
}

gb_status RunSegments(gb_context* context, const Segments& s, const gb_in& rows, int64_t dim,
                      const float* divisor, int64_t divisors, float* out, gb_report* report) {
  if (s.distinct == 0) return Done(report);
  Use device(context, report);
  const Parts p = device.Reserve<Parts>(rows, s, dim, divisors);
  const int64_t values = s.distinct * dim;
  device.Upload(p.rows, Floats(rows), rows.n);
  device.Upload(p.divisor, divisor, divisors);
  device.Upload(p.index, s.index, s.n);
  device.Upload(p.begin, s.begin, s.distinct + 1);
  device.Launch(sum_segments_kernel, values, p.rows, p.index, p.begin, p.divisor, dim, values,
                p.out);
  device.Download(out, p.out, values);
  return device.End(s.distinct);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
