// alloc and free. Embedding rows lie all over a table, so that with pages of 4 KiB nearly every row
// costs a walk through the page table; large memory therefore asks for huge pages.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "cpu/cpu.h"

namespace gradbus {
namespace {

constexpr uint64_t kHuge = uint64_t{2} << 20;

uint64_t RoundUp(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

// Huge maps whole huge pages at a border of one. The kernel's pages are zero.
void* Huge(uint64_t bytes) {
  const uint64_t asked = bytes + kHuge;
  void* const mapped =
      mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const from = static_cast<char*>(mapped);
  const uint64_t past = reinterpret_cast<uintptr_t>(from) % kHuge;
  char* const to = from + (past == 0 ? 0 : kHuge - past);
  if (to > from) munmap(from, static_cast<uint64_t>(to - from));
  const uint64_t after = asked - bytes - static_cast<uint64_t>(to - from);
  if (after > 0) munmap(to + bytes, after);
#ifdef MADV_HUGEPAGE
  madvise(to, bytes, MADV_HUGEPAGE);  // where it is refused the pages are small, and all else holds
#endif
  return to;
}

}  // namespace

gb_status CpuAlloc(gb_context*, uint64_t bytes, void** memory, gb_report* report) {
  if (memory == nullptr || bytes > (UINT64_MAX >> 1)) return Fail(report, GB_ARGUMENT, "memory");
  *memory = nullptr;
  if (bytes == 0) return Done(report);
  if (bytes >= kHuge) {
    *memory = Huge(RoundUp(bytes, kHuge));
  } else {
    *memory = std::aligned_alloc(64, RoundUp(bytes, 64));
    if (*memory != nullptr) std::memset(*memory, 0, RoundUp(bytes, 64));
  }
  if (*memory == nullptr) {
    return Fail(report, GB_MEMORY, "out of memory", -1, static_cast<int64_t>(bytes));
  }
  return Done(report);
}

void CpuFree(gb_context*, void* memory, uint64_t bytes) {
  if (memory == nullptr) return;
  if (bytes >= kHuge) {
    munmap(memory, RoundUp(bytes, kHuge));
  } else {
    std::free(memory);
  }
}

}  // namespace gradbus
