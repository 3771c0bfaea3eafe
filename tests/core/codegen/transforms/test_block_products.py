"""Sums of products of bytes within blocks: which kernels get DOTs, and that these are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.passes import lower
from aster_ml.target import PLAIN_OPS, Target
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of
from tests.core.kernel_checks import kernel_of

DOTS = Target(
    "CPU", "llvm", vector_bits=512, vector_registers=32, masks=True, broadcasts=True,
    cache_bytes=(32 << 10, 1 << 20, 16 << 20),
    native_ops=PLAIN_OPS | {"DOT"}, dot_dtypes=frozenset({"int8"}), features=frozenset({"vnni"}),
)  # fmt: skip
BLOCKS, WORDS, LANES = 3, 4, 16


def product(codes: Tensor, given: Tensor, scales: Tensor) -> Tensor:
    """Nibbles times int8 in blocks, and each block times a scale.

    Shapes: codes uint8 [m, b, w, 16, 4], given int8 [b, 2, w, 4], scales [m, b, 16] -> [16 * m].
    """
    low, high = [
        given[:, i].reshape(1, BLOCKS, WORDS, 1, 4).cast(dtypes.int32)
        * field.cast(dtypes.int32)
        for i, field in enumerate((codes & 15, codes >> 4))
    ]  # fmt: skip
    return ((low + high).sum((2, 4)).float() * scales).sum(1).flatten()


def operands(m: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Random ones, with the largest and smallest numbers among them."""
    codes = np.random.randint(0, 256, (m, BLOCKS, WORDS, LANES, 4)).astype(np.uint8)
    given = np.random.randint(-128, 128, (BLOCKS, 2, WORDS, 4)).astype(np.int8)
    codes[0, 0], given[0] = 255, -128
    scales = np.random.randint(-8, 8, (m, BLOCKS, LANES)).astype(np.float32)
    return Tensor(codes), Tensor(given), Tensor(scales)


def test_the_sum_is_exact() -> None:
    codes, given, scales = operands()
    want = 0
    for i, field in enumerate((codes.numpy() & 15, codes.numpy() >> 4)):
        terms = field.astype(np.int64) * given.numpy()[:, i][None, :, :, None].astype(np.int64)
        want = want + terms.sum((2, 4))
    want = (want * scales.numpy()).sum(1).reshape(-1)
    assert (product(codes, given, scales).numpy() == want).all()


@pytest.mark.parametrize("bits", [256, 512])
def test_both_nibbles_are_lanes_of_one_dot_of_words(bits: int) -> None:
    target = replace(DOTS, vector_bits=bits)
    linear, opts = lower(kernel_of(product(*operands())), target)
    dots = [u for u in linear.uops if u.op is Ops.DOT]
    loads = {u for u in linear.uops if u.op is Ops.LOAD and u.dtype is dtypes.uint32}
    assert (len(dots), len(loads)) == (1, 3)
    lanes = [r for r in dots[0].ranges if r.arg.kind is AxisType.UNROLL]
    assert sorted([size_of(r) for r in lanes]) == [2, WORDS]
    assert any([opt.kind == "VECTOR" and opt.arg == bits // 32 for opt in opts])


def test_each_word_of_a_block_to_come_is_asked_for_once() -> None:
    codes, given, scales = operands(8)
    other = operands(8)[1].realize()
    both = product(codes, given, scales) + 128 * product(codes, other, scales)
    linear, _ = lower(kernel_of(both.reshape(8, LANES)), DOTS)
    words = [u for u in linear.uops if u.op is Ops.LOAD and u.dtype is dtypes.uint32]
    assert [u.arg.ahead for u in words if u.arg is not None] == [1024]


def test_a_target_without_dot_has_none() -> None:
    target = replace(DOTS, dot_dtypes=frozenset())
    linear, _ = lower(kernel_of(product(*operands())), target)
    assert not [u for u in linear.uops if u.op is Ops.DOT]


def test_bytes_that_do_not_lie_side_by_side_have_none() -> None:
    codes, given, scales = operands()
    turned = codes.permute(0, 1, 2, 4, 3).contiguous().realize().permute(0, 1, 2, 4, 3)
    linear, _ = lower(kernel_of(product(turned, given, scales)), DOTS)
    assert not [u for u in linear.uops if u.op is Ops.DOT]


def test_bytes_that_are_picked_by_an_index_are_dots_too() -> None:
    codes, given, scales = operands(3)
    index = Tensor([2, 0, 2, 1], dtype="int32").realize()
    linear, _ = lower(kernel_of(product(codes[index], given, scales[index])), DOTS)
    assert len([u for u in linear.uops if u.op is Ops.DOT]) == 1
    want = product(codes, given, scales).numpy().reshape(3, LANES)[index.numpy()].reshape(-1)
    assert (product(codes[index], given, scales[index]).numpy() == want).all()
