#include "cuda/flags.cuh"
#include "cuda/load.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {
namespace {

__device__ gb_status StatusOf(unsigned kind) {
  switch (kind) {
    case kBadId:
      return GB_ID;
    case kBadOrder:
      return GB_ORDER;
    case kNoRoom:
      return GB_ROOM;
    case kNonFinite:
      return GB_NONFINITE;
    case kFound:
      return GB_OK;
    default:
      return GB_SHAPE;
  }
}

// What a refused call reports. The fault's code is undone, see Raise.
__device__ gb_status ReportFault(const Flags& f, const Verdict& v, const char* const* texts,
                                 gb_report* report) {
  const unsigned long long code = ~f.fault;
  const unsigned kind = static_cast<unsigned>(code >> (kPositionBits + kTermBits));
  const int64_t position = static_cast<int64_t>(code & kPositionMask);
  const Verdict::Line line = v.lines[kind < kFaultKinds ? kind : 0];
  if (v.has_terms != 0 && kind != kNoRoom) {
    report->term = static_cast<int64_t>((code >> kPositionBits) & kTermMask);
  }
  report->position = kind == kNoRoom ? -1 : position;
  report->message = texts[line.text];
  report->limit = line.limit;
  if (line.values != nullptr) report->value = IntAt(line.values, line.dtype, position);
  if (line.before != 0) report->limit = IntAt(line.values, line.dtype, position - 1);
  if (kind == kNoRoom) report->value = static_cast<int64_t>(f.count);
  if (kind == kNonFinite) {
    report->value = report->nonfinite = static_cast<int64_t>(f.nonfinite);
  }
  return StatusOf(kind);
}

__global__ void report_kernel(const Flags* flags, Verdict v, const char* const* texts,
                              gb_report* report) {
  Await();
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  Flags f = {0, 0, 0, 0};
  if (flags != nullptr) f = *flags;
  report->count = report->value = report->limit = report->skipped = report->nonfinite = 0;
  report->position = report->term = -1;
  report->message = nullptr;
  gb_status status = GB_OK;
  if (f.fault != 0) {
    status = ReportFault(f, v, texts, report);
  } else {
    report->count = static_cast<int64_t>(f.count);
    report->skipped = static_cast<int64_t>(f.skipped);
    report->nonfinite = static_cast<int64_t>(f.nonfinite);
  }
  __threadfence_system();  // the status comes last
  *static_cast<volatile gb_status*>(&report->status) = status;
}

}  // namespace

const char* TextOf(Text text) {
  switch (text) {
    case kTextOffsetsStart:
      return "offsets do not start at 0";
    case kTextOffsetsFall:
      return "offsets fall";
    case kTextOffsetsEnd:
      return "offsets do not end at the number of ids";
    case kTextId:
      return "id out of range";
    case kTextTarget:
      return "target";
    case kTextKeyOrder:
      return "keys are not ascending";
    case kTextIndexOrder:
      return "an index that writes in place must ascend";
    case kTextRoomIds:
      return "too little room for the distinct ids";
    case kTextRoomKeys:
      return "too little room for the distinct keys";
    case kTextNonFinite:
      return "a gradient is not finite";
    case kTextOffsetsBeyond:
      return "offsets go beyond the ids";
    case kTextNegativeKey:
      return "key is negative";
    default:
      return nullptr;
  }
}

bool Overlaps() {
#ifdef GRADBUS_EMU
  return false;
#else
  cudaFuncAttributes a = {};
  return cudaFuncGetAttributes(&a, report_kernel) == cudaSuccess && a.ptxVersion >= 90;
#endif
}

void Verdict::Offsets(const gb_in& o, bool open, int64_t ids) {
  lines[kOffsetsStart] = {o.data, 0, o.dtype, 0, kTextOffsetsStart};
  lines[kOffsetsFall] = {o.data, 0, o.dtype, 1, kTextOffsetsFall};
  lines[kOffsetsEnd] = {o.data, ids, o.dtype, 0, open ? kTextOffsetsBeyond : kTextOffsetsEnd};
}

void Verdict::Ids(const gb_in& ids, int64_t limit, Text text) {
  lines[kBadId] = {ids.data, limit, ids.dtype, 0, text};
}

void Verdict::Order(Text text) { lines[kBadOrder].text = text; }

void Verdict::Room(int64_t room, Text text) { lines[kNoRoom] = {nullptr, room, 0, 0, text}; }

void Verdict::NonFinite() { lines[kNonFinite].text = kTextNonFinite; }

void ZeroFlags(Queue& queue, Flags* flags) { queue.Zero(flags, sizeof *flags); }

void Report(Queue& queue, const Flags* flags, const Verdict& verdict, gb_report* report) {
  if (report == nullptr) return;
  LaunchAfter(queue, 1, 1, report_kernel, flags, verdict, queue.context().texts, report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
