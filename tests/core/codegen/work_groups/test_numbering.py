"""Numbers of blocks: dimensions of a launch, and what has no room in one of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.uop.linear import Linear
from tests.core.kernel_checks import kernel_of, memory
from tests.fuzz.random_kernels import GROUPS


def transposed(most: tuple[int, int, int], opts: str | None = None) -> Linear:
    """The program of a copy of [2, 3, 5, 7] with its axes reversed, and that it is right."""
    x = np.arange(210, dtype=np.float32)
    ast = kernel_of(memory(2, 3, 5, 7).permute(3, 1, 0, 2).contiguous())
    target = replace(GROUPS, max_grid=most)
    linear, _ = lower(ast, target, None if opts is None else parse_opts(opts))
    out = np.full(210, np.nan, np.float32)
    Interpreter(linear).run([out, x], ())
    wanted = x.reshape(2, 3, 5, 7).transpose(3, 1, 0, 2)
    np.testing.assert_array_equal(out.reshape(wanted.shape), wanted)
    return linear


def test_up_to_three_axes_are_dimensions() -> None:
    ast = kernel_of(memory(4, 8, 6).permute(2, 1, 0).contiguous())
    assert lower(ast, GROUPS, ())[0].global_size == (4, 8, 6)


@pytest.mark.parametrize(
    ("most", "grid"),
    [
        ((210, 1, 1), (210,)),
        ((209, 2, 1), (105, 2)),
        ((100, 65535, 1), (70, 3)),
        ((50, 9, 9), (42, 5)),
    ],
)
def test_what_has_no_room_in_one_dimension_has_two(
    most: tuple[int, int, int], grid: tuple[int, ...]
) -> None:
    assert transposed(most, "").global_size == grid


def test_blocks_behind_the_last_one_store_nothing() -> None:
    """Of a kernel that adds to what it reads, too: the work that is done again is not stored."""
    linear = transposed((37, 37, 1), "")
    assert linear.global_size == (35, 6)
    x = memory(211)
    target = replace(GROUPS, max_grid=(100, 100, 1))
    linear, _ = lower(kernel_of(x + 1), target, ())
    assert linear.global_size == (71, 3)
    out = np.full(211, np.nan, np.float32)
    Interpreter(linear).run([out, np.arange(211, dtype=np.float32)], ())
    np.testing.assert_array_equal(out, np.arange(1, 212, dtype=np.float32))


@pytest.mark.parametrize("shape", [(300, 7), (64, 64, 5)])
def test_default_schedules_keep_to_the_limits(shape: tuple[int, ...]) -> None:
    linear, _ = lower(kernel_of(memory(*shape).sum(-1)), replace(GROUPS, max_grid=(3, 500, 1)))
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    assert all(int(n) <= m for n, m in zip(linear.global_size, (3, 500, 1), strict=False))
    out = np.full(x[..., 0].size, np.nan, np.float32)
    Interpreter(linear).run([out, x.reshape(-1).copy()], ())
    np.testing.assert_allclose(out, x.sum(-1).reshape(-1), rtol=1e-4, atol=1e-4)
