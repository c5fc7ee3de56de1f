// What every native backend shares: argument checks, workspace, and plans for sums along the lane
// tree.
//
// It knows the structs of gradbus.h and nothing of instruction sets or devices. Nothing here
// allocates.
#ifndef GRADBUS_CORE_CORE_H_
#define GRADBUS_CORE_CORE_H_

#include <cstdint>

#include "core/order.h"
#include "gradbus.h"

namespace gradbus {

constexpr int64_t kDimMax = 1 << 20;  // bound on a row, so that products of lengths do not overflow
constexpr int64_t kLanesMax =
    4096;  // lanes travel as 16 bits; the tree over them is at most 12 deep

// Fail fills the report and returns its status, so that checks read as `return Fail(...)`.
gb_status Fail(gb_report* report, gb_status status, const char* message, int64_t position = -1,
               int64_t value = 0, int64_t limit = 0, int64_t term = -1);
gb_status Done(gb_report* report, int64_t count = 0, int64_t position = -1);

// Times is a product of lengths, the largest number where it is larger.
inline int64_t Times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

// BytesOf is the size of one element.
inline int64_t BytesOf(gb_dtype dtype) {
  switch (dtype) {
    case GB_FLOAT16:
    case GB_BFLOAT16:
      return 2;
    case GB_FLOAT32:
    case GB_INT32:
      return 4;
    case GB_UINT8:
      return 1;
    default:
      return 8;
  }
}

// RunCommand calls the operation that a command names; what a backend lacks is GB_UNSUPPORTED.
gb_status RunCommand(const gb_api& api, gb_context* c, gb_stream* s, const gb_command& command,
                     gb_workspace w, gb_report* report);

// PassReport gives the caller's report what a command's own says. Either may be null.
void PassReport(const gb_report* from, gb_report* to);

// Arena hands out the caller's workspace. Without memory it only counts, so the same code gives the
// size and the parts.
class Arena {
 public:
  Arena() = default;
  explicit Arena(gb_workspace w);
  template <typename T>
  T* Take(int64_t n) {
    return static_cast<T*>(Bytes(n < 0 ? 0 : Times(n, sizeof(T))));
  }
  uint64_t needed() const { return used_ + kLine; }
  uint64_t taken() const { return used_; }
  bool enough() const { return used_ <= room_; }

 private:
  static constexpr uint64_t kLine = 64;
  void* Bytes(int64_t bytes);
  char* base_ = nullptr;
  uint64_t room_ = 0;
  uint64_t used_ = 0;
};

// CheckSize refuses structs that are too short, and longer ones that set what this version does not
// know.
gb_status CheckSize(const void* args, uint32_t known, gb_report* report);

// CheckShapes looks at everything but the arrays; after GB_OK every length and type fits the
// others. CheckData then reads the offsets, ids, keys and targets once; after GB_OK every index of
// them may be followed, but for the ids that the policy skips. Neither writes anything.
gb_status CheckShapes(const gb_bag_forward_args* a, gb_report* report);
gb_status CheckData(const gb_bag_forward_args* a, gb_report* report);
gb_status CheckShapes(const gb_bag_backward_args* a, gb_report* report);
gb_status CheckData(const gb_bag_backward_args* a, gb_report* report);
gb_status CheckShapes(const gb_coalesce_args* a, gb_report* report);
gb_status CheckData(const gb_coalesce_args* a, gb_report* report);
gb_status CheckShapes(const gb_merge_args* a, gb_report* report);
gb_status CheckData(const gb_merge_args* a, gb_report* report);
gb_status CheckShapes(const gb_apply_rows_args* a, gb_report* report);
gb_status CheckData(const gb_apply_rows_args* a, gb_report* report);
gb_status CheckShapes(const gb_coalesce_apply_args* a, gb_report* report);
gb_status CheckData(const gb_coalesce_apply_args* a, gb_report* report);
gb_status CheckShapes(const gb_apply_dense_args* a, gb_report* report);
gb_status CheckData(const gb_apply_dense_args* a, gb_report* report);
gb_status CheckShapes(const gb_average_args* a, gb_report* report);
gb_status CheckData(const gb_average_args* a, gb_report* report);
gb_status CheckShapes(const gb_average_apply_args* a, gb_report* report);
gb_status CheckData(const gb_average_apply_args* a, gb_report* report);
gb_status CheckShapes(const gb_copy_args* a, gb_report* report);
gb_status CheckData(const gb_copy_args* a, gb_report* report);
gb_status CheckShapes(const gb_gather_args* a, gb_report* report);
gb_status CheckData(const gb_gather_args* a, gb_report* report);
gb_status CheckShapes(const gb_matmul_args* a, gb_report* report);
gb_status CheckData(const gb_matmul_args* a, gb_report* report);
gb_status CheckShapes(const gb_softmax_args* a, gb_report* report);
gb_status CheckData(const gb_softmax_args* a, gb_report* report);
gb_status CheckShapes(const gb_first_nonfinite_args* a, gb_report* report);
gb_status CheckData(const gb_first_nonfinite_args* a, gb_report* report);

template <typename Args>
gb_status Check(const Args* a, gb_report* report) {
  const gb_status status = CheckShapes(a, report);
  return status != GB_OK ? status : CheckData(a, report);
}

// CheckOffsets is the part of CheckData that looks at the offsets of bags over n ids.
gb_status CheckOffsets(const gb_in& offsets, bool open, int64_t n, gb_report* report);

// A step of a plan: push the term with this index, or kAdd: replace the two topmost sums by left +
// right.
using Step = int32_t;

// Planner turns the depths at which neighbouring terms part into steps. steps needs room for 2n
// - 1.
class Planner {
 public:
  explicit Planner(Step* steps) : steps_(steps) {}
  void Reset() { count_ = 0, top_ = 0; }
  void Push(int32_t term,
            int depth);  // depth of the gap to the term before; the first term's is not looked at
  void End() { Fold(-1); }
  const Step* steps() const { return steps_; }
  int64_t count() const { return count_; }

 private:
  void Fold(int depth);
  Step* steps_;
  int64_t count_ = 0;
  int depths_[kStackMax] = {};
  int top_ = 0;
};

bool IsNode(gb_node node, int64_t lanes);
// PartDepth is the depth of the smallest node that holds both a and b, where a ends before b
// begins.
int PartDepth(gb_node a, gb_node b, int64_t lanes);

inline const float* Floats(const gb_in& in) { return static_cast<const float*>(in.data); }
inline float* Floats(const gb_out& out) { return static_cast<float*>(out.data); }
inline const int64_t* Ints(const gb_in& in) { return static_cast<const int64_t*>(in.data); }
inline const uint64_t* Keys(const gb_in& in) { return static_cast<const uint64_t*>(in.data); }

}  // namespace gradbus

#endif  // GRADBUS_CORE_CORE_H_
