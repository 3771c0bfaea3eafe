"""Functions of ours in Metal's language, by name: those of `gpu_texts`, and those that differ.

Data alone. A pointer's address space is part of its type, so what takes one is a template, or a
function for each.

Source: Metal Shading Language Specification 3.1, "Packed Vector Types": up to four elements that
lie as those of an array do, and begin wherever one of them may.
"""

from __future__ import annotations

from aster_ml.renderer import gpu_texts

AS = """\
template <class U, class T> FN U aster_as(T x) { return as_type<U>(x); }"""

# Elements one by one, of types that no packed vector has.
LOAD = """\
template <class V, int A, class P> FN V aster_load(P p) {
  enum { N = V::size };
  V r; ASTER_EACH(r.at[i] = p[i])
}"""

STORE = """\
template <int A, class P, class T, int N> FN void aster_store(P p, aster_vec<T, N> v) {
  _Pragma("unroll") for (int i = 0; i < N; i++) p[i] = v.at[i];
}"""

# Elements that have packed vectors, and what these are called.
PACKED = {
    "float": "packed_float", "half": "packed_half", "bfloat": "packed_bfloat", "int": "packed_int",
    "unsigned int": "packed_uint",
}  # fmt: skip
SPACES, WIDTHS = ("device", "threadgroup"), (4, 2)

LOAD_PACKED = """\
template <class V, int A> FN V aster_load_NAME(SPACE const TYPE *p) {
  enum { N = V::size, W = WIDTH };
  V r;
  _Pragma("unroll") for (int i = 0; i < N; i += W) {
    PACKED x = *(SPACE const PACKED *)(p + i);
    _Pragma("unroll") for (int k = 0; k < W; k++) r.at[i + k] = x[k];
  }
  return r;
}"""

STORE_PACKED = """\
template <int A, int N> FN void aster_store_NAME(SPACE TYPE *p, aster_vec<TYPE, N> v) {
  enum { W = WIDTH };
  _Pragma("unroll") for (int i = 0; i < N; i += W) {
    PACKED x;
    _Pragma("unroll") for (int k = 0; k < W; k++) x[k] = v.at[i + k];
    *(SPACE PACKED *)(p + i) = x;
  }
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


def packed_name(space: str, element: str, width: int) -> str:
    """`device_float4`: what the functions of a packed vector are named by."""
    return f"{space}_{PACKED[element].removeprefix('packed_')}{width}"


def packed_texts() -> dict[str, str]:
    """Functions that move packed vectors, by name."""
    found = {}
    for space in SPACES:
        for element, packed in PACKED.items():
            for width in WIDTHS:
                words = {
                    "NAME": packed_name(space, element, width), "SPACE": space, "TYPE": element,
                    "PACKED": f"{packed}{width}", "WIDTH": str(width),
                }  # fmt: skip
                for kind, text in (("load", LOAD_PACKED), ("store", STORE_PACKED)):
                    for word, value in words.items():
                        text = text.replace(word, value)
                    found[f"aster_{kind}_{words['NAME']}"] = text
    return found


TEXTS = gpu_texts.texts_for(
    {
        **gpu_texts.COMMON,
        "aster_as": AS,
        "aster_load": LOAD,
        "aster_load_any": LOAD.replace("aster_load", "aster_load_any"),
        "aster_store": STORE,
        "aster_store_any": STORE.replace("aster_store", "aster_store_any"),
        **packed_texts(),
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
    **dict.fromkeys(packed_texts(), ("aster_vec",)),
    "aster_load": ("aster_vec",),
    "aster_load_any": ("aster_vec",),
    "aster_store": ("aster_vec",),
    "aster_store_any": ("aster_vec",),
    "aster_exchange": ("aster_vec",),
}
