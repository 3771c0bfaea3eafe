"""Functions of ours in Metal's language, by name: those of `gpu_texts`, and those that differ.

Data alone. A pointer's address space is part of its type, so what takes one is a template.
"""

from __future__ import annotations

from aster_ml.renderer import gpu_texts

AS = """\
template <class U, class T> FN U aster_as(T x) { return as_type<U>(x); }"""

# Elements one by one: which of them lie side by side Apple's compiler sees.
LOAD = """\
template <class V, int A, class P> FN V aster_load(P p) {
  enum { N = V::size };
  V r; ASTER_EACH(r.at[i] = p[i])
}"""

STORE = """\
template <int A, class P, class T, int N> FN void aster_store(P p, aster_vec<T, N> v) {
  _Pragma("unroll") for (int i = 0; i < N; i++) p[i] = v.at[i];
}"""

MAX = """\
FN float aster_max(float a, float b) {
  return a != a ? a : b != b ? b : a == b ? as_type<float>(as_type<int>(a) & as_type<int>(b))
                                          : a > b ? a : b;
}"""

EXCHANGE = """\
template <class T> FN T aster_exchange(T x, ushort by) { return simd_shuffle_xor(x, by); }
template <class T, int N> FN aster_vec<T, N> aster_exchange(aster_vec<T, N> x, ushort by) {
  aster_vec<T, N> r; ASTER_EACH(r.at[i] = simd_shuffle_xor(x.at[i], by))
}"""

# A product of a simdgroup. WORD is the type of the elements; those of a thread are a pair.
MMA = """\
FN void aster_mma_ROW(PRIVATE float &c0, PRIVATE float &c1, WORD a0, WORD a1, WORD b0, WORD b1) {
  simdgroup_matrix<WORD, 8, 8> a, b;
  simdgroup_matrix<float, 8, 8> c;
  a.thread_elements()[0] = a0, a.thread_elements()[1] = a1;
  b.thread_elements()[0] = b0, b.thread_elements()[1] = b1;
  c.thread_elements()[0] = c0, c.thread_elements()[1] = c1;
  simdgroup_multiply_accumulate(c, a, b, c);
  c0 = c.thread_elements()[0], c1 = c.thread_elements()[1];
}"""

FMA = """\
FN NAME NAME_fma(NAME a, NAME b, NAME c) { return (NAME)fma((float)a, (float)b, (float)c); }"""

TEXTS = gpu_texts.texts_for(
    {
        **gpu_texts.COMMON,
        "aster_as": AS,
        "aster_load": LOAD,
        "aster_load_any": LOAD.replace("aster_load", "aster_load_any"),
        "aster_store": STORE,
        "aster_store_any": STORE.replace("aster_store", "aster_store_any"),
        "aster_max": MAX,
        "aster_exchange": EXCHANGE,
        "half_fma": FMA.replace("NAME", "half"),
        "bfloat_fma": FMA.replace("NAME", "bfloat"),
        **{
            f"aster_mma_m8n8k8_{row}": MMA.replace("ROW", f"m8n8k8_{row}").replace("WORD", word)
            for row, word in (("float32", "float"), ("float16", "half"), ("bfloat16", "bfloat"))
        },
    },
    "static inline",
    "thread ",
)
NEEDS: dict[str, tuple[str, ...]] = {
    **gpu_texts.NEEDS,
    "aster_load": ("aster_vec",),
    "aster_load_any": ("aster_vec",),
    "aster_store": ("aster_vec",),
    "aster_store_any": ("aster_vec",),
    "aster_exchange": ("aster_vec",),
}
