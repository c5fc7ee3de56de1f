#include "core/rule.h"

#include <cmath>
#include <cstring>

#include "core/core.h"

namespace gradbus {
namespace {

// Names are the slots of a rule in canonical order.
struct Names {
  const char* at[kSlotsMax];
  int n;
};

Names NamesOf(const Rule& rule) {
  switch (rule.kind) {
    case GB_SGD:
      return {{"momentum", nullptr}, rule.momentum ? 1 : 0};
    case GB_ROWWISE_ADAGRAD:
    case GB_ADAGRAD:
      return {{"sum", nullptr}, 1};
    case GB_FTRL:
      return {{"z", "n"}, 2};
    default:
      return {{"mean", "square"}, 2};
  }
}

const gb_slot* Find(const gb_optimizer& o, const char* name) {
  for (int64_t i = 0; i < o.slots_n; i++) {
    const char* have = o.slots[i].name;
    if (have != nullptr && std::strcmp(have, name) == 0) return &o.slots[i];
  }
  return nullptr;
}

// Power is beta^n by repeated squaring, the same on every backend.
double Power(float beta, uint64_t n) {
  double r = 1, b = static_cast<double>(beta);
  for (; n != 0; n >>= 1) {
    if (n & 1) r *= b;
    b *= b;
  }
  return r;
}

template <typename Hyper>
Hyper Read(const gb_optimizer& o) {
  Hyper h;
  std::memcpy(&h, o.hyper, sizeof h);
  return h;
}

Rule SgdOf(const gb_sgd& h) {
  Rule r = {};
  r.kind = GB_SGD;
  r.momentum = h.momentum != 0;
  r.nesterov = h.nesterov != 0;
  r.lr = h.lr;
  r.mu = h.momentum;
  r.keep = 1.0f - h.dampening;
  r.decay = h.weight_decay;
  return r;
}

Rule AdagradOf(uint32_t kind, const gb_adagrad& h) {
  Rule r = {};
  r.kind = kind;
  r.lr = h.lr;
  r.eps = h.eps;
  r.decay = h.weight_decay;
  return r;
}

Rule AdamOf(uint32_t kind, const gb_adam& h) {
  Rule r = {};
  r.kind = kind;
  r.lr = h.lr;
  r.eps = h.eps;
  r.shrink = 1;
  if (kind == GB_ADAMW) {
    r.shrink = static_cast<float>(1 - static_cast<double>(h.lr) * h.weight_decay);
  } else {
    r.decay = h.weight_decay;
  }
  r.beta1 = h.beta1;
  r.keep1 = 1.0f - h.beta1;
  r.beta2 = h.beta2;
  r.keep2 = 1.0f - h.beta2;
  const float b1 = static_cast<float>(1 - Power(h.beta1, h.step));
  r.rate = h.lr / b1;
  r.b2 = static_cast<float>(std::sqrt(1 - Power(h.beta2, h.step)));
  return r;
}

Rule FtrlOf(const gb_ftrl& h) {
  Rule r = {};
  r.kind = GB_FTRL;
  r.lr = h.lr;
  r.l1 = h.lr * h.l1;
  const float l2 = h.lr * h.l2;
  r.base = h.beta + l2;
  return r;
}

uint32_t HyperBytes(uint32_t kind) {
  switch (kind) {
    case GB_SGD:
      return sizeof(gb_sgd);
    case GB_ROWWISE_ADAGRAD:
    case GB_ADAGRAD:
      return sizeof(gb_adagrad);
    case GB_ADAM:
    case GB_ADAMW:
      return sizeof(gb_adam);
    case GB_FTRL:
      return sizeof(gb_ftrl);
    default:
      return 0;
  }
}

gb_status CheckClip(const gb_clip& c, gb_report* report) {
  if (c.kind > GB_CLIP_ROW) return Fail(report, GB_UNSUPPORTED, "clip", -1, c.kind);
  const bool right = c.kind == GB_CLIP_NONE    ? c.by == 0
                     : c.kind == GB_CLIP_SCALE ? c.by >= 0
                                               : c.by > 0;
  if (right && std::isfinite(c.by)) return GB_OK;
  return Fail(report, GB_ARGUMENT, "clip is not by a finite number above 0");
}

// CheckHyper checks the block of hyperparameters: every kind starts with its floats.
gb_status CheckHyper(const gb_optimizer& o, gb_report* report) {
  const uint32_t known = HyperBytes(o.kind);
  if (known == 0) return Fail(report, GB_UNSUPPORTED, "optimizer", -1, o.kind);
  if (o.hyper == nullptr || o.hyper_bytes < known) {
    return Fail(report, GB_ARGUMENT, "hyperparameters are too few", -1, o.hyper_bytes, known);
  }
  const char* bytes = static_cast<const char*>(o.hyper);
  for (uint32_t i = known; i < o.hyper_bytes; i++) {
    if (bytes[i] != 0) return Fail(report, GB_UNSUPPORTED, "hyperparameter of a newer version", i);
  }
  uint32_t reserved = 0;
  bool finite = true;
  if (o.kind == GB_SGD) {
    const auto h = Read<gb_sgd>(o);
    reserved = h.reserved;
    finite = std::isfinite(h.lr) && std::isfinite(h.momentum) && std::isfinite(h.dampening) &&
             std::isfinite(h.weight_decay);
  } else if (o.kind == GB_ROWWISE_ADAGRAD || o.kind == GB_ADAGRAD) {
    const auto h = Read<gb_adagrad>(o);
    reserved = h.reserved;
    finite = std::isfinite(h.lr) && std::isfinite(h.eps) && std::isfinite(h.weight_decay);
  } else if (o.kind == GB_FTRL) {
    const Rule r = FtrlOf(Read<gb_ftrl>(o));
    finite = std::isfinite(r.lr) && std::isfinite(r.l1) && std::isfinite(r.base);
  } else {
    const auto h = Read<gb_adam>(o);
    reserved = h.reserved;
    finite = std::isfinite(h.lr) && std::isfinite(h.beta1) && std::isfinite(h.beta2) &&
             std::isfinite(h.eps) && std::isfinite(h.weight_decay) &&
             std::isfinite(AdamOf(o.kind, h).shrink);
    if (h.step == 0) return Fail(report, GB_ARGUMENT, "the step of adam counts from 1");
  }
  if (!finite) return Fail(report, GB_ARGUMENT, "hyperparameters are not finite");
  if (reserved != 0) return Fail(report, GB_UNSUPPORTED, "hyperparameter of a newer version");
  return GB_OK;
}

Rule PlainOf(const gb_optimizer& o) {
  switch (o.kind) {
    case GB_SGD:
      return SgdOf(Read<gb_sgd>(o));
    case GB_ROWWISE_ADAGRAD:
    case GB_ADAGRAD:
      return AdagradOf(o.kind, Read<gb_adagrad>(o));
    case GB_FTRL:
      return FtrlOf(Read<gb_ftrl>(o));
    default:
      return AdamOf(o.kind, Read<gb_adam>(o));
  }
}

}  // namespace

Rule RuleOf(const gb_optimizer& o) {
  Rule r = PlainOf(o);
  r.clip = o.clip.kind;
  r.by = o.clip.by;
  return r;
}

Slots SlotsOf(const gb_optimizer& o) {
  const Names names = NamesOf(RuleOf(o));
  Slots slots = {};
  slots.n = names.n;
  for (int i = 0; i < names.n; i++) slots.at[i] = Find(o, names.at[i]);
  return slots;
}

int64_t SlotValues(const Rule& rule, int64_t dim) {
  return rule.kind == GB_ROWWISE_ADAGRAD ? 1 : dim;
}

gb_status CheckOptimizer(const gb_optimizer& o, float weight, gb_report* report) {
  if (!(std::isfinite(weight) && weight > 0)) {
    return Fail(report, GB_ARGUMENT, "weight is not a finite number above 0");
  }
  if (const gb_status s = CheckHyper(o, report); s != GB_OK) return s;
  if (const gb_status s = CheckClip(o.clip, report); s != GB_OK) return s;
  const Names names = NamesOf(RuleOf(o));
  if (o.slots_n != names.n || (names.n > 0 && o.slots == nullptr)) {
    return Fail(report, GB_SHAPE, "number of slots", -1, o.slots_n, names.n);
  }
  for (int i = 0; i < names.n; i++) {  // as many slots as names, so each is there once
    if (Find(o, names.at[i]) == nullptr) return Fail(report, GB_SHAPE, "a slot is missing", i);
  }
  return GB_OK;
}

}  // namespace gradbus
