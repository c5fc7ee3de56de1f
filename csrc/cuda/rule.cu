#include "cuda/rule.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

Target TargetOf(const gb_in& before, const gb_out& after, const gb_optimizer& optimizer,
                int64_t dim) {
  Target t = {};
  t.p = {before.data, after.data, before.dtype};
  t.dim = dim;
  const Slots slots = SlotsOf(optimizer);
  if (slots.n > 0)
    t.a = {slots.at[0]->before.data, slots.at[0]->after.data, slots.at[0]->before.dtype};
  if (slots.n > 1)
    t.b = {slots.at[1]->before.data, slots.at[1]->after.data, slots.at[1]->before.dtype};
  return t;
}

AccessOf& And(AccessOf& access, const Target& t, Kind kind) {
  access.And(t.p.before, t.p.dtype).And(t.p.after, t.p.dtype);
  if (kind == kRowwise) return access;
  access.And(t.a.before, t.a.dtype).And(t.a.after, t.a.dtype);
  return access.And(t.b.before, t.b.dtype).And(t.b.after, t.b.dtype);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
