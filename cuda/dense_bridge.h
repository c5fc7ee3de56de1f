// The bridge between native_dense.go, native_maps.go and gradbus_dense.h: cgo calls functions by
// name, and looks less closely at what a number is than at what a pointer leads to.
#ifndef GRADBUS_DENSE_BRIDGE_H_
#define GRADBUS_DENSE_BRIDGE_H_

#include "bridge.h"
#include "gradbus_dense.h"

static inline gb_status bridge_gemm(gb_dense* d, const gb_gemm_shape* s, const float* a,
                                    const float* b, const float* bias, float* c, gb_report* r) {
  r->size = sizeof *r;
  return gb_dense_gemm(d, s, a, b, bias, c, r);
}

static inline gb_status bridge_conv_forward(gb_dense* d, const gb_conv_shape* s, const float* x,
                                            const float* weight, const float* bias, float* y,
                                            gb_report* r) {
  r->size = sizeof *r;
  return gb_dense_conv_forward(d, s, x, weight, bias, y, r);
}

static inline gb_status bridge_conv_input(gb_dense* d, const gb_conv_shape* s, const float* grad_y,
                                          const float* weight, float* grad_x, gb_report* r) {
  r->size = sizeof *r;
  return gb_dense_conv_backward_input(d, s, grad_y, weight, grad_x, r);
}

static inline gb_status bridge_conv_params(gb_dense* d, const gb_conv_shape* s, const float* x,
                                           const float* grad_y, float* grad_weight,
                                           float* grad_bias, gb_report* r) {
  r->size = sizeof *r;
  return gb_dense_conv_backward_params(d, s, x, grad_y, grad_weight, grad_bias, r);
}

static inline void bridge_relu_forward(const gb_maps* m, const float* x, int64_t n, float* y) {
  m->relu_forward(x, n, y);
}

static inline void bridge_relu_backward(const gb_maps* m, const float* y, const float* grad_y,
                                        int64_t n, float* grad_x) {
  m->relu_backward(y, grad_y, n, grad_x);
}

static inline void bridge_add_bias(const gb_maps* m, const float* x, const float* bias,
                                   int64_t rows, int64_t columns, float* y) {
  m->add_bias(x, bias, rows, columns, y);
}

static inline void bridge_column_sums(const gb_maps* m, const float* x, int64_t rows,
                                      int64_t columns, float* out) {
  m->column_sums(x, rows, columns, out);
}

static inline void bridge_scale(const gb_maps* m, const float* x, const float* by, int64_t n,
                                int64_t c, int64_t plane, uint32_t last, float* out) {
  m->scale(x, by, n, c, plane, last, out);
}

static inline void bridge_transpose(const gb_maps* m, const float* x, int64_t n, int64_t rows,
                                    int64_t columns, float* y) {
  m->transpose(x, n, rows, columns, y);
}

static inline void bridge_pool_forward(const gb_maps* m, const gb_pool_shape* s, const float* x,
                                       float* y, int32_t* argmax) {
  m->pool_forward(s, x, y, argmax);
}

static inline int64_t bridge_pool_backward(const gb_maps* m, const gb_pool_shape* s,
                                           const float* grad_y, const int32_t* argmax,
                                           float* grad_x) {
  return m->pool_backward(s, grad_y, argmax, grad_x);
}

static inline void bridge_softmax_forward(const gb_maps* m, const float* x, int64_t rows,
                                          int64_t columns, uint32_t log, float* scratch, float* y) {
  m->softmax_forward(x, rows, columns, log, scratch, y);
}

static inline void bridge_softmax_backward(const gb_maps* m, const float* y, const float* grad_y,
                                           int64_t rows, int64_t columns, uint32_t log,
                                           float* scratch, float* grad_x) {
  m->softmax_backward(y, grad_y, rows, columns, log, scratch, grad_x);
}

#endif  // GRADBUS_DENSE_BRIDGE_H_
