// A plan is one oneDNN primitive for one shape, ready to run: its operands, and the copies of those
// that the primitive wants in an order of its own.
#ifndef GRADBUS_DENSE_PLAN_H_
#define GRADBUS_DENSE_PLAN_H_

#include <memory>
#include <mutex>
#include <vector>

#include "dense/onednn_abi.h"

namespace gradbus {
namespace onednn {

// Engine is what all plans share: the library's functions, its engine, and memory for calls.
class Engine {
 public:
  Engine(const Functions& f, void* engine, void (*set_threads)(int));
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // OneThread holds what the calling thread does next to itself. OpenMP keeps a pool for every
  // thread that asks for more.
  void OneThread() const {
    if (set_threads_ != nullptr) set_threads_(1);
  }
  // Take gives memory of at least so many bytes, aligned to 64, or nullptr.
  struct Room {
    char* data = nullptr;
    size_t bytes = 0;
  };
  Room Take(size_t bytes);
  void GiveBack(Room room);

  const Functions f;
  void* const handle;

 private:
  void (*const set_threads_)(int);
  std::mutex mutex_;
  std::vector<Room> rooms_;  // as many as there were calls at once
};

struct Operand {
  int arg;       // of the primitive
  Query query;   // of the order that the primitive wants; 0 for its operand's own
  bool written;  // else read
  Desc given;    // the order of the caller's tensor
};

class Plan {
 public:
  // Make takes ownership of the primitive's descriptor, also where it fails and gives nullptr;
  // *status is then the library's.
  static std::shared_ptr<Plan> Make(Engine* e, void* desc, const Operand* operands, int n,
                                    int* status);
  ~Plan();
  // Run gives the library's status. tensors are the operands' data.
  int Run(float* const* tensors);

 private:
  static constexpr int kMost = 4;
  // Memories are the library's objects for one call at a time.
  struct Memories {
    void* given[kMost] = {};
    void* wanted[kMost] = {};
    void* scratch = nullptr;
    void* stream = nullptr;
  };
  explicit Plan(Engine* e) : engine_(e) {}
  int Prepare(void* desc, const Operand* operands, int n);
  int AddOperand(void* desc, const Operand& operand);
  int Execute(const Memories& m, float* const* tensors, char* room);
  Memories* TakeMemories(int* status);
  int Fill(Memories* m);
  void Free(Memories* m);

  Engine* const engine_;
  void* primitive_ = nullptr;
  int n_ = 0;
  struct Side {
    int arg;
    bool written, moved;
    Desc given, wanted;
    size_t at;                // of the copy, in the room
    void* reorder = nullptr;  // to the copy, or from it where it is written
  } sides_[kMost];
  Desc scratch_;
  size_t room_ = 0;  // bytes: the scratchpad, then the copies
  std::mutex mutex_;
  std::vector<Memories*> free_;
};

}  // namespace onednn
}  // namespace gradbus

#endif  // GRADBUS_DENSE_PLAN_H_
