// The bridge between native.go and gradbus.h. cgo lets Go pointers through as arguments, not inside
// structs, so these functions take plain pointers and lengths and fill the structs here. A call
// costs one crossing.
#ifndef GRADBUS_BRIDGE_H_
#define GRADBUS_BRIDGE_H_

#include "gradbus.h"
#if !__has_include("native_stamp.h")
#error "the native library is not built: run make, or leave the tag native out"
#endif
#include "native_stamp.h"

// gradbus_stamp changes with the library, and with it this package's build.
static inline const char* gradbus_stamp(void) { return GRADBUS_STAMP; }

// bridge_report is a gb_report without a pointer, so that cgo need not look into it.
typedef struct bridge_report {
  int64_t count, position, value, limit, term;
  uintptr_t message;
} bridge_report;

static inline gb_status bridge_done(gb_status status, const gb_report* from, bridge_report* to) {
  to->count = from->count;
  to->position = from->position;
  to->value = from->value;
  to->limit = from->limit;
  to->term = from->term;
  to->message = (uintptr_t)from->message;
  return status;
}

#define BRIDGE_REPORT              \
  gb_report r = {0};               \
  gb_workspace w = {ws, ws_bytes}; \
  r.size = sizeof r

static inline gb_in bridge_in(const void* data, int64_t n, gb_dtype dtype) {
  gb_in in = {data, n, dtype, 0};
  return in;
}

static inline gb_out bridge_out(void* data, int64_t n, gb_dtype dtype) {
  gb_out out = {data, n, dtype, 0};
  return out;
}

static inline const char* bridge_message(uintptr_t message) { return (const char*)message; }

static inline gb_status bridge_open(const gb_api* api, const char* isa, gb_context** context,
                                    bridge_report* out) {
  gb_report r = {0};
  r.size = sizeof r;
  gb_open_args a = {0};
  a.size = sizeof a;
  a.threads = 1;
  a.isa = isa;
  return bridge_done(api->open(&a, context, &r), &r, out);
}

static inline void bridge_close(const gb_api* api, gb_context* context) { api->close(context); }
static inline const char* bridge_isa(const gb_api* api, const gb_context* context) {
  return api->isa(context);
}

static inline gb_status bridge_bag_forward(const gb_api* api, gb_context* context, gb_mode mode,
                                           int64_t dim, int64_t padding, const float* rows,
                                           int64_t rows_n, const int64_t* ids, int64_t ids_n,
                                           const int64_t* offsets, int64_t offsets_n, float* out,
                                           int64_t out_n, uint8_t* ws, uint64_t ws_bytes,
                                           bridge_report* report) {
  BRIDGE_REPORT;
  gb_bag_forward_args a = {0};
  a.size = sizeof a;
  a.mode = mode;
  a.dim = dim;
  a.padding = padding;
  a.rows = bridge_in(rows, rows_n, GB_FLOAT32);
  a.ids = bridge_in(ids, ids_n, GB_INT64);
  a.offsets = bridge_in(offsets, offsets_n, GB_INT64);
  a.out = bridge_out(out, out_n, GB_FLOAT32);
  return bridge_done(api->bag_forward(context, 0, &a, w, &r), &r, report);
}

static inline gb_status bridge_bag_backward(const gb_api* api, gb_context* context, gb_mode mode,
                                            int64_t dim, int64_t padding, int64_t rows,
                                            const int64_t* ids, int64_t ids_n,
                                            const int64_t* offsets, int64_t offsets_n,
                                            const float* grad, int64_t grad_n, int64_t* keys,
                                            int64_t keys_n, float* out, int64_t out_n, uint8_t* ws,
                                            uint64_t ws_bytes, bridge_report* report) {
  BRIDGE_REPORT;
  gb_bag_backward_args a = {0};
  a.size = sizeof a;
  a.mode = mode;
  a.dim = dim;
  a.padding = padding;
  a.rows = rows;
  a.ids = bridge_in(ids, ids_n, GB_INT64);
  a.offsets = bridge_in(offsets, offsets_n, GB_INT64);
  a.grad_out = bridge_in(grad, grad_n, GB_FLOAT32);
  a.keys = bridge_out(keys, keys_n, GB_INT64);
  a.out = bridge_out(out, out_n, GB_FLOAT32);
  return bridge_done(api->bag_backward(context, 0, &a, w, &r), &r, report);
}

static inline gb_status bridge_coalesce(const gb_api* api, gb_context* context, int64_t dim,
                                        const uint64_t* keys, int64_t keys_n, const float* rows,
                                        int64_t rows_n, uint64_t* out_keys, int64_t out_keys_n,
                                        float* out_rows, int64_t out_rows_n, uint8_t* ws,
                                        uint64_t ws_bytes, bridge_report* report) {
  BRIDGE_REPORT;
  gb_coalesce_args a = {0};
  a.size = sizeof a;
  a.dim = dim;
  a.keys = bridge_in(keys, keys_n, GB_UINT64);
  a.rows = bridge_in(rows, rows_n, GB_FLOAT32);
  a.out_keys = bridge_out(out_keys, out_keys_n, GB_UINT64);
  a.out_rows = bridge_out(out_rows, out_rows_n, GB_FLOAT32);
  return bridge_done(api->coalesce(context, 0, &a, w, &r), &r, report);
}

// The terms' own pointers are pinned by the caller.
static inline gb_status bridge_merge(const gb_api* api, gb_context* context, int64_t dim,
                                     int64_t lanes, const gb_rows_term* terms, int64_t terms_n,
                                     uint64_t* out_keys, int64_t out_keys_n, float* out_rows,
                                     int64_t out_rows_n, uint8_t* ws, uint64_t ws_bytes,
                                     bridge_report* report) {
  BRIDGE_REPORT;
  gb_merge_args a = {0};
  a.size = sizeof a;
  a.dim = dim;
  a.lanes = lanes;
  a.terms = terms;
  a.terms_n = terms_n;
  a.out_keys = bridge_out(out_keys, out_keys_n, GB_UINT64);
  a.out_rows = bridge_out(out_rows, out_rows_n, GB_FLOAT32);
  return bridge_done(api->merge(context, 0, &a, w, &r), &r, report);
}

static inline gb_status bridge_average(const gb_api* api, gb_context* context, float weight,
                                       int64_t lanes, const gb_term* terms, int64_t terms_n,
                                       float* out, int64_t out_n, uint8_t* ws, uint64_t ws_bytes,
                                       bridge_report* report) {
  BRIDGE_REPORT;
  gb_average_args a = {0};
  a.size = sizeof a;
  a.weight = weight;
  a.lanes = lanes;
  a.terms = terms;
  a.terms_n = terms_n;
  a.out = bridge_out(out, out_n, GB_FLOAT32);
  return bridge_done(api->average(context, 0, &a, w, &r), &r, report);
}

static inline gb_optimizer bridge_sgd(const gb_sgd* h, gb_slot* slot, const float* before,
                                      int64_t before_n, float* after, int64_t after_n) {
  gb_optimizer o = {GB_SGD, sizeof *h, h, slot, h->momentum != 0};
  slot->name = "momentum";
  slot->before = bridge_in(before, before_n, GB_FLOAT32);
  slot->after = bridge_out(after, after_n, GB_FLOAT32);
  return o;
}

static inline gb_status bridge_apply_rows(const gb_api* api, gb_context* context, int64_t dim,
                                          gb_sgd h, float weight, const float* table,
                                          int64_t table_n, const float* momentum,
                                          int64_t momentum_n, const int64_t* index, int64_t index_n,
                                          const uint8_t* first, int64_t first_n, const float* grad,
                                          int64_t grad_n, float* out, int64_t out_n,
                                          float* out_momentum, int64_t out_momentum_n, uint8_t* ws,
                                          uint64_t ws_bytes, bridge_report* report) {
  BRIDGE_REPORT;
  gb_slot slot;
  gb_apply_rows_args a = {0};
  a.size = sizeof a;
  a.weight = weight;
  a.dim = dim;
  a.optimizer = bridge_sgd(&h, &slot, momentum, momentum_n, out_momentum, out_momentum_n);
  a.table = bridge_in(table, table_n, GB_FLOAT32);
  a.index = bridge_in(index, index_n, GB_INT64);
  a.first = bridge_in(first, first_n, GB_UINT8);
  a.grad = bridge_in(grad, grad_n, GB_FLOAT32);
  a.out = bridge_out(out, out_n, GB_FLOAT32);
  return bridge_done(api->apply_rows(context, 0, &a, w, &r), &r, report);
}

static inline gb_status bridge_apply_dense(const gb_api* api, gb_context* context, gb_sgd h,
                                           float weight, uint32_t first, int64_t n,
                                           const float* param, const float* grad,
                                           const float* momentum, float* out, float* out_momentum,
                                           uint8_t* ws, uint64_t ws_bytes, bridge_report* report) {
  BRIDGE_REPORT;
  gb_slot slot;
  gb_apply_dense_args a = {0};
  a.size = sizeof a;
  a.weight = weight;
  a.first = first;
  a.optimizer = bridge_sgd(&h, &slot, momentum, n, out_momentum, n);
  a.param = bridge_in(param, n, GB_FLOAT32);
  a.grad = bridge_in(grad, n, GB_FLOAT32);
  a.out = bridge_out(out, n, GB_FLOAT32);
  return bridge_done(api->apply_dense(context, 0, &a, w, &r), &r, report);
}

static inline gb_status bridge_matmul(const gb_api* api, gb_context* context, int64_t m, int64_t n,
                                      int64_t k, uint32_t trans_a, uint32_t trans_b,
                                      const float* ma, const float* mb, const float* bias,
                                      int64_t bias_n, float* mc, uint8_t* ws, uint64_t ws_bytes,
                                      bridge_report* report) {
  BRIDGE_REPORT;
  gb_matmul_args a = {0};
  a.size = sizeof a;
  a.trans_a = trans_a;
  a.trans_b = trans_b;
  a.m = m;
  a.n = n;
  a.k = k;
  a.a = bridge_in(ma, m * k, GB_FLOAT32);
  a.b = bridge_in(mb, k * n, GB_FLOAT32);
  a.bias = bridge_in(bias, bias_n, GB_FLOAT32);
  a.c = bridge_out(mc, m * n, GB_FLOAT32);
  return bridge_done(api->matmul(context, 0, &a, w, &r), &r, report);
}

static inline gb_status bridge_softmax(const gb_api* api, gb_context* context, int64_t classes,
                                       const float* logits, int64_t logits_n,
                                       const int32_t* targets, int64_t targets_n, float* loss,
                                       int64_t loss_n, float* grad, int64_t grad_n,
                                       float* probabilities, int64_t probabilities_n, uint8_t* ws,
                                       uint64_t ws_bytes, bridge_report* report) {
  BRIDGE_REPORT;
  gb_softmax_args a = {0};
  a.size = sizeof a;
  a.classes = classes;
  a.logits = bridge_in(logits, logits_n, GB_FLOAT32);
  a.targets = bridge_in(targets, targets_n, GB_INT32);
  a.loss = bridge_out(loss, loss_n, GB_FLOAT32);
  a.grad = bridge_out(grad, grad_n, GB_FLOAT32);
  a.probabilities = bridge_out(probabilities, probabilities_n, GB_FLOAT32);
  return bridge_done(api->softmax_cross_entropy(context, 0, &a, w, &r), &r, report);
}

static inline int64_t bridge_first_nonfinite(const gb_api* api, gb_context* context,
                                             const float* values, int64_t n) {
  gb_report r = {0};
  gb_workspace w = {0, 0};
  r.size = sizeof r;
  gb_first_nonfinite_args a = {0};
  a.size = sizeof a;
  a.values = bridge_in(values, n, GB_FLOAT32);
  return api->first_nonfinite(context, 0, &a, w, &r) == GB_OK ? r.position : -2;
}

#endif  // GRADBUS_BRIDGE_H_
