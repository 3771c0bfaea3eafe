"""Kernels that memory bounds: how often they read, in which pieces, how much is on its way.

Of a card that is not there, counted on the programs: what one processor has on its way at once is
what its work-items, as many as it runs, ask for before they wait.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.passes import lower
from aster_ml.helpers import prod
from aster_ml.target.cuda import cuda_target
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of
from tests.core.kernel_checks import kernel_of
from tests.shim import devices, on_cpu

CARD = cuda_target("sm_90a")
N = 4096


def program(t: Tensor) -> Linear:
    """The default program."""
    return lower(kernel_of(t), CARD)[0]


def loads_of(linear: Linear, least: int) -> list[tuple[UOp, int, int]]:
    """Loads of buffers this large: each with the elements at a time, and those of all together."""
    turns = int(prod(linear.global_size) * prod(linear.local_size))
    found = []
    for u in linear.uops:
        if u.op is Ops.RANGE and u.arg.kind in (AxisType.LOOP, AxisType.REDUCE):
            turns *= size_of(u)
        elif u.op is Ops.END:
            turns //= size_of(u.src[0])
        elif u.op is Ops.LOAD and u.src[0].src[0].op is Ops.PARAM:
            if u.src[0].src[0].arg.size < least:
                continue
            lanes = [r for r in u.ranges if r.arg.kind.is_lane]
            wide = prod([size_of(r) for r in lanes if r.arg.kind is AxisType.VECTOR])
            found.append((u, int(wide), int(turns * prod([size_of(r) for r in lanes]))))
    return found


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8])
def test_weights_are_read_once_for_few_rows(rows: int, turned: bool) -> None:
    w = Tensor.empty(N, N)
    linear = program(Tensor.empty(rows, N) @ (w.T if turned else w))
    [(_, wide, elements)] = loads_of(linear, N * N)
    assert (wide, elements) == (4, N * N)
    assert prod(linear.global_size) >= 0.95 * CARD.units
    assert prod(linear.local_size) == 256


@pytest.mark.parametrize("turned", [False, True])
def test_halves_of_few_rows_are_multiplied_together(turned: bool) -> None:
    """By tensor cores, of which copies ahead have as much on its way as memory needs."""
    w = Tensor.empty(N, N, dtype=dtypes.float16)
    x = Tensor.empty(8, N, dtype=dtypes.float16)
    linear = program(x.matmul(w.T if turned else w, dtype=dtypes.float32))
    assert [u for u in linear.uops if u.op is Ops.MMA]
    assert prod(linear.global_size) >= 0.95 * CARD.units
    room = sum([u.arg.size * 2 for u in linear.uops if u.op is Ops.DEFINE_LOCAL])
    assert room >= 48 << 10


MANY: dict[str, tuple[Callable[[], Tensor], int]] = {
    "copy": (lambda: Tensor.empty(1 << 24) * 2, 1 << 24),
    "sum": (lambda: Tensor.empty(1 << 24) + Tensor.empty(1 << 24), 1 << 24),
    "halves": (lambda: Tensor.empty(1 << 24, dtype=dtypes.float16) * 2, 1 << 24),
    "rows": (lambda: Tensor.empty(256, 1 << 16).sum(1), 1 << 24),
    "columns": (lambda: Tensor.empty(N, N).sum(0), N * N),
    "many rows": (lambda: Tensor.empty(1 << 16, 1 << 10).sum(1), 1 << 26),
}


@pytest.mark.parametrize("name", MANY)
def test_enough_is_on_its_way(name: str) -> None:
    """16 bytes at a time, blocks for all processors, and 40 KB a processor."""
    make, size = MANY[name]
    linear = program(make())
    loads = loads_of(linear, size)
    assert sum([n for *_, n in loads]) == size * len(loads)
    assert {wide * u.dtype.itemsize for u, wide, _ in loads} == {16}
    blocks, items = prod(linear.global_size), prod(linear.local_size)
    assert blocks >= 0.95 * CARD.units
    at_once = min(2048, items * -(-blocks // CARD.units))
    # ptxas asks for 16 turns of such a loop and more at once (`test_cuda_sass`).
    turns = [size_of(u) for u in linear.uops if u.op is Ops.RANGE and u.arg.kind is AxisType.REDUCE]
    again = min(16, max(turns, default=1))
    each = [
        prod([size_of(r) for r in u.ranges if r.arg.kind.is_lane]) * u.dtype.itemsize
        for u, *_ in loads
    ]
    assert at_once * sum(each) * again >= 40 << 10


def test_rows_are_walked_by_neighbours() -> None:
    """However many there are, a warp reads whole lines of a row."""
    linear = program(Tensor.empty(1 << 16, 1 << 10).sum(1))
    [(u, *_)] = loads_of(linear, 1 << 26)
    [item] = [r for r in u.src[0].src[1].ranges if r.arg.kind is AxisType.LOCAL]
    assert size_of(item) % 32 == 0
    assert not [x for x in linear.uops if x.op is Ops.DEFINE_LOCAL]


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
@pytest.mark.parametrize(
    ("dtype", "m", "k", "n", "turned"),
    [
        ("float32", 64, 4096, 64, True),
        ("float16", 32, 2048, 40, False),
        ("float32", 5, 1024, 128, False),
        ("float16", 8, 1024, 96, True),
    ],
)
def test_products_with_few_tiles(dtype: str, m: int, k: int, n: int, turned: bool) -> None:
    """In parts of the sum, where these are what there is enough of; right on the CPU's stand-in."""
    rng = np.random.default_rng(m)
    a, b = (
        (rng.integers(-8, 9, s) / 4).astype(dtype) for s in ((m, k), (n, k)[:: 1 if turned else -1])
    )
    x, y = (Tensor(v, device=devices.SHIMS[0]).realize() for v in (a, b))
    found = x.matmul(y.T if turned else y, dtype=dtypes.float32).numpy()
    wanted = a.astype(np.float64) @ (b.T if turned else b).astype(np.float64)
    np.testing.assert_array_equal(found, wanted.astype(np.float32))


@pytest.mark.parametrize("n", [128, 768, 1000, 4096, 12288, 16384, 32768])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layernorm"])
def test_rows_are_read_once(name: str, n: int) -> None:
    """Each number is loaded once, and its power computed once, whatever is summed."""
    linear = program(getattr(Tensor.empty(512, n), name)())
    [(u, wide, elements)] = loads_of(linear, 512 * n)
    assert (wide, elements) == (4, 512 * (-(-n // 128) * 128))
    assert not [r for r in u.ranges if r.arg.kind in (AxisType.LOOP, AxisType.REDUCE)]
    powers = [x for x in linear.uops if x.op is Ops.EXP2]
    assert len(powers) <= 1
    # More than one block has room on a processor, so that one loads while another one stores.
    assert prod(linear.local_size) <= (1024 if n == 32768 else 512)


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
@pytest.mark.parametrize("shape", [(300, 128), (3, 1000), (5, 2304)])
def test_rows_in_registers(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    t = Tensor(x, device=devices.SHIMS[0]).realize()
    powers = np.exp(x - x.max(1, keepdims=True).astype(np.float64))
    wanted = powers / powers.sum(1, keepdims=True)
    np.testing.assert_allclose(t.softmax(1).numpy(), wanted, rtol=1e-5, atol=1e-7)
    found = t.layernorm().numpy()
    normed = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, normed, rtol=1e-4, atol=1e-5)
