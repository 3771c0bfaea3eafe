"""Each mistake with a tensor and the words it gets: what was given, wanted, and what would do."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, Variable
from aster_ml.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    GradientError,
    IndexRangeError,
    ShapeError,
    SymbolicSizeError,
    UnsupportedError,
)


def matrix() -> Tensor:
    """Two rows of three floats."""
    return Tensor([[1.0, 2, 3], [4, 5, 6]])


def ints() -> Tensor:
    """Three ints."""
    return Tensor([1, 2, 3])


def bools() -> Tensor:
    """Three bools."""
    return Tensor([True, False, True])


def assign_to(target: Tensor, index: Any, value: Any) -> None:
    """`target[index] = value` as a call."""
    target[index] = value


SYMBOL = Variable("rows", 1, 8).bind(3)

# Data.
DATA: list[tuple[Callable[[], Any], type, str]] = [
    (lambda: Tensor("abc"), DTypeError, r"Tensor: a str \(abc\) is no data; a number, list"),
    (lambda: Tensor({1: 2}), DTypeError, r"a dict .* is no data"),
    (
        lambda: Tensor([[1, 2], [3]]),
        ShapeError,
        r"ragged list: \[1\] has 1 elements where \[0\] has 2",
    ),
    (
        lambda: Tensor([[[1], [2]], [[3], [4, 5]]]),
        ShapeError,
        r"ragged list: \[1\]\[1\] has 2 elements where \[0\]\[0\] has 1",
    ),
    (
        lambda: Tensor([[1], 2]),
        ShapeError,
        r"ragged list: element \[1\] is an int where \[0\] is a list of 1",
    ),
    (
        lambda: Tensor([1, [2]]),
        ShapeError,
        r"ragged list: element \[1\] is a list of 1 where \[0\] is a number",
    ),
    (
        lambda: Tensor([1, "a"]),
        DTypeError,
        r"element \[1\] of the list is 'a', a str; numbers are wanted",
    ),
    (lambda: Tensor([1.0, None]), DTypeError, r"element \[1\] of the list is None, a NoneType"),
    (lambda: Tensor([2**70]), DTypeError, r"no int dtype holds together"),
    (lambda: Tensor(-(2**63) - 1), DTypeError, r"-9223372036854775809 fits no int dtype"),
    (lambda: Tensor(np.array([1j])), DTypeError, r"NumPy dtype complex128 has no equal here"),
    (lambda: Tensor(np.array(["a"])), DTypeError, r"NumPy dtype <U1 has no equal here"),
    (
        lambda: Tensor(b"abcde", dtype="int32"),
        ShapeError,
        r"5 bytes are no whole number of int32 elements of 4 bytes",
    ),
    (lambda: Tensor([1], dtype="float33"), DTypeError, r"'float33' is no dtype; there are fp8e4m3"),
    (lambda: Tensor([1], device="GPU"), DeviceError, r"device 'GPU' is unknown; there are CPU"),
    (lambda: Tensor([1], device="CPU:x"), DeviceError, r"'x' is no number; CPU or CPU:1 would do"),
    (lambda: Tensor([1], device=()), ArgumentError, r"device \(\) is a tuple; a name such as"),
    (lambda: Tensor([1]).to(3), ArgumentError, r"device 3 is an int; a name such as 'CPU'"),
    (lambda: Tensor(pathlib.Path("no/such/file")), FileNotFoundError, r"no/such/file"),
]

# Shapes.
SHAPES: list[tuple[Callable[[], Any], type, str]] = [
    (
        lambda: matrix() + ints()[:2],
        ShapeError,
        r"add: shapes \[2,3\] and \[2\] do not broadcast: on axis -1 sizes are 3 and 2",
    ),
    (
        lambda: matrix() < Tensor.zeros(3, 1),
        ShapeError,
        r"cmplt: shapes \[2,3\] and \[3,1\] .* on axis -2 sizes are 2 and 3",
    ),
    (lambda: bools().where(matrix(), Tensor.zeros(4)), ShapeError, r"where: shapes .*\[4\]"),
    (lambda: matrix().reshape(4), ShapeError, r"reshape: \[2,3\] has 6 elements, \[4\] has 4"),
    (
        lambda: matrix().reshape(-1, 4),
        ShapeError,
        r"reshape: \[2,3\] has 6 elements, which the known sizes, 4 together, do not divide",
    ),
    (lambda: matrix().reshape(-1, -1), ShapeError, r"only one size can be -1"),
    (lambda: matrix().reshape(2, 3, None), ShapeError, r"None keeps the size of axis 2"),
    (lambda: matrix().reshape(2, -3), ShapeError, r"reshape: size -3 is negative"),
    (lambda: matrix().reshape(2.0, 3), ArgumentError, r"2\.0 is a float; a whole number"),
    (
        lambda: matrix().expand(2, 4),
        ShapeError,
        r"expand: axis 1 of \[2,3\] has size 3, which does not repeat to 4",
    ),
    (lambda: matrix().expand(3), ShapeError, r"expand: \[2,3\] has more axes than the 1 wanted"),
    (lambda: matrix().permute(0, 0), ShapeError, r"\(0, 0\) does not name each of the 2 axes"),
    (lambda: matrix().permute(0, 2), IndexRangeError, r"permute: axis 2 of a value of 2 axes"),
    (lambda: matrix().sum(2), IndexRangeError, r"sum: axis 2 .*\[2,3\]; -2 to 1 would do"),
    (lambda: matrix().sum((0, -2)), ArgumentError, r"sum: axes \(0, -2\) name one axis twice"),
    (lambda: matrix().sum("0"), ArgumentError, r"sum: axis '0' is a str"),
    (lambda: matrix().shrink(((0, 3), None)), ShapeError, r"part 0 to 3 of axis 0, .* size 2"),
    (lambda: matrix().shrink(((0, 1),)), ShapeError, r"shrink: 1 pairs for the 2 axes"),
    (lambda: matrix().flatten(1, 0), ArgumentError, r"flatten: axis 0 stands before axis 1"),
    (lambda: matrix().unflatten(1, (2, 2)), ShapeError, r"axis 1 has 3 elements, \[2,2\] has 4"),
    (lambda: matrix().repeat(2), ShapeError, r"repeat: 1 counts for the 2 axes"),
    (lambda: matrix().unfold(1, 4, 1), ShapeError, r"windows of 4 do not fit axis 1"),
    (lambda: matrix().unfold(1, 2, 0), ArgumentError, r"unfold: step 0; a positive"),
    (
        lambda: matrix().cat(Tensor.zeros(3, 3), dim=1),
        ShapeError,
        r"cat: shapes \[2,3\] and \[3,3\] \(argument 1\); but for axis 1 they have to be equal",
    ),
    (lambda: matrix().stack(ints()), ShapeError, r"stack: shapes \[2,3\] and \[3\] .*equal shapes"),
    (lambda: matrix().cat(5), ArgumentError, r"cat: argument 1 is an int; tensors are wanted"),
    (lambda: matrix().split([1, 1], 1), ShapeError, r"sizes \(1,1\) add up to 2, axis 1 .* has 3"),
    (lambda: matrix().chunk(0), ArgumentError, r"chunk: 0 parts; a positive number"),
    (lambda: matrix().pad((1, 2, 3)), ShapeError, r"neither pairs nor an even count of numbers"),
    (lambda: matrix().pad(((1, 1),)), ShapeError, r"pad: 1 pairs for the 2 axes of \[2,3\]"),
    (
        lambda: matrix().pad((3, 0), mode="reflect"),
        ShapeError,
        r"mode 'reflect' with 3 and 0 on axis 1 of size 3, which has too few elements",
    ),
    (lambda: matrix().pad((1, 1), mode="mirror"), UnsupportedError, r"there are constant, reflect"),
    (lambda: matrix().pad((-2, -2)), ShapeError, r"-2 and -2 take more than the 3 elements"),
    (lambda: matrix().rearrange("a b -> a c"), ArgumentError, r"name the same axes once each"),
    (
        lambda: matrix().rearrange("a (b c) -> a b c", b=2),
        ShapeError,
        r"axis 1 has size 3, which is not made up of \(b c\)",
    ),
    (lambda: matrix().rearrange("a -> a"), ArgumentError, r"names 1 axes, the value has 2"),
    (lambda: ints().tril(), ShapeError, r"tril: \[3\] has 1 axes; two or more"),
    (lambda: matrix().diag(), ShapeError, r"diag: \[2,3\] has 2 axes; one is wanted"),
    (lambda: matrix().item(), ShapeError, r"item: \[2,3\] has 6 elements; one is wanted"),
    (lambda: Tensor.zeros(2, -1), ShapeError, r"full: size -1 is negative"),
    (lambda: Tensor.arange(0, 5, 0), ArgumentError, r"arange: step is 0"),
    (lambda: Tensor.ones(SYMBOL).tolist(), SymbolicSizeError, r"cannot be read: a size is sym"),
    (lambda: Tensor.zeros(8)[:SYMBOL].numpy(), ShapeError, r"a size is symbolic; shrink it"),
    (lambda: Tensor.zeros(2, 0).argmax(1), ShapeError, r"argmax: axis 1 of \[2,0\] is empty"),
    (lambda: len(Tensor(3)), TypeError, r"len\(\) of a Tensor without axes"),
    (lambda: list(Tensor(3)), TypeError, r"iteration over a Tensor without axes"),
    (lambda: matrix().topk(4), ArgumentError, r"topk: k = 4, axis 1 of \[2,3\] has 3 elements"),
]

# Indices and writing.
INDICES: list[tuple[Callable[[], Any], type, str]] = [
    (lambda: matrix()[2], IndexRangeError, r"index 2 is out of bounds of axis 0, which has size 2"),
    (
        lambda: matrix()[0, -4],
        IndexRangeError,
        r"index -4 is out of bounds of axis 1, which has size 3",
    ),
    (
        lambda: matrix()[0, 0, 0],
        IndexRangeError,
        r"3 indices are too many for the 2 axes of \[2,3\]",
    ),
    (
        lambda: matrix()[..., 0, ...],
        IndexRangeError,
        r"2 times `...`; a single ellipsis is possible",
    ),
    (lambda: matrix()[True], IndexRangeError, r"True is a bool; an int, a slice or a mask"),
    (lambda: matrix()[1.0], IndexRangeError, r"1\.0 is a float; an int, slice, None"),
    (lambda: matrix()["a"], IndexRangeError, r"a is a str; an int, slice"),
    (lambda: matrix()[::0], ArgumentError, r"a slice of axis 0 has step 0"),
    (lambda: matrix()[0.5:], DTypeError, r"0\.5 in a slice of axis 0 is a float"),
    (
        lambda: matrix()[[0, 5]],
        IndexRangeError,
        r"index 5 is out of bounds of axis 0, which has size 2",
    ),
    (lambda: matrix()[[0.5]], IndexRangeError, r"index: 0\.5 is a float; an int, slice"),
    (lambda: matrix()[Tensor([0.5])], IndexRangeError, r"a tensor of float32 on axis 0; ints or"),
    (lambda: matrix()[bools()], IndexRangeError, r"a mask of \[3\] for axes of \[2\]"),
    (
        lambda: matrix()[Tensor([0, 1]), Tensor([0, 1, 2])],
        ShapeError,
        r"index: shapes \[2\] and \[3\] do not broadcast",
    ),
    (
        lambda: Tensor.arange(4)[Variable("far", 4, 9).bind(5)],
        IndexRangeError,
        r"index 5 is out of bounds of axis 0, which has size 4",
    ),
    (
        lambda: matrix()[Tensor([0], device="CPU:1")],
        DeviceError,
        r"the indices are on CPU:1, the tensor on CPU; \.to\('CPU'\)",
    ),
    (lambda: matrix().gather(0, ints()), ShapeError, r"gather: the index \[3\] has 1 axes"),
    (lambda: matrix().gather(0, matrix()), DTypeError, r"gather: the index is float32; a"),
    (
        lambda: matrix().gather(0, Tensor.zeros(2, 4, dtype="int32")),
        ShapeError,
        r"gather: on axis 1 the index has size 4, the tensor 3",
    ),
    (
        lambda: matrix().scatter(0, Tensor([[0]]), Tensor([[1]])),
        DTypeError,
        r"values are int32, the tensor is float32",
    ),
    (
        lambda: matrix().scatter(0, Tensor([[0]]), matrix(), reduce="add"),
        TypeError,
        r"scatter: reduce 'add' with a tensor for src; a number would do, and scatter_reduce",
    ),
    (
        lambda: Tensor([1.0], requires_grad=True).bitcast("int32"),
        GradientError,
        r"bitcast: a tensor of float32 that requires a gradient",
    ),
    (
        lambda: matrix().scatter(0, Tensor([[0]]), 1.0, reduce="sub"),
        ArgumentError,
        r"scatter: reduce 'sub'; 'add', 'multiply' or None",
    ),
    (lambda: matrix().masked_select(ints()), DTypeError, r"the mask is int32; bool is wanted"),
    (lambda: matrix().one_hot(3), DTypeError, r"one_hot: classes are float32; ints are wanted"),
    (
        lambda: matrix().assign(Tensor.zeros(3, 2)),
        ShapeError,
        r"assign: shapes \[3,2\] and \[2,3\] do not broadcast",
    ),
    (
        lambda: matrix()[0].assign(matrix()),
        ShapeError,
        r"assign: \[2,3\] to \[3\]; the value may be repeated, not what is written to",
    ),
    (
        lambda: ints().assign(ints().cast("float32")),
        DTypeError,
        r"assign: float32 to int32; \.cast\('int32'\) makes the value fit",
    ),
    (
        lambda: matrix().assign((matrix() + 1).to("CPU:1")),
        DeviceError,
        r"assign: a value on CPU:1 to a tensor on CPU",
    ),
    (
        lambda: assign_to(matrix(), 0, Tensor([1.0, 2])),
        ShapeError,
        r"assign: shapes \[2\] and \[3\] do not broadcast",
    ),
    (
        lambda: assign_to(matrix(), (0, 0), Tensor([1.0, 2])),
        ShapeError,
        r"a value of \[2\] to a part of \[\]; the value may be repeated, not the part",
    ),
    (lambda: assign_to(matrix(), 5, 1.0), IndexRangeError, r"index 5 is out of bounds of axis 0"),
    (lambda: ints().replace(matrix()), ShapeError, r"replace: \[2,3\] for \[3\]; the same shape"),
]

# Dtypes, devices, values, gradients, random numbers.
OTHERS: list[tuple[Callable[[], Any], type, str]] = [
    (lambda: matrix() + "a", DTypeError, r"add: a str \(a\) stands beside a tensor"),
    (lambda: matrix() * [1, 2, 3], DTypeError, r"mul: a list .*; wrap it in Tensor\(\.\.\.\)"),
    (lambda: matrix() & 1, DTypeError, r"bitwise_and: float32 has no bits to work on"),
    (lambda: bools() << 1, DTypeError, r"lshift: bool has no bits to work on; ints are wanted"),
    (lambda: ints() << -1, ArgumentError, r"lshift: by -1 bits; a count that is not negative"),
    (lambda: ~matrix(), DTypeError, r"bitwise_not: bits of float32 cannot be turned over"),
    (lambda: bools() - bools(), DTypeError, r"sub: bool from bool; cast one to an int, or use \^"),
    (lambda: ints() ** -1, DTypeError, r"int32 to the power -1 is no int; cast the base"),
    (lambda: ints().div(2, rounding_mode="up"), ArgumentError, r"rounding_mode 'up'; 'trunc'"),
    (lambda: matrix().clamp(), ArgumentError, r"clamp: neither min_ nor max_ is given"),
    (lambda: bool(ints()), TypeError, r"truth of a Tensor is not known .* `\.item\(\)`"),
    (lambda: ints().cast("number"), DTypeError, r"'number' is no dtype"),
    (lambda: ints().cast("void"), DTypeError, r"cast: int32 to void; an element type"),
    (lambda: Tensor(1.0).bitcast("int8"), ShapeError, r"bitcast: a scalar float32 has no axis"),
    (lambda: ints().bitcast("int64"), ShapeError, r"last axis of \[3\] has 12 bytes"),
    (lambda: Tensor([1.0]).bfloat16().data(), DTypeError, r"memoryviews have no bfloat16"),
    (
        lambda: Tensor([1.0]) + Tensor([1.0], device="CPU:1"),
        DeviceError,
        r"add: one value is on CPU, the other on CPU:1; \.to\('CPU'\) moves it",
    ),
    (
        lambda: Tensor([1.0]).cat(Tensor([1.0], device="CPU:1")),
        DeviceError,
        r"cat: argument 1 is on CPU:1, the first on CPU",
    ),
    (lambda: matrix().backward(), GradientError, r"of \[2,3\], which has 6 elements; reduce it"),
    (lambda: matrix().sum().backward(), GradientError, r"nothing below .* requires a gradient"),
    (lambda: ints().sum().backward(), GradientError, r"of a tensor of int32; cast it to a float"),
    (
        lambda: matrix().sum().gradient(matrix()),
        GradientError,
        r"does not depend on <Tensor \[2,3\].*materialize_grads=True gives zeros",
    ),
    (lambda: matrix().backward(Tensor([1.0])), ShapeError, r"\[1\] for a tensor of \[2,3\]"),
    (lambda: Tensor.rand(2, dtype="int32"), DTypeError, r"rand: dtype int32; a float dtype"),
    (lambda: Tensor.rand(SYMBOL), ShapeError, r"rand: .* has a symbolic size; draw the largest"),
    (lambda: Tensor.randint(2, low=3, high=3), ArgumentError, r"from 3 to below 3; there has"),
    (lambda: Tensor.randint(2, low=0.5), DTypeError, r"the bound 0\.5 is a float; ints"),
    (lambda: Tensor.randint(2, dtype="float32"), DTypeError, r"dtype float32; an int dtype"),
    (lambda: Tensor.manual_seed("a"), ArgumentError, r"manual_seed: 'a' is a str; an int"),
    (lambda: Tensor([0.5, 0.5]).multinomial(3), ArgumentError, r"3 samples of 2 without"),
    (lambda: Tensor.kaiming_uniform(()), ShapeError, r"a scalar has no fan-in"),
    (lambda: matrix().meshgrid(), ShapeError, r"meshgrid: \[2,3\] has 2 axes; at most one"),
    (lambda: Tensor.linspace(0, 1, -1), ArgumentError, r"linspace: -1 steps"),
    (
        lambda: Tensor.linspace(0, 300, 3, dtype="uint8"),
        ArgumentError,
        "linspace: 0 to 300 leave uint8, which holds 0 to 255",
    ),
    (
        lambda: Tensor.randint(3, high=300, dtype="uint8"),
        ArgumentError,
        "randint: 0 to 299 leave uint8, which holds 0 to 255",
    ),
    (lambda: matrix().roll((1, 2), 0), ArgumentError, r"roll: 2 shifts for 1 axes"),
]


CASES = DATA + SHAPES + INDICES + OTHERS


@pytest.mark.parametrize("call, error, message", CASES, ids=[c[2][:40] for c in CASES])
def test_message(call: Callable[[], Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_errors_are_what_python_would_raise() -> None:
    assert issubclass(ShapeError, ValueError)
    assert issubclass(DTypeError, TypeError)
    assert issubclass(IndexRangeError, IndexError)
    assert issubclass(GradientError, RuntimeError)


def test_a_failed_write_leaves_the_tensor_as_it_was() -> None:
    x = matrix()
    node = x.uop
    with pytest.raises(ShapeError):
        x.assign(Tensor.zeros(3, 2))
    with pytest.raises(ShapeError):
        x[0] = Tensor([1.0, 2])
    assert x.uop is node
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
