// The entries of the table that only a backend with a device of its own has, and its memory.
#ifndef GRADBUS_CUDA_MEMORY_H_
#define GRADBUS_CUDA_MEMORY_H_

#include "cuda/device.h"

namespace gradbus {
namespace GB_DEVICE_NAMESPACE {

gb_status Alloc(gb_context* context, uint64_t bytes, void** memory, gb_report* report);
void Free(gb_context* context, void* memory, uint64_t bytes);
gb_status DeviceAlloc(gb_context* context, uint64_t bytes, void** memory, gb_report* report);
void DeviceFree(gb_context* context, void* memory);
gb_status StreamOpen(gb_context* context, gb_stream** out, gb_report* report);
void StreamClose(gb_context* context, gb_stream* stream);
gb_status StreamQuery(gb_context* context, gb_stream* stream, gb_report* report);
gb_status StreamWait(gb_context* context, gb_stream* stream, gb_report* report);
gb_status StreamNotify(gb_context* context, gb_stream* stream, int fd, gb_report* report);

}  // namespace GB_DEVICE_NAMESPACE
}  // namespace gradbus

#endif  // GRADBUS_CUDA_MEMORY_H_
