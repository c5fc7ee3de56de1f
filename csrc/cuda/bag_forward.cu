// bag_forward. Each thread makes one value of one bag: it walks the bag's ids and adds that column
// of their rows.
//
// Bytes moved on the device: N*dim floats of rows, read by neighbouring threads side by side; B*dim
// written.
#include "cuda/order.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

__global__ void bag_forward_kernel(const float* __restrict__ rows, const int64_t* __restrict__ ids,
                                   const int64_t* __restrict__ offsets, int64_t dim, int64_t values,
                                   int64_t padding, bool mean, float* __restrict__ out) {
  GB_EACH(i, values) {
    const int64_t bag = i / dim, column = i % dim;
    CanonicalSum sum;
    for (int64_t at = offsets[bag]; at < offsets[bag + 1]; at++) {
      if (ids[at] == padding) continue;  // no id is GB_NO_PADDING
      sum.Add(rows[ids[at] * dim + column]);
    }
    const float total = sum.Total();
    out[i] = mean && sum.n > 0 ? total / static_cast<float>(sum.n) : total;
  }
}

struct Parts {
  float *rows, *out;
  int64_t *ids, *offsets;
  Parts(Arena& arena, const gb_bag_forward_args& a)
      : rows(arena.Take<float>(a.rows.n)),
        out(arena.Take<float>(a.out.n)),
        ids(arena.Take<int64_t>(a.ids.n)),
        offsets(arena.Take<int64_t>(a.offsets.n)) {}
};

}  // namespace

gb_status BagForward(gb_context* context, gb_stream* stream, const gb_bag_forward_args* a,
                     gb_workspace, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  if (a->out.n == 0) return Done(report);
  Use device(context, report);
  const Parts p = device.Reserve<Parts>(*a);
  device.Upload(p.rows, Floats(a->rows), a->rows.n);
  device.Upload(p.ids, Ints(a->ids), a->ids.n);
  device.Upload(p.offsets, Ints(a->offsets), a->offsets.n);
  device.Launch(bag_forward_kernel, a->out.n, p.rows, p.ids, p.offsets, a->dim, a->out.n,
                a->padding, a->mode == GB_MEAN, p.out);
  device.Download(Floats(a->out), p.out, a->out.n);
  return device.End();
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
