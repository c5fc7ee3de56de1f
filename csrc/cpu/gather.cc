// gather: rows of a table one after the other, as they are.
#include "cpu/cpu.h"
#include "cpu/segments.h"

namespace gradbus {
namespace {

constexpr int64_t kPiece = 256 << 10;  // bytes of a thread's turn

}  // namespace

uint64_t NeedsOf(const gb_context&, const gb_gather_args&) { return 0; }

gb_status CpuGather(gb_context* context, gb_stream* stream, const gb_gather_args* a, gb_workspace,
                    gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  const int64_t row_bytes = a->dim * BytesOf(a->rows.dtype), id_bytes = BytesOf(a->ids.dtype);
  const int64_t n = a->ids.n, each = kPiece / row_bytes + 1;
  RunFor(context->pool, 2 * n * row_bytes, (n + each - 1) / each, [&](int64_t turn, int) {
    const int64_t lo = turn * each, hi = lo + each < n ? lo + each : n;
    GatherRun run = {};
    run.ids = static_cast<const char*>(a->ids.data) + lo * id_bytes;
    run.type = a->ids.dtype;
    run.n = hi - lo;
    run.known = n - lo;
    run.ahead = FetchAhead(row_bytes);
    run.rows = static_cast<const char*>(a->rows.data);
    run.row_bytes = row_bytes;
    run.out = static_cast<char*>(a->out.data) + lo * row_bytes;
    context->kernels->gather(run);
  });
  return Done(report);
}

}  // namespace gradbus
