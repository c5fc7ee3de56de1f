// copy and first_nonfinite: one pass over values.
#include <atomic>
#include <cstring>

#include "cpu/cpu.h"

namespace gradbus {
namespace {

constexpr int64_t kPiece = 256 << 10;  // bytes of a thread's turn

}  // namespace

uint64_t NeedsOf(const gb_context&, const gb_copy_args&) { return 0; }
uint64_t NeedsOf(const gb_context&, const gb_first_nonfinite_args&) { return 0; }

gb_status CpuCopy(gb_context* context, gb_stream* stream, const gb_copy_args* a, gb_workspace,
                  gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  const int64_t n = a->bytes;
  RunFor(context->pool, 2 * n, (n + kPiece - 1) / kPiece, [&](int64_t piece, int) {
    const int64_t lo = piece * kPiece, hi = lo + kPiece < n ? lo + kPiece : n;
    context->kernels->copy(static_cast<const char*>(a->from) + lo, hi - lo, n >= kAroundBytes,
                           static_cast<char*>(a->to) + lo);
  });
  return Done(report);
}

gb_status CpuFirstNonFinite(gb_context* context, gb_stream* stream,
                            const gb_first_nonfinite_args* a, gb_workspace, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  constexpr int64_t kValues = kPiece / 4;
  const int64_t n = a->values.n;
  std::atomic<int64_t> first{n};
  RunFor(context->pool, 4 * n, (n + kValues - 1) / kValues, [&](int64_t piece, int) {
    const int64_t lo = piece * kValues, hi = lo + kValues < n ? lo + kValues : n;
    if (lo >= first.load(std::memory_order_relaxed)) return;
    const int64_t found = context->kernels->first_nonfinite(Floats(a->values) + lo, hi - lo);
    if (found < 0) return;
    int64_t seen = first.load();
    while (lo + found < seen && !first.compare_exchange_weak(seen, lo + found)) {
    }
  });
  return Done(report, 0, first.load() == n ? -1 : first.load());
}

}  // namespace gradbus
