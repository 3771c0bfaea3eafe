"""Products, convolutions and pooling: each mistake, and what is said of it."""

from __future__ import annotations

import pytest

from aster_ml import Tensor
from aster_ml.errors import ArgumentError, DTypeError, ShapeError
from tests.core.errors.mistakes import Mistake, check_mistake, image, matrix, ones

MISTAKES: list[Mistake] = [
    (lambda: matrix() @ ones(4), ShapeError, "matmul: k differs, 3 against 4, in [2,3] @ [4]"),
    (lambda: matrix() @ ones(2, 3), ShapeError, "matmul: k differs, 3 against 2, in [2,3] @ [2,3]"),
    (
        lambda: ones(2, 3, 4) @ ones(3, 4, 5),
        ShapeError,
        "matmul: shapes [2] and [3] do not broadcast: on axis -1 sizes are 2 and 3; equal sizes",
    ),
    (
        lambda: matrix() @ Tensor(1.0),
        ShapeError,
        "matmul: each side needs an axis, in [2,3] @ []; * multiplies by a scalar",
    ),
    (
        lambda: Tensor(1.0) @ matrix(),
        ShapeError,
        "matmul: each side needs an axis, in [] @ [2,3]; * multiplies by a scalar",
    ),
    (lambda: matrix() @ 3, DTypeError, "matmul: 3 is an int; a Tensor is wanted"),
    (lambda: matrix().dot("a"), DTypeError, "matmul: 'a' is a str; a Tensor is wanted"),
    (lambda: matrix().matmul(None), DTypeError, "matmul: None is None; a Tensor is wanted"),
    (
        lambda: Tensor.einsum("ij,jk->ik", matrix()),
        ArgumentError,
        "einsum: 'ij,jk->ik' names 2 operands, given 1",
    ),
    (
        lambda: Tensor.einsum("ij,jk->ik", matrix(), ones(4, 5)),
        ShapeError,
        "einsum: j has sizes 3 and 4 in 'ij,jk->ik' on [2,3], [4,5]",
    ),
    (
        lambda: Tensor.einsum("ij->ijk", matrix()),
        ArgumentError,
        "einsum: right side of 'ij->ijk': k is in no operand",
    ),
    (
        lambda: Tensor.einsum("ijk->i", matrix()),
        ArgumentError,
        "einsum: 'ijk' in 'ijk->i' names 3 axes, the operand has 2",
    ),
    (
        lambda: Tensor.einsum("ij->iq", matrix()),
        ArgumentError,
        "einsum: right side of 'ij->iq': q is in no operand",
    ),
    (
        lambda: Tensor.einsum("i j -> ->", matrix()),
        ArgumentError,
        "einsum: '->' in 'i j -> ->': letters, `...`, `,` and `->` are all that a formula has",
    ),
    (
        lambda: Tensor.einsum("", matrix()),
        ArgumentError,
        "einsum: '' in '' names 0 axes, the operand has 2",
    ),
    (
        lambda: Tensor.einsum("ij,ij,ij->i", matrix(), matrix()),
        ArgumentError,
        "einsum: 'ij,ij,ij->i' names 3 operands, given 2",
    ),
    (
        lambda: matrix().linear(ones(4, 5)),
        ShapeError,
        "matmul: k differs, 3 against 4, in [2,3] @ [4,5]",
    ),
    (
        lambda: matrix().linear(ones(3, 5), ones(4)),
        ShapeError,
        "add: shapes [2,5] and [4] do not broadcast: on axis -1 sizes are 5 and 4; equal sizes",
    ),
    (
        lambda: matrix().linear(ones(2, 3, 4, 5)),
        ShapeError,
        "matmul: k differs, 3 against 4, in [2,3] @ [2,3,4,5]",
    ),
    (
        lambda: image().conv2d(ones(2, 3, 3, 3)),
        ShapeError,
        "conv: 1 groups of 3 channels against 4 in the input and 2 in the result, in [1,4,8,8]",
    ),
    (
        lambda: image().conv2d(ones(2, 4, 9, 9)),
        ShapeError,
        "conv: kernel [9,9] with dilation (1, 1) is larger than [8,8], the input with its padding",
    ),
    (
        lambda: image().conv2d(ones(2, 4, 3)),
        ShapeError,
        "conv: input [1,4,8,8] and weight [2,4,3]; [n, c, *sizes] and [out, c / groups, *kernel]",
    ),
    (
        lambda: ones(4).conv2d(ones(2, 4, 3, 3)),
        ShapeError,
        "conv: input [4] and weight [2,4,3,3]; [n, c, *sizes] and [out, c / groups, *kernel] are",
    ),
    (
        lambda: image().conv2d(ones(2, 4, 3, 3), ones(3)),
        ShapeError,
        "add: shapes [1,2,6,6] and [1,3,1,1] do not broadcast: on axis -3 sizes are 2 and 3;",
    ),
    (
        lambda: image().conv2d(ones(2, 4, 3, 3), groups=3),
        ShapeError,
        "conv: 3 groups of 4 channels against 4 in the input and 2 in the result, in [1,4,8,8]",
    ),
    (
        lambda: image().conv2d(ones(3, 2, 3, 3), groups=2),
        ShapeError,
        "conv: 2 groups of 2 channels against 4 in the input and 3 in the result, in [1,4,8,8]",
    ),
    (
        lambda: image().conv2d(ones(2, 4, 3, 3), padding=(1, 2, 3)),
        ArgumentError,
        "conv: padding (1, 2, 3); one number, 2, or 4 (last axis first) would do",
    ),
    (
        lambda: image().conv2d(ones(2, 4, 3, 3), stride=0),
        ArgumentError,
        "conv: stride (0, 0); positive whole numbers are wanted",
    ),
    (
        lambda: image().conv2d(ones(2, 4, 3, 3), stride=(1, 2, 3)),
        ArgumentError,
        "conv: stride (1, 2, 3) and dilation (1, 1); one number, or one for each of the 2 axes",
    ),
    (
        lambda: image().conv2d(ones(2, 4, 3, 3), dilation=0),
        ArgumentError,
        "conv: dilation (0, 0); positive whole numbers are wanted",
    ),
    (
        lambda: image().conv2d(ones(2, 4, 3, 3), stride="2"),
        ArgumentError,
        "conv: stride ('2', '2'); positive whole numbers are wanted",
    ),
    (lambda: image().conv2d(3), DTypeError, "conv: 3 is an int; a Tensor is wanted"),
    (
        lambda: image().conv_transpose2d(ones(3, 2, 3, 3)),
        ShapeError,
        "conv_transpose: 4 channels in [1,4,8,8] against 3 in [3,2,3,3], in 1 groups",
    ),
    (
        lambda: image().conv_transpose2d(ones(4, 2, 3, 3), stride=0),
        ArgumentError,
        "conv_transpose: stride (0, 0); positive whole numbers are wanted",
    ),
    (
        lambda: image().conv_transpose2d(ones(4, 2, 3, 3), groups=3),
        ShapeError,
        "conv_transpose: 4 channels in [1,4,8,8] against 4 in [4,2,3,3], in 3 groups",
    ),
    (
        lambda: image().max_pool2d(9),
        ShapeError,
        "max_pool: kernel [9,9] with dilation (1, 1) is larger than [8,8], the input with its",
    ),
    (
        lambda: image().max_pool2d(0),
        ArgumentError,
        "max_pool: kernel (0, 0); positive whole numbers are wanted",
    ),
    (
        lambda: image().max_pool2d((2, 2), stride=0),
        ArgumentError,
        "max_pool: stride (0, 0); positive whole numbers are wanted",
    ),
    (
        lambda: image().max_pool2d((2, 2, 2, 2, 2)),
        ShapeError,
        "max_pool: kernel [2,2,2,2,2] on [1,4,8,8], which has fewer axes",
    ),
    (
        lambda: image().max_pool2d("2"),
        ArgumentError,
        "max_pool: kernel ('2', '2'); positive whole numbers are wanted",
    ),
    (
        lambda: image().avg_pool2d(2, padding=(1, 2, 3)),
        ArgumentError,
        "avg_pool: padding (1, 2, 3); one number, 2, or 4 (last axis first) would do",
    ),
    (
        lambda: image().avg_pool2d(2, stride=-1),
        ArgumentError,
        "avg_pool: stride (-1, -1); positive whole numbers are wanted",
    ),
    (
        lambda: ones(3).max_pool2d(2),
        ShapeError,
        "max_pool: kernel [2,2] on [3], which has fewer axes",
    ),
    (
        lambda: image().max_unpool2d(image()),
        DTypeError,
        "max_unpool: indices are float32; ints are wanted",
    ),
    (
        lambda: image().interpolate(5),
        ShapeError,
        "interpolate: size 5; one number for each axis to resize, at most 4",
    ),
    (
        lambda: image().interpolate((4, 4), mode="cubic"),
        ArgumentError,
        "interpolate: mode 'cubic'; linear, nearest or nearest-exact would do",
    ),
    (
        lambda: image().interpolate((4, 4, 4, 4, 4)),
        ShapeError,
        "interpolate: size (4, 4, 4, 4, 4); one number for each axis to resize, at most 4",
    ),
    (
        lambda: image().interpolate(()),
        ShapeError,
        "interpolate: size (); one number for each axis to resize, at most 4",
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[m[2][:50] for m in MISTAKES])
def test_mistake(mistake: Mistake) -> None:
    check_mistake(mistake)
