#include <cub/cub.cuh>

#include "cuda/sort.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

template <typename Key>
cudaError_t SortAs(void* work, uint64_t* bytes, const void* keys, void* sorted,
                   const uint32_t* values, uint32_t* order, int64_t n, int bits,
                   cudaStream_t stream) {
  size_t size = *bytes;
  const cudaError_t e = cub::DeviceRadixSort::SortPairs(work, size, static_cast<const Key*>(keys),
                                                        static_cast<Key*>(sorted), values, order,
                                                        static_cast<int>(n), 0, bits, stream);
  *bytes = size;
  return e;
}

cudaError_t Sort(SortKeys k, void* work, uint64_t* bytes, const void* keys, void* sorted,
                 const uint32_t* values, uint32_t* order, int64_t n, cudaStream_t stream) {
  return k.wide ? SortAs<uint64_t>(work, bytes, keys, sorted, values, order, n, k.bits, stream)
                : SortAs<uint32_t>(work, bytes, keys, sorted, values, order, n, k.bits, stream);
}

// CUB's answer depends on the device. A size that cannot be had is no size: Sort will say why.
uint64_t SortBytes(const Context& context, int64_t n, SortKeys k) {
  cudaSetDevice(context.device);
  uint64_t bytes = 0;
  Sort(k, nullptr, &bytes, nullptr, nullptr, nullptr, nullptr, n, nullptr);
  return bytes;
}

// heads_kernel marks the places where a run of equal keys begins.
__global__ void heads_kernel(State* state, SortedKeys keys, bool bounded, uint64_t limit, int64_t n,
                             uint32_t* heads) {
  if (Refused(&state->flags)) return;
  GB_EACH(i, n) {
    const uint64_t key = KeyAt(keys, i);
    const bool head = (!bounded || key < limit) && (i == 0 || KeyAt(keys, i - 1) != key);
    heads[i] = head ? 1 : 0;
    if (head && n - i > kLong && KeyAt(keys, i + kLong) == key) atomicOr(&state->longs.any, 1u);
  }
}

// begins_kernel lists them. The last end is where keys begin that do not count, or n.
__global__ void begins_kernel(State* state, SortedKeys keys, bool bounded, uint64_t limit,
                              int64_t n, int64_t room, const uint32_t* heads, const uint32_t* rank,
                              uint32_t* begin) {
  if (Refused(&state->flags)) return;
  GB_EACH(i, n) {
    const bool counts = !bounded || KeyAt(keys, i) < limit;
    const bool end = !counts && (i == 0 || KeyAt(keys, i - 1) < limit);
    if (heads[i] != 0 || end) begin[rank[i]] = static_cast<uint32_t>(i);
    if (i != n - 1) continue;
    const uint32_t count = rank[i] + heads[i];
    if (counts) begin[count] = static_cast<uint32_t>(n);
    state->flags.count = count;
    if (count > room) Raise(&state->flags, kNoRoom, 0, 0);
  }
}

}  // namespace

uint64_t ScanBytes(const Context& context, int64_t n) {
  cudaSetDevice(context.device);
  size_t bytes = 0;
  const uint32_t* from = nullptr;
  uint32_t* to = nullptr;
  cub::DeviceScan::ExclusiveSum(nullptr, bytes, from, to, static_cast<int>(n));
  return bytes;
}

void Scan(Queue& queue, void* work, uint64_t bytes, const uint32_t* from, uint32_t* to, int64_t n) {
  if (!queue.ok()) return;
  size_t size = bytes;
  queue.Note(
      cub::DeviceScan::ExclusiveSum(work, size, from, to, static_cast<int>(n), queue.stream()));
}

SortKeys KeysBelow(int64_t limit, bool one_more) {
  const uint64_t most = static_cast<uint64_t>(limit) - (one_more || limit == 0 ? 0 : 1);
  int bits = 1;
  while (bits < 64 && (most >> bits) != 0) bits++;
  return {bits > 32, bits};
}

SortParts::SortParts(Arena& arena, const Context& context, int64_t n, int64_t dim, SortKeys k)
    : sorted(k.wide ? static_cast<void*>(arena.Take<uint64_t>(n)) : arena.Take<uint32_t>(n)),
      order(arena.Take<uint32_t>(n)),
      heads(arena.Take<uint32_t>(n)),
      rank(arena.Take<uint32_t>(n)),
      begin(arena.Take<uint32_t>(n + 1)),
      work(nullptr),
      work_bytes(n == 0 ? 0 : SortBytes(context, n, k)),
      segments(arena, n, dim) {
  const uint64_t scan = n == 0 ? 0 : ScanBytes(context, n);
  work_bytes = work_bytes > scan ? work_bytes : scan;
  work = arena.Take<char>(static_cast<int64_t>(work_bytes));
}

Segments FindRuns(Queue& queue, State* state, const SortParts& p, const RunsOf& runs, int64_t n) {
  const SortedKeys keys = {p.sorted, runs.sort.wide};
  const unsigned blocks = queue.Blocks(n, kThreads);
  Launch(queue, blocks, kThreads, heads_kernel, state, keys, runs.bounded, runs.limit, n, p.heads);
  Scan(queue, p.work, p.work_bytes, p.heads, p.rank, n);
  Launch(queue, blocks, kThreads, begins_kernel, state, keys, runs.bounded, runs.limit, n,
         runs.room, p.heads, p.rank, p.begin);
  const int64_t most = n < runs.room ? n : runs.room;
  return {p.begin,         &state->flags.count, most, n, &state->longs,
          p.segments.list, p.segments.partials};
}

Segments SortRuns(Queue& queue, State* state, const SortParts& p, const RunsOf& runs,
                  const void* keys, const uint32_t* values, int64_t n) {
  if (queue.ok()) {
    uint64_t bytes = p.work_bytes;
    queue.Note(Sort(runs.sort, p.work, &bytes, keys, p.sorted, values, p.order, n, queue.stream()));
  }
  return FindRuns(queue, state, p, runs, n);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
