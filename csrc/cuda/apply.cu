// apply_rows and apply_dense: one thread per value. The table stays on the host in this version, so
// apply_rows gathers the chosen rows there.
#include <cstring>

#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// first has one entry per run of dim values; m and out_m are null without momentum. Values may be
// updated in place.
__global__ void sgd_kernel(Sgd h, float weight, const uint8_t* first, int64_t dim, int64_t n,
                           const float* p, const float* g, const float* m, float* out,
                           float* out_m) {
  GB_EACH(i, n) {
    float d = g[i] / weight;
    if (h.weight_decay != 0) d += h.weight_decay * p[i];
    float update = d;
    if (m != nullptr) {
      const float velocity = first[i / dim] != 0 ? d : h.momentum * m[i] + h.keep * d;
      update = h.nesterov ? d + h.momentum * velocity : velocity;
      out_m[i] = velocity;
    }
    out[i] = p[i] - h.lr * update;
  }
}

struct Parts {
  float *p, *g, *m;
  uint8_t* first;
  Parts(Arena& arena, int64_t n, int64_t runs, bool momentum)
      : p(arena.Take<float>(n)),
        g(arena.Take<float>(n)),
        m(momentum ? arena.Take<float>(n) : nullptr),
        first(arena.Take<uint8_t>(runs)) {}
};

struct HostParts {
  float* rows;  // of the table or of the momentum, gathered
  HostParts(Arena& arena, const gb_apply_rows_args& a) : rows(arena.Take<float>(a.out.n)) {}
};

const float* Gather(const float* from, const gb_apply_rows_args& a, float* to) {
  for (int64_t i = 0; i < a.index.n; i++) {
    std::memcpy(to + i * a.dim, from + Ints(a.index)[i] * a.dim, a.dim * sizeof(float));
  }
  return to;
}

}  // namespace

uint64_t NeedsOf(const gb_apply_rows_args& a) {
  Arena arena;
  HostParts parts(arena, a);
  return arena.needed();
}

gb_status ApplyRows(gb_context* context, gb_stream* stream, const gb_apply_rows_args* a,
                    gb_workspace w, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  Arena arena(w);
  const HostParts host(arena, *a);
  if (!arena.enough()) return TooSmall(arena, w, report);
  const int64_t n = a->out.n;
  if (n == 0) return Done(report);
  const Sgd h = SgdOf(a->optimizer);
  const bool momentum = h.momentum != 0;
  Use device(context, report);
  const Parts p = device.Reserve<Parts>(n, a->index.n, momentum);
  device.Upload(p.p, Gather(Floats(a->table), *a, host.rows), n);
  device.Upload(p.g, Floats(a->grad), n);
  if (momentum) {
    device.Upload(p.m, Gather(h.before, *a, host.rows), n);
    device.Upload(p.first, static_cast<const uint8_t*>(a->first.data), a->first.n);
  }
  device.Launch(sgd_kernel, n, h, a->weight, p.first, a->dim, n, p.p, p.g, p.m, p.p, p.m);
  device.Download(Floats(a->out), p.p, n);
  if (momentum) device.Download(h.after, p.m, n);
  return device.End();
}

gb_status ApplyDense(gb_context* context, gb_stream* stream, const gb_apply_dense_args* a,
                     gb_workspace, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  const int64_t n = a->param.n;
  if (n == 0) return Done(report);
  const Sgd h = SgdOf(a->optimizer);
  const bool momentum = h.momentum != 0;
  const uint8_t first = a->first != 0;
  Use device(context, report);
  const Parts p = device.Reserve<Parts>(n, int64_t{1}, momentum);
  device.Upload(p.p, Floats(a->param), n);
  device.Upload(p.g, Floats(a->grad), n);
  if (momentum) device.Upload(p.m, h.before, n);
  device.Upload(p.first, &first, 1);
  device.Launch(sgd_kernel, n, h, a->weight, p.first, n, n, p.p, p.g, p.m, p.p, p.m);
  device.Download(Floats(a->out), p.p, n);
  if (momentum) device.Download(h.after, p.m, n);
  return device.End();
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
