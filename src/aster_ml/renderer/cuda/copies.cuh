//! Functions of Aster in CUDA C++ for operands of tensor cores: asynchronous copies to shared memory
//! (cp.async), and matrices that a warp loads from it and stores to it (ldmatrix, stmatrix).

//: aster_ldmatrix; NAME = aster_ldmatrix, SPACE = .shared
//: aster_ldmatrix_trans; NAME = aster_ldmatrix_trans, SPACE = .trans.shared
//! One, two or four matrices, of which each thread names a row.
#ifndef ASTER_ON_CPU
FN void NAME(unsigned int &w0, const void *from) {
  unsigned int at = (unsigned int)__cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x1SPACE.b16 {%0}, [%1];"
      : "=r"(w0) : "r"(at) : "memory");
}
FN void NAME(unsigned int &w0, unsigned int &w1, const void *from) {
  unsigned int at = (unsigned int)__cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2SPACE.b16 {%0, %1}, [%2];"
      : "=r"(w0), "=r"(w1) : "r"(at) : "memory");
}
FN void NAME(unsigned int &w0, unsigned int &w1, unsigned int &w2, unsigned int &w3, const void *from) {
  unsigned int at = (unsigned int)__cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4SPACE.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3) : "r"(at) : "memory");
}
#endif

//: aster_stmatrix; NAME = aster_stmatrix, SPACE = .shared
//: aster_stmatrix_trans; NAME = aster_stmatrix_trans, SPACE = .trans.shared
//! One, two or four matrices, of which each thread names a row.
#ifndef ASTER_ON_CPU
FN void NAME(void *to, unsigned int w0) {
  unsigned int at = (unsigned int)__cvta_generic_to_shared(to);
  asm volatile("stmatrix.sync.aligned.m8n8.x1SPACE.b16 [%0], {%1};"
      :: "r"(at), "r"(w0) : "memory");
}
FN void NAME(void *to, unsigned int w0, unsigned int w1) {
  unsigned int at = (unsigned int)__cvta_generic_to_shared(to);
  asm volatile("stmatrix.sync.aligned.m8n8.x2SPACE.b16 [%0], {%1, %2};"
      :: "r"(at), "r"(w0), "r"(w1) : "memory");
}
FN void NAME(void *to, unsigned int w0, unsigned int w1, unsigned int w2, unsigned int w3) {
  unsigned int at = (unsigned int)__cvta_generic_to_shared(to);
  asm volatile("stmatrix.sync.aligned.m8n8.x4SPACE.b16 [%0], {%1, %2, %3, %4};"
      :: "r"(at), "r"(w0), "r"(w1), "r"(w2), "r"(w3) : "memory");
}
#endif

//: aster_word
// Neighbours in a word of 32 bits.
FN unsigned int aster_word(float a) { return (unsigned int)__float_as_int(a); }
template <class T> FN unsigned int aster_word(T a, T b) {
  return (unsigned int)a.code | (unsigned int)b.code << 16;
}
FN unsigned int aster_word(unsigned char a, unsigned char b, unsigned char c, unsigned char d) {
  return a | (unsigned int)b << 8 | (unsigned int)c << 16 | (unsigned int)d << 24;
}

//: aster_copy_piece
//! The instruction; a piece that is not there is filled with zeros.
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
#endif

//: aster_copy needs aster_copy_piece
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
}

//: aster_commit
#ifndef ASTER_ON_CPU
FN void aster_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
#endif

//: aster_wait
#ifndef ASTER_ON_CPU
// All groups of copies but the last LEFT are there.
template <int LEFT> FN void aster_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
#endif
