"""Random programs on WEBGPU against NumPy: elementwise, casts, reductions, products, indices.

Sizes are 0, 1, primes and powers of two up to 128. FUZZ=n draws n cases of each kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.backend import Grid
from aster_ml.device import Buffer, Device, missing
from aster_ml.dtype import to_numpy_dtype
from aster_ml.engine.compile import render
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from tests.core.linear_builder import GLOBAL, LOCAL, UPCAST, Builder, at
from tests.fuzz.budget import draws

ABSENT = missing("WEBGPU")
pytestmark = [
    pytest.mark.webgpu,
    pytest.mark.skipif(ABSENT is not None, reason=f"WebGPU: {ABSENT}"),
]
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 64, 67, 128)
FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
}


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Numbers that a dtype has, its ends among the integers."""
    kind = to_numpy_dtype(getattr(dtypes, dtype))
    if dtype in FLOATS:
        return rng.normal(size=shape).astype(kind)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    ends = np.iinfo(kind)
    found = rng.integers(ends.min, ends.max, shape, endpoint=True, dtype=kind)
    small = rng.integers(0, 9, shape).astype(kind)
    return np.where(rng.integers(0, 2, shape).astype(bool), found, small)


def there(x: Any) -> Tensor:
    """An array on the device."""
    return Tensor(np.ascontiguousarray(x), device="WEBGPU").realize()


def sizes(rng: np.random.Generator, count: int, most: int = 128) -> tuple[int, ...]:
    """Sizes up to one."""
    return tuple(int(n) for n in rng.choice([n for n in SIZES if n <= most], count))


@pytest.mark.parametrize("seed", draws(1, 200))
def test_elementwise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice([*INTEGERS, "float32", "float16"]))
    shape = sizes(rng, int(rng.integers(1, 4)), 17)
    other = tuple(1 if rng.integers(3) == 0 else n for n in shape)
    x, y = drawn(rng, shape, dtype), drawn(rng, other, dtype)
    name = str(rng.choice(list(BINARY)))
    with np.errstate(all="ignore"):
        want = BINARY[name](x, y)
        want = np.where(want > x, want, -y)
    found = BINARY[name](there(x), there(y))
    found = (found > there(x)).where(found, -there(y)).numpy()
    assert found.dtype == want.dtype
    np.testing.assert_array_equal(found, want, err_msg=f"{name} {dtype} {shape} {other}")


@pytest.mark.parametrize("seed", draws(1, 200))
def test_division_and_shifts_of_integers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(INTEGERS))
    shape = sizes(rng, 2, 31)
    x, y = drawn(rng, shape, dtype), drawn(rng, shape, dtype)
    y = np.where(y == 0, 1, y).astype(y.dtype)
    with np.errstate(all="ignore"):
        want = x // y
        rest = np.mod(x, y)
    found = there(x) // there(y)
    np.testing.assert_array_equal(found.numpy(), want, err_msg=f"{dtype} {shape}")
    np.testing.assert_array_equal((there(x) % there(y)).numpy(), rest, err_msg=f"{dtype} {shape}")


@pytest.mark.parametrize("seed", draws(1, 200))
def test_casts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    every = [*INTEGERS, "bool", *FLOATS]
    source, dtype = (str(name) for name in rng.choice(every, 2))
    x = drawn(rng, sizes(rng, 2, 67), source)
    if source in FLOATS and dtype not in FLOATS:
        x = np.abs(x.astype(np.float32) * 9).astype(x.dtype)
    with np.errstate(all="ignore"):
        want = x.astype(to_numpy_dtype(getattr(dtypes, dtype)))
    found = there(x).cast(dtype).numpy()
    np.testing.assert_array_equal(found, want, err_msg=f"{source} to {dtype}")


@pytest.mark.parametrize("seed", draws(1, 200))
def test_reductions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = sizes(rng, int(rng.integers(1, 4)), 67)
    if np.prod(shape) > 1 << 16:
        shape = shape[:2]
    x = drawn(rng, shape, "float32")
    axis = int(rng.integers(len(shape)))
    found = there(x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found.sum(axis).numpy(), wide.sum(axis), rtol=1e-4, atol=1e-4)
    if shape[axis]:
        np.testing.assert_array_equal(found.max(axis).numpy(), x.max(axis))
        np.testing.assert_array_equal(found.argmax(axis).numpy(), x.argmax(axis))
    if x.size:
        e = np.exp(wide - wide.max(axis, keepdims=True))
        want = e / e.sum(axis, keepdims=True)
        np.testing.assert_allclose(found.softmax(axis).numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", draws(1, 200))
def test_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k, m = sizes(rng, 3, 67)
    x, y = drawn(rng, (n, k), "float32"), drawn(rng, (k, m), "float32")
    want = x.astype(np.float64) @ y.astype(np.float64)
    found = (there(x) @ there(y)).relu().numpy()
    np.testing.assert_allclose(found, np.maximum(want, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", draws(1, 200))
def test_indices_and_views(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["float32", "int8", "uint16", "int64", "bool"]))
    n, m = (max(s, 1) for s in sizes(rng, 2, 67))
    x = drawn(rng, (n, m), dtype)
    rows = rng.integers(0, n, int(rng.integers(1, 20)))
    a, b = sorted(int(i) for i in rng.integers(0, m + 1, 2))
    t = there(x)
    np.testing.assert_array_equal(t[Tensor(rows, device="WEBGPU")].numpy(), x[rows])
    part = t[:, a:b].flip(0).contiguous()
    np.testing.assert_array_equal(part.numpy(), x[::-1, a:b])
    t[:, a:b] = there(x[::-1, a:b].copy())
    want = x.copy()
    want[:, a:b] = x[::-1, a:b]
    np.testing.assert_array_equal(t.numpy(), want)


# accesses of neighbours


class Accesses:
    """A program that copies with lanes, and what it does in NumPy.

    Work-items copy some neighbours each, all or those before an end, from an element on to another
    one, by way of memory that they share or not; another load has single elements of the same
    buffer. Buffers begin anywhere.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        names = [*INTEGERS, "float32", "float16", "bfloat16", "bool"]
        self.dtype = getattr(dtypes, str(rng.choice(names)))
        self.lanes, self.items = int(rng.choice([2, 3, 4, 6, 8, 16])), int(rng.choice([4, 8]))
        self.blocks = int(rng.integers(1, 4))
        # How far apart items and blocks begin, and where both buffers do.
        self.step = self.lanes + int(rng.choice([0, 0, 0, 1, 2, 4]))
        self.gap, self.far = (int(rng.choice([0, 0, 0, 1, 2, 3, 4, 8])) for _ in range(2))
        self.starts = [int(rng.choice([0, 0, 1, 2, 3, 4, 8])) for _ in range(2)]
        self.gate = str(rng.choice(["none", "none", "items", "lanes", "stores"]))
        self.is_shared = bool(rng.integers(2))
        # Of narrow floats there is no maximum before it is decomposed.
        self.is_mixed = bool(rng.integers(2)) and self.dtype.name not in FLOATS[1:]
        self.count = self.items * self.blocks
        self.size = self.step * self.count + 32
        self.end = int(rng.integers(1, self.step * self.count))

    def linear(self) -> Linear:
        """The program."""
        b = Builder("accesses")
        given, out = b.param(self.size, self.dtype), b.param(self.size, self.dtype)
        block, item = b.axis(self.blocks, GLOBAL), b.axis(self.items, LOCAL)
        lane = b.axis(self.lanes, UPCAST)
        base = b.add((block * self.items + item) * self.step)
        gate = {
            "items": lambda: base.alu(Ops.CMPLT, UOp.const(dtypes.int32, self.end)),
            "lanes": lambda: (base + lane).alu(Ops.CMPLT, UOp.const(dtypes.int32, self.end)),
        }.get(self.gate.replace("stores", "items"))
        cond = None if gate is None else b.add(gate())
        value = b.load(at(given, base, lane + self.gap), None if self.gate == "stores" else cond)
        if self.is_shared:
            room = b.local(self.items * self.lanes, self.dtype)
            mine = b.add(item * self.lanes)
            fill = b.store(at(room, mine, lane), value)
            b.uops.append(UOp(Ops.BARRIER, dtypes.void, ()))
            # What the neighbour has stored.
            other = b.add((item.alu(Ops.XOR, UOp.const(dtypes.int32, 1))) * self.lanes)
            value = b.load(at(room.after(fill), other, lane))
        if self.is_mixed:
            single = b.load(at(given, b.add(base + item), 0))
            value = b.add(value.alu(Ops.MAX, single))
        b.store(at(out, base, lane + self.far), value, cond)
        return b.build()

    def wanted(self, data: Any, before: Any) -> Any:
        """What is in the second buffer behind it."""
        result = before.copy()
        for n in range(self.count):
            block, item = divmod(n, self.items)
            for k in range(self.lanes):
                other = block * self.items + (item ^ 1) if self.is_shared else n
                source = other * self.step + k
                inside = {"none": True, "items": other * self.step < self.end, "stores": True}
                value = data[source + self.gap]
                if not inside.get(self.gate, source < self.end):
                    value = np.zeros_like(value)
                if self.is_mixed:
                    value = np.maximum(value, data[n * self.step + item])
                place = n * self.step
                ends = {"none": True, "lanes": place + k < self.end}
                if ends.get(self.gate, place < self.end):
                    result[place + k + self.far] = value
        return result

    def run(self) -> tuple[Any, Any]:
        """The bytes of the second buffer behind it, and those that are wanted."""
        backend = Device["WEBGPU"]
        linear = self.linear()
        program = backend.load("accesses", backend.compile(render(linear, backend.target)))
        kind = to_numpy_dtype(self.dtype)
        data, before = (drawn(self.rng, (self.size + 8,), self.dtype.name) for _ in range(2))
        handles, buffers = [], []
        for array, start in zip((data, before), self.starts, strict=True):
            whole = Buffer("WEBGPU", array.nbytes, dtypes.uint8)
            whole.copyin(np.ascontiguousarray(array).view(np.uint8))
            place = start * self.dtype.itemsize
            handles.append(whole.view(self.size, self.dtype, place).ensure_allocated().handle)
            buffers.append(whole)
        grid = Grid((self.blocks,), (self.items,))
        program(tuple(handles), (), grid)
        found = buffers[1].numpy().view(kind)
        first, second = self.starts
        wanted = before.copy()
        inner = self.wanted(data[first:], before[second:])
        wanted[second:] = inner
        return found.view(np.uint8), wanted.view(np.uint8)


@pytest.mark.parametrize("seed", draws(12, 500))
def test_accesses_of_neighbours(seed: int) -> None:
    found, wanted = Accesses(seed).run()
    np.testing.assert_array_equal(found, wanted)
