"""Convolutions against PyTorch and against plain loops; how windows are indexed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml import GlobalCounters
from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.gradient import compute_gradient
from aster_ml.ops.pool import windows_of
from aster_ml.uop.graph import toposort
from aster_ml.uop.movement import both, source_index
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import MOVEMENT, Ops
from aster_ml.uop.rules.symbolic import simplify, simplify_given
from tests.core.numerics import check_torch, leaf, tensor, value


def random(*shape: int, seed: int = 0) -> Any:
    """Normal numbers."""
    return np.random.RandomState(seed + len(shape)).randn(*shape)


CONFIGS: list[dict[str, Any]] = [
    {}, {"stride": 2}, {"padding": 1}, {"stride": (2, 1), "padding": (1, 2)}, {"dilation": 2},
    {"dilation": (2, 1), "stride": (1, 3), "padding": 2}, {"groups": 2},
    {"groups": 4, "stride": 2, "padding": 1}, {"stride": 3}, {"stride": 5, "padding": 1},
    {"stride": (4, 2), "dilation": (2, 2)},
]  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_conv2d(config: dict[str, Any]) -> None:
    functional = pytest.importorskip("torch.nn.functional")
    each = 4 // config.get("groups", 1)
    check_torch(
        lambda x, w, b: x.conv2d(w, b, **config),
        lambda x, w, b: functional.conv2d(x, w, b, **config),
        random(2, 4, 9, 8),
        random(8, each, 3, 2),
        random(8),
    )


@pytest.mark.torch
@pytest.mark.parametrize("config", CONFIGS[:-1], ids=str)
def test_conv_transpose2d(config: dict[str, Any]) -> None:
    functional = pytest.importorskip("torch.nn.functional")
    check_torch(
        lambda x, w, b: x.conv_transpose2d(w, b, **config),
        lambda x, w, b: functional.conv_transpose2d(x, w, b, **config),
        random(2, 4, 5, 6),
        random(4, 3, 3, 2),
        random(3 * config.get("groups", 1)),
    )


@pytest.mark.torch
@pytest.mark.parametrize("kernel", [1, 2, 4, 5])
@pytest.mark.parametrize("stride, dilation, more", [(2, 1, 1), (3, 1, 0), (2, 3, 2), (1, 2, 1)])
def test_conv_transpose2d_of_other_kernels(
    kernel: int, stride: int, dilation: int, more: int
) -> None:
    functional = pytest.importorskip("torch.nn.functional")
    config = {"stride": stride, "dilation": dilation, "output_padding": more}
    check_torch(
        lambda x, w: x.conv_transpose2d(w, **config),
        lambda x, w: functional.conv_transpose2d(x, w, **config),
        random(2, 3, 4, 5),
        random(3, 2, kernel, kernel),
    )


@pytest.mark.parametrize("kernel, stride", [(4, 2), (3, 2), (2, 3)])
def test_conv_transpose2d_multiplies_no_zeros(kernel: int, stride: int) -> None:
    x, w = tensor(np.ones((2, 16, 9, 9))).realize(), tensor(np.ones((16, 8, kernel, kernel)))
    w.realize()
    GlobalCounters.reset()
    x.conv_transpose2d(w, stride=stride).realize()
    # A product and a sum each, and then those of neighbours together; with zeros it would be 8.
    assert GlobalCounters.global_ops < 3 * 2 * 16 * 8 * 81 * kernel**2


@pytest.mark.torch
@pytest.mark.parametrize("dims", [1, 3])
def test_other_numbers_of_axes(dims: int) -> None:
    functional = pytest.importorskip("torch.nn.functional")
    sizes, kernel = (7, 5, 4)[:dims], (3, 2, 2)[:dims]
    config = {"stride": (2, 1, 2)[:dims], "padding": 1, "dilation": (1, 2, 1)[:dims]}
    more = {**config, "output_padding": (1, 0, 1)[:dims]}
    check_torch(
        lambda x, w: x.conv2d(w, **config),
        lambda x, w: getattr(functional, f"conv{dims}d")(x, w, **config),
        random(2, 3, *sizes),
        random(4, 3, *kernel),
    )
    check_torch(
        lambda x, w: x.conv_transpose2d(w, **more),
        lambda x, w: getattr(functional, f"conv_transpose{dims}d")(x, w, **more),
        random(2, 3, *sizes),
        random(3, 4, *kernel),
    )


@pytest.mark.torch
@pytest.mark.parametrize("padding", [(1, 2, 0, 3), ((0, 3), (1, 2)), [1, 2, 0, 3]])
def test_padding_may_differ_on_each_side(padding: Any) -> None:
    functional = pytest.importorskip("torch.nn.functional")
    check_torch(
        lambda x, w: x.conv2d(w, padding=padding, stride=2),
        lambda x, w: functional.conv2d(functional.pad(x, (1, 2, 0, 3)), w, stride=2),
        random(2, 3, 5, 6),
        random(4, 3, 3, 3),
    )


def test_conv2d_is_what_loops_give() -> None:
    x, w = random(1, 2, 6, 5), random(3, 2, 3, 2)
    want = np.zeros((1, 3, 2, 4))
    for o, i, j in np.ndindex(3, 2, 4):
        want[0, o, i, j] = (x[0, :, 2 * i : 2 * i + 3, j : j + 2] * w[o]).sum()
    np.testing.assert_allclose(value(tensor(x).conv2d(tensor(w), stride=(2, 1))), want)


def test_halves_accumulate_in_float32() -> None:
    x, w = tensor(np.ones((1, 64, 8, 8), np.float16)), tensor(np.ones((1, 64, 8, 8), np.float16))
    y = x.conv2d(w)
    assert y.dtype is dtypes.float16
    assert value(y) == 4096
    assert [u.dtype for u in toposort(y.uop) if u.op is Ops.REDUCE] == [dtypes.float32]


@pytest.mark.parametrize(
    "x, w, config, error, message",
    [
        ((1, 3, 5, 5), (2, 4, 3, 3), {}, ShapeError, "1 groups of 4 channels against 3"),
        ((1, 4, 5, 5), (3, 2, 3, 3), {"groups": 2}, ShapeError, "and 3 in the result"),
        ((1, 3, 5), (2, 3, 3, 3), {}, ShapeError, "equally many axes"),
        ((1, 3, 5, 5), (2, 3, 7, 3), {}, ShapeError, r"kernel \[7,3\] .* larger than \[5,5\]"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"dilation": 3}, ShapeError, r"dilation \(3, 3\)"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"stride": 0}, ArgumentError, r"stride \(0, 0\)"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"stride": (1, 1, 1)}, ArgumentError, "stride"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"padding": (1, 2, 3)}, ArgumentError, "one number, 2, or 4"),
    ],
)
def test_conv2d_refuses(x: Any, w: Any, config: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        tensor(np.zeros(x)).conv2d(tensor(np.zeros(w)), **config)


def test_conv_transpose2d_refuses() -> None:
    with pytest.raises(ShapeError, match=r"3 channels in \[1,3,5,5\] against 4"):
        tensor(np.zeros((1, 3, 5, 5))).conv_transpose2d(tensor(np.zeros((4, 2, 3, 3))))


# windows by movement alone, with indices that need no division


def walk_down(root: UOp, bottom: UOp) -> tuple[list[UOp], UOp | None]:
    """The index into `bottom` of an element of `root`, simplified, and when there is one."""
    indices = tuple(
        [
            UOp.range(size, axis) if size > 1 else UOp.index_const(0)
            for axis, size in enumerate(root.shape)
        ]
    )
    valid: UOp | None = None
    u = root
    while u is not bottom:
        if u.op is Ops.REDUCE:
            indices = tuple(
                [
                    UOp.range(u.src[0].shape[axis], 100 + axis) if axis in u.arg.axes else i
                    for axis, i in enumerate(indices)
                ]
            )
        else:
            assert u.op in MOVEMENT
            indices, inside = source_index(u, indices)
            valid = both(valid, inside)
        u = u.src[0]
    if valid is None:
        return [simplify(i) for i in indices], None
    valid = simplify(valid)
    return [simplify_given(simplify(i), valid) for i in indices], valid


WINDOWS = [
    ((9, 8), (3, 3), (1, 1), (1, 1)),
    ((9, 8), (3, 2), (2, 1), (1, 2)),
    ((10,), (3,), (3,), (1,)),
    ((11,), (2,), (5,), (2,)),
    ((224, 224), (7, 7), (2, 2), (1, 1)),
    ((12, 12), (2, 2), (2, 2), (1, 1)),
    ((8, 8), (1, 3), (2, 1), (1, 1)),
]


@pytest.mark.parametrize("sizes, kernel, stride, dilation", WINDOWS)
def test_windows_are_plain_sums_of_indices(
    sizes: Any, kernel: Any, stride: Any, dilation: Any
) -> None:
    x = tensor(np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes))
    windows = windows_of(x, kernel, stride, dilation, "test")
    indices, valid = walk_down(windows.uop, x.uop)
    assert valid is None or (valid.op is Ops.CONST and valid.arg is True)
    assert not {u.op for u in toposort(*indices)} & {Ops.IDIV, Ops.MOD, Ops.WHERE}
    got, dims = value(windows), len(sizes)
    for place in np.ndindex(got.shape):
        at = tuple(place[a] * stride[a] + place[dims + a] * dilation[a] for a in range(dims))
        assert got[place] == np.ravel_multi_index(at, sizes)


@pytest.mark.parametrize(
    "sizes, kernel, dilation",
    [
        ((9, 8), (3, 3), (1, 1)),
        ((9, 8), (3, 2), (1, 2)),
        ((30,), (5,), (3,)),
    ],
)
def test_gradient_of_windows_has_no_division(sizes: Any, kernel: Any, dilation: Any) -> None:
    x = tensor(np.zeros(sizes))
    windows = windows_of(x, kernel, (1,) * len(sizes), dilation, "test")
    g = leaf(random(*windows.shape))
    found = compute_gradient(windows.uop, g, {x.uop})[x.uop]
    indices, valid = walk_down(found, g)
    assert valid is not None
    assert not {u.op for u in toposort(*indices, valid)} & {Ops.IDIV, Ops.MOD, Ops.WHERE}


def test_windows_that_do_not_overlap_add_nothing_up() -> None:
    x = tensor(np.zeros((12, 12)))
    windows = windows_of(x, (2, 3), (3, 3), (1, 1), "test")
    found = compute_gradient(windows.uop, leaf(np.ones(windows.shape)), {x.uop})[x.uop]
    assert Ops.REDUCE not in {u.op for u in toposort(found)}


def test_windows_take_few_nodes() -> None:
    x = tensor(np.zeros((4, 12, 12)))
    sliding = windows_of(x, (3, 3), (1, 1), (1, 1), "test").uop
    apart = windows_of(x, (3, 3), (3, 3), (1, 1), "test").uop
    moves = [sum(u.op in MOVEMENT for u in toposort(u)) for u in (sliding, apart)]
    assert moves <= [10, 3]


@pytest.mark.parametrize(
    "config", [{}, {"padding": 1, "dilation": 2}, {"stride": 2, "padding": 2}], ids=str
)
def test_symbolic_length(config: dict[str, Any]) -> None:
    x, w = random(2, 3, 12), random(4, 3, 3)
    length = UOp.variable("length", 5, 12).bind(9)
    part = tensor(x).shrink((None, None, (0, length)))
    have = part.conv2d(tensor(w), **config)
    want = tensor(x[:, :, :9]).conv2d(tensor(w), **config)
    np.testing.assert_allclose(value(have), value(want))
    np.testing.assert_allclose(
        value(part.max_pool2d((2,))), value(tensor(x[:, :, :9]).max_pool2d((2,)))
    )


def test_negative_padding_cuts_elements_off() -> None:
    """As PyTorch has it for a convolution; one side may grow while the other shrinks."""
    x = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
    w = tensor(np.ones((1, 1, 3, 3), np.float32))
    cut = tensor(x[:, :, 1:-1, 1:-1].copy()).conv2d(w)
    np.testing.assert_array_equal(value(tensor(x).conv2d(w, padding=-1)), value(cut))
    moved = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 0)))[..., :-1].copy()
    mixed = tensor(x).conv2d(w, padding=(1, -1, 0, 0))
    np.testing.assert_array_equal(value(mixed), value(tensor(moved).conv2d(w)))
