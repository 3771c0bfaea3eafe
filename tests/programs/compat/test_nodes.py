"""Nodes as a kernel's author handles them: functions of elements, walks, vectors, text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, UOp, dtypes
from aster_ml.dtype import AddrSpace
from aster_ml.errors import ArgumentError, FieldError, IndexRangeError, ShapeError
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.ops import AxisType, Ops

POINTS = np.array([-4.0, -1.5, -0.5, 0.0, 0.25, 2.0, 7.5], np.float32)


def of_elements(function: Callable[[UOp], UOp], values: Any = POINTS) -> Any:
    """A function of nodes applied to numbers by a kernel."""

    def kernel(B: UOp, A: UOp) -> UOp:
        i = UOp.range(A.size, 0)
        return B[i].store(function(A[i]).cast(B.dtype.base)).end(i).sink()

    x = Tensor(values)
    return Tensor.empty(*x.shape).custom_kernel(x, fxn=kernel)[0].numpy()


# Ours, and PyTorch's: a method of its tensors, or the name of one of its functions.
FUNCTIONS: list[tuple[Callable[[UOp], UOp], Callable[[Any], Any] | str]] = [
    (lambda x: x.square(), lambda x: x.square()),
    (lambda x: x.relu(), lambda x: x.relu()),
    (lambda x: x.relu6(), "relu6"),
    (lambda x: x.hardtanh(), "hardtanh"),
    (lambda x: x.hardsigmoid(), "hardsigmoid"),
    (lambda x: x.hardswish(), "hardswish"),
    (lambda x: x.sigmoid(), lambda x: x.sigmoid()),
    (lambda x: x.tanh(), lambda x: x.tanh()),
    (lambda x: x.silu(), "silu"),
    (lambda x: x.gelu(), lambda x: x * (1 + (0.7978845608 * (x + 0.044715 * x**3)).tanh()) / 2),
    (lambda x: x.quick_gelu(), lambda x: x * (1.702 * x).sigmoid()),
    (lambda x: x.leaky_relu(0.1), lambda x: x.where(x > 0, 0.1 * x)),
    (lambda x: x.clamp(-1, 2), lambda x: x.clamp(-1, 2)),
    (lambda x: x.clip(max_=1), lambda x: x.clamp(max=1)),
    (lambda x: x.ceil(), lambda x: x.ceil()),
    (lambda x: x.floor(), lambda x: x.floor()),
    (lambda x: x.exp(), lambda x: x.exp()),
    (lambda x: x.square().log(), lambda x: x.square().log()),
    (lambda x: (x.square() + 1).rsqrt(), lambda x: (x.square() + 1).rsqrt()),
    (lambda x: x.square().pow(1.5), lambda x: x.square().pow(1.5)),
    (lambda x: 2.0**x, lambda x: 2.0**x),
]


@pytest.mark.parametrize("case", range(len(FUNCTIONS)))
def test_function_of_an_element(case: int) -> None:
    torch = pytest.importorskip("torch")
    ours, oracle = FUNCTIONS[case]
    if isinstance(oracle, str):
        oracle = getattr(torch.nn.functional, oracle)
    wanted = oracle(torch.from_numpy(POINTS)).numpy()
    np.testing.assert_allclose(of_elements(ours), wanted, rtol=2e-6, atol=1e-6)


def test_kinds_of_numbers() -> None:
    values = np.array([1.0, math.inf, -math.inf, math.nan], np.float32)
    assert of_elements(lambda x: x.isnan(), values).tolist() == [0, 0, 0, 1]
    assert of_elements(lambda x: x.isinf(), values).tolist() == [0, 1, 1, 0]
    assert of_elements(lambda x: x.isinf(detect_negative=False), values).tolist() == [0, 1, 0, 0]
    assert of_elements(lambda x: x.isfinite(), values).tolist() == [1, 0, 0, 0]


# walks


def test_walks() -> None:
    a = UOp.variable("a", 0, 9)
    product = a * 3
    total = product + a
    assert list(total.toposort())[-1] is total
    assert set(total.toposort()) == {a, product, product.src[1], total}
    assert total not in total.backward_slice
    assert next(iter(total.backward_slice_with_self)) is total
    assert total.op_in_backward_slice_with_self(Ops.MUL)
    assert not total.op_in_backward_slice_with_self(Ops.MAX)
    assert set(total.get_consumer_map()[a]) == {product, total}
    assert list(total.toposort(lambda u: u.op is not Ops.MUL)) == [a, total]


def test_a_visit_asks_each_node_once() -> None:
    a = UOp.variable("a", 0, 9)
    total = a
    for _ in range(60):
        total = total.alu(Ops.MAX, total * 2)
    cache: dict[UOp, int] = {}
    depth = total.topovisit(lambda u: 1 + max([cache[s] for s in u.src], default=0), cache)
    assert depth == cache[total] > 60


def test_axes_are_open_until_they_end() -> None:
    i = UOp.range(4, 0)
    m = UOp.placeholder((4,), dtypes.float32, 0)
    store = m[i].store(1.0)
    assert i in store.ranges
    assert store.end(i).ended_ranges == (i,)
    assert i not in m.after(store.end(i)).ranges
    assert i in m.after(i)[0].ranges


# memory and indices


def test_placeholders() -> None:
    m = UOp.placeholder((3, 4), dtypes.float16, 2)
    assert (m.shape, m.size, m.dtype.base) == ((3, 4), 12, dtypes.float16)
    assert m.base.op is Ops.PARAM
    assert m.ptrdtype is dtypes.float16.ptr(12)
    register = UOp.placeholder((2,), dtypes.int32, 0, addrspace=AddrSpace.REG)
    assert register.op is Ops.DEFINE_LOCAL
    assert register.arg.private
    assert Tensor.empty(2, 5).uop.placeholder_like(1).shape == (2, 5)


def test_indices() -> None:
    m, i = UOp.placeholder((3, 4), dtypes.float32, 0), UOp.range(3, 0)
    assert m[i, 1].shape == ()
    assert m[i, :].shape == (4,)
    assert m[:, 1].shape == (3,)
    assert m[1:, i].shape == (2,)
    assert m[i, -1].src[2].arg == 3
    with pytest.raises(IndexRangeError, match="index 4 is outside of an axis of 4"):
        m[i, 4]
    with pytest.raises(ShapeError, match="takes 2 indices"):
        m[i]
    with pytest.raises(ArgumentError, match="step"):
        m[i, ::2]
    with pytest.raises(ShapeError, match="ints"):
        UOp.placeholder((UOp.variable("n", 1, 3),), dtypes.float32, 0)  # type: ignore[arg-type]


def test_conditions_of_indices() -> None:
    i = UOp.range(4, 0)
    gated = i.valid(i < 2)
    assert gated.get_idx() is i
    assert gated.get_valid() is (i < 2)
    assert i.get_valid().arg is True
    assert UOp.invalid().get_valid().arg is False


# vectors


def test_lanes_of_vectors() -> None:
    v = UOp.const(dtypes.int32.vec(3), (4, 5, 6))
    assert v.op is Dialect.VCONST
    assert v.gep(1) is UOp.const(dtypes.int32, 5)
    assert v.gep((2, 0)).arg == (6, 4)
    assert v.sgep(2) == 6
    assert UOp.const(dtypes.int32.vec(2), (7, 7)) is UOp.const(dtypes.int32.vec(2), 7)
    a, b = UOp.variable("a", 0, 9), UOp.variable("b", 0, 9)
    assert a.vectorize(b).gep(1) is b
    assert a.broadcast(4).dtype is dtypes.index.vec(4)


def test_vectors_in_simplest_form() -> None:
    v = UOp.const(dtypes.int32.vec(3), (4, 5, 6))
    assert (v + v).simplify().arg == (8, 10, 12)
    assert (v * 0).simplify() is UOp.const(dtypes.int32.vec(3), 0)
    assert (v < UOp.const(dtypes.int32.vec(3), 6)).simplify().arg == (True, True, False)
    one = UOp.const(dtypes.int32, 1)
    assert one.vectorize(one).simplify() is UOp.const(dtypes.int32.vec(2), 1)


def test_contract_wants_lanes() -> None:
    m, i = UOp.placeholder((4,), dtypes.float32, 0), UOp.range(4, 0)
    with pytest.raises(ArgumentError, match="no lane axis"):
        m[i].contract(i)
    lanes = UOp.range(4, 0, AxisType.UPCAST)
    assert m[lanes].contract(lanes).dtype is dtypes.float32.vec(4)


# text


def test_text_gives_the_node_again() -> None:
    x = Tensor([1.0, 2]).uop
    total = x.alu(Ops.ADD, x)
    for _ in range(30):
        total = total.alu(Ops.MUL, total)
    names: dict[str, Any] = {"UOp": UOp, "Ops": Ops, "dtypes": dtypes}
    text = str(total)
    assert len(text) < 5000
    assert eval(text, names) is total
    assert "x0:=" in text
    vector = UOp.const(dtypes.int32.vec(2), (1, 2))
    assert str(vector) == "UOp(Ops.VCONST, dtypes.int.vec(2), arg=(1, 2), src=())"


def test_replace_knows_its_fields() -> None:
    a = UOp.variable("a", 0, 9)
    assert a.replace(dtype=dtypes.int32).dtype is dtypes.int32
    with pytest.raises(FieldError, match="op, dtype, src, arg and tag"):
        a.replace(color=1)
