// Copies of rows that an index chooses. Included by kernels_impl.h.
//
// The lines of a row some kilobytes on are fetched while one is copied: rows lie all over a table,
// where the processor's own prefetcher sees no pattern.
#ifndef GRADBUS_CPU_GATHER_IMPL_H_
#define GRADBUS_CPU_GATHER_IMPL_H_

#include "cpu/kernels.h"
#include "cpu/stream.h"

namespace gradbus {
namespace GB_ISA {

// CopyRow copies a row in registers, then in 16, then 4 or 2 bytes.
inline void CopyRow(const char* from, int64_t bytes, char* to) {
  int64_t at = 0;
  for (; bytes - at >= kRegister; at += kRegister) __builtin_memcpy(to + at, from + at, kRegister);
  for (; bytes - at >= 16; at += 16) __builtin_memcpy(to + at, from + at, 16);
  for (; bytes - at >= 4; at += 4) __builtin_memcpy(to + at, from + at, 4);
  if (bytes > at) __builtin_memcpy(to + at, from + at, 2);
}

template <typename Id>
inline void GatherAs(const GatherRun& r) {
  constexpr int64_t kLine = 64;
  const Id* ids = static_cast<const Id*>(r.ids);
  const int64_t bytes = r.row_bytes;
  char* out = r.out;
  for (int64_t i = 0; i < r.n; i++, out += bytes) {
    if (i + r.ahead < r.known) {
      const char* next = r.rows + static_cast<int64_t>(ids[i + r.ahead]) * bytes;
      for (int64_t line = 0; line < bytes; line += kLine) __builtin_prefetch(next + line, 0, 2);
    }
    CopyRow(r.rows + static_cast<int64_t>(ids[i]) * bytes, bytes, out);
  }
}

void Gather(const GatherRun& r) {
  if (r.type == GB_INT32) {
    GatherAs<int32_t>(r);
  } else {
    GatherAs<int64_t>(r);
  }
}

}  // namespace GB_ISA
}  // namespace gradbus

#endif  // GRADBUS_CPU_GATHER_IMPL_H_
