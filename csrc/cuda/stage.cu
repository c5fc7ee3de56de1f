#include <cstring>

#include "cuda/stage.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

uint64_t BytesOf(int64_t n, gb_dtype dtype) {
  return n < 0 ? 0 : static_cast<uint64_t>(n * gradbus::BytesOf(dtype));
}

void Travel::In(gb_in& a) {
  if (a.n == 0) {
    a.data = nullptr;
    return;
  }
  const uint64_t bytes = BytesOf(a.n, a.dtype);
  void* there = Device(bytes);
  if (counting()) return;
  queue_->Copy(there, a.data, bytes);
  a.data = there;
}

void Travel::Note(void* host, const void* device, const gb_out& a, int64_t per_key) {
  homes_[homes_n_++] = {host, device, a.n, per_key, a.dtype, nullptr, {}, 0};
}

void Travel::Out(gb_out& a, int64_t per_key) {
  if (a.n == 0) {
    a.data = nullptr;
    return;
  }
  void* there = Device(BytesOf(a.n, a.dtype));
  if (counting()) return;
  Note(a.data, there, a, per_key);
  a.data = there;
}

void Travel::Over(gb_out& a, const gb_in& was, const gb_in& now) {
  if (a.n == 0 || a.data != was.data) return Out(a);
  if (counting()) return;
  Note(a.data, now.data, a, 0);
  a.data = const_cast<void*>(now.data);
}

void Travel::Kept(gb_out& a) {
  const gb_out was = a;
  Out(a);
  if (!counting() && a.n > 0) queue_->Copy(a.data, was.data, BytesOf(a.n, a.dtype));
}

void Travel::Back(int64_t count) {
  for (int i = 0; i < homes_n_; i++) {
    const Home& h = homes_[i];
    const int64_t keyed = count * h.per_key;
    queue_->Copy(h.host, h.device, BytesOf(h.per_key > 0 && keyed < h.n ? keyed : h.n, h.dtype));
  }
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
  Note(gathered, now.data, a, 0);
  homes_[homes_n_ - 1].table = table;
  homes_[homes_n_ - 1].rows = rows;
  homes_[homes_n_ - 1].row_bytes = row;
  a.data = const_cast<void*>(now.data);
}

void Travel::Settle() {
  for (int k = 0; k < homes_n_; k++) {
    const Home& h = homes_[k];
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
    travel.In(s.before);
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
