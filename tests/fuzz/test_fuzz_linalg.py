"""Linear algebra over all dtypes and shapes, beside NumPy in float64 on the numbers as stored.

Results of floats below 32 bits are those of float32 steps, so one tolerance serves them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.dtype import DType, least_upper_dtype
from tests.fuzz.budget import check_all, draws

Record = Callable[[str, str], None]

DTYPES = (*dtypes.floats, *dtypes.ints, dtypes.bool)
SIZES = (0, 1, 2, 3, 4, 5, 7, 8)


def wide(dtype: DType) -> DType:
    """What a result of at least float32 has for this dtype."""
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


def factor_dtype(dtype: DType) -> DType:
    """What the factors of QR and of singular values have."""
    return dtype if dtypes.is_float(dtype) else dtypes.float32


def close(got: Tensor, want: Any, dtype: DType, scale: float = 1.0) -> str | None:
    """What is wrong with a result of this dtype, None where nothing is."""
    if got.dtype is not dtype:
        return f"dtype {got.dtype}, not {dtype}"
    if got.shape != np.shape(want):
        return f"shape {got.shape}, not {np.shape(want)}"
    bits = dtypes.finfo(dtype)[1]
    bound = 2.0 ** (6 - bits if bits > 20 else 1 - bits) * max(scale, 1.0)
    far = np.abs(got.cast(dtypes.float64).numpy() - want).max(initial=0.0)
    return None if far <= bound * max(np.abs(want).max(initial=0.0), 1.0) else f"off by {far}"


def drawn_matrix(rng: np.random.Generator, dtype: DType, m: int, n: int) -> tuple[Tensor, Any]:
    """A stack of whole numbers, which a fifth of the time has fewer ranks, and what is stored."""
    lead = [(), (1,), (2,), (0,), (2, 3)][int(rng.integers(5))]
    least = 0 if dtypes.is_unsigned(dtype) or dtype is dtypes.bool else -3
    a = rng.integers(least, 2 if dtype is dtypes.bool else 4, (*lead, m, n)).astype(np.float64)
    if m > 1 and rng.random() < 0.2:
        a[..., m - 1, :] = a[..., 0, :]
    x = Tensor(a, dtype=dtypes.float64).cast(dtype)
    return x, x.cast(dtypes.float64).numpy()


def square_line(rng: np.random.Generator, dtype: DType, n: int) -> str | None:
    """Functions of square matrices."""
    x, a = drawn_matrix(rng, dtype, n, n)
    out = wide(dtype)
    name = ("det", "slogdet", "inv", "solve", "cholesky", "eigh", "eigvalsh", "matrix_power")[
        int(rng.integers(8))
    ]
    said: list[str | None] = []
    if name in ("inv", "solve", "slogdet") and a.size and np.linalg.cond(a).max() > 50:
        x = (x.cast(dtypes.float32) + 8 * np.eye(n, dtype=np.float32)).cast(dtype)
        a = x.cast(dtypes.float64).numpy()
        if np.linalg.cond(a).max() > 1e3:
            return None
    if name == "det":
        said.append(close(x.det(), np.linalg.det(a), out, n))
    elif name == "slogdet":
        sign, size = np.linalg.slogdet(a)
        got = x.slogdet()
        said += [close(got[0], sign, out), close(got[1], size, out, n)]
    elif name == "inv":
        said.append(close(x.inv(), np.linalg.inv(a), out))
    elif name == "solve":
        other = (dtypes.float16, dtypes.float32, dtypes.float64, dtypes.int32)[int(rng.integers(4))]
        b = rng.integers(-3, 4, (n, int(rng.integers(0, 3)))).astype(np.float64)
        got = x.solve(Tensor(b).cast(other))
        if a.size:
            both = least_upper_dtype(out, wide(other))
            said.append(close(got, np.linalg.solve(a, b), both))
    elif name == "cholesky":
        square = a @ a.swapaxes(-1, -2) / 8 + np.eye(n)
        y = Tensor(square).cast(dtype if dtypes.is_float(dtype) else dtypes.float64)
        stored = y.cast(dtypes.float64).numpy()
        stored = (stored + stored.swapaxes(-1, -2)) / 2
        if not a.size or np.linalg.eigvalsh(stored).min() > 0.1:
            said.append(close(y.cholesky(), np.linalg.cholesky(stored), wide(y.dtype), n))
    elif name in ("eigh", "eigvalsh"):
        s = (a + a.swapaxes(-1, -2)) / 2
        if name == "eigvalsh":
            values = x.eigvalsh()
        else:
            values, vectors = x.eigh()
            v = vectors.numpy()
            eye = np.broadcast_to(np.eye(n), a.shape)
            said.append(close((vectors.mT @ vectors), eye, out, n))
            product = v * values.numpy()[..., None, :]
            said.append(close(Tensor(s).cast(out) @ vectors, product, out, n))
        said.append(close(values, np.linalg.eigvalsh(s), out, n))
    else:
        power = int(rng.integers(0, 4))
        got = x.matrix_power(power)
        want = np.linalg.matrix_power(a, power)
        if dtype in (dtypes.float32, dtypes.float64):
            said.append(close(got, want, dtype))
        elif got.dtype is not dtype or got.shape != want.shape:
            said.append(f"{got.dtype} {got.shape}")
    wrong = [s for s in said if s]
    return f"{name} of {dtype} {a.shape}: {wrong[0]}, {a.tolist()}" if wrong else None


def other_line(rng: np.random.Generator, dtype: DType, m: int, n: int) -> str | None:
    """Functions of any matrices."""
    x, a = drawn_matrix(rng, dtype, m, n)
    name = ("qr", "svd", "matrix_rank", "pinv")[int(rng.integers(4))]
    said: list[str | None] = []
    factors = factor_dtype(dtype)
    relative = max(m, n) * 2.0 ** -dtypes.finfo(factors)[1]
    if name == "qr":
        both = x.qr()
        if {y.dtype for y in both} != {factors}:
            said.append(f"dtypes {both[0].dtype}, {both[1].dtype}")
        q, r = (y.cast(dtypes.float64) for y in both)
        said.append(close((q @ r).cast(factors), a, factors, 4 * m))
        if np.tril(r.numpy(), -1).any():
            said.append("R is not triangular")
    elif name == "svd":
        whole = bool(rng.integers(2))
        u, s, vt = x.svd(whole)
        k = min(m, n)
        said.append(close(s, np.linalg.svd(a, compute_uv=False), factors, 4))
        thin = u.cast(dtypes.float64)[..., :k] * s.cast(dtypes.float64).unsqueeze(-2)
        back = thin @ vt.cast(dtypes.float64)[..., :k, :]
        said.append(close(back.cast(factors), a, factors, 4 * k))
        if u.shape[-2:] != ((m, m) if whole else (m, k)) or {u.dtype, vt.dtype} != {factors}:
            said.append(f"u {u.shape}, {u.dtype}, vt {vt.dtype}")
    else:
        values = np.linalg.svd(a, compute_uv=False)
        ratio = values / np.maximum(values.max(-1, keepdims=True, initial=0.0), 1e-30)
        # Values beside the bound are counted by luck.
        if ((ratio > relative / 4) & (ratio < relative * 4)).any():
            return None
        rank = (ratio > relative).sum(-1)
        if name == "matrix_rank":
            got = x.matrix_rank()
            if got.dtype is not dtypes.int32 or got.shape != rank.shape:
                said.append(f"{got.dtype} {got.shape}")
            elif got.numpy().tolist() != rank.tolist():
                said.append(f"{got.tolist()}, not {rank.tolist()}")
        else:
            least = np.where(ratio > relative, values, np.inf).min(initial=1.0)
            want = np.linalg.pinv(a, rcond=relative) if a.size else a.swapaxes(-1, -2)
            said.append(close(x.pinv(), want, wide(dtype), 4 / least**2))
    wrong = [s for s in said if s]
    return f"{name} of {dtype} {a.shape}: {wrong[0]}, {a.tolist()}" if wrong else None


def linalg_line(seed: int) -> str | None:
    """One function of one stack of matrices."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    m, n = (SIZES[int(i)] for i in rng.integers(len(SIZES), size=2))
    if rng.random() < 0.5:
        return square_line(rng, dtype, min(m, 5))
    return other_line(rng, dtype, m, n)


def test_functions_of_matrices(record_property: Record) -> None:
    check_all("functions of matrices", draws(6, 600), linalg_line, record_property)
