// Vectors of Metal for clang, and their constructors. Shared by the simulator and the translation to PTX, which define
// METAL_FUNC first.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;

// Vectors of clang: swizzles and elementwise arithmetic come with them.
#define SIM_VECTORS(T)                                     \
  typedef T T##2 __attribute__((ext_vector_type(2)));      \
  typedef T T##3 __attribute__((ext_vector_type(3)));      \
  typedef T T##4 __attribute__((ext_vector_type(4)));
SIM_VECTORS(char) SIM_VECTORS(uchar) SIM_VECTORS(short) SIM_VECTORS(ushort) SIM_VECTORS(int) SIM_VECTORS(uint)
SIM_VECTORS(long) SIM_VECTORS(ulong) SIM_VECTORS(half) SIM_VECTORS(float) SIM_VECTORS(bfloat)

// Constructors of vectors: a scalar for all elements, or parts put together.
namespace sim {
  template<class T> struct Info { static constexpr int size = 1; typedef T Element; };
#define SIM_INFO(T)                                                                        \
  template<> struct Info<T##2> { static constexpr int size = 2; typedef T Element; };      \
  template<> struct Info<T##3> { static constexpr int size = 3; typedef T Element; };      \
  template<> struct Info<T##4> { static constexpr int size = 4; typedef T Element; };
  SIM_INFO(char) SIM_INFO(uchar) SIM_INFO(short) SIM_INFO(ushort) SIM_INFO(int) SIM_INFO(uint)
  SIM_INFO(long) SIM_INFO(ulong) SIM_INFO(half) SIM_INFO(float) SIM_INFO(bfloat)
  template<class V, class A> inline __attribute__((always_inline)) void put(V& v, int& at, A part) {
    typedef typename Info<V>::Element E;
    if constexpr (Info<A>::size == 1) v[at++] = (E)part;
    else for (int i = 0; i < Info<A>::size; ++i) v[at++] = (E)part[i];
  }
  template<class V, class... A> inline __attribute__((always_inline)) V vector(A... parts) {
    static_assert((Info<A>::size + ... + 0) == Info<V>::size || (sizeof...(A) == 1 && (Info<A>::size + ... + 0) == 1),
                  "a vector needs as many elements as it has, or one for all");
    V v; int at = 0;
    (put(v, at, parts), ...);
    for (int i = 1; at == 1 && i < Info<V>::size; ++i) v[i] = v[0];
    return v;
  }
}

template<class T, class U> inline T as_type(U value) {
  static_assert(sizeof(T) == sizeof(U));
  return __builtin_bit_cast(T, value);
}
