"""Variables and sizes as numbers: what can be asked of them, against Python's own arithmetic."""

from __future__ import annotations

import itertools

import pytest

from aster_ml import Tensor, UOp, Variable, dtypes
from aster_ml.errors import ArgumentError, BindError
from aster_ml.uop.node import resolve, smax, smin
from aster_ml.uop.ops import Ops
from aster_ml.uop.sint import do_unbind, sint_to_uop, srender, ssimplify, sym_infer

N, M = Variable("i", 1, 10), Variable("j", 0, 6)

# Expressions with the same as a function of Python ints.
EXPRESSIONS = {
    "sum": (N * 4 + M, lambda i, j: i * 4 + j),
    "difference": (N - M, lambda i, j: i - j),
    "from a number": (10 - N, lambda i, j: 10 - i),
    "negative": (-N, lambda i, j: -i),
    "division": ((N + 7) // 3, lambda i, j: (i + 7) // 3),
    "remainder": ((N * 7 + M) % 4, lambda i, j: (i * 7 + j) % 4),
    "product": (N * M + N, lambda i, j: i * j + i),
    "maximum": (smax(N, M), lambda i, j: max(i, j)),
    "minimum": (smin(N, M, 3), lambda i, j: min(i, j, 3)),
    "choice": ((N < 4).where(N, M), lambda i, j: i if i < 4 else j),
    "condition": (N * 2 < M + 5, lambda i, j: i * 2 < j + 5),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_value_of_an_expression(name: str) -> None:
    u, want = EXPRESSIONS[name]
    for i, j in itertools.product(range(1, 11), range(7)):
        assert sym_infer(u, {"i": i, "j": j}) == want(i, j)
        assert u.simplify().sym_infer({"i": i, "j": j}) == want(i, j)
        assert u.vmin <= want(i, j) <= u.vmax


def test_a_bound_variable_has_its_value_unless_another_is_given() -> None:
    size = N.bind(3) * 4 + M.bind(2)
    assert size.sym_infer({}) == 14
    assert sym_infer(size, {"i": 5}) == 22
    assert sym_infer(7, {}) == 7
    with pytest.raises(ArgumentError, match="no value was given"):
        (N + M).sym_infer({"i": 3})


def test_names_and_values() -> None:
    bound = N.bind(3)
    assert (N.expr, bound.expr, bound.val, bound.unbind()) == ("i", "i", 3, (N, 3))
    assert bound is Variable("i", 1, 10).bind(3)
    assert (N.vmin, N.vmax, bound.vmin, bound.vmax) == (1, 10, 1, 10)
    for wrong in (lambda: (N + 1).expr, lambda: N.val, lambda: N.bind(11), lambda: bound.bind(2)):
        with pytest.raises(BindError):
            wrong()


def test_variables_of_an_expression() -> None:
    size = M.bind(2) * 2 + N
    assert size.vars() == {N, M.bind(2)}
    assert size.variables() == [N, M]
    assert Tensor.empty(10, 10)[: N.bind(3)].uop.variables() == [N]
    plain, values = size.unbind_all()
    assert values == {M: 2}
    assert plain.vars() == {N, M}
    assert plain.sym_infer({"i": 5, "j": 4}) == 13
    with pytest.raises(BindError, match="bind mismatch on i: it is bound to"):
        (N.bind(3) + N.bind(4)).unbind_all()


def test_unbinding_node_by_node() -> None:
    values: dict[UOp, int] = {}
    assert do_unbind(values, N.bind(3)) is N
    assert do_unbind(values, N) is None
    assert values == {N: 3}
    with pytest.raises(BindError, match="bind mismatch on i: it is bound to 3 and to 4"):
        do_unbind(values, N.bind(4))


def test_simplest_forms() -> None:
    assert ssimplify(N * 4 - N * 3) is N
    assert ssimplify(N * 4 - N * 4) == 0
    assert ssimplify(5) == 5
    assert ((N * 6) // 3).ssimplify() is N * 2
    assert ((N + 20) // 100).ssimplify() == 0


def test_text() -> None:
    assert (srender(3), srender(N * 3), N.bind(4).render()) == ("3", "(i*3)", "i")
    assert ((N + 1) * 3).render(simplify=False) == "((i+1)*3)"
    assert (N - 1).render() == "(i+-1)"
    assert ((N + 1) // 4 * 4).render() == "((i+1)//4*4)"
    assert (N < 3).render() == "(i<3)"
    assert smax(N, 4).render() == "max(i, 4)"
    assert (N < 3).where(N, M).render() == "(i if (i<3) else j)"


def test_extremes_of_ints_are_ints() -> None:
    assert smax(2, 3, 1) == smax([2, 3, 1]) == 3
    assert smin(2, 3, 1) == 1
    assert smax(N, 0) is N
    assert smin(N, 20) is N
    assert smin(N, 0) == 0


def test_conditions_on_sizes() -> None:
    assert (resolve(N > 0), resolve(N > 3), resolve(N > 3, False)) == (True, True, False)
    assert not resolve(N > 10)
    assert resolve(True)
    with pytest.raises(ArgumentError, match="may be true or false"):
        bool(N > 3)


def test_sizes_as_nodes() -> None:
    assert sint_to_uop(3) is UOp.const(dtypes.index, 3)
    assert sint_to_uop(N) is N
    assert sint_to_uop(3, dtypes.int32).dtype is dtypes.int32


def test_factors() -> None:
    assert (N * 4 + 8).const_factor() == 4
    assert (N * 4 + 1).const_factor() == 1
    assert UOp.gcd(N * 4, M * 8 + 4).arg == 4
    assert (N * 4 + 8).divides(4) is N + 2
    assert (N * 4 + 1).divides(4) is None
    assert (N * M).divide_exact(M) is N
    assert (N * 4 + 8).divide_exact(UOp.const(dtypes.index, 4)) is N + 2
    assert (N + M).divide_exact(M) is None
    assert (N * 4 + 8).pop_const() == (N * 4, 8)
    assert N.pop_const() == (N, 0)
    assert set((N * 4 + M + 8).split_uop(Ops.ADD)) == {N * 4, M, UOp.const(dtypes.index, 8)}


def test_growth_and_room() -> None:
    assert (N * 4 + M).is_increasing()
    assert not (M - N).is_increasing()
    assert (N * 100).overflows(dtypes.uint8)
    assert not (N * 4).overflows(dtypes.uint8)


def test_a_variable_of_a_float_dtype() -> None:
    x = UOp.variable("x", 0.0, 2.5, dtypes.float32)
    assert (x.vmin, x.vmax, x.dtype) == (0.0, 2.5, dtypes.float32)
    with pytest.raises(ArgumentError, match="bounds are ints"):
        Variable("x", 0.0, 2.5)


def test_a_size_as_a_tensor() -> None:
    i, j = N.bind(3), M.bind(2)
    assert Tensor.from_uop(i * 4).item() == 12
    assert Tensor.from_uop(i).dtype is dtypes.int32
    assert Tensor(i * 4 + j).item() == 14
    assert Tensor(i, dtype=dtypes.float32).item() == 3.0
    assert (Tensor([1.5, 2.0]) * i).tolist() == [4.5, 6.0]
    assert (Tensor([7, 8]) // i + (i * 4 - j)).tolist() == [12, 12]
    assert (Tensor([1, 3, 5]) < i).where(i, 0).tolist() == [3, 0, 0]
    assert Tensor.full((3,), i * 2).tolist() == [6, 6, 6]


def test_the_order_of_factors_does_not_depend_on_values() -> None:
    orders = set()
    for n in range(1, 11):
        for m in range(7):
            product, total = N.bind(n) * M.bind(m), N.bind(n) + M.bind(m)
            orders.add((product.src[0].expr, total.src[0].expr))
    assert orders == {((N * M).src[0].expr, (N + M).src[0].expr)}
