// Opening a dense library, and the entries of gradbus_dense.h that lead into one.
#include "dense/library.h"

#include <dlfcn.h>

#include <cstring>

gb_status gb_dense::ConvForward(const gb_conv_shape&, const float*, const float*, const float*,
                                float*, gb_report* report) {
  return gradbus::Fail(report, GB_UNSUPPORTED, "the library has no convolutions");
}

gb_status gb_dense::ConvBackwardInput(const gb_conv_shape&, const float*, const float*, float*,
                                      gb_report* report) {
  return gradbus::Fail(report, GB_UNSUPPORTED, "the library has no convolutions");
}

gb_status gb_dense::ConvBackwardParams(const gb_conv_shape&, const float*, const float*, float*,
                                       float*, gb_report* report) {
  return gradbus::Fail(report, GB_UNSUPPORTED, "the library has no convolutions");
}

namespace gradbus {

Words& Words::operator<<(const char* more) {
  for (; *more != 0 && at_ + 1 < bytes_; more++) text_[at_++] = *more;
  if (bytes_ > 0) text_[at_] = 0;
  return *this;
}

Words& Words::operator<<(int64_t n) {
  char digits[24];
  int at = sizeof digits - 1;
  digits[at] = 0;
  uint64_t left = n < 0 ? -static_cast<uint64_t>(n) : static_cast<uint64_t>(n);
  do {
    digits[--at] = static_cast<char>('0' + left % 10);
    left /= 10;
  } while (left > 0);
  if (n < 0) digits[--at] = '-';
  return *this << digits + at;
}

bool Shared::Open(const char* path, std::initializer_list<const char*> names, Words& why) {
  if (path != nullptr) return Load(path, why);
  for (const char* name : names) {
    if (Load(name, why)) {
      why.Clear();
      return true;
    }
    if (name != *(names.end() - 1)) why << "; ";
  }
  return false;
}

bool Shared::Load(const char* name, Words& why) {
  handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle_ != nullptr) return true;
  const char* reason = dlerror();
  why << (reason == nullptr ? name : reason);
  return false;
}

void* Shared::Symbol(const char* name) const { return dlsym(handle_, name); }

bool BeforeSum(const gb_gemm_shape& s, const float** bias, float* c) {
  if (s.accumulate != 0) return true;
  if (*bias == nullptr) return false;
  for (int64_t i = 0; i < s.m; i++) std::memcpy(c + i * s.n, *bias, s.n * sizeof *c);
  *bias = nullptr;
  return true;
}

void AfterSum(const gb_gemm_shape& s, const float* bias, float* c) {
  if (bias != nullptr) {
    for (int64_t i = 0; i < s.m; i++) {
      for (int64_t j = 0; j < s.n; j++) c[i * s.n + j] += bias[j];
    }
  }
  if (s.relu != 0) {
    for (int64_t i = 0; i < s.m * s.n; i++) c[i] = c[i] <= 0 ? 0 : c[i];
  }
}

}  // namespace gradbus

using gradbus::Words;

gb_status gb_dense_open(const char* library, const char* path, gb_dense** out, char* text,
                        uint64_t text_bytes) {
  Words words(text, text_bytes);
  const auto named = [&](const char* name) { return std::strcmp(library, name) == 0; };
  *out = nullptr;
  if (named("onednn")) {
    *out = gradbus::OpenOneDnn(path, words);
  } else if (named("openblas")) {
    *out = gradbus::OpenOpenBlas(path, words);
  } else if (named("cublas")) {
    *out = gradbus::OpenCuBlas(path, words);
  } else {
    words << "no such library is known";
    return GB_ARGUMENT;
  }
  return *out == nullptr ? GB_NO_DEVICE : GB_OK;
}

void gb_dense_close(gb_dense* d) { delete d; }

gb_status gb_dense_convolves(const gb_dense* d) { return d->Convolves() ? GB_OK : GB_UNSUPPORTED; }

gb_status gb_dense_gemm(gb_dense* d, const gb_gemm_shape* s, const float* a, const float* b,
                        const float* bias, float* c, gb_report* report) {
  return d->Gemm(*s, a, b, bias, c, report);
}

gb_status gb_dense_conv_forward(gb_dense* d, const gb_conv_shape* s, const float* x,
                                const float* weight, const float* bias, float* y,
                                gb_report* report) {
  return d->ConvForward(*s, x, weight, bias, y, report);
}

gb_status gb_dense_conv_backward_input(gb_dense* d, const gb_conv_shape* s, const float* grad_y,
                                       const float* weight, float* grad_x, gb_report* report) {
  return d->ConvBackwardInput(*s, grad_y, weight, grad_x, report);
}

gb_status gb_dense_conv_backward_params(gb_dense* d, const gb_conv_shape* s, const float* x,
                                        const float* grad_y, float* grad_weight, float* grad_bias,
                                        gb_report* report) {
  return d->ConvBackwardParams(*s, x, grad_y, grad_weight, grad_bias, report);
}
