"""Quantised weights stay packed: what kernels there are, what they store, what recordings keep."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, Variable
from aster_ml.codegen.opts import OptOps
from aster_ml.codegen.passes import lower
from aster_ml.engine import storage
from aster_ml.engine.realize import schedule_uops
from aster_ml.nn.state import QuantTensor, ggml_quantize
from aster_ml.uop.ops import Ops
from tests.core.golden.kernels import AVX512


def packed(n: int, k: int, kind: str = "Q4_0", seed: int = 0) -> QuantTensor:
    """A quantised matrix in memory."""
    numbers = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)
    return ggml_quantize(Tensor(numbers), kind).realize()


def temporaries(*tensors: Tensor) -> tuple[int, int]:
    """How many kernels tensors take, and the elements of what these store besides."""
    schedule = schedule_uops([t.uop for t in tensors])[0]
    stored = [slot.size for slot in schedule.slots[schedule.n_args :]]
    return len(schedule.steps), sum(stored)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("rows", [1, 40])
def test_a_product_is_one_kernel_that_stores_nothing_else(kind: str, rows: int) -> None:
    x = Tensor.ones(rows, 512).contiguous().realize()
    assert temporaries(x @ packed(48, 512, kind).dequantize().T) == (1, 0)


def test_two_products_store_no_weight() -> None:
    x, first, second = Tensor.ones(1, 64).contiguous().realize(), packed(32, 64), packed(32, 64)
    gate, up = x @ first.dequantize().T, x @ second.dequantize().T
    assert temporaries(gate.silu() * up) == (1, 0)


def test_rows_are_gathered_as_bytes() -> None:
    weight, index = packed(1000, 64, "Q8_0"), Tensor([3, 7]).realize()
    assert temporaries(weight.dequantize()[index]) == (1, 0)
    # And as many as a variable says.
    many = Tensor(list(range(40))).realize()[: Variable("count", 1, 5).bind(2) * 8]
    assert temporaries(weight.dequantize()[many]) == (1, 0)


def test_gradients_store_no_weight() -> None:
    weight = packed(96, 64)
    x = Tensor.ones(20, 64).contiguous().realize()
    x.requires_grad = True
    product = x @ weight.dequantize().T
    (product * product).sum().backward()
    assert x.grad is not None
    assert temporaries(x.grad)[1] <= 20 * 96


def test_a_recording_unpacks_anew_and_keeps_no_floats() -> None:
    weight = packed(32, 64).dequantize()
    step = TinyJit(lambda x: (x @ weight.T).realize())
    x = Tensor.ones(1, 64).contiguous().realize()
    for _ in range(3):
        step(x)
    assert storage.realized_view(weight.uop) is None


def test_a_recording_sees_that_the_bytes_were_overwritten() -> None:
    held = packed(32, 64)
    weight = held.dequantize()
    want = weight.numpy()
    step = TinyJit(lambda x: (x @ weight.T).realize())
    x = Tensor.ones(1, 64).contiguous().realize()
    for _ in range(3):
        step(x)
    # A lazy value is that of the bytes as they were.
    held.blocks.assign(packed(32, 64, seed=1).blocks).realize()
    np.testing.assert_allclose(step(x).numpy()[0], want.sum(1), atol=1e-4)


def test_parts_of_one_memory_share_kernels() -> None:
    parts = [packed(512, 512, seed=seed).blocks.numpy() for seed in range(9)]
    begins = np.cumsum([5, *[part.size for part in parts]])
    memory = Tensor(np.concatenate([np.zeros(5, np.uint8), *[part.ravel() for part in parts]]))
    memory.realize()
    assert memory.nbytes() > 1 << 20
    x = Tensor.ones(1, 512).contiguous().realize()
    found = []
    for begin, part in zip(begins, parts):
        blocks = memory[int(begin) : int(begin) + part.size].reshape(*part.shape)
        found.append(x @ QuantTensor("Q4_0", blocks).dequantize().T)
    schedule = schedule_uops([t.uop for t in found])[0]
    kernels = [step.ast for step in schedule.steps if step.kind == "kernel"]
    assert len(kernels) == 9
    assert len(set(kernels)) == 1
    for y, part in zip(found, parts):
        want = QuantTensor("Q4_0", Tensor(part)).dequantize().numpy().sum(1)
        np.testing.assert_allclose(y.numpy()[0], want, atol=1e-3)


def test_a_part_of_memory_that_is_written_to_is_no_memory_of_its_own() -> None:
    memory = Tensor.zeros(1 << 20).contiguous().realize()
    part = memory[100:200] + 1
    memory[150:160] = 7
    np.testing.assert_array_equal(part.numpy(), np.ones(100))
    np.testing.assert_array_equal((memory[100:200] * 2).numpy()[50:60], np.full(10, 14))


def test_replays_take_parts_of_other_arguments() -> None:
    rows = np.random.default_rng(0).standard_normal((2, 1 << 19)).astype(np.float32)
    first, second = [Tensor(row).realize() for row in rows]
    step = TinyJit(lambda t: (t[1000:3000] * 2 + t[7:2007]).realize())
    for i in range(6):
        got = step(first if i % 2 else second).numpy()
        row = rows[0 if i % 2 else 1]
        np.testing.assert_allclose(got, row[1000:3000] * 2 + row[7:2007], rtol=1e-6)


def test_a_part_of_a_file_is_laid_out_where_it_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "numbers"
    np.arange(100, dtype=np.float32).tofile(path)
    held = Tensor.empty(100, device=f"DISK:{path}")
    np.testing.assert_array_equal(held[10:20].contiguous().numpy(), np.arange(10, 20))
    np.testing.assert_array_equal(held[::2].contiguous().numpy(), np.arange(0, 100, 2))


def test_rows_in_groups_have_tiles_and_panels() -> None:
    """Two products with as many rows as a variable says, which takes whole groups of eight."""
    first, second = packed(1536, 576), packed(1536, 576, seed=1)
    x, groups = Tensor.ones(128, 576).contiguous().realize(), Variable("groups", 1, 16).bind(4)
    sides = []
    for count in (groups * 8, groups):
        rows = x[:count]
        gated = (rows @ first.dequantize().T).relu() * (rows @ second.dequantize().T)
        (step,) = schedule_uops([gated.uop])[0].steps
        assert step.ast is not None
        linear, opts = lower(step.ast, AVX512)
        assert lower(step.ast, AVX512, opts)[0] == linear
        # Numbers are unpacked to scratch, and not for each row again.
        scratch = [u for u in linear.uops if u.op is Ops.DEFINE_LOCAL]
        assert len(scratch) == 2
        rows_side = [opt.arg for opt in opts if opt.op is OptOps.UPCAST and opt.axis == "r0"]
        sides.append(rows_side)
    assert [n for n in sides[0] if n in (2, 4, 8)]
    assert sides[1] == []
