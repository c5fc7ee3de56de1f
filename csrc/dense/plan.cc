#include "dense/plan.h"

#include <cstdlib>
#include <new>

namespace gradbus {
namespace onednn {
namespace {

constexpr size_t kLine = 64;

size_t Lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

Engine::Engine(const Functions& functions, void* engine, void (*set_threads)(int))
    : f(functions), handle(engine), set_threads_(set_threads) {}

Engine::~Engine() {
  for (const Room& room : rooms_) std::free(room.data);
  f.engine_destroy(handle);
}

Engine::Room Engine::Take(size_t bytes) {
  Room room;
  if (bytes == 0) return room;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!rooms_.empty()) {
      room = rooms_.back();
      rooms_.pop_back();
    }
  }
  if (room.bytes < bytes) {
    std::free(room.data);
    room.bytes = Lines(bytes);
    room.data = static_cast<char*>(std::aligned_alloc(kLine, room.bytes));
  }
  return room;
}

void Engine::GiveBack(Room room) {
  if (room.data == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  rooms_.push_back(room);
}

std::shared_ptr<Plan> Plan::Make(Engine* e, void* desc, const Operand* operands, int n,
                                 int* status) {
  std::shared_ptr<Plan> plan(new (std::nothrow) Plan(e));
  *status = plan == nullptr ? kOutOfMemory : plan->Prepare(desc, operands, n);
  e->f.primitive_desc_destroy(desc);
  if (*status != kSuccess) plan.reset();
  return plan;
}

int Plan::Prepare(void* desc, const Operand* operands, int n) {
  const Functions& f = engine_->f;
  scratch_ = *f.primitive_desc_query_md(desc, kQueryScratchpad, 0);
  room_ = Lines(f.memory_desc_get_size(&scratch_));
  for (int i = 0; i < n; i++) {
    if (const int status = AddOperand(desc, operands[i]); status != kSuccess) return status;
  }
  return f.primitive_create(&primitive_, desc);
}

int Plan::AddOperand(void* desc, const Operand& operand) {
  const Functions& f = engine_->f;
  Side& side = sides_[n_++];
  side.arg = operand.arg;
  side.written = operand.written;
  side.given = side.wanted = operand.given;
  side.moved = false;
  if (operand.query != 0) side.wanted = *f.primitive_desc_query_md(desc, operand.query, 0);
  if (f.memory_desc_equal(&side.given, &side.wanted)) return kSuccess;
  side.moved = true;
  side.at = room_;
  room_ += Lines(f.memory_desc_get_size(&side.wanted));
  void* reorder = nullptr;
  const Desc *from = &side.given, *to = &side.wanted;
  if (side.written) std::swap(from, to);
  int status = f.reorder_primitive_desc_create(&reorder, from, engine_->handle, to, engine_->handle,
                                               nullptr);
  if (status != kSuccess) return status;
  status = f.primitive_create(&side.reorder, reorder);
  f.primitive_desc_destroy(reorder);
  return status;
}

Plan::~Plan() {
  for (Memories* m : free_) Free(m);
  for (int i = 0; i < n_; i++) {
    if (sides_[i].reorder != nullptr) engine_->f.primitive_destroy(sides_[i].reorder);
  }
  if (primitive_ != nullptr) engine_->f.primitive_destroy(primitive_);
}

int Plan::Fill(Memories* m) {
  const Functions& f = engine_->f;
  int status = f.stream_create(&m->stream, engine_->handle, kStreamDefault);
  if (status == kSuccess)
    status = f.memory_create(&m->scratch, &scratch_, engine_->handle, nullptr);
  for (int i = 0; i < n_ && status == kSuccess; i++) {
    status = f.memory_create(&m->given[i], &sides_[i].given, engine_->handle, nullptr);
    if (status == kSuccess && sides_[i].moved) {
      status = f.memory_create(&m->wanted[i], &sides_[i].wanted, engine_->handle, nullptr);
    }
  }
  return status;
}

void Plan::Free(Memories* m) {
  const Functions& f = engine_->f;
  for (int i = 0; i < n_; i++) {
    if (m->given[i] != nullptr) f.memory_destroy(m->given[i]);
    if (m->wanted[i] != nullptr) f.memory_destroy(m->wanted[i]);
  }
  if (m->scratch != nullptr) f.memory_destroy(m->scratch);
  if (m->stream != nullptr) f.stream_destroy(m->stream);
  delete m;
}

Plan::Memories* Plan::TakeMemories(int* status) {
  *status = kSuccess;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      Memories* m = free_.back();
      free_.pop_back();
      return m;
    }
  }
  Memories* m = new (std::nothrow) Memories;
  *status = m == nullptr ? kOutOfMemory : Fill(m);
  if (m != nullptr && *status != kSuccess) {
    Free(m);
    m = nullptr;
  }
  return m;
}

int Plan::Run(float* const* tensors) {
  engine_->OneThread();
  int status;
  Memories* m = TakeMemories(&status);
  if (m == nullptr) return status;
  const Engine::Room room = engine_->Take(room_);
  status = room_ > 0 && room.data == nullptr ? static_cast<int>(kOutOfMemory)
                                             : Execute(*m, tensors, room.data);
  engine_->GiveBack(room);
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(m);
  return status;
}

int Plan::Execute(const Memories& m, float* const* tensors, char* room) {
  const Functions& f = engine_->f;
  ExecArg args[kMost + 1];
  int status = f.memory_set_data_handle(m.scratch, room);
  args[0] = {kArgScratchpad, m.scratch};
  for (int i = 0; i < n_ && status == kSuccess; i++) {
    const Side& side = sides_[i];
    status = f.memory_set_data_handle(m.given[i], tensors[i]);
    args[i + 1] = {side.arg, m.given[i]};
    if (!side.moved || status != kSuccess) continue;
    status = f.memory_set_data_handle(m.wanted[i], room + side.at);
    args[i + 1] = {side.arg, m.wanted[i]};
    if (side.written || status != kSuccess) continue;
    const ExecArg move[] = {{kArgSrc, m.given[i]}, {kArgDst, m.wanted[i]}};
    status = f.primitive_execute(side.reorder, m.stream, 2, move);
  }
  if (status == kSuccess) status = f.primitive_execute(primitive_, m.stream, n_ + 1, args);
  for (int i = 0; i < n_ && status == kSuccess; i++) {
    if (!sides_[i].moved || !sides_[i].written) continue;
    const ExecArg move[] = {{kArgSrc, m.wanted[i]}, {kArgDst, m.given[i]}};
    status = f.primitive_execute(sides_[i].reorder, m.stream, 2, move);
  }
  return status;
}

}  // namespace onednn
}  // namespace gradbus
