"""XOR layouts: what lies where, in which banks, and that programs read and write all banks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.codegen.work_groups.swizzle import place_of, split_by_xor, xor_of_rows
from aster_ml.runtime.interpreter import run as interpreter
from aster_ml.target.cuda import cuda_target
from aster_ml.uop.evaluate import evaluate_expr
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from tests.core.kernel_checks import kernel_of

# Bytes of all banks, and of one.
BANKS, BANK = 128, 4
TILES = [(run, itemsize) for itemsize in (1, 2, 4) for run in (16, 32, 64, 128, 256)]


def banks_of(places: list[int], itemsize: int, nbytes: int) -> list[int]:
    """The banks in which so many bytes from each of these elements lie."""
    starts = [x * itemsize for x in places]
    return [(x + i) % BANKS // BANK for x in starts for i in range(0, nbytes, BANK)]


@pytest.mark.parametrize(("run", "itemsize"), TILES)
def test_eight_rows_and_eight_neighbours_lie_in_all_banks(run: int, itemsize: int) -> None:
    layout = xor_of_rows(run, itemsize)
    if layout is None:
        assert run * itemsize < 32
        return
    unit = 16 // itemsize
    for first in range(0, 32, 8):
        for at in range(0, run, unit):
            rows = [place_of((first + i) * run + at, layout) for i in range(8)]
            assert len(set(banks_of(rows, itemsize, 16))) == 32
    for first in range(0, 32 * run, 8 * unit):
        copied = [place_of(first + i * unit, layout) for i in range(8)]
        assert len(set(banks_of(copied, itemsize, 16))) == 32


@pytest.mark.parametrize("run", [32, 64, 128, 256])
def test_words_of_four_rows_lie_in_all_banks(run: int) -> None:
    """As TF32 is read where neighbours are no neighbours of a sum: rows k, eight words each."""
    layout = xor_of_rows(run, 4, apart=True)
    assert layout is not None
    for first in range(0, run, 8):
        words = [place_of(k * run + first + n, layout) for k in range(4) for n in range(8)]
        assert len(set(banks_of(words, 4, 4))) == 32


@pytest.mark.parametrize(("run", "itemsize"), TILES)
def test_every_element_has_a_place_of_its_own_in_its_row(run: int, itemsize: int) -> None:
    for apart in (False, True):
        layout = xor_of_rows(run, itemsize, apart)
        if layout is None:
            continue
        places = [place_of(x, layout) for x in range(16 * run)]
        assert sorted(places) == list(range(16 * run))
        assert all([place // run == x // run for x, place in enumerate(places)])


def test_there_is_none_where_rows_are_of_no_power_of_two() -> None:
    assert xor_of_rows(48, 2) is None
    assert xor_of_rows(8, 2) is None


def test_indices_are_taken_apart() -> None:
    """Base plus offset is the place of the index, however its summands overlap."""
    item = UOp.range(64, 0, AxisType.LOCAL)
    lane, wide = UOp.range(4, 1, AxisType.UPCAST), UOp.range(8, 2, AxisType.VECTOR)
    layout = xor_of_rows(32, 2)
    assert layout is not None
    for index in (
        item * 32 + lane * 8 + wide,
        (item // 4) * 32 + (item % 4) * 8 + wide + 2048 * lane,
        item * 8 + wide + 512 * lane + 16,
        item * 5 + lane * 3 + 7,
    ):
        base, offset = split_by_xor(index, layout)
        assert all([r.arg.kind.is_lane for r in offset.ranges])
        for i in range(64):
            for j in range(4):
                for k in range(8):
                    at = {item: i, lane: j, wide: k}
                    found = evaluate_expr(base, at) + evaluate_expr(offset, at)
                    assert found == place_of(evaluate_expr(index, at), layout)


def test_lanes_of_a_row_change_no_more_than_bits() -> None:
    """What does not change with lanes is computed once, and lanes that number rows are offsets."""
    item, lane = UOp.range(32, 0, AxisType.LOCAL), UOp.range(4, 1, AxisType.UPCAST)
    layout = xor_of_rows(64, 2)
    assert layout is not None
    base, offset = split_by_xor(item * 64 + lane * 2048, layout)
    assert lane not in base.ranges
    assert offset.ranges == {lane}
    base, offset = split_by_xor(item * 64 + lane * 16, layout)
    assert base.op is Ops.XOR
    assert [lane in s.ranges for s in base.src] == [False, True]
    assert offset.op is Ops.CONST


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_program_has_no_conflicts(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places that work-items name, and that they fill, as the interpreter sees them."""
    seen: list[tuple[int, list[int]]] = []

    def watched(compile_node: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(self: interpreter.Interpreter, u: UOp) -> Any:
            made = compile_node(self, u)
            memory = interpreter.strip_after(u.src[0].src[0])
            if memory.op is not Ops.DEFINE_LOCAL:
                return made
            outer = tuple([r for r in interpreter.lanes_of(u) if r not in u.src])
            locate, number = self.compile_place(u.src[0], outer), id(u)

            def note(item: interpreter.Item) -> None:
                seen.append((number, [item.number, *locate(item)[1]]))

            if isinstance(made, interpreter.Together):
                show = made.show
                return made._replace(show=lambda item: (note(item), show(item))[1])
            return lambda item: (note(item), made(item))[1]

        return compiled

    for op in (Ops.LDMATRIX, Ops.STORE):
        monkeypatch.setitem(interpreter.COMPILERS, op, watched(interpreter.COMPILERS[op]))
    number = {"float16": 3, "float32": 0}[dtype]
    k, itemsize = (32, 2) if dtype == "float16" else (16, 4)
    a, b = Tensor.empty(64, k, dtype=dtype), Tensor.empty(64, k, dtype=dtype)
    opts = "UPCAST(r0,2) LOCAL(r0,2) UPCAST(r1,2) LOCAL(r1,2) STAGE(r2,2,local)"
    linear, _ = lower(
        kernel_of(a.matmul(b.T, dtype=dtypes.float32)),
        cuda_target("sm_80"),
        parse_opts(f"TC(r2,{number}) {opts}"),
    )
    arrays = [np.zeros(64 * 64, np.float32), *[np.zeros(64 * k, dtype) for _ in range(2)]]
    interpreter.Interpreter(linear).run(arrays, ())
    by_node: dict[int, dict[int, list[int]]] = {}
    for node, (item, *places) in seen:
        by_node.setdefault(node, {})[item] = places
    unit = 16 // itemsize
    turns = 0
    for rows in by_node.values():
        assert len(rows) == 128
        wide = len(rows[0]) % unit == 0 and rows[0][1:2] == [rows[0][0] + 1]
        for at in range(0, len(rows[0]), unit if wide else 1):
            for first in range(0, 128, 8):
                eight = [rows[first + i][at] for i in range(8)]
                assert len(set(banks_of(eight, itemsize, 16))) == 32
                turns += 1
    assert turns > 64
