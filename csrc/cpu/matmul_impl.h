// C = op(A) x op(B) (+ bias) in canonical order over k. B is packed into panels of a few registers'
// width, padded with zeros; a tile of C stays in registers for a whole block of 64 products.
// Included by kernels_impl.h.
//
// This is the plain register-blocked product, good for the small layers that run beside embeddings;
// it does not block for the caches.

namespace gradbus {
namespace GB_ISA {

constexpr int kPanel =
    GB_WIDTH >= 16 ? 4
                   : 2;   // registers across; with 4 rows the tile fills half of the register file
constexpr int kTall = 4;  // rows of a tile

constexpr int64_t PanelsOf(int64_t n) { return (n + kPanel * kWidth - 1) / (kPanel * kWidth); }

int64_t PackedFloats(int64_t n, int64_t k) { return PanelsOf(n) * kPanel * kWidth * k; }

// Pack copies columns [column, column + wide) of op(B) into one panel: k rows of kPanel * kWidth
// floats.
inline void Pack(const MatMulRun& r, int64_t column, int64_t wide, float* to) {
  constexpr int64_t kAcross = kPanel * kWidth;
  if (r.trans_b) {
    for (int64_t j = 0; j < kAcross; j++) {
      const float* from = r.b + (column + j) * r.k;
      for (int64_t k = 0; k < r.k; k++) to[k * kAcross + j] = j < wide ? from[k] : 0;
    }
    return;
  }
  for (int64_t k = 0; k < r.k; k++) {
    const float* from = r.b + k * r.n + column;
    for (int64_t j = 0; j < wide; j++) to[k * kAcross + j] = from[j];
    for (int64_t j = wide; j < kAcross; j++) to[k * kAcross + j] = 0;
  }
}

// Tile is kRows x kCols registers of running sums.
template <int kRows, int kCols>
struct Tile {
  Vec<kWidth>::Type v[kRows][kCols];
  void Clear() {
    for (int i = 0; i < kRows; i++) {
      for (int j = 0; j < kCols; j++) v[i][j] = Vec<kWidth>::Type{};
    }
  }
  void Add(const Tile& t) {
    for (int i = 0; i < kRows; i++) {
      for (int j = 0; j < kCols; j++) v[i][j] += t.v[i][j];
    }
  }
};

// Products adds n products to each sum. A's element (row, k) is a[row * across + k * along].
template <int kRows, int kCols>
inline void Products(const float* a, int64_t across, int64_t along, const float* b, int64_t n,
                     Tile<kRows, kCols>& acc) {
  using V = Vec<kWidth>;
  for (int64_t k = 0; k < n; k++) {
    V::Type row[kCols];
    for (int j = 0; j < kCols; j++) row[j] = V::Load(b + k * kPanel * kWidth + j * kWidth);
    for (int i = 0; i < kRows; i++) {
      const V::Type x = V::All(a[i * across + k * along]);
      for (int j = 0; j < kCols; j++) acc.v[i][j] += x * row[j];
    }
  }
}

template <int kRows, int kCols>
inline void MatMulTile(const MatMulRun& r, const float* panel, int64_t row, int64_t column) {
  const int64_t across = r.trans_a ? 1 : r.k, along = r.trans_a ? r.m : 1;
  const float* a = r.a + row * across;
  Tile<kRows, kCols> total;
  total.Clear();
  if (r.k <= kBlock) {
    Products(a, across, along, panel, r.k, total);
  } else {
    for (int64_t lo = 0; lo < r.k; lo += kSuper) {
      const int64_t end = Least(lo + kSuper, r.k);
      Tile<kRows, kCols> super;
      super.Clear();
      for (int64_t k = lo; k < end; k += kBlock) {
        Tile<kRows, kCols> block;
        block.Clear();
        Products(a + k * along, across, along, panel + k * kPanel * kWidth, Least(kBlock, end - k),
                 block);
        super.Add(block);
      }
      total.Add(super);
    }
  }
  float out[kCols * kWidth];
  const int64_t wide = Least(kCols * kWidth, r.n - column);
  for (int i = 0; i < kRows; i++) {
    for (int j = 0; j < kCols; j++) Vec<kWidth>::Store(out + j * kWidth, total.v[i][j]);
    float* c = r.c + (row + i) * r.n + column;
    if (r.bias != nullptr) {
      for (int64_t j = 0; j < wide; j++) c[j] = out[j] + r.bias[column + j];
    } else {
      for (int64_t j = 0; j < wide; j++) c[j] = out[j];
    }
  }
}

template <int kCols>
inline void MatMulPanel(const MatMulRun& r, const float* panel, int64_t column) {
  int64_t row = 0;
  for (; r.m - row >= kTall; row += kTall) MatMulTile<kTall, kCols>(r, panel, row, column);
  for (; row < r.m; row++) MatMulTile<1, kCols>(r, panel, row, column);
}

void MatMul(const MatMulRun& r) {
  constexpr int64_t kAcross = kPanel * kWidth;
  for (int64_t column = 0; column < r.n; column += kAcross) {
    const int64_t wide = Least(kAcross, r.n - column);
    float* panel = r.packed + column * r.k;
    Pack(r, column, wide, panel);
    if (wide <= kWidth) {
      MatMulPanel<1>(r, panel, column);
    } else if (kPanel > 2 && wide <= 2 * kWidth) {
      MatMulPanel<2>(r, panel, column);
    } else {
      MatMulPanel<kPanel>(r, panel, column);
    }
  }
}

}  // namespace GB_ISA
}  // namespace gradbus
