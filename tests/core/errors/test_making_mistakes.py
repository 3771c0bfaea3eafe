"""Creation, indexing, writing and operators: each mistake, and what is said of it."""

from __future__ import annotations

import decimal
import pathlib
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.errors import (
    ArgumentError,
    DTypeError,
    FormatError,
    IndexRangeError,
    PreconditionError,
    ShapeError,
    SignatureError,
    UnknownDTypeError,
)
from tests.core.errors.mistakes import Mistake, check_mistake, counts, matrix, ones


def list_in_itself() -> list[Any]:
    """A list whose only element is itself."""
    found: list[Any] = []
    found.append(found)
    return found


class Sparse:
    """A matrix without an array protocol and with a method that makes an array, as SciPy has."""

    shape = (2, 2)

    def __repr__(self) -> str:
        return "Sparse((2, 2))"

    def toarray(self) -> Any:
        """Zeros."""
        return np.zeros(self.shape)


MISTAKES: list[Mistake] = [
    (
        lambda: Tensor.zeros("a"),
        ArgumentError,
        "full: 'a' is a str; a whole number is wanted as a size",
    ),
    (
        lambda: Tensor.zeros(2.5),
        ArgumentError,
        "full: 2.5 is a float; a whole number is wanted as a size",
    ),
    (lambda: Tensor.full((2,), "a"), DTypeError, "'a' is a str; a float, int or bool is wanted"),
    (lambda: Tensor.arange("a"), ArgumentError, "arange: 'a' is no finite number"),
    (lambda: Tensor.arange(1, 2, "a"), ArgumentError, "arange: 'a' is no finite number"),
    (lambda: Tensor.arange(float("inf")), ArgumentError, "arange: inf is no finite number"),
    (
        lambda: Tensor.arange(5, dtype="nope"),
        UnknownDTypeError,
        "'nope' is no dtype; there are fp8e4m3, fp8e5m2, float16, bfloat16, float32, float64,",
    ),
    (lambda: Tensor.eye(-1), ShapeError, "eye: size -1 is negative"),
    (
        lambda: Tensor.eye(2.5),
        ArgumentError,
        "eye: 2.5 is a float; a whole number is wanted as a size",
    ),
    (
        lambda: Tensor.linspace(0, 1, 2.5),
        ArgumentError,
        "linspace: 2.5 steps; a whole number from 0 on is wanted",
    ),
    (
        lambda: Tensor.linspace(0, 1, -1),
        ArgumentError,
        "linspace: -1 steps; a whole number from 0 on is wanted",
    ),
    (
        lambda: Tensor.linspace(0, 1, 5, dtype="bool"),
        DTypeError,
        "linspace: dtype bool has no values between two; ints or floats have",
    ),
    (lambda: Tensor.rand(-1), ShapeError, "rand: size -1 is negative"),
    (
        lambda: Tensor.randint(3, low=5, high=2),
        ArgumentError,
        "randint: from 5 to below 2; there has to be an int between, and at most 2**32",
    ),
    (
        lambda: Tensor.randint(3, low=0, high=2**40),
        ArgumentError,
        "randint: from 0 to below 1099511627776; there has to be an int between, and at most",
    ),
    (
        lambda: Tensor.uniform(2, low="a"),
        ArgumentError,
        "uniform: the bound 'a' is a str; a number is wanted",
    ),
    (
        lambda: Tensor.randperm(-1),
        ArgumentError,
        "randperm: -1; a number that is not negative is wanted",
    ),
    (
        lambda: ones(3).multinomial(0),
        PreconditionError,
        "multinomial: 0 samples; a positive number is wanted",
    ),
    (
        lambda: ones(3).multinomial(5),
        PreconditionError,
        "multinomial: 5 samples of 3 without replacement; there are too few",
    ),
    (
        lambda: ones(2, 2, 2).multinomial(1),
        PreconditionError,
        "multinomial: weights of [2,2,2]; one or two axes are wanted",
    ),
    (
        lambda: ones(3).int().multinomial(2.5),
        PreconditionError,
        "multinomial: 2.5 samples; a positive number is wanted",
    ),
    (lambda: Tensor(object()), DTypeError, "Tensor: an object (<object object"),
    (
        lambda: Tensor({1, 2}),
        DTypeError,
        "Tensor: a set ({1, 2}) is no data; a number, list, tuple, NumPy array, bytes,",
    ),
    (
        lambda: Tensor(Sparse()),
        DTypeError,
        "pathlib.Path or node is wanted; x.toarray() makes an array of it",
    ),
    (
        lambda: Tensor([1, Sparse()]),
        DTypeError,
        "element [1] of the list is Sparse((2, 2)), a Sparse; numbers are wanted; x.toarray()",
    ),
    (
        lambda: Tensor([Sparse()]),
        DTypeError,
        "element [0] of the list is Sparse((2, 2)), a Sparse; numbers are wanted; x.toarray()",
    ),
    (lambda: Tensor(x for x in [1]), DTypeError, "node is wanted; list(x) makes a list of it"),
    (
        lambda: Tensor(decimal.Decimal(1)),
        DTypeError,
        "node is wanted; float(x) makes a number of it",
    ),
    (
        lambda: Tensor(list_in_itself()),
        ShapeError,
        "Tensor: lists in lists, more than 64 deep, or a list that is in itself",
    ),
    (
        lambda: Tensor(np.ma.array([1, 2, 3], mask=[0, 1, 0])),
        ArgumentError,
        "Tensor: 1 of 3 elements of the NumPy array are masked, and a tensor has none that are",
    ),
    (
        lambda: Tensor(pathlib.Path("/nonexistent/file")),
        FileNotFoundError,
        "no file '/nonexistent/file' (in '/nonexistent'): No such file or directory",
    ),
    (
        lambda: Tensor(pathlib.Path(__file__).parent),
        FormatError,
        "is a folder, a file is wanted",
    ),
    (
        lambda: Tensor([None]),
        DTypeError,
        "Tensor: element [0] of the list is None, a NoneType; numbers are wanted",
    ),
    (
        lambda: Tensor(3, dtype="float31"),
        UnknownDTypeError,
        "'float31' is no dtype; there are fp8e4m3, fp8e5m2, float16, bfloat16, float32, float64,",
    ),
    (
        lambda: Tensor(3j),
        DTypeError,
        "Tensor: a complex (3j) is no data; a number, list, tuple, NumPy array, bytes,",
    ),
    (
        lambda: Tensor([1], dtype=3),
        UnknownDTypeError,
        "3 is no dtype; there are fp8e4m3, fp8e5m2, float16, bfloat16, float32, float64, uint8,",
    ),
    (
        lambda: Tensor(np.array([object()])),
        DTypeError,
        "NumPy dtype object has no equal here; cast it to one of bool, uint8, uint16, uint32,",
    ),
    (
        lambda: Tensor(np.array([1], "datetime64[s]")),
        DTypeError,
        "NumPy dtype datetime64[s] has no equal here; cast it to one of bool, uint8, uint16,",
    ),
    (lambda: Tensor(lambda: 3), DTypeError, "Tensor: a function (<function <lambda>"),
    (
        lambda: Tensor(b"abc", dtype="int32"),
        ShapeError,
        "Tensor: 3 bytes are no whole number of int32 elements of 4 bytes",
    ),
    (
        lambda: Tensor.from_blob(0, (2,)),
        ArgumentError,
        "from_blob: address 0; that of memory, an int, is wanted",
    ),
    (
        lambda: Tensor.from_blob("a", (2,)),
        ArgumentError,
        "from_blob: address 'a'; that of memory, an int, is wanted",
    ),
    (
        lambda: Tensor.meshgrid(ones(3), ones(3), indexing="zz"),
        ArgumentError,
        "meshgrid: indexing 'zz'; 'ij' or 'xy' would do",
    ),
    (
        lambda: Tensor.cat(matrix(), ones(3)),
        ShapeError,
        "cat: shapes [2,3] and [3] (argument 1); but for axis 0 they have to be equal",
    ),
    (
        lambda: Tensor.cat(matrix(), ones(3, 4)),
        ShapeError,
        "cat: shapes [2,3] and [3,4] (argument 1); but for axis 0 they have to be equal",
    ),
    (
        lambda: matrix().cat(matrix(), dim=4),
        IndexRangeError,
        "cat: axis 4 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().stack(matrix(), dim=4),
        IndexRangeError,
        "stack: axis 4 of a value of 3 axes, [2,3]; -3 to 2 would do",
    ),
    (
        lambda: matrix()[0, 3],
        IndexRangeError,
        "index 3 is out of bounds of axis 1, which has size 3, of [2,3]",
    ),
    (
        lambda: matrix()[-3],
        IndexRangeError,
        "index -3 is out of bounds of axis 0, which has size 2, of [2,3]",
    ),
    (
        lambda: matrix()["a"],
        IndexRangeError,
        "index: a is a str; an int, slice, None, ..., or a tensor or list of ints or bools is",
    ),
    (
        lambda: matrix()[1.5],
        IndexRangeError,
        "index: 1.5 is a float; an int, slice, None, ..., or a tensor or list of ints or bools",
    ),
    (
        lambda: matrix()[{}],
        IndexRangeError,
        "index: {} is a dict; an int, slice, None, ..., or a tensor or list of ints or bools is",
    ),
    (
        lambda: matrix()[Tensor([True])],
        IndexRangeError,
        "index: a mask of [1] for axes of [2]; the same shape is wanted",
    ),
    (
        lambda: matrix().gather(2, counts(2, 3)),
        IndexRangeError,
        "gather: axis 2 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().gather(0, counts(2)),
        ShapeError,
        "gather: the index [2] has 1 axes, the tensor [2,3] has 2; equally many are wanted",
    ),
    (
        lambda: matrix().scatter(0, counts(2, 3), ones(3)),
        ShapeError,
        "scatter: values of [3] for an index of [2,3]; at least one value an index is wanted",
    ),
    (
        lambda: matrix().scatter(0, counts(2, 3), matrix(), reduce="nope"),
        SignatureError,
        "scatter: reduce 'nope' with a tensor for src; a number would do, and",
    ),
    (
        lambda: matrix().scatter(2, counts(2, 3), matrix()),
        IndexRangeError,
        "scatter: axis 2 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().scatter(0, matrix(), matrix()),
        DTypeError,
        "scatter: the index is float32; a tensor of ints is wanted",
    ),
    (
        lambda: matrix().scatter_reduce(0, counts(2, 3), matrix(), reduce="nope"),
        ArgumentError,
        "scatter_reduce: reduce 'nope'; 'sum', 'prod', 'mean', 'amax' or 'amin' would do",
    ),
    (
        lambda: matrix().masked_select(ones(3)),
        DTypeError,
        "masked_select: the mask is float32; bool is wanted",
    ),
    (
        lambda: matrix().masked_select(ones(4) > 0),
        ShapeError,
        "masked_select: shapes [2,3] and [4] do not broadcast: on axis -1 sizes are 3 and 4;",
    ),
    (
        lambda: matrix().__setitem__(0, ones(5)),
        ShapeError,
        "assign: shapes [5] and [3] do not broadcast: on axis -1 sizes are 5 and 3; equal sizes",
    ),
    (
        lambda: matrix().__setitem__("a", 1),
        IndexRangeError,
        "index: a is a str; an int, slice, None, ..., or a tensor or list of ints or bools is",
    ),
    (
        lambda: matrix().__setitem__(0, "a"),
        DTypeError,
        "Tensor: a str (a) is no data; a number, list, tuple, NumPy array, bytes, memoryview,",
    ),
    (
        lambda: matrix().__setitem__([0, 9], 1),
        IndexRangeError,
        "index 9 is out of bounds of axis 0, which has size 2, of [2,3]",
    ),
    (
        lambda: matrix().assign("a"),
        DTypeError,
        "Tensor: a str (a) is no data; a number, list, tuple, NumPy array, bytes, memoryview,",
    ),
    (
        lambda: matrix().replace(ones(3)),
        ShapeError,
        "replace: [3] for [2,3]; the same shape is wanted",
    ),
    (lambda: matrix().replace(3), DTypeError, "replace: 3 is an int; a Tensor is wanted"),
    (
        lambda: matrix() + None,
        DTypeError,
        "add: None (None) stands beside a tensor; a number or a Tensor is wanted",
    ),
    (
        lambda: matrix() + [1, 2, 3],
        DTypeError,
        "add: a list ([1, 2, 3]) stands beside a tensor; a number or a Tensor is wanted; wrap it",
    ),
    (lambda: matrix() << 1, DTypeError, "lshift: float32 has no bits to work on; ints are wanted"),
    (
        lambda: matrix() % "a",
        DTypeError,
        "mod: a str (a) stands beside a tensor; a number or a Tensor is wanted",
    ),
    (
        lambda: matrix() // None,
        DTypeError,
        "div: None (None) stands beside a tensor; a number or a Tensor is wanted",
    ),
    (
        lambda: matrix() ** "a",
        DTypeError,
        "pow: a str (a) stands beside a tensor; a number or a Tensor is wanted",
    ),
    (
        lambda: counts(3) << 1.5,
        DTypeError,
        "lshift: float32 has no bits to work on; ints are wanted",
    ),
    (
        lambda: matrix().cast("nope"),
        UnknownDTypeError,
        "'nope' is no dtype; there are fp8e4m3, fp8e5m2, float16, bfloat16, float32, float64,",
    ),
    (
        lambda: matrix().cast(None),
        UnknownDTypeError,
        "None is no dtype; there are fp8e4m3, fp8e5m2, float16, bfloat16, float32, float64,",
    ),
    (
        lambda: matrix().cast(3),
        UnknownDTypeError,
        "3 is no dtype; there are fp8e4m3, fp8e5m2, float16, bfloat16, float32, float64, uint8,",
    ),
    (
        lambda: matrix().bitcast("nope"),
        UnknownDTypeError,
        "'nope' is no dtype; there are fp8e4m3, fp8e5m2, float16, bfloat16, float32, float64,",
    ),
    (
        lambda: matrix().isclose("a"),
        DTypeError,
        "broadcasted: a str (a) stands beside a tensor; a number or a Tensor is wanted",
    ),
    (
        lambda: matrix().allclose(ones(5)),
        ShapeError,
        "broadcasted: shapes [2,3] and [5] do not broadcast: on axis -1 sizes are 3 and 5; equal",
    ),
    (
        lambda: matrix().maximum("a"),
        DTypeError,
        "maximum: a str (a) stands beside a tensor; a number or a Tensor is wanted",
    ),
    (
        lambda: matrix().interpolate(3),
        ShapeError,
        "interpolate: size 3; one number for each axis to resize, at most 2",
    ),
    (lambda: dtypes.from_py("a"), DTypeError, "'a' is a str; a float, int or bool is wanted"),
    (
        lambda: dtypes.as_const("a", dtypes.int),
        DTypeError,
        "'a' is text; a number for int32 is wanted",
    ),
    (lambda: dtypes.finfo(dtypes.int32), DTypeError, "dtypes.int32 is no floating-point type"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[m[2][:50] for m in MISTAKES])
def test_mistake(mistake: Mistake) -> None:
    check_mistake(mistake)
