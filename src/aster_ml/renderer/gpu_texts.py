"""Texts that stand before kernels in the C++ of graphics processors: SIMD values, narrow floats.

Data alone. FN is what a function begins with, PRIVATE what a reference to a value of one work-item
begins with; `texts_for` puts a language's words in. Functions whose body only a device can run
(inline PTX) are left out where ASTER_ON_CPU is defined: what runs kernels on a CPU brings its own.
"""

from __future__ import annotations

VEC = """\
// A SIMD value: operators work element by element, a comparison gives -1 where it holds.
template <class T, int N> struct aster_vec {
  typedef T element;
  enum { size = N };
  T at[N];
};
#define ASTER_VEC template <class T, int N> FN aster_vec
#define ASTER_EACH(x) _Pragma("unroll") for (int i = 0; i < N; i++) x; return r;
#define ASTER_BINARY(op) \\
  ASTER_VEC<T, N> operator op(aster_vec<T, N> a, aster_vec<T, N> b) { \\
    aster_vec<T, N> r; ASTER_EACH(r.at[i] = (T)(a.at[i] op b.at[i])) \\
  }
#define ASTER_COMPARE(op) \\
  ASTER_VEC<signed char, N> operator op(aster_vec<T, N> a, aster_vec<T, N> b) { \\
    aster_vec<signed char, N> r; ASTER_EACH(r.at[i] = a.at[i] op b.at[i] ? -1 : 0) \\
  }
#define ASTER_UNARY(op) \\
  ASTER_VEC<T, N> operator op(aster_vec<T, N> a) { \\
    aster_vec<T, N> r; ASTER_EACH(r.at[i] = (T)(op a.at[i])) \\
  }
ASTER_BINARY(+) ASTER_BINARY(-) ASTER_BINARY(*) ASTER_BINARY(/) ASTER_BINARY(%)
ASTER_BINARY(&) ASTER_BINARY(|) ASTER_BINARY(^) ASTER_UNARY(-) ASTER_UNARY(~)
ASTER_COMPARE(<) ASTER_COMPARE(!=) ASTER_COMPARE(==)
template <class T, int N> FN void operator+=(PRIVATE aster_vec<T, N> &a, aster_vec<T, N> b) {
  a = a + b;
}
template <class T, int N> FN void operator*=(PRIVATE aster_vec<T, N> &a, aster_vec<T, N> b) {
  a = a * b;
}"""

SPLAT = """\
template <class V> FN V aster_splat(typename V::element x) {
  enum { N = V::size };
  V r; ASTER_EACH(r.at[i] = x)
}"""

SELECT = """\
ASTER_VEC<T, N> aster_select(aster_vec<signed char, N> c, aster_vec<T, N> a, aster_vec<T, N> b) {
  aster_vec<T, N> r; ASTER_EACH(r.at[i] = c.at[i] ? a.at[i] : b.at[i])
}"""

REVERSE = """\
ASTER_VEC<T, N> aster_reverse(aster_vec<T, N> a) {
  aster_vec<T, N> r; ASTER_EACH(r.at[i] = a.at[N - 1 - i])
}"""

CONVERT = """\
template <class V, class T, int N> FN V aster_convert(aster_vec<T, N> a) {
  V r; ASTER_EACH(r.at[i] = (typename V::element)a.at[i])
}"""

BITS = """\
template <class V, class T, int N> FN V aster_bits(aster_vec<T, N> a) {
  V r; ASTER_EACH(r.at[i] = aster_as<typename V::element>(a.at[i]))
}"""

COMMON = {
    "aster_vec": VEC,
    "aster_splat": SPLAT,
    "aster_select": SELECT,
    "aster_reverse": REVERSE,
    "aster_convert": CONVERT,
    "aster_bits": BITS,
}
NEEDS: dict[str, tuple[str, ...]] = {
    "aster_splat": ("aster_vec",),
    "aster_select": ("aster_vec",),
    "aster_reverse": ("aster_vec",),
    "aster_convert": ("aster_vec",),
    "aster_bits": ("aster_as", "aster_vec"),
}


def texts_for(texts: dict[str, str], function: str, private: str) -> dict[str, str]:
    """These texts in a language: what functions and references to private values begin with."""
    return {
        name: text.replace("FN ", f"{function} ").replace("PRIVATE ", private)
        for name, text in texts.items()
    }
