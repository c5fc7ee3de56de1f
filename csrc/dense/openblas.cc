// OpenBLAS: matrix products.
#include <new>

#include "dense/library.h"

namespace gradbus {
namespace {

// Of cblas.h.
enum { kRowMajor = 101, kNoTrans = 111, kTrans = 112 };
using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                       const float* a, int lda, const float* b, int ldb, float beta, float* c,
                       int ldc);

class OpenBlas : public gb_dense {
 public:
  explicit OpenBlas(Sgemm sgemm) : sgemm_(sgemm) {}

  gb_status Gemm(const gb_gemm_shape& s, const float* a, const float* b, const float* bias,
                 float* c, gb_report* report) override {
    const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
    const float beta = BeforeSum(s, &bias, c) ? 1 : 0;
    sgemm_(kRowMajor, s.trans_a ? kTrans : kNoTrans, s.trans_b ? kTrans : kNoTrans, m, n, k, 1, a,
           s.trans_a ? m : k, b, s.trans_b ? k : n, beta, c, n);
    AfterSum(s, bias, c);
    return Done(report);
  }

 private:
  const Sgemm sgemm_;
};

}  // namespace

gb_dense* OpenOpenBlas(const char* path, Words& text) {
  Shared shared;
  Sgemm sgemm;
  void (*set_threads)(int);
  char* (*config)();
  char* (*core)();
  if (!shared.Open(path, {"libopenblas.so.0", "libopenblas.so"}, text) ||
      !shared.Find("cblas_sgemm", &sgemm, text) ||
      !shared.Find("openblas_set_num_threads", &set_threads, text) ||
      !shared.Find("openblas_get_config", &config, text) ||
      !shared.Find("openblas_get_corename", &core, text)) {
    return nullptr;
  }
  set_threads(1);
  // The threads that it started when it was loaded have nothing to do from here on.
  if (void* end = shared.Symbol("blas_thread_shutdown_"); end != nullptr) {
    reinterpret_cast<int (*)()>(end)();
  }
  // "OpenBLAS 0.3.21 NO_LAPACKE ...": the version is the second word.
  const char* version = config();
  while (*version != 0 && *version != ' ') version++;
  while (*version == ' ') version++;
  text << "openblas ";
  for (; *version != 0 && *version != ' '; version++) {
    const char letter[2] = {*version, 0};
    text << letter;
  }
  text << " " << core();
  return new (std::nothrow) OpenBlas(sgemm);
}

}  // namespace gradbus
