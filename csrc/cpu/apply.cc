// apply_rows and apply_dense.
//
// Bytes moved: gradient once, table and slots of the chosen rows (of everything) read and written
// once.
#include "cpu/cpu.h"
#include "cpu/dense_step.h"
#include "cpu/row_step.h"

namespace gradbus {
namespace {

struct RowsCall {
  const gb_apply_rows_args& a;
  Pool& pool;
  RowStep step;
  Parts parts;
  NonFinite found;
  std::atomic<int64_t> skipped{0};

  RowsCall(gb_context* c, const gb_apply_rows_args& args)
      : a(args),
        pool(c->pool),
        step(*c->kernels, a.dim, a.weight, a.optimizer, a.steps, a.table, a.out, a.grad.dtype),
        parts(pool, a.index.n, step.bytes()) {}

  int64_t Row(int64_t i) const {
    return a.index.dtype == GB_INT32 ? static_cast<const int32_t*>(a.index.data)[i]
                                     : static_cast<const int64_t*>(a.index.data)[i];
  }
  bool IsRow(int64_t row) const {
    return static_cast<uint64_t>(row) < static_cast<uint64_t>(a.table.n / a.dim);
  }
  const char* Grad(int64_t i) const {
    return static_cast<const char*>(a.grad.data) + i * a.dim * BytesOf(a.grad.dtype);
  }

  void Look() {
    pool.Run(parts.count, [&](int64_t part, int) {
      RowStep::Worker w;
      step.Start(w);
      for (int64_t i = parts.Lo(part); i < parts.Hi(part); i++) {
        int64_t at = 0;
        if (!IsRow(Row(i))) continue;
        const int64_t bad = step.NonFinite(w, Grad(i), &at);
        if (bad > 0) found.Found(bad, i * a.dim + at);
      }
    });
  }

  void Apply() {
    const int64_t ahead = RowsAhead(a.dim * BytesOf(a.table.dtype));
    const auto* first = static_cast<const uint8_t*>(a.first.data);
    const bool count = a.nonfinite == GB_NONFINITE_COUNT;
    pool.Run(parts.count, [&](int64_t part, int) {
      RowStep::Worker w;
      step.Start(w);
      int64_t rows[RowStep::kMany], to[RowStep::kMany];
      int64_t left_out = 0, hi = parts.Hi(part);
      for (int64_t i = parts.Lo(part); i < hi;) {
        int64_t n = 0;  // rows in a row that none is skipped between
        for (; n < RowStep::kMany && i + n < hi && IsRow(Row(i + n)); n++) {
          const int64_t next = i + n + ahead;
          if (next < a.index.n && IsRow(Row(next))) step.Prefetch(Row(next));
          rows[n] = Row(i + n);
          to[n] = step.in_place() ? rows[n] : i + n;
        }
        step.ApplyMany(w, rows, to, n, Grad(i), a.first.n > 0 ? first + i : nullptr, count);
        i += n;
        if (i < hi && !IsRow(Row(i))) i++, left_out++;
      }
      skipped += left_out;
      found.count += w.nonfinite;
    });
  }
};

}  // namespace

uint64_t NeedsOf(const gb_context&, const gb_apply_rows_args&) { return 0; }
uint64_t NeedsOf(const gb_context&, const gb_apply_dense_args&) { return 0; }

gb_status CpuApplyRows(gb_context* context, gb_stream* stream, const gb_apply_rows_args* a,
                       gb_workspace, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  RowsCall call(context, *a);
  if (a->nonfinite == GB_NONFINITE_REFUSE) {
    call.Look();
    if (call.found.count > 0) return call.found.Refused(report);
  }
  call.Apply();
  Done(report);
  if (report != nullptr) {
    report->skipped = call.skipped;
    report->nonfinite = call.found.count;
  }
  return GB_OK;
}

gb_status CpuApplyDense(gb_context* context, gb_stream* stream, const gb_apply_dense_args* a,
                        gb_workspace, gb_report* report) {
  GB_BEGIN(context, stream, a, report);
  const DenseStep d = {context,
                       &a->optimizer,
                       a->weight,
                       a->dim,
                       a->first != 0,
                       a->nonfinite,
                       a->param,
                       a->out,
                       BytesOf(a->grad.dtype),
                       a->grad.dtype == GB_FLOAT32};
  const StepKernels& k = context->kernels->steps;
  const auto gradient = [&](int64_t at, int64_t n, float* tile) -> const float* {
    if (a->grad.dtype == GB_FLOAT32) return Floats(a->grad) + at;
    k.widen(static_cast<const char*>(a->grad.data) + at * 2, a->grad.dtype, n, tile);
    return tile;
  };
  return RunDense(d, gradient, report);
}

}  // namespace gradbus
