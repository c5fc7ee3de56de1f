// As much of CUB as csrc/cuda may use, with the signatures of CUB 1.15 and newer, on a CPU.
//
// Called without temporary memory, a function says how much it wants; with less than that it fails.
// What it was given it spoils, as CUB does.
#ifndef GRADBUS_EMU_CUB_CUB_CUH_
#define GRADBUS_EMU_CUB_CUB_CUH_

#include <algorithm>
#include <climits>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "emu/cuda_runtime.h"

namespace cub {

template <typename T>
struct DoubleBuffer {
  T* d_buffers[2] = {nullptr, nullptr};
  int selector = 0;
  DoubleBuffer() = default;
  DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate} {}
  T* Current() { return d_buffers[selector]; }
  T* Alternate() { return d_buffers[selector ^ 1]; }
};

struct Sum {
  template <typename T>
  T operator()(const T& a, const T& b) const {
    return a + b;
  }
};
struct Max {
  template <typename T>
  T operator()(const T& a, const T& b) const {
    return b > a ? b : a;
  }
};
struct Min {
  template <typename T>
  T operator()(const T& a, const T& b) const {
    return b < a ? b : a;
  }
};

template <typename T>
class CountingInputIterator {
 public:
  typedef T value_type;
  typedef T reference;
  typedef const T* pointer;
  typedef ptrdiff_t difference_type;
  typedef std::random_access_iterator_tag iterator_category;
  explicit CountingInputIterator(T at) : at_(at) {}
  T operator*() const { return at_; }
  T operator[](int64_t i) const { return static_cast<T>(at_ + static_cast<T>(i)); }
  CountingInputIterator operator+(int64_t i) const { return CountingInputIterator((*this)[i]); }

 private:
  T at_;
};

template <typename T, typename F, typename From>
class TransformInputIterator {
 public:
  typedef T value_type;
  typedef T reference;
  typedef const T* pointer;
  typedef ptrdiff_t difference_type;
  typedef std::random_access_iterator_tag iterator_category;
  TransformInputIterator(From from, F f) : from_(from), f_(f) {}
  T operator*() const { return f_(*from_); }
  T operator[](int64_t i) const { return f_(from_[i]); }
  TransformInputIterator operator+(int64_t i) const { return {from_ + i, f_}; }

 private:
  From from_;
  F f_;
};

namespace internal {

using gradbus::emu::internal::IsDevice;

template <typename T>
bool IsDeviceArray(T* memory, int64_t n) {
  return IsDevice(memory, static_cast<size_t>(n) * sizeof(T));
}
template <typename Iterator>
bool IsDeviceArray(const Iterator&, int64_t) {
  return true;
}

template <typename T>
bool Overlap(const T* a, const T* b, int64_t n) {
  return n > 0 && a < b + n && b < a + n;
}

// Runs work with temporary memory of at least wanted bytes, or says how many those are. n is the
// number of items, good whether the arrays are where they must be.
template <typename F>
cudaError_t TwoCalls(void* temporary, size_t& bytes, size_t wanted, int64_t n, bool good,
                     cudaStream_t stream, F work) {
  if (temporary == nullptr) return bytes = wanted, cudaSuccess;
  if (bytes < wanted || n < 0) return gradbus::emu::internal::Fail(cudaErrorInvalidValue);
  return gradbus::emu::internal::Enqueue(stream, [=] {
    if (!good || !IsDevice(temporary, wanted)) {
      return gradbus::emu::internal::FailAddress("cub was given memory that is not the device's");
    }
    const gradbus::emu::internal::OnDevice here;
    work();
    std::memset(temporary, 0xa5, wanted);
    return cudaSuccess;
  });
}

// What CUB 1.17 asks for is of this size: blocks of some thousand items leave a word or two each.
inline size_t Wanted(int64_t n, size_t each = 0) {
  return 1023 + static_cast<size_t>(n < 0 ? 0 : n) * each +
         static_cast<size_t>(n < 0 ? 0 : n) / 1024 * 16;
}

}  // namespace internal

struct DeviceRadixSort {
  template <typename K, typename V, typename N>
  static cudaError_t SortPairs(void* temporary, size_t& bytes, const K* keys_in, K* keys_out,
                               const V* values_in, V* values_out, N n, int begin_bit = 0,
                               int end_bit = sizeof(K) * 8, cudaStream_t stream = nullptr,
                               bool = false) {
    const int64_t items = static_cast<int64_t>(n);
    // A call for the size alone needs no arrays.
    const bool overlap = temporary != nullptr &&
                         (internal::Overlap(keys_in, const_cast<const K*>(keys_out), items) ||
                          internal::Overlap(values_in, const_cast<const V*>(values_out), items));
    if (begin_bit < 0 || end_bit > static_cast<int>(sizeof(K) * 8) || begin_bit > end_bit ||
        overlap) {
      return gradbus::emu::internal::Fail(cudaErrorInvalidValue);
    }
    const bool good =
        internal::IsDeviceArray(keys_in, items) && internal::IsDeviceArray(keys_out, items) &&
        internal::IsDeviceArray(values_in, items) && internal::IsDeviceArray(values_out, items);
    return internal::TwoCalls(
        temporary, bytes, internal::Wanted(items, sizeof(K) + sizeof(V)), items, good, stream,
        [=] { Sort(keys_in, keys_out, values_in, values_out, items, begin_bit, end_bit); });
  }

  template <typename K, typename V, typename N>
  static cudaError_t SortPairs(void* temporary, size_t& bytes, DoubleBuffer<K>& keys,
                               DoubleBuffer<V>& values, N n, int begin_bit = 0,
                               int end_bit = sizeof(K) * 8, cudaStream_t stream = nullptr,
                               bool = false) {
    const int64_t items = static_cast<int64_t>(n);
    if (begin_bit < 0 || end_bit > static_cast<int>(sizeof(K) * 8) || begin_bit > end_bit) {
      return gradbus::emu::internal::Fail(cudaErrorInvalidValue);
    }
    const bool good = internal::IsDeviceArray(keys.d_buffers[0], items) &&
                      internal::IsDeviceArray(keys.d_buffers[1], items) &&
                      internal::IsDeviceArray(values.d_buffers[0], items) &&
                      internal::IsDeviceArray(values.d_buffers[1], items);
    K *from = keys.Current(), *to = keys.Alternate();
    V *values_from = values.Current(), *values_to = values.Alternate();
    // CUB takes some bits at a time, from one buffer to the other and back, and where it ends is
    // where the number of rounds leaves it.
    const bool flip = temporary != nullptr && (end_bit - begin_bit + 7) / 8 % 2 == 1;
    const cudaError_t e =
        internal::TwoCalls(temporary, bytes, internal::Wanted(items), items, good, stream, [=] {
          Sort(from, to, values_from, values_to, items, begin_bit, end_bit);
          if (!flip) {
            std::copy(to, to + items, from);
            std::copy(values_to, values_to + items, values_from);
          }
          std::memset(static_cast<void*>(flip ? from : to), 0xa5,
                      static_cast<size_t>(items) * sizeof(K));
          std::memset(static_cast<void*>(flip ? values_from : values_to), 0xa5,
                      static_cast<size_t>(items) * sizeof(V));
        });
    if (e == cudaSuccess && flip) {
      keys.selector ^= 1;
      values.selector ^= 1;
    }
    return e;
  }

 private:
  // Stable, by the bits from begin to end as an unsigned number; the sign of a signed key counts as
  // in CUB, where it comes among the bits.
  template <typename K, typename V>
  static void Sort(const K* keys_in, K* keys_out, const V* values_in, V* values_out, int64_t n,
                   int begin, int end) {
    static_assert(std::is_integral<K>::value, "integer keys");
    typedef std::make_unsigned_t<K> U;
    constexpr int kBits = sizeof(K) * 8;
    const U top = std::is_signed<K>::value ? static_cast<U>(U{1} << (kBits - 1)) : U{0};
    const U mask = end - begin == kBits
                       ? static_cast<U>(~U{0})
                       : static_cast<U>((static_cast<uint64_t>(1) << (end - begin)) - 1);
    const auto digit = [=](int64_t i) {
      return begin == kBits
                 ? U{0}
                 : static_cast<U>(static_cast<U>(static_cast<U>(keys_in[i]) ^ top) >> begin & mask);
    };
    std::vector<int64_t> order(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) order[static_cast<size_t>(i)] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return digit(a) < digit(b); });
    for (int64_t i = 0; i < n; i++) {
      keys_out[i] = keys_in[order[static_cast<size_t>(i)]];
      values_out[i] = values_in[order[static_cast<size_t>(i)]];
    }
  }
};

struct DeviceScan {
  template <typename In, typename Out, typename F, typename T>
  static cudaError_t ExclusiveScan(void* temporary, size_t& bytes, In in, Out out, F f, T first,
                                   int n, cudaStream_t stream = nullptr, bool = false) {
    return internal::TwoCalls(temporary, bytes, internal::Wanted(n), n, Good(in, out, n), stream,
                              [=] {
                                T sum = first;
                                for (int i = 0; i < n; i++) {
                                  const T next = static_cast<T>(f(sum, static_cast<T>(in[i])));
                                  out[i] = sum;
                                  sum = next;
                                }
                              });
  }
  template <typename In, typename Out, typename F>
  static cudaError_t InclusiveScan(void* temporary, size_t& bytes, In in, Out out, F f, int n,
                                   cudaStream_t stream = nullptr, bool = false) {
    return internal::TwoCalls(temporary, bytes, internal::Wanted(n), n, Good(in, out, n), stream,
                              [=] {
                                typedef std::decay_t<decltype(in[0])> T;
                                T sum{};
                                for (int i = 0; i < n; i++) {
                                  sum = i == 0 ? T(in[0]) : static_cast<T>(f(sum, in[i]));
                                  out[i] = sum;
                                }
                              });
  }
  // Sums have the type of what is added.
  template <typename In, typename Out>
  static cudaError_t ExclusiveSum(void* temporary, size_t& bytes, In in, Out out, int n,
                                  cudaStream_t stream = nullptr, bool = false) {
    typedef std::decay_t<decltype(in[0])> T;
    return ExclusiveScan(temporary, bytes, in, out, Sum(), T{}, n, stream);
  }
  template <typename In, typename Out>
  static cudaError_t InclusiveSum(void* temporary, size_t& bytes, In in, Out out, int n,
                                  cudaStream_t stream = nullptr, bool = false) {
    return InclusiveScan(temporary, bytes, in, out, Sum(), n, stream);
  }

 private:
  template <typename In, typename Out>
  static bool Good(In in, Out out, int n) {
    return internal::IsDeviceArray(in, n) && internal::IsDeviceArray(out, n);
  }
};

struct DeviceSelect {
  template <typename In, typename Flags, typename Out, typename Count>
  static cudaError_t Flagged(void* temporary, size_t& bytes, In in, Flags flags, Out out,
                             Count count, int n, cudaStream_t stream = nullptr, bool = false) {
    return Chosen(temporary, bytes, in, out, count, n, internal::IsDeviceArray(flags, n), stream,
                  [=](int i) { return flags[i] != 0; });
  }
  template <typename In, typename Out, typename Count, typename F>
  static cudaError_t If(void* temporary, size_t& bytes, In in, Out out, Count count, int n, F f,
                        cudaStream_t stream = nullptr, bool = false) {
    return Chosen(temporary, bytes, in, out, count, n, true, stream,
                  [=](int i) { return f(in[i]); });
  }
  template <typename In, typename Out, typename Count>
  static cudaError_t Unique(void* temporary, size_t& bytes, In in, Out out, Count count, int n,
                            cudaStream_t stream = nullptr, bool = false) {
    return Chosen(temporary, bytes, in, out, count, n, true, stream,
                  [=](int i) { return i == 0 || !(in[i] == in[i - 1]); });
  }

 private:
  // How many come out is known only at the end, so out is not looked at before.
  template <typename In, typename Out, typename Count, typename F>
  static cudaError_t Chosen(void* temporary, size_t& bytes, In in, Out out, Count count, int n,
                            bool good, cudaStream_t stream, F chosen) {
    good = good && internal::IsDeviceArray(in, n) && internal::IsDeviceArray(count, 1);
    return internal::TwoCalls(temporary, bytes, internal::Wanted(n), n, good, stream, [=] {
      int to = 0;
      for (int i = 0; i < n; i++) {
        if (chosen(i)) out[to++] = in[i];
      }
      *count = to;
    });
  }
};

struct DeviceRunLengthEncode {
  template <typename In, typename Unique, typename Lengths, typename Count>
  static cudaError_t Encode(void* temporary, size_t& bytes, In in, Unique unique, Lengths lengths,
                            Count count, int n, cudaStream_t stream = nullptr, bool = false) {
    const bool good = internal::IsDeviceArray(in, n) && internal::IsDeviceArray(count, 1);
    return internal::TwoCalls(temporary, bytes, internal::Wanted(n), n, good, stream, [=] {
      int runs = 0;
      for (int i = 0, begin = 0; i < n; i++) {
        if (i + 1 < n && in[i + 1] == in[i]) continue;
        unique[runs] = in[i];
        lengths[runs++] = i + 1 - begin;
        begin = i + 1;
      }
      *count = runs;
    });
  }
};

struct DeviceReduce {
  template <typename In, typename Out, typename F, typename T>
  static cudaError_t Reduce(void* temporary, size_t& bytes, In in, Out out, int n, F f, T first,
                            cudaStream_t stream = nullptr, bool = false) {
    const bool good = internal::IsDeviceArray(in, n) && internal::IsDeviceArray(out, 1);
    return internal::TwoCalls(temporary, bytes, internal::Wanted(n), n, good, stream, [=] {
      T sum = first;
      for (int i = 0; i < n; i++) sum = static_cast<T>(f(sum, static_cast<T>(in[i])));
      *out = sum;
    });
  }
  template <typename In, typename Out>
  static cudaError_t Sum(void* temporary, size_t& bytes, In in, Out out, int n,
                         cudaStream_t stream = nullptr, bool = false) {
    typedef std::decay_t<decltype(*out)> T;
    return Reduce(temporary, bytes, in, out, n, cub::Sum(), T{}, stream);
  }
  template <typename In, typename Out>
  static cudaError_t Max(void* temporary, size_t& bytes, In in, Out out, int n,
                         cudaStream_t stream = nullptr, bool = false) {
    typedef std::decay_t<decltype(in[0])> T;
    return Reduce(temporary, bytes, in, out, n, cub::Max(), std::numeric_limits<T>::lowest(),
                  stream);
  }
  template <typename In, typename Out>
  static cudaError_t Min(void* temporary, size_t& bytes, In in, Out out, int n,
                         cudaStream_t stream = nullptr, bool = false) {
    typedef std::decay_t<decltype(in[0])> T;
    return Reduce(temporary, bytes, in, out, n, cub::Min(), std::numeric_limits<T>::max(), stream);
  }
};

}  // namespace cub

#endif  // GRADBUS_EMU_CUB_CUB_CUH_
