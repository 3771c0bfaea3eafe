"""Devices, settings, variables, gradients and jits: each mistake, and what is said of it."""

from __future__ import annotations

import pytest

from aster_ml import Context, Device, Tensor, TinyJit, Variable
from aster_ml.compat.helpers import ContextVar
from aster_ml.errors import (
    ArgumentError,
    BindError,
    DeviceError,
    DTypeError,
    GradientError,
    IndexRangeError,
    JitError,
    ShapeError,
)
from tests.core.errors.mistakes import Mistake, check_mistake, matrix, ones

MISTAKES: list[Mistake] = [
    (lambda: Device["NOPE"], DeviceError, "device 'NOPE' is unknown"),
    (lambda: matrix().to("NOPE"), DeviceError, "device 'NOPE' is unknown"),
    (lambda: matrix().to(("CPU", "NOPE")), DeviceError, "device 'NOPE' is unknown"),
    (lambda: Tensor([1], device=""), DeviceError, "device '' is unknown"),
    (
        lambda: matrix().shard(("CPU:0", "CPU:1"), axis=1),
        ShapeError,
        "shard: axis 1 of [2,3] does not divide evenly over 2 devices; pad it to a multiple of",
    ),
    (
        lambda: matrix().shard(("CPU:0", "CPU:1"), axis=5),
        IndexRangeError,
        "shard: axis 5 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: Tensor.empty(3, device="disk:/nonexistent/dir/file").numpy(),
        DeviceError,
        "/nonexistent/dir/file: the file cannot be written: No such file or directory; a path in a",
    ),
    (lambda: Context(NOPE=1).__enter__(), KeyError, "no setting is named NOPE; there are"),
    (
        lambda: ContextVar("DEBUG", 1.5),
        ArgumentError,
        "ContextVar: there is a setting DEBUG already; choose another name",
    ),
    (
        lambda: ContextVar("some", None),
        ArgumentError,
        "ContextVar some: the default None is no number and no text",
    ),
    (lambda: setattr(Device, "DEFAULT", "NOPE"), DeviceError, "device 'NOPE' is unknown"),
    (
        lambda: Variable("a", 5, 1),
        ArgumentError,
        "Variable a: the least value 5 is above the greatest, 1",
    ),
    (lambda: Variable("a", 0.5, 3), ArgumentError, "Variable a: bounds are ints, given 0.5 and 3"),
    (lambda: Variable(3, 0, 1), ArgumentError, "Variable: the name 3 is an int, text is wanted"),
    (lambda: Variable("a", 1, 3).bind(4), BindError, "bind: a takes 1 to 3, given 4"),
    (lambda: Variable("a", 1, 3).bind(0), BindError, "bind: a takes 1 to 3, given 0"),
    (
        lambda: Variable("a", 1, 3).bind(1.5),
        BindError,
        "bind: a takes whole numbers, given 1.5, a float",
    ),
    (
        lambda: Variable("a", 1, 3).bind(2).bind(3),
        BindError,
        "bind: only a Variable takes a value, this is <BIND index of 2>",
    ),
    (
        lambda: Variable("a", 1, 3).unbind(),
        BindError,
        "unbind: <DEFINE_VAR index VarArg(name='a', min=1, max=3) of 0> is not bound",
    ),
    (
        lambda: ones(10)[: Variable("a", 1, 10)].sum().item(),
        ArgumentError,
        "variable a has no value; bind one: a.bind(number)",
    ),
    (
        lambda: ones(10)[: Variable("a", 1, 12).bind(11)].sum().item(),
        ShapeError,
        "shrink: part 0 to a=11 of axis 0, which has size 10 in [10]",
    ),
    (
        lambda: ones(10).reshape(Variable("a", 1, 10).bind(3), 4),
        ShapeError,
        "reshape: [10] has 10 elements, [a=3,4] has (a=3)*4",
    ),
    (
        lambda: Tensor(Variable("a", 0, 20)).item(),
        ArgumentError,
        "variable a has no value; bind one: a.bind(number)",
    ),
    (
        lambda: ones(3).expand(Variable("a", 1, 4).bind(2)),
        ShapeError,
        "expand: axis 0 of [3] has size 3, which does not repeat to a=2 in [a=2]",
    ),
    (
        lambda: (ones(10)[: Variable("a", 1, 10).bind(3)] + ones(4)).realize(),
        ShapeError,
        "add: shapes [a=3] and [4] do not broadcast: on axis -1 sizes are a=3 and 4; equal sizes",
    ),
    (
        lambda: (
            ones(10)[: Variable("a", 1, 10).bind(3)].sum()
            + ones(10)[: Variable("a", 1, 10).bind(4)].sum()
        ).item(),
        BindError,
        "bind mismatch on a: it is bound to 4 and to 3 in one graph, ",
    ),
    (
        lambda: matrix().sum().gradient(ones(3)),
        GradientError,
        "gradient: <Tensor [] float32 on CPU> does not depend on <Tensor [3] float32 on CPU>;",
    ),
    (lambda: matrix().sum().gradient(3), DTypeError, "gradient: 3 is an int; a Tensor is wanted"),
    (
        lambda: matrix().sum().gradient(matrix(), gradient=3.0),
        DTypeError,
        "gradient: 3.0 is a float; a Tensor is wanted",
    ),
    (
        lambda: matrix().gradient(matrix(), gradient=ones(2)),
        ShapeError,
        "gradient: [2] for a tensor of [2,3]; the same shape is wanted",
    ),
    (lambda: TinyJit(3), JitError, "TinyJit wants a function, given 3"),
    (lambda: TinyJit(None)(matrix()), JitError, "TinyJit wants a function, given None"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[m[2][:50] for m in MISTAKES])
def test_mistake(mistake: Mistake) -> None:
    check_mistake(mistake)
