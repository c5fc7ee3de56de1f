#include <cstring>

#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

uint64_t BytesOf(int64_t n, gb_dtype dtype) {
  return n < 0 ? 0 : static_cast<uint64_t>(n * gradbus::BytesOf(dtype));
}

namespace {

bool DeviceReaches(const void* memory) {
  cudaPointerAttributes where = {};
  if (cudaPointerGetAttributes(&where, memory) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return where.type == cudaMemoryTypeHost;
}

}  // namespace

bool Travel::Reaches(const void* memory) {
  constexpr int kMost = 64;
  const int i = asked_++;
  if (i >= kMost) return false;
  if (!counting()) return (reached_ >> i & 1) != 0;
  const bool reached = DeviceReaches(memory);
  reached_ |= static_cast<uint64_t>(reached) << i;
  return reached;
}

Travel::Travel(Queue* queue, const Travel& counted, char* device, char* host)
    : queue_(queue),
      here_(host),
      there_(device),
      in_bytes_(Rounded(counted.in_.taken())),
      out_bytes_(Rounded(counted.out_.taken())),
      reached_(counted.reached_),
      in_({host, in_bytes_}),
      out_({host + in_bytes_, out_bytes_}),
      device_({device + counted.small(), counted.device_.needed()}),
      host_({host + counted.small(), counted.host_.needed()}) {}

void Travel::In(gb_in& a) {
  if (a.n == 0) {
    a.data = nullptr;
    return;
  }
  const uint64_t bytes = BytesOf(a.n, a.dtype);
  if (bytes <= kSmall) {
    char* here = in_.Take<char>(static_cast<int64_t>(bytes));
    if (counting()) return;
    std::memcpy(here, a.data, bytes);
    a.data = There(here);
    return;
  }
  void* there = Device(bytes);
  if (counting()) return;
  queue_->Copy(there, a.data, bytes);
  a.data = there;
}

void Travel::Near(gb_in& a) {
  if (BytesOf(a.n, a.dtype) <= kSmall || !Reaches(a.data)) In(a);
}

void Travel::Note(void* host, const void* device, const gb_out& a, int64_t per_key,
                  const void* small) {
  homes_[homes_n_++] = {host, device, a.n, per_key, a.dtype, small, nullptr, {}, 0};
}

uint64_t Travel::Home::Bytes(int64_t count) const {
  const int64_t keyed = count * per_key;
  return BytesOf(per_key > 0 && keyed < n ? keyed : n, dtype);
}

void Travel::Out(gb_out& a, int64_t per_key) {
  if (a.n == 0) {
    a.data = nullptr;
    return;
  }
  const uint64_t bytes = BytesOf(a.n, a.dtype);
  void* here = bytes <= kSmall ? out_.Take<char>(static_cast<int64_t>(bytes)) : nullptr;
  void* there = bytes <= kSmall ? nullptr : Device(bytes);
  if (counting()) return;
  if (here != nullptr) there = There(here);
  Note(a.data, there, a, per_key, here);
  a.data = there;
}

void Travel::Over(gb_out& a, const gb_in& was, const gb_in& now) {
  if (a.n == 0 || a.data != was.data) return Out(a);
  in_place_ = in_place_ || (!counting() && now.data == was.data);
  if (counting() || now.data == was.data) return;
  const bool is_small = BytesOf(was.n, was.dtype) <= kSmall;
  over_ = over_ || is_small;
  const char* there = static_cast<const char*>(now.data);
  Note(a.data, there, a, 0, is_small ? here_ + (there - there_) : nullptr);
  a.data = const_cast<void*>(now.data);
}

void Travel::Kept(gb_out& a) {
  const gb_in was = {a.data, a.n, a.dtype, 0};
  gb_in now = was;
  In(now);
  if (a.n == 0) a.data = nullptr;
  if (a.n > 0) Over(a, was, now);
}

// What is to come back goes there too, whatever it holds: it comes back whole, whatever the call
// writes of it, and nothing then reads memory that was never written.
void Travel::Depart() { queue_->Copy(there_, here_, in_bytes_ + out_.taken()); }

void Travel::Return() {
  const uint64_t from = over_ ? 0 : in_bytes_;
  queue_->Copy(here_ + from, there_ + from, in_bytes_ - from + out_.taken());
}

bool Travel::Back(int64_t count) {
  bool any = false;
  for (int i = 0; i < homes_n_; i++) {
    const Home& h = homes_[i];
    if (h.small != nullptr) continue;
    queue_->Copy(h.host, h.device, h.Bytes(count));
    any = true;
  }
  return any;
}

void Travel::Picked(gb_in& a, const Chosen& rows, int64_t width) {
  if (a.n == 0) return In(a);
  const uint64_t row = BytesOf(width, a.dtype), bytes = static_cast<uint64_t>(rows.n) * row;
  char* gathered = Host<char>(static_cast<int64_t>(bytes));
  void* there = Device(bytes);
  const char* from = static_cast<const char*>(a.data);
  a.n = rows.n * width;
  if (counting()) return;
  for (int64_t i = 0; i < rows.n; i++) {
    if (rows.at[i] < 0) continue;
    std::memcpy(gathered + static_cast<uint64_t>(i) * row,
                from + static_cast<uint64_t>(rows.at[i]) * row, row);
  }
  queue_->Copy(there, gathered, bytes);
  a.data = there;
}

void Travel::PickedOver(gb_out& a, const gb_in& now, const Chosen& rows, int64_t width) {
  if (a.n == 0) return Out(a);
  const uint64_t row = BytesOf(width, a.dtype);
  char* gathered = Host<char>(rows.n * static_cast<int64_t>(row));
  char* table = static_cast<char*>(a.data);
  a.n = rows.n * width;
  if (counting()) return;
  Note(gathered, now.data, a, 0, nullptr);
  homes_[homes_n_ - 1].table = table;
  homes_[homes_n_ - 1].rows = rows;
  homes_[homes_n_ - 1].row_bytes = row;
  a.data = const_cast<void*>(now.data);
}

void Travel::Settle(int64_t count) {
  for (int k = 0; k < homes_n_; k++) {
    const Home& h = homes_[k];
    if (h.small != nullptr) std::memcpy(h.host, h.small, h.Bytes(count));
    if (h.table == nullptr) continue;
    for (int64_t i = 0; i < h.rows.n; i++) {
      if (h.rows.at[i] < 0) continue;
      std::memcpy(h.table + static_cast<uint64_t>(h.rows.at[i]) * h.row_bytes,
                  static_cast<const char*>(h.host) + static_cast<uint64_t>(i) * h.row_bytes,
                  h.row_bytes);
    }
  }
}

void StageSlots(Travel& travel, gb_optimizer& o) {
  gb_slot* slots = travel.Host<gb_slot>(o.slots_n);
  for (int64_t i = 0; i < o.slots_n; i++) {
    gb_slot s = o.slots[i];
    const gb_in was = s.before;
    travel.Near(s.before);
    travel.Over(s.after, was, s.before);
    if (!travel.counting()) slots[i] = s;
  }
  if (!travel.counting()) o.slots = slots;
}

void Reserve(Queue& queue, Context* c, uint64_t device_bytes, uint64_t host_bytes) {
  if (queue.ok() && device_bytes > c->bytes) {
    const uint64_t wanted = device_bytes > 2 * c->bytes ? device_bytes : 2 * c->bytes;
    queue.Note(cudaFree(c->memory));
    c->memory = nullptr;
    c->bytes = 0;
    void* memory = nullptr;
    if (queue.ok()) queue.Note(cudaMalloc(&memory, wanted));
    if (queue.ok()) {
      c->memory = static_cast<char*>(memory);
      c->bytes = wanted;
    }
  }
  if (queue.ok() && host_bytes > c->host_bytes) {
    const uint64_t wanted = host_bytes > 2 * c->host_bytes ? host_bytes : 2 * c->host_bytes;
    queue.Note(cudaFreeHost(c->host));
    c->host = nullptr;
    c->host_bytes = 0;
    void* memory = nullptr;
    if (queue.ok()) queue.Note(cudaHostAlloc(&memory, wanted, cudaHostAllocPortable));
    if (queue.ok()) {
      c->host = static_cast<char*>(memory);
      c->host_bytes = wanted;
    }
  }
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
