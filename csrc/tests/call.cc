#include "tests/call.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/core.h"
#include "core/half.h"

namespace gradbus {
namespace tests {
namespace {

void Append(std::string* text, const char* format, long long value) {
  char line[64];
  std::snprintf(line, sizeof line, format, value);
  *text += line;
}

// One element as text; all NaNs are alike.
void AppendElement(std::string* text, const char* at, gb_dtype dtype) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, static_cast<size_t>(BytesOf(dtype)));
  const bool nan = (dtype == GB_FLOAT32 && (bits & 0x7fffffffu) > 0x7f800000u) ||
                   (dtype == GB_FLOAT16 && (bits & 0x7fffu) > 0x7c00u) ||
                   (dtype == GB_BFLOAT16 && (bits & 0x7fffu) > 0x7f80u);
  if (nan) {
    *text += "NaN ";
  } else {
    Append(text, "%llx ", static_cast<long long>(bits));
  }
}

}  // namespace

uint64_t Random::Next() {
  x_ += 0x9e3779b97f4a7c15u;
  uint64_t x = x_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

float Random::Value() {
  const uint64_t bits = Next();
  if (bits % 64 == 0) return Of({0.0f, -0.0f, 1e-40f, -1e-6f});
  const float sign = bits & 64 ? -1.0f : 1.0f;
  return sign * std::ldexp(1.0f + static_cast<float>(bits >> 40) * 0x1p-24f,
                           static_cast<int>(bits >> 8 & 7) - 4);
}

Call::~Call() {
  for (void* memory : device_) backend_.api->device_free(backend_.context, memory);
  for (const auto& p : pinned_) backend_.api->free(backend_.context, p.first, p.second);
}

void* Call::Memory(uint64_t bytes, bool device) {
  void* memory = nullptr;
  gb_report report = {};
  report.size = sizeof report;
  const gb_api* api = backend_.api;
  const gb_status s = device ? api->device_alloc(backend_.context, bytes, &memory, &report)
                             : api->alloc(backend_.context, bytes, &memory, &report);
  if (s != GB_OK && !failed_) {
    failed_ = true;
    status_ = s;
  } else if (device) {
    device_.push_back(memory);
  } else {
    pinned_.emplace_back(memory, bytes);
  }
  return memory;
}

void Call::Copy(void* to, const void* from, uint64_t bytes) {
  gb_copy_args a = {};
  a.size = sizeof a;
  a.from = from;
  a.to = to;
  a.bytes = static_cast<int64_t>(bytes);
  gb_report report = {};
  report.size = sizeof report;
  gb_status s = backend_.api->copy(backend_.context, backend_.stream, &a, {nullptr, 0}, nullptr);
  if (s == GB_OK) s = backend_.api->stream_wait(backend_.context, backend_.stream, &report);
  if (s != GB_OK && !failed_) {
    failed_ = true;
    status_ = s;
  }
}

// Place puts an array somewhere, now and then where only its elements are aligned.
char* Call::Place(const void* from, int64_t n, gb_dtype dtype) {
  const size_t bytes = static_cast<size_t>(n * BytesOf(dtype));
  const size_t skip =
      random.OneIn(3) ? static_cast<size_t>(random.Below(4) * BytesOf(dtype)) : size_t{0};
  if (n == 0) return nullptr;
  if (backend_.stream == nullptr) {
    arrays_.emplace_back(bytes + skip + 16);
    char* base = arrays_.back().data();
    base += (16 - reinterpret_cast<uintptr_t>(base) % 16) % 16 + skip;
    std::memcpy(base, from, bytes);
    return base;
  }
  char* there = static_cast<char*>(Memory(bytes + skip, true));
  void* pinned = Memory(bytes, false);
  if (failed_) return nullptr;
  std::memcpy(pinned, from, bytes);
  Copy(there + skip, pinned, bytes);
  return there + skip;
}

gb_in Call::Floats(const std::vector<float>& values, gb_dtype dtype) {
  const int64_t n = static_cast<int64_t>(values.size());
  std::vector<uint16_t> narrow(values.size());
  for (size_t i = 0; i < values.size() && dtype != GB_FLOAT32; i++) {
    narrow[i] = dtype == GB_FLOAT16 ? FloatToF16(values[i]) : FloatToBF16(values[i]);
  }
  const void* from = dtype == GB_FLOAT32 ? static_cast<const void*>(values.data()) : narrow.data();
  return {Place(from, n, dtype), n, dtype, 0};
}

gb_in Call::Values(int64_t n, gb_dtype dtype) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = random.Value();
  return Floats(values, dtype);
}

gb_in Call::Ints(const std::vector<int64_t>& values, gb_dtype dtype) {
  const int64_t n = static_cast<int64_t>(values.size());
  std::vector<char> bytes(values.size() * 8);
  const int64_t size = BytesOf(dtype);
  for (int64_t i = 0; i < n; i++) {
    std::memcpy(bytes.data() + i * size, &values[static_cast<size_t>(i)],
                static_cast<size_t>(size));
  }
  return {Place(bytes.data(), n, dtype), n, dtype, 0};
}

gb_out Call::Room(int64_t n, gb_dtype dtype, int64_t per_key) {
  const std::vector<char> before(static_cast<size_t>(n * BytesOf(dtype)), 0x55);
  char* at = Place(before.data(), n, dtype);
  outputs_.push_back({at, n, per_key, dtype});
  return {at, n, dtype, 0};
}

gb_out Call::Over(const gb_in& in) {
  char* at = const_cast<char*>(static_cast<const char*>(in.data));
  outputs_.push_back({at, in.n, 0, in.dtype});
  return {at, in.n, in.dtype, 0};
}

gb_workspace Call::Workspace(uint64_t bytes) {
  report_ = &own_report_;
  if (backend_.stream != nullptr) report_ = static_cast<gb_report*>(Memory(sizeof *report_, false));
  if (failed_) return {};
  report_->size = sizeof *report_;
  if (backend_.stream != nullptr) return {Memory(bytes + 1, true), bytes};
  arrays_.emplace_back(bytes + 1, 0x33);
  return {arrays_.back().data() + 1, bytes};  // any alignment will do
}

void Call::End(gb_status status) {
  for (std::vector<char>& h : host_) std::fill(h.begin(), h.end(), 0x77);
  status_ = status;
  if (backend_.stream == nullptr) return;
  gb_report report = {};
  report.size = sizeof report;
  const gb_status waited = backend_.api->stream_wait(backend_.context, backend_.stream, &report);
  if (waited != GB_OK) {
    failed_ = true;
    status_ = waited;
  } else if (status == GB_OK) {
    status_ = report_->status;
  }
}

std::string Call::Outcome() {
  std::string text;
  Append(&text, "status %lld", status_);
  if (failed_ || status_ == GB_DEVICE) return text;
  const gb_report& r = *report_;
  Append(&text, " count %lld", r.count);
  Append(&text, " position %lld", r.position);
  Append(&text, " skipped %lld", r.skipped);
  Append(&text, " nonfinite %lld", r.nonfinite);
  if (status_ != GB_OK) Append(&text, " value %lld", r.value);
  for (const Output& o : outputs_) {
    const int64_t keyed = status_ == GB_OK && o.per_key > 0 ? r.count * o.per_key : o.n;
    const int64_t n = keyed < o.n ? keyed : o.n, size = BytesOf(o.dtype);
    text += "\n";
    if (n == 0) continue;
    const char* at = o.at;
    if (backend_.stream != nullptr) {
      void* pinned = Memory(static_cast<uint64_t>(n * size), false);
      if (!failed_) Copy(pinned, o.at, static_cast<uint64_t>(n * size));
      if (failed_) return "status of a copy";
      at = static_cast<const char*>(pinned);
    }
    for (int64_t i = 0; i < n; i++) AppendElement(&text, at + i * size, o.dtype);
  }
  return text;
}

Opened::Opened(const gb_api* api, const char* isa) : api_(api) {
  gb_open_args a = {};
  a.size = sizeof a;
  a.isa = isa;
  gb_report report = {};
  report.size = sizeof report;
  if (api->open(&a, &context_, &report) != GB_OK) {
    std::printf("%s: %s\n", api->name, report.message);
  } else if (api->stream_open != nullptr) {
    api->stream_open(context_, &stream_, &report);
  }
}

Opened::~Opened() {
  if (stream_ != nullptr) api_->stream_close(context_, stream_);
  if (context_ != nullptr) api_->close(context_);
}

}  // namespace tests
}  // namespace gradbus
