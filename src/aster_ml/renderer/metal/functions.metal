//! Functions of Aster in Metal's language. A pointer's address space is part of its type, so what
//! takes a pointer is a template, or a function for each space.
//!
//! Source: Metal Shading Language Specification 3.1, "Packed Vector Types": up to four elements that
//! lie as those of an array do, and begin wherever one of them may.

//: aster_as
template <class U, class T> FN U aster_as(T x) { return as_type<U>(x); }

//: NAME needs aster_vec; NAME = aster_load | aster_load_any
//! Elements one by one, of types that no packed vector has.
template <class V, int A, class P> FN V NAME(P p) {
  enum { N = V::size };
  V r; ASTER_EACH(r.at[i] = p[i])
}

//: NAME needs aster_vec; NAME = aster_store | aster_store_any
//! Elements one by one, of types that no packed vector has.
template <int A, class P, class T, int N> FN void NAME(P p, aster_vec<T, N> v) {
  _Pragma("unroll") for (int i = 0; i < N; i++) p[i] = v.at[i];
}

//: aster_load_SPACE_KINDWIDTH needs aster_vec; TYPE = KIND, KIND = float | half | bfloat | int, SPACE = device | threadgroup, WIDTH = 4 | 2
//: aster_load_SPACE_KINDWIDTH needs aster_vec; TYPE = unsigned int, KIND = uint, SPACE = device | threadgroup, WIDTH = 4 | 2
template <class V, int A> FN V aster_load_SPACE_KINDWIDTH(SPACE const TYPE *p) {
  enum { N = V::size, W = WIDTH };
  V r;
  _Pragma("unroll") for (int i = 0; i < N; i += W) {
    packed_KINDWIDTH x = *(SPACE const packed_KINDWIDTH *)(p + i);
    _Pragma("unroll") for (int k = 0; k < W; k++) r.at[i + k] = x[k];
  }
  return r;
}

//: aster_store_SPACE_KINDWIDTH needs aster_vec; TYPE = KIND, KIND = float | half | bfloat | int, SPACE = device | threadgroup, WIDTH = 4 | 2
//: aster_store_SPACE_KINDWIDTH needs aster_vec; TYPE = unsigned int, KIND = uint, SPACE = device | threadgroup, WIDTH = 4 | 2
template <int A, int N> FN void aster_store_SPACE_KINDWIDTH(SPACE TYPE *p, aster_vec<TYPE, N> v) {
  enum { W = WIDTH };
  _Pragma("unroll") for (int i = 0; i < N; i += W) {
    packed_KINDWIDTH x;
    _Pragma("unroll") for (int k = 0; k < W; k++) x[k] = v.at[i + k];
    *(SPACE packed_KINDWIDTH *)(p + i) = x;
  }
}

//: aster_max
FN float aster_max(float a, float b) {
  return a != a ? a : b != b ? b : a == b ? as_type<float>(as_type<int>(a) & as_type<int>(b))
                                          : a > b ? a : b;
}

//: aster_exchange needs aster_vec
template <class T> FN T aster_exchange(T x, ushort by) { return simd_shuffle_xor(x, by); }
template <class T, int N> FN aster_vec<T, N> aster_exchange(aster_vec<T, N> x, ushort by) {
  aster_vec<T, N> r; ASTER_EACH(r.at[i] = simd_shuffle_xor(x.at[i], by))
}

//: NAME_fma; NAME = half | bfloat
FN NAME NAME_fma(NAME a, NAME b, NAME c) { return (NAME)fma((float)a, (float)b, (float)c); }

//: aster_mma_m8n8k8_ROW; ROW = float32, WORD = float
//: aster_mma_m8n8k8_ROW; ROW = float16, WORD = half
//: aster_mma_m8n8k8_ROW; ROW = bfloat16, WORD = bfloat
//! A product of a simdgroup. WORD is the type of the elements, of which each thread has a pair.
FN void aster_mma_m8n8k8_ROW(PRIVATE float &c0, PRIVATE float &c1, WORD a0, WORD a1, WORD b0, WORD b1) {
  simdgroup_matrix<WORD, 8, 8> a, b;
  simdgroup_matrix<float, 8, 8> c;
  a.thread_elements()[0] = a0, a.thread_elements()[1] = a1;
  b.thread_elements()[0] = b0, b.thread_elements()[1] = b1;
  c.thread_elements()[0] = c0, c.thread_elements()[1] = c1;
  simdgroup_multiply_accumulate(c, a, b, c);
  c0 = c.thread_elements()[0], c1 = c.thread_elements()[1];
}
