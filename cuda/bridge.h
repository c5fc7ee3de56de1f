// The bridge between the native_*.go files and gradbus.h. Go fills one bridge_command for a call,
// and bridge_call hands it to the entry of its operation; a call costs one crossing. bridge_submit
// does the same for a batch of commands.
#ifndef GRADBUS_BRIDGE_H_
#define GRADBUS_BRIDGE_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gradbus.h"
#ifdef GRADBUS_INSTALLED  // the hash of an installed library, from its pkg-config file
#define GRADBUS_TEXT_OF(x) #x
#define GRADBUS_TEXT(x) GRADBUS_TEXT_OF(x)
#define GRADBUS_STAMP GRADBUS_TEXT(GRADBUS_INSTALLED)
#define GRADBUS_CUDA_WHY "as in the installed library"
#elif __has_include("native_stamp.h")
#include "native_stamp.h"
#else
#error \
    "the native library is not built: run make; or use an installed one, with the tags native,installed; " \
    "or leave the tag native out"
#endif

// gradbus_stamp changes with the library, and with it this package's build.
static inline const char* gradbus_stamp(void) { return GRADBUS_STAMP; }

// gradbus_cuda_why says whether CUDA was compiled in, and by what, or why not.
#ifndef GRADBUS_CUDA_WHY
#define GRADBUS_CUDA_WHY "unknown: make writes it"
#endif
static inline const char* gradbus_cuda_why(void) { return GRADBUS_CUDA_WHY; }

// bridge_command is a command with everything that its arguments point to, but for the data and the
// terms.
typedef struct bridge_command {
  union {
    gb_bag_forward_args bag_forward;
    gb_bag_backward_args bag_backward;
    gb_coalesce_args coalesce;
    gb_merge_args merge;
    gb_apply_rows_args apply_rows;
    gb_coalesce_apply_args coalesce_apply;
    gb_apply_dense_args apply_dense;
    gb_average_args average;
    gb_average_apply_args average_apply;
    gb_matmul_args matmul;
    gb_softmax_args softmax;
    gb_first_nonfinite_args first_nonfinite;
    gb_copy_args copy;
    gb_gather_args gather;
  } args;
  union {
    gb_sgd sgd;
    gb_adagrad adagrad;
    gb_adam adam;
    gb_ftrl ftrl;
  } hyper;
  gb_slot slots[2];
  char names[2][16];  // of the slots
  gb_report report;
} bridge_command;

// bridge_held are the addresses that a command names. The command holds them as numbers; cgo keeps
// what they point to in place because they are arguments as well.
enum { BRIDGE_HELD = 12 };
typedef struct bridge_held {
  const uint8_t* p[BRIDGE_HELD];
} bridge_held;

// bridge_adopt copies a library's table, so that entries beyond the end of a shorter one are NULL.
static inline void bridge_adopt(const gb_api* from, gb_api* to) {
  memset(to, 0, sizeof *to);
  memcpy(to, from, from->size < sizeof *to ? from->size : sizeof *to);
}

static inline gb_status bridge_open(const gb_api* api, const char* isa, uint32_t threads,
                                    gb_context** context, gb_report* report) {
  gb_open_args a = {0};
  a.size = sizeof a;
  a.threads = threads;
  a.isa = isa;
  report->size = sizeof *report;
  return api->open(&a, context, report);
}

static inline void bridge_close(const gb_api* api, gb_context* context) { api->close(context); }
static inline const char* bridge_isa(const gb_api* api, const gb_context* context) {
  return api->isa(context);
}
static inline int bridge_has_device(const gb_api* api) {
  return api->device_alloc && api->stream_open;
}

static inline gb_status bridge_alloc(const gb_api* api, gb_context* context, uint64_t bytes,
                                     void** memory, gb_report* report) {
  report->size = sizeof *report;
  return api->alloc(context, bytes, memory, report);
}

static inline void bridge_free(const gb_api* api, gb_context* context, void* memory,
                               uint64_t bytes) {
  api->free(context, memory, bytes);
}

static inline uint64_t bridge_workspace(const gb_api* api, gb_context* context, gb_op op,
                                        const uint8_t* command) {
  return api->workspace(context, op, command);
}

#define BRIDGE_OP(OP, entry, field) \
  case OP:                          \
    return api->entry ? api->entry(context, NULL, &c->args.field, w, &c->report) : GB_UNSUPPORTED

static inline gb_status bridge_call(uintptr_t table, gb_context* context, gb_op op,
                                    uint8_t* command, uint8_t* ws, uint64_t ws_bytes,
                                    bridge_held held) {
  const gb_api* api = (const gb_api*)table;
  bridge_command* c = (bridge_command*)command;
  gb_workspace w = {ws, ws_bytes};
  (void)held;
  switch (op) {
    BRIDGE_OP(GB_OP_BAG_FORWARD, bag_forward, bag_forward);
    BRIDGE_OP(GB_OP_BAG_BACKWARD, bag_backward, bag_backward);
    BRIDGE_OP(GB_OP_COALESCE, coalesce, coalesce);
    BRIDGE_OP(GB_OP_MERGE, merge, merge);
    BRIDGE_OP(GB_OP_APPLY_ROWS, apply_rows, apply_rows);
    BRIDGE_OP(GB_OP_COALESCE_APPLY, coalesce_apply, coalesce_apply);
    BRIDGE_OP(GB_OP_APPLY_DENSE, apply_dense, apply_dense);
    BRIDGE_OP(GB_OP_AVERAGE, average, average);
    BRIDGE_OP(GB_OP_AVERAGE_APPLY, average_apply, average_apply);
    BRIDGE_OP(GB_OP_MATMUL, matmul, matmul);
    BRIDGE_OP(GB_OP_SOFTMAX, softmax_cross_entropy, softmax);
    BRIDGE_OP(GB_OP_FIRST_NONFINITE, first_nonfinite, first_nonfinite);
    BRIDGE_OP(GB_OP_COPY, copy, copy);
    BRIDGE_OP(GB_OP_GATHER, gather, gather);
  }
  return GB_UNSUPPORTED;
}

// bridge_batch is what a submitted batch answers. It lies with the commands, outside the Go heap.
typedef struct bridge_batch {
  int64_t done;
  gb_report report;
} bridge_batch;

static inline gb_status bridge_submit(uintptr_t table, gb_context* context, gb_stream* stream,
                                      uintptr_t commands, int64_t n, uint8_t* ws, uint64_t ws_bytes,
                                      uintptr_t answer) {
  const gb_api* api = (const gb_api*)table;
  bridge_batch* to = (bridge_batch*)answer;
  gb_workspace w = {ws, ws_bytes};
  if (!api->submit) return GB_UNSUPPORTED;
  return api->submit(context, stream, (const gb_command*)commands, n, w, &to->done, &to->report);
}

// bridge_submit_many submits a batch again and again in one crossing: what a crossing costs is the
// difference to as many calls of bridge_submit.
static inline gb_status bridge_submit_many(uintptr_t table, gb_context* context, uintptr_t commands,
                                           int64_t n, uint8_t* ws, uint64_t ws_bytes,
                                           uintptr_t answer, int64_t times) {
  gb_status status = GB_OK;
  for (int64_t i = 0; i < times && status == GB_OK; ++i)
    status = bridge_submit(table, context, NULL, commands, n, ws, ws_bytes, answer);
  return status;
}

#endif  // GRADBUS_BRIDGE_H_
