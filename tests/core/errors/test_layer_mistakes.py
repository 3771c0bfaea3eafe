"""Reductions, losses, layers and optimisers: each mistake, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor, nn
from aster_ml.errors import (
    ArgumentError,
    AsterError,
    DTypeError,
    GradientError,
    IndexRangeError,
    ShapeError,
    UnknownDTypeError,
)
from aster_ml.nn import optim
from tests.core.errors.mistakes import Mistake, check_mistake, counts, image, matrix, ones, weight

MISTAKES: list[Mistake] = [
    (
        lambda: matrix().sum(3),
        IndexRangeError,
        "sum: axis 3 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().max(5),
        IndexRangeError,
        "max: axis 5 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (lambda: matrix().mean(axis="x"), ArgumentError, "mean: axis 'x' is a str; an int is wanted"),
    (lambda: matrix().sum((0, 0)), ArgumentError, "sum: axes (0, 0) name one axis twice"),
    (
        lambda: matrix().prod(-3),
        IndexRangeError,
        "prod: axis -3 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().var(2),
        IndexRangeError,
        "var: axis 2 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().std(correction="a"),
        ArgumentError,
        "var: correction 'a' is a str; a number is wanted",
    ),
    (
        lambda: matrix().any(4),
        IndexRangeError,
        "any: axis 4 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().argmax(2),
        IndexRangeError,
        "argmax: axis 2 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().argmin(-3),
        IndexRangeError,
        "argmin: axis -3 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().softmax(3),
        IndexRangeError,
        "max: axis 3 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().log_softmax(-4),
        IndexRangeError,
        "max: axis -4 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().logsumexp(2),
        IndexRangeError,
        "max: axis 2 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().cumprod(-3),
        IndexRangeError,
        "cumprod: axis -3 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().cummax(5),
        IndexRangeError,
        "cummax: axis 5 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (lambda: Tensor(np.zeros((0,), "f")).argmax(), ShapeError, "argmax: axis 0 of [0] is empty"),
    (
        lambda: matrix().sum(1.0),
        ArgumentError,
        "sum: axis 1.0 is a float; an int, or several, is wanted",
    ),
    (
        lambda: matrix().sum(dtype="nope"),
        UnknownDTypeError,
        "'nope' is no dtype; there are fp8e4m3, fp8e5m2, float16, bfloat16, float32, float64,",
    ),
    (
        lambda: matrix().sort(2),
        IndexRangeError,
        "sort: axis 2 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (lambda: matrix().topk(5), ArgumentError, "topk: k = 5, axis 1 of [2,3] has 3 elements"),
    (lambda: matrix().topk(-1), ArgumentError, "topk: k = -1, axis 1 of [2,3] has 3 elements"),
    (
        lambda: matrix().topk(2, dim=4),
        IndexRangeError,
        "topk: axis 4 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().argsort(7),
        IndexRangeError,
        "sort: axis 7 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().layernorm(axis=3),
        IndexRangeError,
        "mean: axis 3 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: image().batchnorm(ones(3), ones(4), ones(4), ones(4)),
        ShapeError,
        "reshape: [3] has 3 elements, [1,4,1,1] has 4",
    ),
    (
        lambda: image().batchnorm(None, None, ones(5), ones(4)),
        ShapeError,
        "reshape: [5] has 5 elements, [1,4,1,1] has 4",
    ),
    (
        lambda: matrix().dropout(1.5),
        ArgumentError,
        "dropout: p is 1.5; a probability from 0 to 1 is wanted",
    ),
    (
        lambda: Tensor.train()(lambda: matrix().dropout(1.5))(),
        ArgumentError,
        "dropout: p is 1.5; a probability from 0 to 1 is wanted",
    ),
    (
        lambda: Tensor.train()(lambda: matrix().dropout(-0.1))(),
        ArgumentError,
        "dropout: p is -0.1; a probability from 0 to 1 is wanted",
    ),
    (
        lambda: Tensor.train()(lambda: matrix().dropout("a"))(),
        ArgumentError,
        "dropout: p is 'a'; a probability from 0 to 1 is wanted",
    ),
    (
        lambda: matrix().cross_entropy(counts(3)),
        ShapeError,
        "cross_entropy: predictions [2,3] and labels [3]; labels [2] are wanted, as classes are",
    ),
    (
        lambda: matrix().cross_entropy(matrix(), reduction="avg"),
        ArgumentError,
        "reduction 'avg'; mean, sum or none would do",
    ),
    (
        lambda: matrix().cross_entropy(counts(2), label_smoothing=2.0),
        ArgumentError,
        "label_smoothing is 2.0; a number from 0 to 1 is wanted",
    ),
    (
        lambda: matrix().cross_entropy(ones(2, 4)),
        ShapeError,
        "cross_entropy: predictions [2,3] and labels [2,4]; labels [2] are wanted, as classes",
    ),
    (
        lambda: matrix().sparse_categorical_crossentropy(counts(3)),
        ShapeError,
        "sparse_categorical_crossentropy: predictions [2,3] and labels [3]; labels [2] are",
    ),
    (
        lambda: matrix().sparse_categorical_crossentropy(counts(2), reduction="avg"),
        ArgumentError,
        "reduction 'avg'; mean, sum or none would do",
    ),
    (
        lambda: matrix().sparse_categorical_crossentropy(ones(2)),
        DTypeError,
        "sparse_categorical_crossentropy: labels are float32; class numbers, which are ints, are",
    ),
    (
        lambda: matrix().sparse_categorical_crossentropy(counts(2), label_smoothing=-1),
        ArgumentError,
        "label_smoothing is -1; a number from 0 to 1 is wanted",
    ),
    (
        lambda: matrix().binary_crossentropy(ones(3, 3)),
        ShapeError,
        "mul: shapes [3,3] and [2,3] do not broadcast: on axis -2 sizes are 3 and 2; equal sizes",
    ),
    (
        lambda: matrix().binary_crossentropy(matrix(), reduction=None),
        ArgumentError,
        "reduction None; mean, sum or none would do",
    ),
    (
        lambda: matrix().binary_crossentropy_logits(ones(2, 4)),
        ShapeError,
        "sub: shapes [2,3] and [2,4] do not broadcast: on axis -1 sizes are 3 and 4; equal sizes",
    ),
    (
        lambda: matrix().nll_loss(counts(3)),
        ShapeError,
        "nll_loss: predictions [2,3] and labels [3]; labels [2] are wanted, as classes are on",
    ),
    (
        lambda: matrix().nll_loss(counts(2), weight=ones(5)),
        ShapeError,
        "nll_loss: weight [5]; one number for each of the 3 classes is wanted",
    ),
    (
        lambda: matrix().nll_loss(ones(2)),
        DTypeError,
        "nll_loss: labels are float32; class numbers, which are ints, are wanted",
    ),
    (
        lambda: matrix().nll_loss(counts(2), reduction="x"),
        ArgumentError,
        "reduction 'x'; mean, sum or none would do",
    ),
    (
        lambda: ones(2, 3, 4).scaled_dot_product_attention(ones(2, 5, 3), ones(2, 5, 4)),
        ShapeError,
        "matmul: k differs, 4 against 3, in [2,3,4] @ [2,3,5]",
    ),
    (
        lambda: ones(2, 3, 4).scaled_dot_product_attention(ones(2, 5, 4), ones(2, 6, 4)),
        ShapeError,
        "matmul: k differs, 5 against 6, in [2,3,5] @ [2,6,4]",
    ),
    (
        lambda: ones(2, 3, 4).scaled_dot_product_attention(
            ones(2, 5, 4), ones(2, 5, 4), attn_mask=ones(9, 9)
        ),
        ShapeError,
        "add: shapes [2,3,5] and [9,9] do not broadcast: on axis -2 sizes are 3 and 9; equal",
    ),
    (
        lambda: ones(2, 3, 4).scaled_dot_product_attention(
            ones(2, 5, 4), ones(2, 5, 4), attn_mask=ones(3, 5), is_causal=True
        ),
        ArgumentError,
        "scaled_dot_product_attention: is_causal stands for a mask, and attn_mask is given as",
    ),
    (
        lambda: ones(1, 3, 2, 4).scaled_dot_product_attention(
            ones(1, 2, 5, 4), ones(1, 2, 5, 4), enable_gqa=True
        ),
        ShapeError,
        "scaled_dot_product_attention: 3 heads of queries do not share the 2 heads of [1,2,5,4]",
    ),
    (
        lambda: matrix().clip("a", 1),
        DTypeError,
        "cmplt: a str (a) stands beside a tensor; a number or a Tensor is wanted",
    ),
    (
        lambda: matrix().lerp(ones(5), 0.5),
        ShapeError,
        "sub: shapes [5] and [2,3] do not broadcast: on axis -1 sizes are 5 and 3; equal sizes",
    ),
    (
        lambda: matrix().elu("a"),
        DTypeError,
        "mul: a str (a) stands beside a tensor; a number or a Tensor is wanted",
    ),
    (
        lambda: matrix().leaky_relu("a"),
        DTypeError,
        "mul: a str (a) stands beside a tensor; a number or a Tensor is wanted",
    ),
    (lambda: matrix().softplus(0), ArgumentError, "softplus: beta is 0; another number is wanted"),
    (
        lambda: matrix().masked_fill(ones(4) > 0, 1),
        ShapeError,
        "where: shapes [4] and [] and [2,3] do not broadcast: on axis -1 sizes are 4 and 3;",
    ),
    (
        lambda: matrix().sequential([3]),
        ArgumentError,
        "sequential: step 0 is 3; a function is wanted",
    ),
    (
        lambda: matrix().sequential(3),
        ArgumentError,
        "sequential: step 0 is 3; a function is wanted",
    ),
    (
        lambda: counts(3).one_hot("a"),
        ArgumentError,
        "one_hot: 'a' classes; a positive number is wanted",
    ),
    (
        lambda: counts(3).one_hot(-2),
        ArgumentError,
        "one_hot: -2 classes; a positive number is wanted",
    ),
    (
        lambda: ones(3).qr(),
        ShapeError,
        "qr: [3]; [..., rows, columns] is wanted, rows and columns plain ints",
    ),
    (
        lambda: ones(3).svd(),
        ShapeError,
        "svd: [3]; [..., rows, columns] is wanted, rows and columns plain ints",
    ),
    (
        lambda: ones(3).newton_schulz(3, (1.0, 2.0, 3.0)),
        ShapeError,
        "newton_schulz: [3]; [..., rows, columns] is wanted, rows and columns plain ints",
    ),
    (
        lambda: matrix().unfold(0, 5, 1),
        ShapeError,
        "unfold: windows of 5 do not fit axis 0, which has size 2",
    ),
    (
        lambda: matrix().unfold(3, 1, 1),
        IndexRangeError,
        "unfold: axis 3 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: nn.Linear(3, 4)(ones(2, 5)),
        ShapeError,
        "matmul: k differs, 5 against 3, in [2,5] @ [3,4]",
    ),
    (lambda: nn.Linear("a", 3), ArgumentError, "a layer of 'a' inputs; a whole number is wanted"),
    (lambda: nn.Linear(-1, 3), ShapeError, "rand: size -1 is negative"),
    (
        lambda: nn.Conv2d(4, 2, 3)(ones(1, 3, 8, 8)),
        ShapeError,
        "conv: 1 groups of 4 channels against 3 in the input and 2 in the result, in [1,3,8,8]",
    ),
    (
        lambda: nn.Conv2d(4, 3, 3, groups=2),
        ArgumentError,
        "Conv2d: groups=2 must divide in_channels=4 and out_channels=3",
    ),
    (
        lambda: nn.Conv2d(3, 4, 3, groups=2),
        ArgumentError,
        "Conv2d: groups=2 must divide in_channels=3 and out_channels=4",
    ),
    (
        lambda: nn.Conv2d(4, 2, 3, padding="full"),
        ArgumentError,
        "padding='full': a number, a tuple of numbers or 'same' is wanted",
    ),
    (
        lambda: nn.Conv2d(4, 2, 3, padding="same", stride=2)(image()),
        ArgumentError,
        "padding='same' is not supported for strided convolutions (stride=2): give the padding",
    ),
    (lambda: nn.Conv2d(4, 2, -3), ShapeError, "rand: size -3 is negative"),
    (
        lambda: nn.Conv1d(4, 2, 3)(ones(1, 5, 8)),
        ShapeError,
        "conv: 1 groups of 4 channels against 5 in the input and 2 in the result, in [1,5,8] and",
    ),
    (
        lambda: nn.ConvTranspose2d(4, 2, 3)(ones(1, 3, 8, 8)),
        ShapeError,
        "conv_transpose: 3 channels in [1,3,8,8] against 4 in [4,2,3,3], in 1 groups",
    ),
    (
        lambda: nn.BatchNorm(3)(image()),
        ShapeError,
        "BatchNorm: x is [1, 4, 8, 8], [n, 3, ...] is wanted (channels on axis 1)",
    ),
    (
        lambda: nn.BatchNorm(4)(ones(4)),
        ShapeError,
        "BatchNorm: x is [4], [n, 4, ...] is wanted (channels on axis 1)",
    ),
    (
        lambda: nn.LayerNorm(4)(ones(2, 5)),
        ShapeError,
        "LayerNorm: the last axes of x [2, 5] must be [4]",
    ),
    (
        lambda: nn.LayerNorm((3, 4))(ones(2, 4)),
        ShapeError,
        "LayerNorm: the last axes of x [2, 4] must be [3, 4]",
    ),
    (
        lambda: nn.LayerNorm2d(4)(ones(1, 3, 2, 2)),
        ShapeError,
        "LayerNorm: the last axes of x [1, 2, 2, 3] must be [4]",
    ),
    (
        lambda: nn.GroupNorm(2, 4)(ones(1, 3, 2, 2)),
        ShapeError,
        "GroupNorm: x is [1, 3, 2, 2], [n, 4, ...] is wanted",
    ),
    (
        lambda: nn.InstanceNorm(4)(ones(1, 3, 2, 2)),
        ShapeError,
        "InstanceNorm: x is [1, 3, 2, 2], [n, 4, ...] with at least one axis after the channels",
    ),
    (lambda: nn.RMSNorm(4)(ones(2, 3)), ShapeError, "RMSNorm: the last axis of x is 3, dim is 4"),
    (
        lambda: nn.Embedding(10, 4)(ones(3)),
        DTypeError,
        "Embedding: the index has dtype dtypes.float32, an integer dtype is wanted: cast it, for",
    ),
    (lambda: nn.Embedding(10, 4)("a"), DTypeError, "Embedding: 'a' is a str; a Tensor is wanted"),
    (
        lambda: nn.LSTMCell(3, 4)(ones(2, 5)),
        ShapeError,
        "LSTMCell: the last axis of x is 5, input_size is 3",
    ),
    (
        lambda: nn.LSTMCell(3, 4)(ones(2, 3), (ones(2, 3), ones(2, 4))),
        ShapeError,
        "matmul: k differs, 3 against 4, in [2,3] @ [4,16]",
    ),
    (
        lambda: optim.SGD([]),
        ArgumentError,
        "SGD: none of the 0 tensors given takes a gradient (requires_grad is False);",
    ),
    (lambda: optim.SGD(3), ArgumentError, "SGD: parameters are 3; a list of tensors is wanted"),
    (lambda: optim.SGD([3]), DTypeError, "SGD: 3 is an int; a Tensor is wanted"),
    (
        lambda: optim.SGD([Tensor([1.0], requires_grad=False)]),
        ArgumentError,
        "SGD: none of the 1 tensors given takes a gradient (requires_grad is False);",
    ),
    (
        lambda: optim.SGD([counts(3)]),
        ArgumentError,
        "SGD: parameter 0 of shape [3] has dtype dtypes.int32, a float dtype is wanted",
    ),
    (
        lambda: optim.Adam([weight()]).step(),
        AsterError,
        "Adam.step() with Tensor.training=False: run it inside `with Tensor.train():`, or set",
    ),
    (
        lambda: optim.SGD([weight()], lr="a"),
        ArgumentError,
        "SGD: lr='a' is text; a number is wanted",
    ),
    (lambda: optim.SGD([weight()], lr=-1.0), ArgumentError, "SGD: lr=-1.0 is negative"),
    (lambda: optim.Adam([weight()], b1=2.0), ArgumentError, "Adam: b1=2.0 is not in [0, 1)"),
    (
        lambda: optim.AdamW([]),
        ArgumentError,
        "AdamW: none of the 0 tensors given takes a gradient (requires_grad is False);",
    ),
    (
        lambda: optim.OptimizerGroup(),
        ArgumentError,
        "OptimizerGroup: at least one optimizer is wanted",
    ),
    (lambda: optim.OptimizerGroup(3), ArgumentError, "OptimizerGroup: 3 is no optimizer"),
    (
        lambda: Tensor.train()(lambda: optim.SGD([weight()]).step())(),
        GradientError,
        "SGD: parameter 0 of 1, shape [1], has no gradient: call loss.backward() after",
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[m[2][:50] for m in MISTAKES])
def test_mistake(mistake: Mistake) -> None:
    check_mistake(mistake)
