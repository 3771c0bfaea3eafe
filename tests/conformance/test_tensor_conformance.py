"""One suite, a parameter for each device: whole programs give what NumPy gives.

`CONFORMANCE_DEVICE=MINE=path/of/mine.py python -m pytest
tests/conformance/test_tensor_conformance.py` holds a device from outside of the package to it.

Every case names its inputs by shape and dtype; values come from a generator seeded by the case's
name, so that a failure can be made again alone. CPU runs through LLVM and through C.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from aster_ml import Context, Device, Tensor, TinyJit, Variable, dtypes
from aster_ml.config import CLANG
from aster_ml.device import missing
from aster_ml.errors import DTypeError
from tests.shim.devices import SHIMS

SLOWLY = [pytest.mark.webgpu, pytest.mark.slow]
DEVICES: list[Any] = ["CPU", "CPU-AVX2", "CPU-C", "CPU-1-thread", "CPU-no-opts", "PYTHON", "OPENCL"]
DEVICES += [pytest.param("WEBGPU", marks=SLOWLY)]
DEVICES += [pytest.param(name, marks=[pytest.mark.cc, pytest.mark.slow]) for name in SHIMS]
# A device of somebody else's, held to the same: KIND=path/of/its/module.py.
if BROUGHT := os.environ.get("CONFORMANCE_DEVICE", ""):
    KIND, _, PATH = BROUGHT.partition("=")
    sys.path.insert(0, str(Path(PATH).resolve().parent))
    Device.register(KIND, importlib.import_module(Path(PATH).stem))
    DEVICES = [KIND]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each device in turn, under the settings that make it what its name says."""
    name: str = request.param
    if name == "CPU-C" and not any(shutil.which(c) for c in ("cc", "clang", "gcc")):
        pytest.skip("no C compiler: cc is not on PATH")
    if name in ("OPENCL", "WEBGPU", *SHIMS) and (reason := missing(name)) is not None:
        pytest.skip(f"{name}: {reason}")
    if name == "CPU-AVX2" and Device["CPU"].target.vector_bits < 512:
        pytest.skip("no AVX-512 to leave out: CPU has what CPU-AVX2 would have")
    settings: Any = {
        "CPU-AVX2": Context(ISA="avx2"),
        "CPU-C": Context(CLANG=1),
        "CPU-1-thread": Context(THREADS=1),
        "CPU-no-opts": Context(NOOPT=1),
    }.get(name, nullcontext())
    with settings:
        yield name.split("-")[0]


class Case(NamedTuple):
    """`run` is applied to Tensors and to arrays; `want` only where NumPy says it differently."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    run: Callable[..., Any]
    want: Callable[..., Any] | None = None
    tolerance: float = 2e-6


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def conv(x: Any, w: Any, stride: int, padding: int) -> Any:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    return np.einsum("ncyxij,ocij->noyx", windows[:, :, ::stride, ::stride], w)


def layernorm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


CASES = [
    Case("chain", ((33, 7), (33, 7)), lambda a, b: (a * b + a) * 0.5 - b),
    Case("broadcast", ((5, 1, 6), (4, 1)), lambda a, b: a + b * a),
    Case(
        "compare",
        ((9, 9), (9, 9)),
        lambda a, b: (a < b).where(a, b),
        lambda a, b: np.where(a < b, a, b),
    ),
    Case("exp", ((50,),), lambda a: (a * 3).exp(), lambda a: np.exp(a * 3)),
    Case("log", ((50,),), lambda a: (a * a + 0.1).log(), lambda a: np.log(a * a + 0.1)),
    Case("sin", ((50,),), lambda a: (a * 20).sin(), lambda a: np.sin(a * 20), 4e-6),
    Case("sqrt", ((50,),), lambda a: a.square().sqrt(), lambda a: np.abs(a)),
    Case("sum rows", ((17, 65),), lambda a: a.sum(1)),
    Case("sum columns", ((65, 17),), lambda a: a.sum(0)),
    Case("sum all", ((40, 65),), lambda a: a.sum(), None, 1e-5),
    Case("sum long", ((4096,),), lambda a: a.sum(), None, 1e-5),
    Case("max", ((7, 5, 6),), lambda a: a.max((0, 2))),
    Case("product", ((6, 5),), lambda a: a.prod(0)),
    Case("mean of a slice", ((20, 30),), lambda a: a[3:17:2, ::-3].mean(0)),
    Case("softmax", ((12, 64),), lambda a: a.softmax(), softmax),
    Case("softmax, odd", ((5, 37),), lambda a: a.softmax(), softmax),
    Case("layernorm", ((6, 32),), lambda a: a.layernorm(), layernorm, 1e-5),
    Case("matmul", ((32, 32), (32, 32)), lambda a, b: a @ b, None, 1e-5),
    Case("matmul, odd", ((13, 7), (7, 9)), lambda a, b: a @ b, None, 1e-5),
    Case("matmul, batched", ((3, 8, 5), (3, 5, 6)), lambda a, b: a @ b, None, 1e-5),
    Case("matmul, transposed", ((16, 24), (16, 24)), lambda a, b: a @ b.T, None, 1e-5),
    Case("vector x matrix", ((24,), (24, 40)), lambda a, b: a @ b, None, 1e-5),
    Case(
        "linear and relu",
        ((8, 16), (16, 12), (12,)),
        lambda a, b, c: (a @ b + c).relu(),
        lambda a, b, c: np.maximum(a @ b + c, 0),
        1e-5,
    ),
    Case("transpose", ((31, 18),), lambda a: a.T.contiguous(), lambda a: a.T),
    Case(
        "permute and reshape",
        ((4, 6, 5),),
        lambda a: a.permute(2, 0, 1).reshape(10, 12) * 2,
        lambda a: a.transpose(2, 0, 1).reshape(10, 12) * 2,
    ),
    Case(
        "pad",
        ((5, 6),),
        lambda a: a.pad(((1, 2), (0, 3))) + 1,
        lambda a: np.pad(a, ((1, 2), (0, 3))) + 1,
    ),
    Case("flip and shrink", ((9, 8),), lambda a: a.flip(0)[2:7], lambda a: a[::-1][2:7]),
    Case(
        "concatenate",
        ((3, 4), (2, 4)),
        lambda a, b: a.cat(b, dim=0),
        lambda a, b: np.concatenate([a, b]),
    ),
    Case("cumulative sum", ((3, 40),), lambda a: a.cumsum(1), lambda a: a.cumsum(1), 1e-5),
    Case("sort", ((3, 13),), lambda a: a.sort(1)[0], lambda a: np.sort(a, 1)),
    Case("argmax", ((6, 11),), lambda a: a.argmax(1)),
    Case(
        "conv",
        ((2, 3, 9, 9), (4, 3, 3, 3)),
        lambda x, w: x.conv2d(w, padding=1),
        lambda x, w: conv(x, w, 1, 1),
        1e-5,
    ),
    Case(
        "conv, strided",
        ((1, 4, 11, 11), (6, 4, 3, 3)),
        lambda x, w: x.conv2d(w, stride=2, padding=1),
        lambda x, w: conv(x, w, 2, 1),
        1e-5,
    ),
    Case(
        "pooling",
        ((2, 3, 8, 8),),
        lambda a: a.max_pool2d(),
        lambda a: a.reshape(2, 3, 4, 2, 4, 2).max((3, 5)),
    ),
]


def arrays(name: str, shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    """The inputs of a case."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_like_numpy(device: str, case: Case) -> None:
    given = arrays(case.name, case.shapes)
    found = case.run(*[Tensor(a, device=device) for a in given])
    assert found.device.split(":")[0] == device
    want = (case.want or case.run)(*[a.astype(np.float64) for a in given])
    np.testing.assert_allclose(found.numpy(), want, rtol=case.tolerance, atol=case.tolerance)


@pytest.mark.parametrize("case", ["softmax", "linear and relu", "conv", "layernorm"])
def test_gradient_like_a_finite_difference(device: str, case: str) -> None:
    chosen = next(c for c in CASES if c.name == case)
    given = [a.astype(np.float64) for a in arrays(case, chosen.shapes)]
    weights = np.random.default_rng(3).uniform(-1, 1, (chosen.want or chosen.run)(*given).shape)

    def loss(values: list[Any]) -> float:
        return float(((chosen.want or chosen.run)(*values) * weights).sum())

    tensors = [Tensor(a.astype(np.float32), device=device, requires_grad=True) for a in given]
    total = (chosen.run(*tensors) * Tensor(weights.astype(np.float32), device=device)).sum()
    total.backward()
    rng = np.random.default_rng(4)
    for i, t in enumerate(tensors):
        grad = t.grad.numpy()
        for _ in range(4):
            at = tuple(rng.integers(0, s) for s in t.shape)
            step = np.zeros_like(given[i])
            step[at] = 1e-5
            up = loss([g + step if j == i else g for j, g in enumerate(given)])
            down = loss([g - step if j == i else g for j, g in enumerate(given)])
            assert grad[at] == pytest.approx((up - down) / 2e-5, rel=2e-3, abs=2e-4)


def test_gather_and_scatter(device: str) -> None:
    table = arrays("gather", ((10, 6),))[0]
    rows = np.array([3, -1, 3, 0], dtype=np.int32)
    t = Tensor(table, device=device, requires_grad=True)
    picked = t[Tensor(rows, device=device)]
    np.testing.assert_array_equal(picked.numpy(), table[rows])
    (picked * 2).sum().backward()
    want = np.zeros_like(table)
    np.add.at(want, rows, 2)
    np.testing.assert_array_equal(t.grad.numpy(), want)


@pytest.mark.parametrize("name", [d.name for d in dtypes.all if d is not dtypes.index])
def test_every_dtype_is_stored_and_added(device: str, name: str) -> None:
    values = [0, 1, 1, 0] if name == "bool" else [1, 2, 3, 4]
    t = Tensor(values, dtype=name, device=device)
    doubled = t + t if name != "bool" else t.logical_not()
    want = [True, False, False, True] if name == "bool" else [2, 4, 6, 8]
    if name == "float64" and not Device[device].target.has_dtype(name):
        with pytest.raises(DTypeError, match=f"{device}: it has no float64; cast to one of"):
            doubled.tolist()
        return
    assert doubled.dtype.name == name
    assert doubled.tolist() == want


@pytest.mark.parametrize("name", ["int8", "bfloat16", "float16", "bool"])
def test_stores_touch_nothing_beside(device: str, name: str) -> None:
    """Masks of one lane and of all but one: LLVM 22.1 writes a whole register for a single lane."""
    rng, dtype = np.random.default_rng(17), getattr(dtypes, name)
    for width in (15, 17) if CLANG else (1, 15, 17, 33):
        a, b = (
            Tensor(rng.integers(-3, 4, shape).astype(np.float32), device=device)
            for shape in ((24, 8), (8, width))
        )
        values = a.numpy() @ b.numpy()
        values = values != 0 if name == "bool" else values % 8
        around = Tensor.ones(24, 80, dtype=dtype, device=device).contiguous().realize()
        product = a.cast(dtypes.bfloat16).realize() @ b.cast(dtypes.bfloat16).realize()
        around[:, :width] = ((product != 0) if name == "bool" else product % 8).cast(dtype)
        want = np.ones((24, 80))
        want[:, :width] = values
        np.testing.assert_array_equal(around.float().numpy(), want, f"{width} columns")
        sums = around[:, :width].contiguous().realize().float().sum(1)
        np.testing.assert_array_equal(sums.numpy(), values.sum(1), f"{width} columns")


def test_assign_and_slices(device: str) -> None:
    t = Tensor(np.arange(8, dtype=np.float32), device=device).realize()
    old = t * 1
    t.assign(t.flip(0))
    t[2:4] = 9
    assert t.tolist() == [7, 6, 9, 9, 3, 2, 1, 0]
    assert old.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_random_numbers_are_the_same_as_on_the_interpreter(device: str) -> None:
    Tensor.manual_seed(7)
    found = Tensor.rand(3, 5, device=device).numpy()
    Tensor.manual_seed(7)
    with Context(NOOPT=1):
        again = Tensor.rand(3, 5, device=device).numpy()
    np.testing.assert_array_equal(found, again)
    assert (found >= 0).all()
    assert (found < 1).all()
    assert len(np.unique(found)) == 15


def test_jit_with_new_inputs_and_variables(device: str) -> None:
    n = Variable("n", 1, 10)

    @TinyJit
    def total(x: Tensor, count: Any) -> Tensor:
        return (x.shrink(((0, count),)) * 2).sum()

    for k in (3, 5, 10, 1, 7):
        x = np.arange(10, dtype=np.float32) + k
        assert total(Tensor(x, device=device).realize(), n.bind(k)).item() == 2 * x[:k].sum()


def test_copy_to_the_cpu_and_back(device: str) -> None:
    x = arrays("copy", ((4, 5),))[0]
    there = Tensor(x, device="CPU").to(device) + 1
    np.testing.assert_array_equal((there.to("CPU") - 1 + 1).numpy(), x + 1)
