#include "cuda/tree.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// Gaps turns the depths at which neighbouring terms part into numbers of additions: core's Planner
// in the form that kernels want.
class Gaps {
 public:
  // Adds is how often to add between a term and the next, depth being that of the gap.
  uint8_t Adds(int depth) {
    uint8_t n = 0;
    for (; top_ > 0 && depths_[top_ - 1] > depth; top_--) n++;
    depths_[top_++] = depth;
    if (top_ + 1 > deepest_) deepest_ = top_ + 1;
    return n;
  }
  uint8_t Rest() const { return static_cast<uint8_t>(top_); }
  int deepest() const { return deepest_; }

 private:
  int depths_[kStackMax + 1] = {};
  int top_ = 0;
  int deepest_ = 1;
};

uint8_t AddsAfter(Gaps& gaps, const gb_term* terms, int64_t n, int64_t t, int64_t lanes) {
  return t + 1 < n ? gaps.Adds(PartDepth(terms[t].node, terms[t + 1].node, lanes)) : gaps.Rest();
}

}  // namespace

TermParts::TermParts(Arena& arena, int64_t terms) : at(nullptr), adds(nullptr) {
  if (terms <= kTermsHere) return;
  at = arena.Take<const void*>(terms);
  adds = arena.Take<uint8_t>(terms);
}

int PlanTerms(Queue& queue, const TermParts& parts, const gb_term* terms, int64_t n, int64_t lanes,
              Terms* out) {
  *out = {};
  out->n = n;
  out->dtype = terms[0].values.dtype;
  out->more_at = parts.at;
  out->more_adds = parts.adds;
  Gaps gaps;
  for (int64_t begin = 0; begin < n; begin += kTermsHere) {
    const int64_t here = n - begin < kTermsHere ? n - begin : kTermsHere;
    for (int64_t i = 0; i < here; i++) {
      out->at[i] = terms[begin + i].values.data;
      out->adds[i] = AddsAfter(gaps, terms, n, begin + i, lanes);
    }
    if (parts.at == nullptr) break;
    queue.Bring(parts.at + begin, out->at, static_cast<uint64_t>(here) * sizeof out->at[0]);
    queue.Bring(parts.adds + begin, out->adds, static_cast<uint64_t>(here));
  }
  return gaps.deepest();
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
