/* gradbus_dense.h: dense linear algebra by a library that is opened at run time, and the operations
 * of layers around it.
 *
 * A library is found by the dynamic linker, or by a path; without one everything else works. All
 * tensors are float32, dense and row-major. Calls compute on their caller's thread alone, whatever
 * the library would like to do, and may be made from several threads at once. Statuses and reports
 * are those of gradbus.h; lengths are the caller's to check.
 */
#ifndef GRADBUS_DENSE_H_
#define GRADBUS_DENSE_H_

#include "gradbus.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gb_dense gb_dense; /* an opened library */

/* C [m, n] = op(A) op(B) + bias: A is [m, k], or [k, m] with trans_a; B [k, n], or [n, k] with
 * trans_b; bias [n] or NULL. With accumulate C += that; with relu, which excludes accumulate,
 * C = max(C, 0) in the end. m, n and k are at least 1 and below 2^31. */
typedef struct gb_gemm_shape {
  int64_t m, n, k;
  uint32_t trans_a, trans_b, accumulate, relu;
} gb_gemm_shape;

/* x is n images of c channels of h x w, y n images of out channels; weight [out, c, kernel_h,
 * kernel_w]. Images are [n, c, h, w], or [n, h, w, c] with channels_last. Everything but the
 * padding is at least 1. relu matters to the forward pass alone. */
typedef struct gb_conv_shape {
  int64_t n, c, h, w, out, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
  uint32_t channels_last, relu;
} gb_conv_shape;

/* Opens "onednn", "openblas" or "cublas", by the path where it is not NULL. text gets the library's
 * name, version and instruction set, or, where the status is GB_NO_DEVICE, why it cannot be used.
 */
GB_EXPORT gb_status gb_dense_open(const char* library, const char* path, gb_dense** out, char* text,
                                  uint64_t text_bytes);
GB_EXPORT void gb_dense_close(gb_dense*);

/* GB_UNSUPPORTED where the library has no convolutions. */
GB_EXPORT gb_status gb_dense_convolves(const gb_dense*);

GB_EXPORT gb_status gb_dense_gemm(gb_dense*, const gb_gemm_shape*, const float* a, const float* b,
                                  const float* bias, float* c, gb_report*);
GB_EXPORT gb_status gb_dense_conv_forward(gb_dense*, const gb_conv_shape*, const float* x,
                                          const float* weight, const float* bias, float* y,
                                          gb_report*);
GB_EXPORT gb_status gb_dense_conv_backward_input(gb_dense*, const gb_conv_shape*,
                                                 const float* grad_y, const float* weight,
                                                 float* grad_x, gb_report*);
/* grad_bias may be NULL. */
GB_EXPORT gb_status gb_dense_conv_backward_params(gb_dense*, const gb_conv_shape*, const float* x,
                                                  const float* grad_y, float* grad_weight,
                                                  float* grad_bias, gb_report*);

/* A max-pooling of n images of c channels of h x w into out_h x out_w windows. */
typedef struct gb_pool_shape {
  int64_t n, c, h, w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, out_h, out_w;
  uint32_t x_last, y_last; /* the channels, in x and in y */
} gb_pool_shape;

/* The operations around products, one table an instruction set, all with the same bits. */
typedef struct gb_maps {
  uint32_t size;
  uint32_t reserved;
  const char* isa;
  /* y = x <= 0 ? 0 : x, NaN passing on; y may be x. */
  void (*relu_forward)(const float* x, int64_t n, float* y);
  /* grad_x = y > 0 ? grad_y : 0; grad_x may be y or grad_y. */
  void (*relu_backward)(const float* y, const float* grad_y, int64_t n, float* grad_x);
  /* y[i, j] = x[i, j] + bias[j]; y may be x. */
  void (*add_bias)(const float* x, const float* bias, int64_t rows, int64_t columns, float* y);
  /* out[j] = the sum over i of x[i, j], in canonical order. */
  void (*column_sums)(const float* x, int64_t rows, int64_t columns, float* out);
  /* out = x times by [n, c]: x is [n, c, plane], or [n, plane, c] with last; out may be x. */
  void (*scale)(const float* x, const float* by, int64_t n, int64_t c, int64_t plane, uint32_t last,
                float* out);
  /* n times a matrix of rows x columns, transposed. */
  void (*transpose)(const float* x, int64_t n, int64_t rows, int64_t columns, float* y);
  /* argmax, h*w + w in the plane, is laid out as y would be with x_last; it may be NULL. */
  void (*pool_forward)(const gb_pool_shape*, const float* x, float* y, int32_t* argmax);
  /* Gives -1, or the position of the first of argmax that does not lie in the plane, and writes
   * nothing. */
  int64_t (*pool_backward)(const gb_pool_shape*, const float* grad_y, const int32_t* argmax,
                           float* grad_x);
  /* scratch is columns floats, rounded up to a multiple of 16. y may be x. */
  void (*softmax_forward)(const float* x, int64_t rows, int64_t columns, uint32_t log,
                          float* scratch, float* y);
  /* scratch as there. grad_x may be grad_y. */
  void (*softmax_backward)(const float* y, const float* grad_y, int64_t rows, int64_t columns,
                           uint32_t log, float* scratch, float* grad_x);
} gb_maps;

/* The table of "baseline", "avx2" or "avx512"; of the best one that this processor runs for any
 * other name. */
GB_EXPORT const gb_maps* gb_maps_of(const char* isa);

#ifdef __cplusplus
}
#endif
#endif /* GRADBUS_DENSE_H_ */
