#include "cuda/segments.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

template <Term kTerm, bool kHuge>
void WithTerm(Queue& queue, const Flags* flags, const Sources& t, const Segments& s,
              const RowsOut& out) {
  switch (ReadingOf(AccessOf(t.dim).And(t.rows, t.dtype).best(), t.dtype)) {
    case kFours32:
      return RunSums<kTerm, kFours32, kHuge>(queue, flags, t, s, out, out);
    case kFours16:
      return RunSums<kTerm, kFours16, kHuge>(queue, flags, t, s, out, out);
    case kOnes32:
      return RunSums<kTerm, kOnes32, kHuge>(queue, flags, t, s, out, out);
    case kOnes16:
      return RunSums<kTerm, kOnes16, kHuge>(queue, flags, t, s, out, out);
  }
}

}  // namespace

void SumInto(Queue& queue, const Flags* flags, Term term, const Sources& t, const Segments& s,
             const RowsOut& out) {
  switch (term) {
    case Term::kPlain:
      return t.huge ? WithTerm<Term::kPlain, true>(queue, flags, t, s, out)
                    : WithTerm<Term::kPlain, false>(queue, flags, t, s, out);
    case Term::kWeighted:
      return t.huge ? WithTerm<Term::kWeighted, true>(queue, flags, t, s, out)
                    : WithTerm<Term::kWeighted, false>(queue, flags, t, s, out);
    case Term::kDivided:  // rows are bags
      return WithTerm<Term::kDivided, false>(queue, flags, t, s, out);
    case Term::kWinner:
      return WithTerm<Term::kWinner, false>(queue, flags, t, s, out);
  }
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
