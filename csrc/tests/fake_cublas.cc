// As much of cuBLAS and of the CUDA runtime as csrc/dense/cublas.cc calls, on the CPU: column-major
// products as the manual has them, and memory that says when it is used wrongly.
#include <cstddef>
#include <cstdlib>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
int handles = 0, blocks = 0;
bool failing = false;
}  // namespace

// For the test: what is still open, and whether products are to fail.
EXPORT int fake_open() { return handles * 1000 + blocks; }
EXPORT void fake_fail(int fail) { failing = fail != 0; }

EXPORT int cublasCreate_v2(void** handle) {
  *handle = &handles;
  handles++;
  return 0;
}

EXPORT int cublasDestroy_v2(void*) {
  handles--;
  return 0;
}

EXPORT int cublasGetVersion_v2(void*, int* version) {
  *version = 120304;
  return 0;
}

EXPORT int cublasSgemm_v2(void*, int trans_a, int trans_b, int m, int n, int k, const float* alpha,
                          const float* a, int lda, const float* b, int ldb, const float* beta,
                          float* c, int ldc) {
  if (failing) return 13;
  if (lda < (trans_a ? k : m) || ldb < (trans_b ? n : k) || ldc < m) return 7;
  for (int j = 0; j < n; j++) {
    for (int i = 0; i < m; i++) {
      float sum = 0;
      for (int l = 0; l < k; l++) {
        sum += (trans_a ? a[l + i * lda] : a[i + l * lda]) *
               (trans_b ? b[j + l * ldb] : b[l + j * ldb]);
      }
      c[i + j * ldc] = *alpha * sum + (*beta == 0 ? 0 : *beta * c[i + j * ldc]);
    }
  }
  return 0;
}

EXPORT int cudaMalloc(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  std::memset(*memory, 0xff, bytes);
  blocks++;
  return 0;
}

EXPORT int cudaFree(void* memory) {
  std::free(memory);
  blocks--;
  return 0;
}

EXPORT int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  if (kind != 1 && kind != 2) return 21;
  std::memcpy(to, from, bytes);
  return 0;
}
