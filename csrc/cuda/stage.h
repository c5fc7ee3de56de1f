// The synchronous form: the host's arrays travel to the device, the asynchronous form runs on the
// context's own stream, and what it made travels back, unless the call was refused.
//
// An operation's Stage(Travel&, Args&) goes through the arrays of a copy of the arguments and lets
// each be replaced by its place on the device. It runs twice: once to count the memory, once to
// move the data. Small arrays travel together, in one copy each way. Memory that the device reaches
// by itself, pinned memory, needs no travel where it is read or written once, or in a few places.
#ifndef GRADBUS_CUDA_STAGE_H_
#define GRADBUS_CUDA_STAGE_H_

#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

// BytesOf is the size of n elements.
uint64_t BytesOf(int64_t n, gb_dtype dtype);

// Chosen are the rows of a large table that a call names. Only those travel: row i there is row
// at[i] of the host's, and nothing where that is negative.
struct Chosen {
  const int64_t* at;
  int64_t n;
};

class Travel {
 public:
  // Without a queue a Travel only counts.
  Travel() = default;
  // With one, it has as much memory as counted says, on the device and pinned.
  Travel(Queue* queue, const Travel& counted, char* device, char* host);
  Travel(const Travel&) = delete;
  Travel& operator=(const Travel&) = delete;

  bool counting() const { return queue_ == nullptr; }
  // Reaches says whether the device itself can use the memory. It is asked while counting, and the
  // answers stand: a device that fails in between gives others.
  bool Reaches(const void* memory);
  // Host is memory of the host, Device of the device, until the call ends.
  template <typename T>
  T* Host(int64_t n) {
    return host_.Take<T>(n);
  }
  void* Device(uint64_t bytes) { return device_.Take<char>(static_cast<int64_t>(bytes)); }
  // Room is the operation's own workspace.
  Arena& Room() { return device_; }

  // In brings an array to the device. Near is an In that may stay where it is.
  void In(gb_in& a);
  void Near(gb_in& a);
  // Out gives an array room there and brings it back at the end: whole, or, with per_key > 0, as
  // many times per_key elements as report.count says.
  void Out(gb_out& a, int64_t per_key = 0);
  // Over is an Out that may be the same memory as was, which has travelled already and is now
  // there.
  void Over(gb_out& a, const gb_in& was, const gb_in& now);
  // Kept is an Out whose elements the call may leave as they are.
  void Kept(gb_out& a);

  // Picked brings the chosen rows of width elements; PickedOver is an Out over such, whose rows go
  // home one by one.
  void Picked(gb_in& a, const Chosen& rows, int64_t width);
  void PickedOver(gb_out& a, const gb_in& now, const Chosen& rows, int64_t width);

  uint64_t device_bytes() const { return WithSmall(device_.needed()); }
  uint64_t host_bytes() const { return WithSmall(host_.needed()); }
  // Depart queues the way there of what is small, Return its way back. Back queues the way back of
  // what is large, if there is any; Settle ends both ways, after the queue's work has ended.
  void Depart();
  void Return();
  bool Back(int64_t count);
  void Settle(int64_t count);
  // Whether an output is written where it is.
  bool in_place() const { return in_place_; }

 private:
  struct Home {
    void* host;
    const void* device;
    int64_t n;
    int64_t per_key;
    gb_dtype dtype;
    const void* small;  // what has come back by itself already
    char* table;        // where rows go home to, one by one, from host
    Chosen rows;
    uint64_t row_bytes;

    uint64_t Bytes(int64_t count) const;
  };
  static constexpr int kHomesMost = 8;
#ifdef GRADBUS_EMU
  static constexpr uint64_t kSmall = 64;  // so that tests have both
#else
  static constexpr uint64_t kSmall = 64 << 10;
#endif
  static uint64_t Rounded(uint64_t bytes) { return (bytes + 255) & ~uint64_t{255}; }
  uint64_t small() const { return Rounded(in_.taken()) + Rounded(out_.taken()); }
  uint64_t WithSmall(uint64_t bytes) const {
    return bytes > UINT64_MAX - small() ? UINT64_MAX : small() + bytes;
  }
  // There is the place on the device of small memory.
  void* There(void* here) const { return there_ + (static_cast<char*>(here) - here_); }
  void Note(void* host, const void* device, const gb_out& a, int64_t per_key, const void* small);

  Queue* queue_ = nullptr;
  char *here_ = nullptr, *there_ = nullptr;  // of small arrays, in the same order
  uint64_t in_bytes_ = 0, out_bytes_ = 0;    // of it
  bool over_ = false;                        // what came as small goes back, too
  bool in_place_ = false;
  uint64_t reached_ = 0;  // the answers, a bit each; after the last bit the answer is no
  int asked_ = 0;
  Arena in_, out_, device_, host_;
  Home homes_[kHomesMost];
  int homes_n_ = 0;
};

// StageSlots lets an optimizer's slots travel: each after is over its before, whole. It replaces
// the array of slots by a copy.
void StageSlots(Travel& travel, gb_optimizer& optimizer);

// Reserve makes the context's memory at least so large. It grows by doubling, so a steady state
// allocates nothing.
void Reserve(Queue& queue, Context* context, uint64_t device_bytes, uint64_t host_bytes);

// Needs is the size of an operation's workspace: 0 where it takes nothing from it.
template <typename Op>
uint64_t Needs(const Context& context, const typename Op::Args& a) {
  Arena count, nothing;
  typename Op::Parts parts(count, context, a);
  return count.needed() == nothing.needed() ? 0 : count.needed();
}

template <typename Op>
gb_status RunHere(Context* context, const typename Op::Args& a, gb_report* report) {
  const std::lock_guard<std::mutex> lock(context->busy);
  Queue queue(context, context->stream);
  Travel count;
  typename Op::Args copy = a;
  Op::Stage(count, copy);
  typename Op::Parts counted(count.Room(), *context, copy);
  Reserve(queue, context, count.device_bytes(), count.host_bytes());
  if (!queue.ok()) return queue.End(report);
  Travel travel(&queue, count, context->memory, context->host);
  copy = a;
  Op::Stage(travel, copy);
  const typename Op::Parts parts(travel.Room(), *context, copy);
  context->report->status = GB_BUSY;
  travel.Depart();
  Op::Run(queue, parts, copy, context->report);
  travel.Return();
  queue.Wait();
  if (!queue.ok()) return queue.Break(travel.in_place(), report);
  const gb_status status = context->report->status;
  if (status == GB_OK) {
    if (travel.Back(context->report->count)) queue.Wait();
    if (!queue.ok()) return queue.Break(travel.in_place(), report);
    travel.Settle(context->report->count);
  }
  if (report != nullptr) {
    const uint32_t size = report->size;
    *report = *context->report;
    report->size = size;
  }
  return status;
}

template <typename Op>
gb_status RunThere(Context* context, gb_stream* stream, const typename Op::Args& a, gb_workspace w,
                   gb_report* report) {
  Queue queue(context, Of(stream)->handle);
  Arena arena(w);
  const typename Op::Parts parts(arena, *context, a);
  Fail(report, GB_BUSY, nullptr);
  Op::Run(queue, parts, a, report);
  return queue.End(report);
}

// Call is an operation of the interface.
template <typename Op>
gb_status Call(gb_context* c, gb_stream* stream, const typename Op::Args* a, gb_workspace w,
               gb_report* report) {
  if (c == nullptr) return Fail(report, GB_ARGUMENT, "no context");
  if (const gb_status s = CheckShapes(a, report); s != GB_OK) return s;
  if (stream == nullptr) {
    if (const gb_status s = CheckData(a, report); s != GB_OK) return s;
  }
  Arena arena(w);
  const typename Op::Parts parts(arena, *Of(c), *a);
  if (!arena.enough()) {
    return Fail(report, GB_WORKSPACE, "workspace is too small", -1,
                static_cast<int64_t>(arena.needed()), static_cast<int64_t>(w.bytes));
  }
  if (Op::Nothing(*a)) return Done(report);
  return stream == nullptr ? RunHere<Op>(Of(c), *a, report)
                           : RunThere<Op>(Of(c), stream, *a, w, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_STAGE_H_
