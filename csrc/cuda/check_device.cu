#include "cuda/check_device.cuh"
#include "cuda/sort.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

// One thread looks at one id and one offset. counted and begin may be null.
__global__ void check_bags_kernel(State* state, Bags b, uint32_t* counted, uint32_t* begin) {
  const int64_t n = b.ids.n > b.bags ? b.ids.n : b.bags + 1;
  unsigned skipped = 0;
  GB_EACH(i, n) {
    if (i < b.ids.n) {
      const bool counts =
          CheckId(&state->flags, b.ids, i, IntAt(b.ids.data, b.ids.dtype, i), &skipped);
      if (counted != nullptr) counted[i] = counts ? 1 : 0;
    }
    if (i <= b.bags) {
      CheckOffset(&state->flags, b, i);
      if (begin != nullptr) {
        begin[i] = static_cast<uint32_t>(OffsetAt(b, i));
        // With offsets that are wrong the length may be anything: it is not read.
        const uint64_t next = static_cast<uint64_t>(OffsetAt(b, i < b.bags ? i + 1 : i));
        if (next - static_cast<uint64_t>(OffsetAt(b, i)) > kLong) atomicOr(&state->longs.any, 1u);
      }
    }
  }
  AddCount(&state->flags.skipped, skipped);
}

// The begins of bags among the positions that count.
__global__ void rank_bags_kernel(State* state, Bags b, Ranks ranks, uint32_t* begin) {
  if (Refused(&state->flags)) return;
  GB_EACH(i, b.bags + 1) {
    const uint32_t at = RankAt(ranks, OffsetAt(b, i));
    begin[i] = at;
    const bool is_long = i < b.bags && RankAt(ranks, OffsetAt(b, i + 1)) - at > kLong;
    if (is_long) atomicOr(&state->longs.any, 1u);
  }
}

}  // namespace

RankParts::RankParts(Arena& arena, const Context& context, int64_t ids, bool drops)
    : ranks({nullptr, nullptr, ids}), scan(nullptr), scan_bytes(0) {
  if (!drops || ids == 0) return;
  ranks.counted = arena.Take<uint32_t>(ids);
  ranks.rank = arena.Take<uint32_t>(ids);
  scan_bytes = ScanBytes(context, ids);
  scan = arena.Take<char>(static_cast<int64_t>(scan_bytes));
}

void CheckBags(Queue& queue, State* state, const Bags& b, const RankParts& parts, uint32_t* begin) {
  const bool drops = parts.ranks.rank != nullptr;
  const int64_t n = b.ids.n > b.bags ? b.ids.n : b.bags + 1;
  Launch(queue, queue.Blocks(n, kThreads), kThreads, check_bags_kernel, state, b,
         parts.ranks.counted, drops ? nullptr : begin);
  if (!drops) return;
  Scan(queue, parts.scan, parts.scan_bytes, parts.ranks.counted, parts.ranks.rank, b.ids.n);
  if (begin == nullptr) return;
  Launch(queue, queue.Blocks(b.bags + 1, kThreads), kThreads, rank_bags_kernel, state, b,
         parts.ranks, begin);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
