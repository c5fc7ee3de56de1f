#include "core/core.h"

#include <cstring>

namespace gradbus {

gb_status Fail(gb_report* report, gb_status status, const char* message, int64_t position,
               int64_t value, int64_t limit, int64_t term) {
  if (report != nullptr) {
    report->status = status;
    report->count = 0;
    report->position = position;
    report->value = value;
    report->limit = limit;
    report->term = term;
    report->skipped = 0;
    report->nonfinite = 0;
    report->message = message;
  }
  return status;
}

gb_status Done(gb_report* report, int64_t count, int64_t position) {
  Fail(report, GB_OK, nullptr, position);
  if (report != nullptr) report->count = count;
  return GB_OK;
}

Arena::Arena(gb_workspace w) {
  if (w.data == nullptr) return;
  const uint64_t past = reinterpret_cast<uintptr_t>(w.data) % kLine;
  const uint64_t skip = past == 0 ? 0 : kLine - past;
  if (w.bytes < skip) return;
  base_ = static_cast<char*>(w.data) + skip;
  room_ = w.bytes - skip;
}

void* Arena::Bytes(int64_t bytes) {
  constexpr int64_t kMost = INT64_MAX / 2;  // no machine has it, and sums of a few do not overflow
  const uint64_t rounded =
      (static_cast<uint64_t>(bytes < kMost ? bytes : kMost) + kLine - 1) / kLine * kLine;
  const uint64_t at = used_;
  used_ = used_ + rounded < used_ ? UINT64_MAX - kLine : used_ + rounded;
  return base_ != nullptr && used_ <= room_ ? base_ + at : nullptr;
}

gb_status CheckSize(const void* args, uint32_t known, gb_report* report) {
  if (args == nullptr) return Fail(report, GB_ARGUMENT, "no arguments");
  uint32_t size;
  std::memcpy(&size, args, sizeof size);
  if (size < known) return Fail(report, GB_ARGUMENT, "size field is too small", -1, size, known);
  const char* bytes = static_cast<const char*>(args);
  for (uint32_t i = known; i < size; i++) {
    if (bytes[i] != 0) return Fail(report, GB_UNSUPPORTED, "field of a newer version", i);
  }
  return GB_OK;
}

bool PowerOfTwo(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t exponent =
      bits >> 23;  // of a positive number; its reciprocal must be a normal one
  return (bits & 0x7fffffu) == 0 && exponent >= 1 && exponent <= 253;
}

void Planner::Push(int32_t term, int depth) {
  if (count_ > 0) {
    Fold(depth);
    depths_[top_++] = depth;
  }
  steps_[count_++] = term;
}

void Planner::Fold(int depth) {
  for (; top_ > 0 && depths_[top_ - 1] > depth; top_--) steps_[count_++] = kAdd;
}

namespace {

bool Contains(gb_node n, gb_node m) {
  return m.first >= n.first && m.first + m.count <= n.first + n.count;
}

// Left is the left child of a node of at least two lanes: the largest power of two below its count.
gb_node Left(gb_node n) {
  uint32_t half = 1;
  while (half * 2 < n.count) half *= 2;
  return {n.first, half};
}

gb_node Right(gb_node n, gb_node left) { return {n.first + left.count, n.count - left.count}; }

}  // namespace

bool IsNode(gb_node node, int64_t lanes) {
  if (lanes < 1 || lanes > kLanesMax || node.count == 0 || node.first > kLanesMax ||
      node.count > kLanesMax || node.first + node.count > lanes) {
    return false;
  }
  gb_node at = {0, static_cast<uint32_t>(lanes)};
  while (at.first != node.first || at.count != node.count) {
    if (at.count == 1) return false;
    const gb_node left = Left(at), right = Right(at, left);
    if (Contains(left, node)) {
      at = left;
    } else if (Contains(right, node)) {
      at = right;
    } else {
      return false;
    }
  }
  return true;
}

int PartDepth(gb_node a, gb_node b, int64_t lanes) {
  gb_node at = {0, static_cast<uint32_t>(lanes)};
  for (int depth = 0;; depth++) {
    const gb_node left = Left(at), right = Right(at, left);
    if (Contains(left, a) && Contains(left, b)) {
      at = left;
    } else if (Contains(right, a) && Contains(right, b)) {
      at = right;
    } else {
      return depth;
    }
  }
}

gb_status RunCommand(const gb_api& api, gb_context* c, gb_stream* s, const gb_command& command,
                     gb_workspace w, gb_report* report) {
  const void* a = command.args;
  switch (command.op) {
    case GB_OP_BAG_FORWARD:
      return api.bag_forward(c, s, static_cast<const gb_bag_forward_args*>(a), w, report);
    case GB_OP_BAG_BACKWARD:
      return api.bag_backward(c, s, static_cast<const gb_bag_backward_args*>(a), w, report);
    case GB_OP_COALESCE:
      return api.coalesce(c, s, static_cast<const gb_coalesce_args*>(a), w, report);
    case GB_OP_MERGE:
      return api.merge(c, s, static_cast<const gb_merge_args*>(a), w, report);
    case GB_OP_APPLY_ROWS:
      return api.apply_rows(c, s, static_cast<const gb_apply_rows_args*>(a), w, report);
    case GB_OP_COALESCE_APPLY:
      return api.coalesce_apply(c, s, static_cast<const gb_coalesce_apply_args*>(a), w, report);
    case GB_OP_APPLY_DENSE:
      return api.apply_dense(c, s, static_cast<const gb_apply_dense_args*>(a), w, report);
    case GB_OP_AVERAGE:
      return api.average(c, s, static_cast<const gb_average_args*>(a), w, report);
    case GB_OP_AVERAGE_APPLY:
      return api.average_apply(c, s, static_cast<const gb_average_apply_args*>(a), w, report);
    case GB_OP_COPY:
      return api.copy(c, s, static_cast<const gb_copy_args*>(a), w, report);
    case GB_OP_GATHER:
      if (api.gather == nullptr) return Fail(report, GB_UNSUPPORTED, "gather");
      return api.gather(c, s, static_cast<const gb_gather_args*>(a), w, report);
    case GB_OP_MATMUL:
      return api.matmul(c, s, static_cast<const gb_matmul_args*>(a), w, report);
    case GB_OP_SOFTMAX:
      return api.softmax_cross_entropy(c, s, static_cast<const gb_softmax_args*>(a), w, report);
    case GB_OP_FIRST_NONFINITE:
      return api.first_nonfinite(c, s, static_cast<const gb_first_nonfinite_args*>(a), w, report);
    default:
      return Fail(report, GB_UNSUPPORTED, "unknown operation", -1, command.op);
  }
}

void PassReport(const gb_report* from, gb_report* to) {
  if (from == nullptr || to == nullptr || from == to) return;
  const uint32_t size = to->size;
  *to = *from;
  to->size = size;
}

}  // namespace gradbus
