// A dense library: what gradbus_dense.h asks of one, and what opening one needs.
#ifndef GRADBUS_DENSE_LIBRARY_H_
#define GRADBUS_DENSE_LIBRARY_H_

#include <cstdint>
#include <initializer_list>

#include "core/core.h"
#include "gradbus_dense.h"

struct gb_dense {
  virtual ~gb_dense() = default;
  virtual bool Convolves() const { return false; }
  virtual gb_status Gemm(const gb_gemm_shape& s, const float* a, const float* b, const float* bias,
                         float* c, gb_report* report) = 0;
  virtual gb_status ConvForward(const gb_conv_shape&, const float*, const float*, const float*,
                                float*, gb_report* report);
  virtual gb_status ConvBackwardInput(const gb_conv_shape&, const float*, const float*, float*,
                                      gb_report* report);
  virtual gb_status ConvBackwardParams(const gb_conv_shape&, const float*, const float*, float*,
                                       float*, gb_report* report);
};

namespace gradbus {

// Words collects a text of bounded length.
class Words {
 public:
  Words(char* text, uint64_t bytes) : text_(text), bytes_(bytes) { Clear(); }
  void Clear() {
    at_ = 0;
    if (bytes_ > 0) text_[0] = 0;
  }
  Words& operator<<(const char* more);
  Words& operator<<(int64_t n);

 private:
  char* text_;
  uint64_t bytes_, at_;
};

// Shared is a shared library. It stays loaded, since some leave threads or thread-local state
// behind that must not outlive their code.
class Shared {
 public:
  // Open takes the first of the names that loads, or the path alone where there is one.
  bool Open(const char* path, std::initializer_list<const char*> names, Words& why);
  // Find gives a function, or says which is missing.
  template <typename F>
  bool Find(const char* name, F* to, Words& why) const {
    void* at = Symbol(name);
    if (at == nullptr) why << "it has no function " << name;
    *to = reinterpret_cast<F>(at);
    return at != nullptr;
  }
  void* Symbol(const char* name) const;

 private:
  bool Load(const char* name, Words& why);

  void* handle_ = nullptr;
};

// Each gives nullptr and says why, or the library and its name.
gb_dense* OpenOneDnn(const char* path, Words& text);
gb_dense* OpenOpenBlas(const char* path, Words& text);
gb_dense* OpenCuBlas(const char* path, Words& text);

// BeforeSum readies C for a product that is added to it. Where nothing is accumulated it begins
// with the bias, if there is one, which is then no more to be added. It says whether the product
// has to be added.
bool BeforeSum(const gb_gemm_shape& s, const float** bias, float* c);
// AfterSum is what comes after the product: the bias, where one is left, and max(C, 0).
void AfterSum(const gb_gemm_shape& s, const float* bias, float* c);

}  // namespace gradbus

#endif  // GRADBUS_DENSE_LIBRARY_H_
