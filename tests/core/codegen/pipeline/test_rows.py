"""Parts of rows that run an iteration apart: loops in one another, and two of them as one."""

from __future__ import annotations

from collections import Counter

import pytest

from aster_ml.codegen.passes import lower
from aster_ml.codegen.pipeline.lists import ended
from aster_ml.codegen.pipeline.rows import Nest, joined, nests_of
from aster_ml.dtype import dtypes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops, RangeArg
from tests.core.golden.kernels import TARGETS
from tests.core.kernel_checks import kernel_of, memory


def loop(number: int, size: int) -> UOp:
    """A loop of so many iterations."""
    bound = UOp.const(dtypes.int64, size)
    return UOp(Ops.RANGE, dtypes.int64, (bound,), RangeArg(number, AxisType.LOOP))


def times(u: UOp, n: int) -> UOp:
    """So many times a number."""
    return u.alu(Ops.MUL, UOp.const(u.dtype, n))


def test_nests_are_told_from_loops_beside_one_another() -> None:
    a, b, c, d, e, f = [loop(i, 4) for i in range(6)]
    before, x, y, z, behind = [times(r, n) for r, n in ((d, 2), (a, 3), (b, 5), (a, 7), (d, 9))]
    nest = [a, x, b, y, ended(b), z, ended(a)]
    beside = [c, e, ended(e), f, ended(f), ended(c)]
    listed = [before, *nest, *beside, behind]
    (found,) = nests_of(listed)
    rest = [*beside, behind]
    assert found == Nest([before], [a, b], [[x], [y]], [[z], []], rest)
    assert [*found.before, *joined(found), *found.behind] == listed
    assert found.inside == [x, y, z]


def test_what_two_nests_have_in_common_stands_once() -> None:
    a, b = loop(0, 4), loop(1, 4)
    first = nests_of([a, times(a, 2), times(a, 3), ended(a)])[0]
    second = nests_of([b, times(b, 2), times(b, 5), ended(b)])[0].along([a])
    assert joined(first, second) == [a, times(a, 2), times(a, 3), times(a, 5), ended(a)]


@pytest.mark.parametrize("sizes", [(2, 3), (3, 1), (1, 5), (2, 2, 4), (7, 13)])
def test_one_loop_goes_along_several_as_one_number(sizes: tuple[int, ...]) -> None:
    loops = [loop(i, size) for i, size in enumerate(sizes)]
    total = 1
    for size in sizes:
        total *= size
    one = loop(9, total)
    nest = nests_of([one, times(one, 10), ended(one)])[0].along(loops)
    assert nest.loops == loops
    assert nest.sizes == [*sizes]
    found = []
    for number in range(total):
        places, rest = {}, number
        for r, size in reversed([*zip(loops, sizes, strict=True)]):
            places[r], rest = rest % size, rest // size
        found.append(value(nest.opened[-1][-1], places))
    assert found == [10 * n for n in range(total)]


def value(u: UOp, places: dict[UOp, int]) -> int:
    """What a sum of products of loops is at a place."""
    if u.op is Ops.RANGE:
        return places[u]
    if u.op is Ops.CONST:
        return int(u.arg)
    a, b = [value(s, places) for s in u.src]
    return a + b if u.op is Ops.ADD else a * b


@pytest.mark.parametrize("target", [name for name, target in TARGETS.items() if target.is_cpu])
def test_a_list_of_pipelined_rows_has_each_value_once(target: str) -> None:
    for made in (memory(64, 512).log_softmax(), memory(256, 4096).softmax()):
        linear, opts = lower(kernel_of(made), TARGETS[target])
        counts = Counter(u for u in linear.uops if u.op not in (Ops.END, Ops.BARRIER))
        assert any(opt.op.name == "PIPELINE" for opt in opts), opts
        assert max(counts.values()) == 1
