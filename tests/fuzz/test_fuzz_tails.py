"""Tails upon tails: Opts that split one axis again and again, run and compared with NumPy.

Each case draws a product and Opts that shift, mask, tile and share out its axes, with and without
strips of the reduction. A list is refused in so many words, or gives the right numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml import Context, Tensor
from aster_ml.codegen.opts import parse_opts
from aster_ml.device import Device
from aster_ml.engine import storage
from aster_ml.engine.compile import compile_kernel
from aster_ml.errors import AsterError, KernelOptError
from tests.core.kernel_checks import kernel_of, memory
from tests.fuzz.budget import check_all, draws

SIZES = (1, 2, 3, 7, 8, 13, 16, 31, 32, 33, 100)
OUTPUT_OPTS = (
    "UPCAST({axis},{n},shift)", "UPCAST({axis},{n},shift)", "UPCAST({axis},{n})",
    "VECTOR({axis},{n})", "SPLIT({axis},{n},loop)", "SPLIT({axis},{n},mask)", "THREAD({axis},{n})",
    "THREAD({axis},0)", "SWAP(r0,r1)",
)  # fmt: skip
REDUCED_OPTS = (
    "KBLOCK({axis},{n},output)", "KBLOCK({axis},{n},output)", "KBLOCK({axis},{n},row)",
    "SPLIT({axis},{n},peel)", "SPLIT({axis},{n},mask)", "UNROLL({axis},{n})",
)  # fmt: skip


def drawn(rng: random.Random) -> str:
    """Opts of two axes of outputs and of one reduction."""
    words = []
    for _ in range(rng.randint(2, 6)):
        if rng.random() < 0.3:
            words.append(rng.choice(REDUCED_OPTS).format(axis="r2", n=rng.randint(1, 9)))
        else:
            axis, opt = rng.choice(("r0", "r0", "r1")), rng.choice(OUTPUT_OPTS)
            n = rng.choice((2, 4, 8)) if opt.startswith("VECTOR") else rng.randint(1, 9)
            words.append(opt.format(axis=axis, n=n))
    return " ".join(words)


def wrong_with(seed: int) -> str | None:
    """What is wrong with a product by a list of Opts; None where nothing is."""
    rng = random.Random(seed)
    n, m, k = (rng.choice(SIZES) for _ in range(3))
    a, b, text = memory(n, k), memory(k, m), drawn(rng)
    try:
        with Context(STRICT=1):
            compiled = compile_kernel(kernel_of(a @ b), Device["CPU"], parse_opts(text))
    except KernelOptError:
        return None
    except AsterError as error:
        # Two SIMD axes have no place in one value, and there are no masks without SIMD lanes.
        return None if "SIMD" in str(error) else f"{text} of {n}x{k} @ {k}x{m}: {error}"
    # What lies in the output beforehand is not to be seen.
    out = Tensor.full((n, m), float("nan")).contiguous().realize()
    owners = [storage.buffer_of(t.uop.base) for t in (out, a, b)]
    tensors: list[Any] = [owner.ensure_allocated().handle for owner in owners]
    compiled.program(tuple(tensors), (), compiled.launch)
    want = a.numpy().astype(np.float64) @ b.numpy().astype(np.float64)
    if np.allclose(out.numpy(), want, atol=1e-4):
        return None
    return f"{text} of {n}x{k} @ {k}x{m} is wrong"


def test_tails_upon_tails_give_the_same_numbers(
    record_property: Callable[[str, str], None],
) -> None:
    check_all("tails upon tails", draws(40, 4000), wrong_with, record_property)
