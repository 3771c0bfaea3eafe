//! Functions of Aster in the C++ that CUDA and Metal share: SIMD values.
//!
//! FN stands for what a function begins with, PRIVATE for what a reference to a value of one
//! work-item begins with. How a file is read: `renderer/texts.py`.

//: aster_vec
// A SIMD value: operators work element by element, a comparison gives -1 where it holds.
template <class T, int N> struct aster_vec {
  typedef T element;
  enum { size = N };
  T at[N];
};
#define ASTER_VEC template <class T, int N> FN aster_vec
#define ASTER_EACH(x) _Pragma("unroll") for (int i = 0; i < N; i++) x; return r;
#define ASTER_BINARY(op) \
  ASTER_VEC<T, N> operator op(aster_vec<T, N> a, aster_vec<T, N> b) { \
    aster_vec<T, N> r; ASTER_EACH(r.at[i] = (T)(a.at[i] op b.at[i])) \
  }
#define ASTER_COMPARE(op) \
  ASTER_VEC<signed char, N> operator op(aster_vec<T, N> a, aster_vec<T, N> b) { \
    aster_vec<signed char, N> r; ASTER_EACH(r.at[i] = a.at[i] op b.at[i] ? -1 : 0) \
  }
#define ASTER_UNARY(op) \
  ASTER_VEC<T, N> operator op(aster_vec<T, N> a) { \
    aster_vec<T, N> r; ASTER_EACH(r.at[i] = (T)(op a.at[i])) \
  }
ASTER_BINARY(+) ASTER_BINARY(-) ASTER_BINARY(*) ASTER_BINARY(/) ASTER_BINARY(%)
ASTER_BINARY(&) ASTER_BINARY(|) ASTER_BINARY(^) ASTER_UNARY(-) ASTER_UNARY(~)
ASTER_COMPARE(<) ASTER_COMPARE(!=) ASTER_COMPARE(==)
template <class T, int N> FN void operator+=(PRIVATE aster_vec<T, N> &a, aster_vec<T, N> b) {
  a = a + b;
}
template <class T, int N> FN void operator*=(PRIVATE aster_vec<T, N> &a, aster_vec<T, N> b) {
  a = a * b;
}

//: aster_splat needs aster_vec
template <class V> FN V aster_splat(typename V::element x) {
  enum { N = V::size };
  V r; ASTER_EACH(r.at[i] = x)
}

//: aster_select needs aster_vec
ASTER_VEC<T, N> aster_select(aster_vec<signed char, N> c, aster_vec<T, N> a, aster_vec<T, N> b) {
  aster_vec<T, N> r; ASTER_EACH(r.at[i] = c.at[i] ? a.at[i] : b.at[i])
}

//: aster_reverse needs aster_vec
ASTER_VEC<T, N> aster_reverse(aster_vec<T, N> a) {
  aster_vec<T, N> r; ASTER_EACH(r.at[i] = a.at[N - 1 - i])
}

//: aster_convert needs aster_vec
template <class V, class T, int N> FN V aster_convert(aster_vec<T, N> a) {
  V r; ASTER_EACH(r.at[i] = (typename V::element)a.at[i])
}

//: aster_bits needs aster_as aster_vec
template <class V, class T, int N> FN V aster_bits(aster_vec<T, N> a) {
  V r; ASTER_EACH(r.at[i] = aster_as<typename V::element>(a.at[i]))
}
