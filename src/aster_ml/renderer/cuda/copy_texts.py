"""Functions of CUDA C++ for operands of tensor cores: copies to shared memory that go on beside
other work (cp.async), and matrices that a warp loads from it (ldmatrix).

Data alone, as `cuda_texts`, which has them among its texts.
"""

from __future__ import annotations

# The instruction; a piece that is not there is filled with zeros.
PIECE = """\
#ifndef ASTER_ON_CPU
template <int N> FN void aster_copy_piece(void *to, const void *from, bool there) {
  unsigned int at = (unsigned int)__cvta_generic_to_shared(to);
  int n = there ? N : 0;
  if (N == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
        :: "r"(at), "l"(from), "r"(n) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;"
        :: "r"(at), "l"(from), "r"(n), "n"(N) : "memory");
  }
}
#endif"""

COPY = """\
// N bytes, A or a multiple of them behind the first element of a buffer, to shared memory; they are
// there once aster_wait says so.
template <int N, int A, class T> FN void aster_copy(T *to, const T *from, bool there) {
  enum { PIECE = A < N ? A : N };
  bool apart = PIECE < 4;
#if !ASTER_ALIGNED
  apart = apart || (unsigned long long)from % PIECE;
#endif
  if (apart) {
#pragma unroll
    for (int i = 0; i < N / (int)sizeof(T); i++) to[i] = there ? from[i] : T();
    return;
  }
#pragma unroll
  for (int i = 0; i < N / PIECE; i++) {
    aster_copy_piece<(PIECE < 4 ? 4 : PIECE)>(
        (char *)to + i * PIECE, (const char *)from + i * PIECE, there);
  }
}"""

COMMIT = """\
#ifndef ASTER_ON_CPU
FN void aster_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
#endif"""

WAIT = """\
#ifndef ASTER_ON_CPU
// All groups of copies but the last LEFT are there.
template <int LEFT> FN void aster_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
#endif"""

WORD = """\
// Neighbours in a word of 32 bits.
FN unsigned int aster_word(float a) { return (unsigned int)__float_as_int(a); }
template <class T> FN unsigned int aster_word(T a, T b) {
  return (unsigned int)a.code | (unsigned int)b.code << 16;
}
FN unsigned int aster_word(unsigned char a, unsigned char b, unsigned char c, unsigned char d) {
  return a | (unsigned int)b << 8 | (unsigned int)c << 16 | (unsigned int)d << 24;
}"""


def ldmatrix(name: str, word: str) -> str:
    """Loads of one, two or four matrices, of which each thread names a row."""
    bodies = []
    for count in (1, 2, 4):
        words = [f"w{i}" for i in range(count)]
        params = ", ".join([f"unsigned int &{w}" for w in words])
        places = ", ".join([f"%{i}" for i in range(count)])
        outputs = ", ".join([f'"=r"({w})' for w in words])
        bodies.append(
            f"FN void {name}({params}, const void *from) {{\n"
            f"  unsigned int at = (unsigned int)__cvta_generic_to_shared(from);\n"
            f'  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{word}.shared.b16 '
            f'{{{places}}}, [%{count}];"\n      : {outputs} : "r"(at) : "memory");\n}}'
        )
    return "\n".join(["#ifndef ASTER_ON_CPU", *bodies, "#endif"])


def stmatrix(name: str, word: str) -> str:
    """Stores of one, two or four matrices, of which each thread names a row."""
    bodies = []
    for count in (1, 2, 4):
        words = [f"w{i}" for i in range(count)]
        params = ", ".join([f"unsigned int {w}" for w in words])
        places = ", ".join([f"%{i + 1}" for i in range(count)])
        inputs = ", ".join([f'"r"({w})' for w in words])
        bodies.append(
            f"FN void {name}(void *to, {params}) {{\n"
            f"  unsigned int at = (unsigned int)__cvta_generic_to_shared(to);\n"
            f'  asm volatile("stmatrix.sync.aligned.m8n8.x{count}{word}.shared.b16 '
            f'[%0], {{{places}}};"\n      :: "r"(at), {inputs} : "memory");\n}}'
        )
    return "\n".join(["#ifndef ASTER_ON_CPU", *bodies, "#endif"])


TEXTS = {
    "aster_word": WORD,
    "aster_ldmatrix": ldmatrix("aster_ldmatrix", ""),
    "aster_ldmatrix_trans": ldmatrix("aster_ldmatrix_trans", ".trans"),
    "aster_stmatrix": stmatrix("aster_stmatrix", ""),
    "aster_stmatrix_trans": stmatrix("aster_stmatrix_trans", ".trans"),
    "aster_copy_piece": PIECE,
    "aster_copy": COPY,
    "aster_commit": COMMIT,
    "aster_wait": WAIT,
}
NEEDS: dict[str, tuple[str, ...]] = {"aster_copy": ("aster_copy_piece",)}
