// Pooling and the elementwise operations of layers, compiled once per instruction set by
// maps_<isa>.cc after GB_ISA, GB_WIDTH, GB_MAPS and GB_NAME. Plain loops along contiguous memory:
// the compiler makes vectors of them, and an element's operations are the same in all. Sums are in
// canonical order.
#include <cstdint>

#include "core/order.h"
#include "cpu/vector.h"
#include "gradbus_dense.h"

namespace gradbus {
namespace GB_ISA {
namespace {

void ReluForward(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] <= 0 ? 0 : x[i];
}

void ReluBackward(const float* y, const float* grad_y, int64_t n, float* grad_x) {
  for (int64_t i = 0; i < n; i++) grad_x[i] = y[i] > 0 ? grad_y[i] : 0;
}

void AddBias(const float* x, const float* bias, int64_t rows, int64_t columns, float* y) {
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < columns; j++) y[i * columns + j] = x[i * columns + j] + bias[j];
  }
}

void Scale(const float* x, const float* by, int64_t n, int64_t c, int64_t plane, uint32_t last,
           float* out) {
  if (last != 0 || plane == 1) {
    for (int64_t i = 0; i < n; i++) {
      for (int64_t p = 0; p < plane; p++) {
        const int64_t at = (i * plane + p) * c;
        for (int64_t j = 0; j < c; j++) out[at + j] = x[at + j] * by[i * c + j];
      }
    }
    return;
  }
  for (int64_t i = 0; i < n * c; i++) {
    const float factor = by[i];
    for (int64_t p = 0; p < plane; p++) out[i * plane + p] = x[i * plane + p] * factor;
  }
}

constexpr int kSide = 16;  // of the tiles that are transposed

void Transpose(const float* x, int64_t n, int64_t rows, int64_t columns, float* y) {
  for (; n > 0; n--, x += rows * columns, y += rows * columns) {
    for (int64_t row = 0; row < rows; row += kSide) {
      const int64_t tall = Least(kSide, rows - row);
      for (int64_t column = 0; column < columns; column += kSide) {
        const int64_t wide = Least(kSide, columns - column);
        for (int64_t j = 0; j < wide; j++) {
          for (int64_t i = 0; i < tall; i++) {
            y[(column + j) * rows + row + i] = x[(row + i) * columns + column + j];
          }
        }
      }
    }
  }
}

// Strides say where the value (channel, place) of an image lies.
struct Strides {
  int64_t image, channel, place;
  Strides(uint32_t last, int64_t c, int64_t plane)
      : image(c * plane), channel(last ? 1 : plane), place(last ? c : 1) {}
};

// Window is the part of a window that lies in the image.
struct Window {
  int64_t top, bottom, left, right;
  Window(const gb_pool_shape& s, int64_t row, int64_t column) {
    const int64_t h = row * s.stride_h - s.pad_h, w = column * s.stride_w - s.pad_w;
    top = h < 0 ? 0 : h;
    bottom = Least(h + s.kernel_h, s.h);
    left = w < 0 ? 0 : w;
    right = Least(w + s.kernel_w, s.w);
  }
};

// LargestOf finds the largest values of a window in neighbouring channels; step is from one place
// to the next.
template <typename V>
inline void LargestOf(const gb_pool_shape& s, const Window& window, const float* x, int64_t step,
                      float* y, int32_t* argmax) {
  int32_t at = static_cast<int32_t>(window.top * s.w + window.left);
  typename V::Type top = V::Load(x + at * step);
  typename V::Ints place = typename V::Ints{} + at;
  for (int64_t h = window.top; h < window.bottom; h++) {
    for (int64_t w = window.left; w < window.right; w++) {
      at = static_cast<int32_t>(h * s.w + w);
      const typename V::Type v = V::Load(x + at * step);
      const auto take = (v > top) | ((v != v) & (top == top));
      top = take ? v : top;
      place = take ? typename V::Ints{} + at : place;
    }
  }
  V::Store(y, top);
  if (argmax != nullptr) V::StoreInts(argmax, place);
}

// PoolChannels does neighbouring channels of a row of windows; the channels lie together in x and
// argmax.
template <typename V>
inline void PoolChannels(const gb_pool_shape& s, int64_t row, const float* x, const Strides& out,
                         float* y, int32_t* argmax) {
  float top[kSide][V::kWidth];
  for (int64_t column = 0; column < s.out_w; column += kSide) {
    const int64_t many = Least(kSide, s.out_w - column), at = row * s.out_w + column;
    for (int64_t i = 0; i < many; i++) {
      float* to = out.channel == 1 ? y + (at + i) * out.place : top[i];
      LargestOf<V>(s, Window(s, row, column + i), x, s.c, to,
                   argmax == nullptr ? nullptr : argmax + (at + i) * s.c);
    }
    if (out.channel == 1) continue;
    for (int j = 0; j < V::kWidth; j++) {
      float* to = y + j * out.channel + at * out.place;
      for (int64_t i = 0; i < many; i++) to[i * out.place] = top[i][j];
    }
  }
}

// PoolPlane does one channel, whose values lie together in x and argmax.
void PoolPlane(const gb_pool_shape& s, const float* x, const Strides& out, float* y,
               int32_t* argmax) {
  for (int64_t row = 0; row < s.out_h; row++) {
    for (int64_t column = 0; column < s.out_w; column++) {
      const int64_t to = row * s.out_w + column;
      LargestOf<Vec<1>>(s, Window(s, row, column), x, 1, y + to * out.place,
                        argmax == nullptr ? nullptr : argmax + to);
    }
  }
}

void PoolForward(const gb_pool_shape* shape, const float* x, float* y, int32_t* argmax) {
  const gb_pool_shape& s = *shape;
  const int64_t windows = s.out_h * s.out_w;
  const Strides in(s.x_last, s.c, s.h * s.w), out(s.y_last, s.c, windows);
  for (int64_t image = 0; image < s.n; image++) {
    const float* from = x + image * in.image;
    float* to = y + image * out.image;
    int32_t* places = argmax == nullptr ? nullptr : argmax + image * out.image;
    if (s.x_last == 0) {
      for (int64_t c = 0; c < s.c; c++) {
        PoolPlane(s, from + c * in.channel, out, to + c * out.channel,
                  places == nullptr ? nullptr : places + c * windows);
      }
      continue;
    }
    for (int64_t row = 0; row < s.out_h; row++) {
      ForWidths<kWidth>(s.c, 0, [&](auto vec, int64_t c) {
        PoolChannels<decltype(vec)>(s, row, from + c, out, to + c * out.channel,
                                    places == nullptr ? nullptr : places + c);
      });
    }
  }
}

// Spread writes the gradient of neighbouring channels of a row of windows. The channels lie
// together in x and argmax; the windows do not overlap and leave no place out.
template <typename V>
inline void Spread(const gb_pool_shape& s, int64_t row, const float* grad_y, const int32_t* argmax,
                   const Strides& out, float* grad_x) {
  float grads[kSide][V::kWidth];
  for (int64_t column = 0; column < s.out_w; column += kSide) {
    const int64_t many = Least(kSide, s.out_w - column), at = row * s.out_w + column;
    for (int j = 0; j < V::kWidth; j++) {
      const float* from = grad_y + j * out.channel + at * out.place;
      for (int64_t i = 0; i < many; i++) grads[i][j] = 0.0f + from[i * out.place];
    }
    for (int64_t i = 0; i < many; i++) {
      const typename V::Type grad = V::Load(grads[i]), zero = {};
      const typename V::Ints place = V::LoadInts(argmax + (at + i) * s.c);
      const Window window(s, row, column + i);
      for (int64_t h = window.top; h < window.bottom; h++) {
        for (int64_t w = window.left; w < window.right; w++) {
          const int32_t here = static_cast<int32_t>(h * s.w + w);
          V::Store(grad_x + here * s.c, place == here ? grad : zero);
        }
      }
    }
  }
}

// Covered says whether the windows lie side by side and cover every place.
bool Covered(const gb_pool_shape& s) {
  return s.pad_h == 0 && s.pad_w == 0 && s.stride_h == s.kernel_h && s.stride_w == s.kernel_w &&
         s.out_h * s.stride_h == s.h && s.out_w * s.stride_w == s.w;
}

// OutOfPlane is the position of the first of n places that does not lie in the plane, or -1.
int64_t OutOfPlane(const int32_t* argmax, int64_t n, uint32_t plane) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; i++) bad |= static_cast<uint32_t>(argmax[i]) >= plane ? 1 : 0;
  if (bad == 0) return -1;
  int64_t at = 0;
  while (static_cast<uint32_t>(argmax[at]) < plane) at++;
  return at;
}

int64_t PoolBackward(const gb_pool_shape* shape, const float* grad_y, const int32_t* argmax,
                     float* grad_x) {
  const gb_pool_shape& s = *shape;
  const int64_t windows = s.out_h * s.out_w;
  const Strides in(s.x_last, s.c, s.h * s.w), out(s.y_last, s.c, windows);
  const Strides at(s.x_last, s.c, windows);  // in argmax
  const int64_t bad = OutOfPlane(argmax, s.n * out.image, static_cast<uint32_t>(s.h * s.w));
  if (bad >= 0) return bad;
  const bool covered = s.x_last != 0 && Covered(s);
  if (!covered) {
    for (int64_t i = 0; i < s.n * in.image; i++) grad_x[i] = 0;
  }
  for (int64_t image = 0; image < s.n; image++) {
    const float* grad = grad_y + image * out.image;
    const int32_t* place = argmax + image * at.image;
    float* to = grad_x + image * in.image;
    for (int64_t row = 0; covered && row < s.out_h; row++) {
      ForWidths<kWidth>(s.c, 0, [&](auto vec, int64_t c) {
        Spread<decltype(vec)>(s, row, grad + c * out.channel, place + c, out, to + c);
      });
    }
    for (int64_t c = 0; !covered && c < s.c; c++) {
      for (int64_t window = 0; window < windows; window++) {
        to[c * in.channel + place[c * at.channel + window * at.place] * in.place] +=
            grad[c * out.channel + window * out.place];
      }
    }
  }
  return -1;
}

}  // namespace
}  // namespace GB_ISA
}  // namespace gradbus

#include "cpu/math.h"  // these after vector.h
#include "cpu/softmax.h"

namespace gradbus {
namespace GB_ISA {
namespace {

void ColumnSums(const float* x, int64_t rows, int64_t columns, float* out) {
  int64_t at = 0;
  for (; columns - at >= 64; at += 64) Sums<64>(x + at, 1, columns, rows, out + at);
  for (; columns - at >= 16; at += 16) Sums<16>(x + at, 1, columns, rows, out + at);
  for (; at < columns; at++) Sums<1>(x + at, 1, columns, rows, out + at);
}

void SoftmaxForward(const float* x, int64_t rows, int64_t columns, uint32_t log, float* scratch,
                    float* y) {
  for (; rows > 0; rows--, x += columns, y += columns) {
    const float top = Largest(x, columns);
    Exponentials(x, top, columns, scratch);
    float total;
    Sums<1>(scratch, 0, 1, columns, &total);
    if (log != 0) {
      const float by = Log(total);
      for (int64_t j = 0; j < columns; j++) y[j] = (x[j] - top) - by;
    } else {
      for (int64_t j = 0; j < columns; j++) y[j] = scratch[j] / total;
    }
  }
}

void SoftmaxBackward(const float* y, const float* grad_y, int64_t rows, int64_t columns,
                     uint32_t log, float* scratch, float* grad_x) {
  for (; rows > 0; rows--, y += columns, grad_y += columns, grad_x += columns) {
    float total;
    if (log != 0) {
      Sums<1>(grad_y, 0, 1, columns, &total);
      Exponentials(y, 0, columns, scratch);
      for (int64_t j = 0; j < columns; j++) grad_x[j] = grad_y[j] - scratch[j] * total;
    } else {
      for (int64_t j = 0; j < columns; j++) scratch[j] = grad_y[j] * y[j];
      Sums<1>(scratch, 0, 1, columns, &total);
      for (int64_t j = 0; j < columns; j++) grad_x[j] = y[j] * (grad_y[j] - total);
    }
  }
}

}  // namespace
}  // namespace GB_ISA

extern const gb_maps GB_MAPS;
const gb_maps GB_MAPS = {
    sizeof(gb_maps),
    0,
    GB_NAME,
    GB_ISA::ReluForward,
    GB_ISA::ReluBackward,
    GB_ISA::AddBias,
    GB_ISA::ColumnSums,
    GB_ISA::Scale,
    GB_ISA::Transpose,
    GB_ISA::PoolForward,
    GB_ISA::PoolBackward,
    GB_ISA::SoftmaxForward,
    GB_ISA::SoftmaxBackward,
};

}  // namespace gradbus
