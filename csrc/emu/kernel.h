// What a kernel sees: its indices, barriers, shuffles, votes, shared memory, and how it is
// launched.
#ifndef GRADBUS_EMU_KERNEL_H_
#define GRADBUS_EMU_KERNEL_H_

#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "emu/machine.h"
#include "emu/runtime.h"
#include "emu/vectors.h"

inline thread_local uint3 threadIdx, blockIdx;
inline thread_local dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// GB_EMU_SITE is the number of the place where it stands.
#define GB_EMU_SITE                                                             \
  ([]() -> int {                                                                \
    static const int site = ::gradbus::emu::internal::Site(__FILE__, __LINE__); \
    return site;                                                                \
  }())

#define __syncthreads() ::gradbus::emu::internal::SyncThreads(GB_EMU_SITE)
#define __syncwarp(...) (::gradbus::emu::internal::SyncWarp{GB_EMU_SITE}(__VA_ARGS__))
#define __shfl_sync(...) ::gradbus::emu::internal::Shfl(GB_EMU_SITE, __VA_ARGS__)
#define __shfl_up_sync(...) ::gradbus::emu::internal::ShflUp(GB_EMU_SITE, __VA_ARGS__)
#define __shfl_down_sync(...) ::gradbus::emu::internal::ShflDown(GB_EMU_SITE, __VA_ARGS__)
#define __shfl_xor_sync(...) ::gradbus::emu::internal::ShflXor(GB_EMU_SITE, __VA_ARGS__)
#define __ballot_sync(...) ::gradbus::emu::internal::Ballot(GB_EMU_SITE, __VA_ARGS__)
#define __any_sync(...) ::gradbus::emu::internal::Any(GB_EMU_SITE, __VA_ARGS__)
#define __all_sync(...) ::gradbus::emu::internal::All(GB_EMU_SITE, __VA_ARGS__)

// GB_SHARED declares name, count elements that the threads of a block share; count is a constant.
#define GB_SHARED(type, name, count)                                                         \
  type* const name = ::gradbus::emu::internal::SharedAt<type>((count), []() -> const void* { \
    static char key;                                                                         \
    return &key;                                                                             \
  }())

namespace gradbus {
namespace emu {
namespace internal {

inline int LaneHere() { return static_cast<int>(threadIdx.x % kWarp); }

inline void SyncThreads(int site) { Machine::Here().SyncThreads(site); }
// SyncWarp is called with a mask or without.
struct SyncWarp {
  int site;
  void operator()(unsigned mask = 0xffffffffu) const {
    Machine::Here().Meet(site, Kind::kSync, mask, 0, LaneHere());
  }
};

template <typename T>
T Shuffle(int site, unsigned mask, T value, int source) {
  static_assert(std::is_trivially_copyable<T>::value && (sizeof(T) == 4 || sizeof(T) == 8),
                "shuffles are of 4 or 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = Machine::Here().Meet(site, Kind::kShuffle, mask, bits, source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <typename T>
T Shfl(int site, unsigned mask, T value, int source, int width = warpSize) {
  const int begin = LaneHere() & ~(width - 1);
  return Shuffle(site, mask, value, begin + (source & (width - 1)));
}
template <typename T>
T ShflUp(int site, unsigned mask, T value, unsigned delta, int width = warpSize) {
  const int lane = LaneHere(), from = lane - static_cast<int>(delta);
  return Shuffle(site, mask, value, from < (lane & ~(width - 1)) ? lane : from);
}
template <typename T>
T ShflDown(int site, unsigned mask, T value, unsigned delta, int width = warpSize) {
  const int lane = LaneHere(), from = lane + static_cast<int>(delta);
  return Shuffle(site, mask, value, from >= (lane & ~(width - 1)) + width ? lane : from);
}
template <typename T>
T ShflXor(int site, unsigned mask, T value, int bits, int width = warpSize) {
  const int lane = LaneHere(), from = lane ^ bits;
  return Shuffle(site, mask, value, from >= (lane & ~(width - 1)) + width ? lane : from);
}

inline unsigned Ballot(int site, unsigned mask, int yes) {
  return static_cast<unsigned>(Machine::Here().Meet(site, Kind::kVote, mask, yes != 0, LaneHere()));
}
inline int Any(int site, unsigned mask, int yes) { return Ballot(site, mask, yes) != 0; }
inline int All(int site, unsigned mask, int yes) { return Ballot(site, mask, yes == 0) == 0; }

template <typename T>
T* SharedAt(size_t count, const void* key) {
  return static_cast<T*>(Machine::Here().Shared(key, count * sizeof(T), alignof(T)));
}

// Host pointers have no place among the arguments of a kernel.
template <typename T>
bool IsForDevice(const T& argument) {
  T copy = argument;
  __builtin_clear_padding(&copy);
  return HoldsNoHostPointer(&copy, sizeof copy, std::is_pointer<T>::value);
}

}  // namespace internal

// LaunchKernel runs a kernel on a stream, in its turn.
template <typename... Params, typename... Args>
cudaError_t LaunchKernel(cudaStream_t stream, unsigned blocks, unsigned threads,
                         void (*kernel)(Params...), const Args&... args) {
  const auto params =
      std::tuple<std::decay_t<Params>...>(static_cast<std::decay_t<Params>>(args)...);
  const bool good = std::apply(
      [](const auto&... p) { return (internal::IsForDevice(p) && ... && true); }, params);
  return internal::Launch(stream, blocks, threads, good,
                          [kernel, params] { std::apply(kernel, params); });
}

// LaunchKernel on the default stream.
template <typename... Params, typename... Args>
cudaError_t LaunchKernel(unsigned blocks, unsigned threads, void (*kernel)(Params...),
                         const Args&... args) {
  return LaunchKernel(cudaStream_t{nullptr}, blocks, threads, kernel, args...);
}

}  // namespace emu
}  // namespace gradbus

inline unsigned __activemask() { return 1u << gradbus::emu::internal::LaneHere(); }

#endif  // GRADBUS_EMU_KERNEL_H_
