// The part of oneDNN's C interface that is used here, version 2 (libdnnl.so.2), declared again so
// that nothing is needed where this is compiled. tests/onednn_abi_test.cc compares it with the
// library's own header.
#ifndef GRADBUS_DENSE_ONEDNN_ABI_H_
#define GRADBUS_DENSE_ONEDNN_ABI_H_

#include <cstddef>
#include <cstdint>

namespace gradbus {
namespace onednn {

enum { kSuccess = 0, kOutOfMemory = 1 };
enum { kCpu = 1, kStreamDefault = 1, kFloat32 = 3, kScratchpadUser = 1 };
enum { kRuntimeSequential = 1, kRuntimeOpenMp = 2 };
enum { kAny = 1, kA = 2, kAB = 3, kBA = 22, kABCD = 5, kACDB = 20 };  // orders of dimensions
enum { kForwardTraining = 64, kDirect = 1, kRelu = 31 };
enum Query {
  kQueryInfo = 8,
  kQuerySrc = 129,
  kQueryDiffSrc = 130,
  kQueryWeights = 131,
  kQueryDiffWeights = 132,
  kQueryDst = 133,
  kQueryDiffDst = 134,
  kQueryScratchpad = 136
};
enum Arg {
  kArgSrc = 1,
  kArgDst = 17,
  kArgWeights = 33,
  kArgBias = 41,
  kArgScratchpad = 80,
  kArgDiffSrc = 129,
  kArgDiffDst = 145,
  kArgDiffWeights = 161,
  kArgDiffBias = 169
};

// Structures that only the library looks into, with room to spare.
struct Desc {
  alignas(8) unsigned char bytes[1024];  // dnnl_memory_desc_t
};
struct Operation {
  alignas(8) unsigned char bytes[8192];  // dnnl_convolution_desc_t, dnnl_matmul_desc_t
};
struct Version {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};
struct ExecArg {
  int arg;
  void* memory;
};

// The functions: name, result, parameters. Handles are void*, statuses int.
#define GRADBUS_ONEDNN_FUNCTIONS(F)                                                               \
  F(version, const Version*, ())                                                                  \
  F(get_effective_cpu_isa, int, ())                                                               \
  F(engine_create, int, (void** engine, int kind, size_t index))                                  \
  F(engine_destroy, int, (void* engine))                                                          \
  F(stream_create, int, (void** stream, void* engine, unsigned flags))                            \
  F(stream_destroy, int, (void* stream))                                                          \
  F(memory_desc_init_by_tag, int, (Desc*, int n, const int64_t* dims, int type, int tag))         \
  F(memory_desc_equal, int, (const Desc*, const Desc*))                                           \
  F(memory_desc_get_size, size_t, (const Desc*))                                                  \
  F(memory_create, int, (void** memory, const Desc*, void* engine, void* data))                   \
  F(memory_set_data_handle, int, (void* memory, void* data))                                      \
  F(memory_destroy, int, (void* memory))                                                          \
  F(primitive_attr_create, int, (void** attr))                                                    \
  F(primitive_attr_set_scratchpad_mode, int, (void* attr, int mode))                              \
  F(primitive_attr_set_post_ops, int, (void* attr, const void* post_ops))                         \
  F(primitive_attr_destroy, int, (void* attr))                                                    \
  F(post_ops_create, int, (void** post_ops))                                                      \
  F(post_ops_append_eltwise, int,                                                                 \
    (void* post_ops, float scale, int kind, float alpha, float beta))                             \
  F(post_ops_destroy, int, (void* post_ops))                                                      \
  F(convolution_forward_desc_init, int,                                                           \
    (Operation*, int kind, int algorithm, const Desc* src, const Desc* weights, const Desc* bias, \
     const Desc* dst, const int64_t* strides, const int64_t* left, const int64_t* right))         \
  F(convolution_backward_data_desc_init, int,                                                     \
    (Operation*, int algorithm, const Desc* src, const Desc* weights, const Desc* dst,            \
     const int64_t* strides, const int64_t* left, const int64_t* right))                          \
  F(convolution_backward_weights_desc_init, int,                                                  \
    (Operation*, int algorithm, const Desc* src, const Desc* weights, const Desc* bias,           \
     const Desc* dst, const int64_t* strides, const int64_t* left, const int64_t* right))         \
  F(matmul_desc_init, int,                                                                        \
    (Operation*, const Desc* src, const Desc* weights, const Desc* bias, const Desc* dst))        \
  F(primitive_desc_create, int,                                                                   \
    (void** desc, const Operation*, const void* attr, void* engine, const void* forward))         \
  F(primitive_desc_query, int, (const void* desc, int what, int index, void* result))             \
  F(primitive_desc_query_md, const Desc*, (const void* desc, int what, int index))                \
  F(primitive_desc_destroy, int, (void* desc))                                                    \
  F(reorder_primitive_desc_create, int,                                                           \
    (void** desc, const Desc* from, void* engine, const Desc* to, void* to_engine,                \
     const void* attr))                                                                           \
  F(primitive_create, int, (void** primitive, const void* desc))                                  \
  F(primitive_execute, int, (const void* primitive, void* stream, int n, const ExecArg* args))    \
  F(primitive_destroy, int, (void* primitive))                                                    \
  F(sgemm, int,                                                                                   \
    (char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a,    \
     int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc))

// Functions is the library's functions by their names without the prefix dnnl_.
struct Functions {
#define GRADBUS_DECLARE(name, result, parameters) result(*name) parameters;
  GRADBUS_ONEDNN_FUNCTIONS(GRADBUS_DECLARE)
#undef GRADBUS_DECLARE
};

}  // namespace onednn
}  // namespace gradbus

#endif  // GRADBUS_DENSE_ONEDNN_ABI_H_
