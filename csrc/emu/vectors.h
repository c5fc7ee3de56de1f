// CUDA's small structs, with its alignments.
#ifndef GRADBUS_EMU_VECTORS_H_
#define GRADBUS_EMU_VECTORS_H_

#define GB_EMU_VECTORS(T, name)                                      \
  struct name##1 {                                                   \
    T x;                                                             \
  };                                                                 \
  struct alignas(2 * sizeof(T)) name##2 {                            \
    T x, y;                                                          \
  };                                                                 \
  struct name##3 {                                                   \
    T x, y, z;                                                       \
  };                                                                 \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 {  \
    T x, y, z, w;                                                    \
  };                                                                 \
  inline name##1 make_##name##1(T x) { return {x}; }                 \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }         \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

GB_EMU_VECTORS(signed char, char)
GB_EMU_VECTORS(unsigned char, uchar)
GB_EMU_VECTORS(short, short)
GB_EMU_VECTORS(unsigned short, ushort)
GB_EMU_VECTORS(int, int)
GB_EMU_VECTORS(unsigned, uint)
GB_EMU_VECTORS(long long, longlong)
GB_EMU_VECTORS(unsigned long long, ulonglong)
GB_EMU_VECTORS(float, float)
GB_EMU_VECTORS(double, double)
#undef GB_EMU_VECTORS

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

#endif  // GRADBUS_EMU_VECTORS_H_
