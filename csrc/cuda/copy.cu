// copy: whatever the runtime does best between the two memories. It needs no staging, since the
// runtime takes pointers of either side.
#include "cuda/flags.cuh"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

gb_status Copy(gb_context* context, gb_stream* stream, const gb_copy_args* a, gb_workspace,
               gb_report* report) {
  if (context == nullptr) return Fail(report, GB_ARGUMENT, "no context");
  if (const gb_status s = CheckShapes(a, report); s != GB_OK) return s;
  if (a->bytes == 0) return Done(report);
  if (stream != nullptr) {
    Queue queue(Of(context), Of(stream)->handle);
    Fail(report, GB_BUSY, nullptr);
    queue.Copy(a->to, a->from, static_cast<uint64_t>(a->bytes));
    Report(queue, nullptr, Verdict(), report);
    return queue.End(report);
  }
  const std::lock_guard<std::mutex> lock(Of(context)->busy);
  Queue queue(Of(context), Of(context)->stream);
  queue.Copy(a->to, a->from, static_cast<uint64_t>(a->bytes));
  queue.Wait();
  return queue.ok() ? Done(report) : queue.End(report);
}

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus
