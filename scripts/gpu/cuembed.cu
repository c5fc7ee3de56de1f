// Times cuEmbed's forward pass on the sizes that psbench kernels and compare_torch.py have, and
// prints "NAME MILLISECONDS" a line. The ids are uniform; calls go round through several sets of
// them. scripts/gpu/fast.py compiles and runs it.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "cuembed/include/embedding_lookup.cuh"

namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "cuembed: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
T* Device(size_t n) {
  T* to = nullptr;
  Check(cudaMalloc(&to, n * sizeof(T)), "cudaMalloc");
  return to;
}

struct Size {
  const char* name;
  int64_t rows;
  int dim, bags, length;
};

constexpr int kSets = 8, kRuns = 9, kCalls = 64;

void Measure(const Size& s) {
  float* table = Device<float>(s.rows * s.dim);
  float* out = Device<float>(static_cast<size_t>(s.bags) * s.dim);
  Check(cudaMemset(table, 0, s.rows * s.dim * sizeof(float)), "cudaMemset");
  std::mt19937_64 draw(7);
  std::vector<int64_t*> ids;
  std::vector<int64_t> some(static_cast<size_t>(s.bags) * s.length);
  for (int set = 0; set < kSets; set++) {
    for (int64_t& id : some) id = static_cast<int64_t>(draw() % s.rows);
    ids.push_back(Device<int64_t>(some.size()));
    Check(
        cudaMemcpy(ids.back(), some.data(), some.size() * sizeof(int64_t), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  }
  std::vector<int64_t> offsets(s.bags + 1);
  for (int b = 0; b <= s.bags; b++) offsets[b] = static_cast<int64_t>(b) * s.length;
  int64_t* at = Device<int64_t>(offsets.size());
  Check(cudaMemcpy(at, offsets.data(), offsets.size() * sizeof(int64_t), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "cudaEventCreate");
  Check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> runs;
  for (int run = 0; run <= kRuns; run++) {  // the first warms up
    Check(cudaEventRecord(begin), "cudaEventRecord");
    for (int call = 0; call < kCalls; call++) {
      cuembed::EmbeddingForward<float, float, int64_t, int64_t>(
          table, s.dim, ids[call % kSets], at, nullptr, s.bags, 0, cuembed::CombineMode::kSum, out);
    }
    Check(cudaEventRecord(end), "cudaEventRecord");
    Check(cudaEventSynchronize(end), "a call");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    if (run > 0) runs.push_back(milliseconds / kCalls);
  }
  Check(cudaGetLastError(), "a kernel");
  std::sort(runs.begin(), runs.end());
  std::printf("bag_forward %s, %d x %d, uniform, cuEmbed %.6f\n", s.name, s.bags, s.length,
              runs[kRuns / 2]);
  for (int64_t* one : ids) cudaFree(one);
  cudaFree(at);
  cudaFree(out);
  cudaFree(table);
}

}  // namespace

int main() {
  for (const Size& s :
       {Size{"1M x 16", 1000000, 16, 8192, 20}, Size{"1M x 64", 1000000, 64, 8192, 20},
        Size{"1M x 128", 1000000, 128, 8192, 20}, Size{"1M x 256", 1000000, 256, 8192, 20},
        Size{"1M x 64", 1000000, 64, 65536, 1}, Size{"5M x 128", 5000000, 128, 2048, 150}}) {
    Measure(s);
  }
}
