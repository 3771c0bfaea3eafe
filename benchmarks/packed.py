"""Products with quantised weights that stay packed, beside those with float16 and float32.

Blocks are random bytes whose numbers are of ordinary size; peers multiply with the same numbers as
float32. GFLOP/s count a multiplication and an addition as two, whatever unpacking takes.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from benchmarks.draws import Array, draw_input, generator, summary
from benchmarks.libraries import Lazy, Library
from benchmarks.row import Case, Row, Wanted

SUBJECT = "packed weights"
KINDS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
PLAIN = ("F16", "F32")
# Blocks that those of a matrix are picked from.
POOL = 2000


def draw_blocks(kind: str, n: int, k: int) -> tuple[Array, Array]:
    """Blocks of a quantised matrix [n, k], and its numbers as float32."""
    gguf = importlib.import_module("gguf")
    elements, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    bits = generator(f"{kind} {n} {k}")
    data = bits.integers(0, 256, (POOL, nbytes)).astype(np.uint8)
    with np.errstate(all="ignore"):
        numbers = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
        numbers = numbers.reshape(POOL, elements)
        most = np.abs(numbers).max(1)
    fitting = np.flatnonzero(np.isfinite(most) & (most < 10) & (most > 1e-2))
    picked = fitting[bits.integers(0, fitting.size, (n, k // elements))]
    return data[picked], numbers[picked].reshape(n, k)


def build(library: Library, kind: str, n: int, k: int, m: int) -> Case:
    """x [m, k] times the transposed weight [n, k]."""
    x = library.tensor(draw_input("x", (m, k)))
    if kind in PLAIN:
        numbers = draw_input("w", (n, k)).astype(np.float16).astype(np.float32)
    else:
        blocks, numbers = draw_blocks(kind, n, k)
    if library.name == "aster" and kind in KINDS:
        held = library.state.QuantTensor(kind, library.tensor(blocks))
        call = library.compiled(lambda x: x @ held.dequantize().T)
    else:
        weight: Any = library.tensor(numbers)
        if isinstance(library, Lazy) and kind == "F16":
            weight = library.cast(weight, "float16")
            call = library.compiled(lambda x: x @ weight.float().T)
        else:
            call = library.compiled(lambda x: x @ weight.T)

    def run() -> Any:
        result = call(x)
        library.wait()
        return result

    return Case(run, lambda: summary(library.array(run())))


def rows() -> list[Row]:
    """Products with one row, as in decoding, and with many, as in prefill."""
    wanted = [(kind, 1536, 512, 1) for kind in (*KINDS, *PLAIN)]
    wanted += [(kind, 49152, 576, 1) for kind in ("Q4_1", "Q8_0", "F16")]
    wanted += [(kind, 1536, 576, 128) for kind in ("Q4_1", "Q8_0", "F16")]
    return [
        Row(
            f"[{m}, {k}] @ {kind} [{n}, {k}].T",
            SUBJECT,
            "packed product",
            "GFLOP/s",
            Wanted(1.0, of_ratio=True),
            params={"kind": kind, "n": n, "k": k, "m": m},
            work=2.0 * n * k * m,
            one_thread_too=m == 1 and n == 1536,
            libraries=("torch",),
        )
        for kind, n, k, m in wanted
    ]


CASES = {"packed product": build}
