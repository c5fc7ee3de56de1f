// Memory of the emulated device.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "emu/fibre.h"
#include "emu/switches.h"

#ifdef GB_EMU_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace gradbus {
namespace emu {
namespace internal {
namespace {

constexpr size_t kBytesMost = size_t{1} << 38;  // of one piece: more has no device

struct Piece {
  size_t bytes;
  bool device;  // else pinned
};

struct Registry {
  std::mutex busy;
  std::map<const char*, Piece> pieces;
  int on_device = 0;
};

Registry& All() {
  static Registry* registry = new Registry;  // lives as long as the last thread that ends
  return *registry;
}

// Find gives the piece that memory lies in, or null. The caller holds the lock.
const std::pair<const char* const, Piece>* Find(const void* memory) {
  const char* at = static_cast<const char*>(memory);
  auto after = All().pieces.upper_bound(at);
  if (after == All().pieces.begin()) return nullptr;
  --after;
  return at < after->first + after->second.bytes ? &*after : nullptr;
}

// LeftIn is how many bytes of the piece lie at memory and behind it.
size_t LeftIn(const std::pair<const char* const, Piece>& piece, const void* memory) {
  return static_cast<size_t>(piece.first + piece.second.bytes - static_cast<const char*>(memory));
}

void Forbid(const char* memory, size_t bytes, bool forbid) {
#ifdef GB_EMU_ASAN
  if (forbid) {
    __asan_poison_memory_region(memory, bytes);
  } else {
    __asan_unpoison_memory_region(memory, bytes);
  }
#else
  (void)memory;
  (void)bytes;
  (void)forbid;
#endif
}

void ForbidAll(bool forbid) {
#ifdef GB_EMU_ASAN
  for (const auto& p : All().pieces) {
    if (p.second.device) Forbid(p.first, p.second.bytes, forbid);
  }
#else
  (void)forbid;
#endif
}

cudaError_t Allocate(void** memory, size_t bytes, bool device) {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > kBytesMost) return Return(cudaErrorMemoryAllocation);
  // To the byte, so that the sanitizer sees the end.
  void* piece = std::aligned_alloc(256, (bytes + 255) & ~size_t{255});
  if (piece == nullptr) return Return(cudaErrorMemoryAllocation);
  std::memset(piece, 0xff, bytes);
  Registry& all = All();
  const std::lock_guard<std::mutex> lock(all.busy);
  all.pieces[static_cast<char*>(piece)] = {bytes, device};
  Forbid(static_cast<char*>(piece), (bytes + 255) & ~size_t{255}, true);
  if (!device || all.on_device > 0) Forbid(static_cast<char*>(piece), bytes, false);
  *memory = piece;
  return cudaSuccess;
}

cudaError_t Release(void* memory, bool device) {
  const cudaError_t e = Call();
  if (memory == nullptr) return Return(e);
  Registry& all = All();
  {
    const std::lock_guard<std::mutex> lock(all.busy);
    const auto found = all.pieces.find(static_cast<char*>(memory));
    if (found == all.pieces.end() || found->second.device != device) {
      return Return(cudaErrorInvalidValue);
    }
    Forbid(found->first, (found->second.bytes + 255) & ~size_t{255}, false);
    all.pieces.erase(found);
  }
  std::free(memory);
  return Return(e);
}

// IsMapped says whether the process has memory there.
bool IsMapped(uintptr_t at) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  unsigned char in = 0;
  return mincore(reinterpret_cast<void*>(at & ~(page - 1)), page, &in) == 0;
}

}  // namespace

OnDevice::OnDevice() {
  const std::lock_guard<std::mutex> lock(All().busy);
  if (All().on_device++ == 0) ForbidAll(false);
}

OnDevice::~OnDevice() {
  const std::lock_guard<std::mutex> lock(All().busy);
  if (--All().on_device == 0) ForbidAll(true);
}

bool IsDevice(const void* memory, size_t bytes) {
  if (bytes == 0) return true;
  const std::lock_guard<std::mutex> lock(All().busy);
  const auto* piece = Find(memory);
  return piece != nullptr && bytes <= LeftIn(*piece, memory);
}

bool Fits(const void* memory, size_t bytes) {
  const std::lock_guard<std::mutex> lock(All().busy);
  const auto* piece = Find(memory);
  return piece == nullptr || bytes <= LeftIn(*piece, memory);
}

bool HoldsNoHostPointer(const void* argument, size_t bytes, bool pointer) {
  for (size_t i = 0; i + sizeof(uintptr_t) <= bytes; i += sizeof(uintptr_t)) {
    uintptr_t word = 0;
    std::memcpy(&word, static_cast<const char*>(argument) + i, sizeof word);
    if (word == 0) continue;
    // Where a process has its heap and its stacks; small numbers are numbers.
    const uintptr_t high = word >> 40;
    if (!pointer && (high < 0x55 || high > 0x7f || !IsMapped(word))) continue;
    if (pointer && !IsMapped(word)) continue;  // the end of a piece, or of no elements
    const std::lock_guard<std::mutex> lock(All().busy);
    if (Find(reinterpret_cast<const void*>(word)) != nullptr) continue;
    // One past the last element is a pointer of the device too.
    if (Find(reinterpret_cast<const void*>(word - 1)) == nullptr) return false;
  }
  return true;
}

}  // namespace internal
}  // namespace emu
}  // namespace gradbus

using gradbus::emu::internal::Call;
using gradbus::emu::internal::Return;

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return gradbus::emu::internal::Allocate(memory, bytes, true);
}

cudaError_t cudaFree(void* memory) {
  gradbus::emu::internal::RunAll(true);  // as CUDA does
  return gradbus::emu::internal::Release(memory, true);
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return gradbus::emu::internal::Allocate(memory, bytes, false);
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* memory) { return gradbus::emu::internal::Release(memory, false); }

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return Return(Call());
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  if (const cudaError_t e = Call(); e != cudaSuccess) return Return(e);
  *attributes = {};
  attributes->device = -1;
  const std::lock_guard<std::mutex> lock(gradbus::emu::internal::All().busy);
  const auto* piece = gradbus::emu::internal::Find(memory);
  if (piece == nullptr) return cudaSuccess;
  attributes->type = piece->second.device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->device = 0;
  attributes->devicePointer = const_cast<void*>(memory);
  if (!piece->second.device) attributes->hostPointer = const_cast<void*>(memory);
  return cudaSuccess;
}
