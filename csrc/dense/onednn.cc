// oneDNN 2: matrix products and convolutions. Primitives take milliseconds to make, so they are
// kept, by shape.
#include <cstring>
#include <new>
#include <shared_mutex>
#include <unordered_map>

#include "dense/library.h"
#include "dense/plan.h"

namespace gradbus {
namespace onednn {
namespace {

enum Kind : int64_t { kMatMul, kConvForward, kConvInput, kConvParams };

// Key is everything that a plan depends on.
struct Key {
  int64_t words[15];
  bool operator==(const Key& k) const { return std::memcmp(words, k.words, sizeof words) == 0; }
};

struct KeyHash {
  size_t operator()(const Key& k) const {
    uint64_t h = 14695981039346656037u;
    for (const int64_t w : k.words) h = (h ^ static_cast<uint64_t>(w)) * 1099511628211u;
    return h ^ h >> 32;
  }
};

// Plans kept at most: a model has a few for each of its layers and batch sizes.
constexpr size_t kPlansMost = 512;

class OneDnn : public gb_dense {
 public:
  OneDnn(const Functions& f, void* engine, void (*set_threads)(int))
      : engine_(f, engine, set_threads) {}

  bool Convolves() const override { return true; }
  gb_status Gemm(const gb_gemm_shape& s, const float* a, const float* b, const float* bias,
                 float* c, gb_report* report) override;
  gb_status ConvForward(const gb_conv_shape& s, const float* x, const float* weight,
                        const float* bias, float* y, gb_report* report) override;
  gb_status ConvBackwardInput(const gb_conv_shape& s, const float* grad_y, const float* weight,
                              float* grad_x, gb_report* report) override;
  gb_status ConvBackwardParams(const gb_conv_shape& s, const float* x, const float* grad_y,
                               float* grad_weight, float* grad_bias, gb_report* report) override;

 private:
  struct Kept {
    std::shared_ptr<Plan> plan;
    uint64_t used;
  };

  // Get finds the plan, or makes it with make(&status).
  template <typename Make>
  std::shared_ptr<Plan> Get(const Key& key, int* status, Make&& make);
  template <typename Make>
  gb_status Run(const Key& key, float* const* tensors, gb_report* report, Make&& make);
  void Forget();
  std::shared_ptr<Plan> MakeMatMul(const gb_gemm_shape& s, bool bias, int* status);
  std::shared_ptr<Plan> MakeConv(Kind kind, const gb_conv_shape& s, bool bias, int* status);
  std::shared_ptr<Plan> MakeConvIn(Kind kind, const gb_conv_shape& s, bool bias, bool as_given,
                                   bool demanding, int* status);
  void* ConvDesc(Kind kind, const Desc* d, const gb_conv_shape& s, bool bias, int* status);
  Desc DescOf(std::initializer_list<int64_t> dims, int tag) const;
  void* Attributes(bool relu, int* status) const;

  Engine engine_;
  std::shared_mutex mutex_;
  std::unordered_map<Key, Kept, KeyHash> plans_;
  uint64_t clock_ = 0;  // rises when a plan is made
};

gb_status Said(int status, gb_report* report) {
  if (status == kSuccess) return Done(report);
  if (status == kOutOfMemory) return Fail(report, GB_MEMORY, "out of memory");
  return Fail(report, GB_DEVICE, "oneDNN failed; have is its status", -1, status);
}

template <typename Make>
std::shared_ptr<Plan> OneDnn::Get(const Key& key, int* status, Make&& make) {
  *status = kSuccess;
  {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    const auto at = plans_.find(key);
    if (at != plans_.end()) {
      __atomic_store_n(&at->second.used, clock_, __ATOMIC_RELAXED);
      return at->second.plan;
    }
  }
  engine_.OneThread();  // a primitive is made for so many threads
  std::shared_ptr<Plan> plan = make(status);
  if (plan == nullptr) return plan;
  std::unique_lock<std::shared_mutex> lock(mutex_);
  if (plans_.size() >= kPlansMost) Forget();
  return plans_.emplace(key, Kept{plan, ++clock_}).first->second.plan;
}

// Forget drops the plan that was used longest ago.
void OneDnn::Forget() {
  auto oldest = plans_.begin();
  for (auto at = plans_.begin(); at != plans_.end(); ++at) {
    if (at->second.used < oldest->second.used) oldest = at;
  }
  plans_.erase(oldest);
}

template <typename Make>
gb_status OneDnn::Run(const Key& key, float* const* tensors, gb_report* report, Make&& make) {
  int status;
  const std::shared_ptr<Plan> plan = Get(key, &status, make);
  return Said(plan == nullptr ? status : plan->Run(tensors), report);
}

Desc OneDnn::DescOf(std::initializer_list<int64_t> dims, int tag) const {
  Desc d;
  std::memset(&d, 0, sizeof d);
  int64_t all[12] = {};
  int n = 0;
  for (const int64_t dim : dims) all[n++] = dim;
  engine_.f.memory_desc_init_by_tag(&d, n, all, kFloat32, tag);
  return d;
}

// Attributes: the scratchpad is ours, since the library's own is not for several threads.
void* OneDnn::Attributes(bool relu, int* status) const {
  const Functions& f = engine_.f;
  void *attr = nullptr, *ops = nullptr;
  *status = f.primitive_attr_create(&attr);
  if (*status == kSuccess) *status = f.primitive_attr_set_scratchpad_mode(attr, kScratchpadUser);
  if (relu && *status == kSuccess) {
    *status = f.post_ops_create(&ops);
    if (*status == kSuccess) *status = f.post_ops_append_eltwise(ops, 1, kRelu, 0, 0);
    if (*status == kSuccess) *status = f.primitive_attr_set_post_ops(attr, ops);
    if (ops != nullptr) f.post_ops_destroy(ops);
  }
  return attr;
}

// The product of a transposed B is faster as a primitive, everything else, and products of few
// rows, as sgemm: docs/dependencies.md has the figures.
bool AsPrimitive(const gb_gemm_shape& s) {
  return !s.trans_a && s.trans_b && !s.accumulate && s.m >= 16 && s.k >= 16;
}

gb_status OneDnn::Gemm(const gb_gemm_shape& s, const float* a, const float* b, const float* bias,
                       float* c, gb_report* report) {
  if (AsPrimitive(s)) {
    Key key = {{kMatMul, s.m, s.n, s.k, s.relu, bias != nullptr}};
    float* const tensors[] = {const_cast<float*>(a), const_cast<float*>(b), c,
                              const_cast<float*>(bias)};
    return Run(key, tensors, report,
               [&](int* status) { return MakeMatMul(s, bias != nullptr, status); });
  }
  engine_.OneThread();
  const float beta = BeforeSum(s, &bias, c) ? 1 : 0;
  const int status =
      engine_.f.sgemm(s.trans_a ? 'T' : 'N', s.trans_b ? 'T' : 'N', s.m, s.n, s.k, 1, a,
                      s.trans_a ? s.m : s.k, b, s.trans_b ? s.k : s.n, beta, c, s.n);
  AfterSum(s, bias, c);
  return Said(status, report);
}

std::shared_ptr<Plan> OneDnn::MakeMatMul(const gb_gemm_shape& s, bool bias, int* status) {
  const Functions& f = engine_.f;
  const Operand operands[] = {{kArgSrc, Query(), false, DescOf({s.m, s.k}, kAB)},
                              {kArgWeights, Query(), false, DescOf({s.k, s.n}, kBA)},
                              {kArgDst, Query(), true, DescOf({s.m, s.n}, kAB)},
                              {kArgBias, Query(), false, DescOf({1, s.n}, kAB)}};
  Operation operation;
  void* desc = nullptr;
  void* attr = Attributes(s.relu != 0, status);
  if (*status == kSuccess) {
    *status = f.matmul_desc_init(&operation, &operands[0].given, &operands[1].given,
                                 bias ? &operands[3].given : nullptr, &operands[2].given);
  }
  if (*status == kSuccess) {
    *status = f.primitive_desc_create(&desc, &operation, attr, engine_.handle, nullptr);
  }
  if (attr != nullptr) f.primitive_attr_destroy(attr);
  if (*status != kSuccess) return nullptr;
  return Plan::Make(&engine_, desc, operands, bias ? 4 : 3, status);
}

int64_t Windows(int64_t n, int64_t kernel, int64_t stride, int64_t pad) {
  return (n + 2 * pad - kernel) / stride + 1;
}

Key ConvKey(Kind kind, const gb_conv_shape& s, bool bias) {
  return {{kind, s.n, s.c, s.h, s.w, s.out, s.kernel_h, s.kernel_w, s.stride_h, s.stride_w, s.pad_h,
           s.pad_w, s.channels_last, s.relu, bias}};
}

enum { kX, kWeight, kY, kBias, kSides };

// ConvDesc gives the primitive's descriptor for the orders in d.
void* OneDnn::ConvDesc(Kind kind, const Desc* d, const gb_conv_shape& s, bool bias, int* status) {
  const Functions& f = engine_.f;
  const int64_t strides[] = {s.stride_h, s.stride_w}, pad[] = {s.pad_h, s.pad_w};
  const Desc* with = bias ? &d[kBias] : nullptr;
  Operation forward, backward;
  void *hint = nullptr, *desc = nullptr;
  void* attr = Attributes(kind == kConvForward && s.relu != 0, status);
  if (*status == kSuccess) {
    *status = f.convolution_forward_desc_init(&forward, kForwardTraining, kDirect, &d[kX],
                                              &d[kWeight], kind == kConvInput ? nullptr : with,
                                              &d[kY], strides, pad, pad);
  }
  if (*status == kSuccess) {
    *status = f.primitive_desc_create(&hint, &forward, attr, engine_.handle, nullptr);
  }
  if (kind == kConvForward) {
    desc = hint;
    hint = nullptr;
  } else if (*status == kSuccess) {
    *status = kind == kConvInput
                  ? f.convolution_backward_data_desc_init(&backward, kDirect, &d[kX], &d[kWeight],
                                                          &d[kY], strides, pad, pad)
                  : f.convolution_backward_weights_desc_init(
                        &backward, kDirect, &d[kX], &d[kWeight], with, &d[kY], strides, pad, pad);
    if (*status == kSuccess) {
      *status = f.primitive_desc_create(&desc, &backward, attr, engine_.handle, hint);
    }
  }
  if (hint != nullptr) f.primitive_desc_destroy(hint);
  if (attr != nullptr) f.primitive_attr_destroy(attr);
  return desc;
}

// MakeConvIn leaves x and y in the caller's order or has the library choose. A demanding caller
// does without what the library calls its reference: it is slower by a hundred times.
std::shared_ptr<Plan> OneDnn::MakeConvIn(Kind kind, const gb_conv_shape& s, bool bias,
                                         bool as_given, bool demanding, int* status) {
  const int64_t oh = Windows(s.h, s.kernel_h, s.stride_h, s.pad_h);
  const int64_t ow = Windows(s.w, s.kernel_w, s.stride_w, s.pad_w);
  const int images = s.channels_last ? kACDB : kABCD;
  const auto all = [&](int image, int weight, Desc* d) {
    d[kX] = DescOf({s.n, s.c, s.h, s.w}, image);
    d[kWeight] = DescOf({s.out, s.c, s.kernel_h, s.kernel_w}, weight);
    d[kY] = DescOf({s.n, s.out, oh, ow}, image);
    d[kBias] = DescOf({s.out}, kA);
  };
  Desc given[kSides], wanted[kSides];
  all(images, kABCD, given);
  all(as_given ? images : kAny, kAny, wanted);
  void* desc = ConvDesc(kind, wanted, s, bias, status);
  if (desc == nullptr) return nullptr;
  const char* info = "";
  engine_.f.primitive_desc_query(desc, kQueryInfo, 0, &info);
  if (demanding && std::strncmp(info, "ref", 3) == 0) {
    engine_.f.primitive_desc_destroy(desc);
    return nullptr;
  }
  Operand o[kSides] = {};
  switch (kind) {
    case kConvForward:
      o[0] = {kArgSrc, kQuerySrc, false, given[kX]};
      o[1] = {kArgWeights, kQueryWeights, false, given[kWeight]};
      o[2] = {kArgDst, kQueryDst, true, given[kY]};
      o[3] = {kArgBias, Query(), false, given[kBias]};
      break;
    case kConvInput:
      o[0] = {kArgDiffDst, kQueryDiffDst, false, given[kY]};
      o[1] = {kArgWeights, kQueryWeights, false, given[kWeight]};
      o[2] = {kArgDiffSrc, kQueryDiffSrc, true, given[kX]};
      break;
    default:
      o[0] = {kArgSrc, kQuerySrc, false, given[kX]};
      o[1] = {kArgDiffDst, kQueryDiffDst, false, given[kY]};
      o[2] = {kArgDiffWeights, kQueryDiffWeights, true, given[kWeight]};
      o[3] = {kArgDiffBias, Query(), true, given[kBias]};
  }
  return Plan::Make(&engine_, desc, o, bias ? 4 : 3, status);
}

// MakeConv: images with their channels last stay as they are, where the library has something fast
// for that; others are brought into the order that the library likes and back. So are all for the
// gradient of the weights, whose kernels for channels in blocks make up for the copies.
std::shared_ptr<Plan> OneDnn::MakeConv(Kind kind, const gb_conv_shape& s, bool bias, int* status) {
  if (s.channels_last && kind != kConvParams) {
    if (auto plan = MakeConvIn(kind, s, bias, true, true, status)) return plan;
  }
  return MakeConvIn(kind, s, bias, false, false, status);
}

gb_status OneDnn::ConvForward(const gb_conv_shape& s, const float* x, const float* weight,
                              const float* bias, float* y, gb_report* report) {
  float* const tensors[] = {const_cast<float*>(x), const_cast<float*>(weight), y,
                            const_cast<float*>(bias)};
  return Run(ConvKey(kConvForward, s, bias != nullptr), tensors, report,
             [&](int* status) { return MakeConv(kConvForward, s, bias != nullptr, status); });
}

gb_status OneDnn::ConvBackwardInput(const gb_conv_shape& s, const float* grad_y,
                                    const float* weight, float* grad_x, gb_report* report) {
  float* const tensors[] = {const_cast<float*>(grad_y), const_cast<float*>(weight), grad_x};
  return Run(ConvKey(kConvInput, s, false), tensors, report,
             [&](int* status) { return MakeConv(kConvInput, s, false, status); });
}

gb_status OneDnn::ConvBackwardParams(const gb_conv_shape& s, const float* x, const float* grad_y,
                                     float* grad_weight, float* grad_bias, gb_report* report) {
  float* const tensors[] = {const_cast<float*>(x), const_cast<float*>(grad_y), grad_weight,
                            grad_bias};
  return Run(ConvKey(kConvParams, s, grad_bias != nullptr), tensors, report,
             [&](int* status) { return MakeConv(kConvParams, s, grad_bias != nullptr, status); });
}

const char* IsaName(int isa) {
  switch (isa) {
    case 0x1:
      return "sse41";
    case 0x3:
      return "avx";
    case 0x7:
      return "avx2";
    case 0x27:
      return "avx512_core";
    case 0x67:
      return "avx512_core_vnni";
    case 0xe7:
      return "avx512_core_bf16";
    case 0x3e7:
      return "avx512_core_amx";
    case 0x407:
      return "avx2_vnni";
  }
  return "unknown_isa";
}

}  // namespace
}  // namespace onednn

gb_dense* OpenOneDnn(const char* path, Words& text) {
  using namespace onednn;
  Shared shared;
  Functions f;
  if (!shared.Open(path, {"libdnnl.so.2"}, text)) return nullptr;
#define GRADBUS_FIND(name, result, parameters) \
  if (!shared.Find("dnnl_" #name, &f.name, text)) return nullptr;
  GRADBUS_ONEDNN_FUNCTIONS(GRADBUS_FIND)
#undef GRADBUS_FIND
  const Version& v = *f.version();
  if (v.major != 2) {
    text << "it is version " << v.major << ", want 2";
    return nullptr;
  }
  void (*set_threads)(int) = nullptr;
  if (v.cpu_runtime == kRuntimeOpenMp) {
    if (!shared.Find("omp_set_num_threads", &set_threads, text)) return nullptr;
    set_threads(1);
  } else if (v.cpu_runtime != kRuntimeSequential) {
    text << "it is built on threads that cannot be held to one; want OpenMP or none";
    return nullptr;
  }
  void* engine = nullptr;
  if (const int status = f.engine_create(&engine, kCpu, 0); status != kSuccess) {
    text << "it has no engine for this processor (status " << status << ")";
    return nullptr;
  }
  text << "onednn " << v.major << "." << v.minor << "." << v.patch << " "
       << IsaName(f.get_effective_cpu_isa());
  auto* d = new (std::nothrow) OneDnn(f, engine, set_threads);
  if (d == nullptr) f.engine_destroy(engine);
  return d;
}

}  // namespace gradbus
