"""Runs warp instructions: shuffles, loads of matrices by rows, products of matrices.

Receives nodes of a linear program and returns the steps of the interpreter for them. Products of
operands in local memory are in `interpreter_stages`.
"""

from __future__ import annotations

from typing import Any

from aster_ml.dtype import bitcast_value, round_float, to_dtype
from aster_ml.errors import InternalError
from aster_ml.runtime.interpreter.state import (
    Compiling,
    Item,
    Together,
    instance,
    lanes_of,
    positions,
    read_element,
    register_of,
    write_element,
)
from aster_ml.target.tensor_cores import TENSOR_CORES
from aster_ml.uop.node import UOp


def compile_shuffle(program: Compiling, u: UOp) -> Together:
    """SHUFFLE: the value of another work-item of the block."""
    number = program.add(u, [])
    source, rows = program.reader(program.lanes[u], u.src[0])

    def take(item: Item) -> None:
        other = item.number ^ u.arg
        if other not in item.block.board:
            raise InternalError(f"{program.linear.name}: there is no work-item {other}")
        item.values[number] = item.block.board[other]

    return Together(lambda item: [item.values[source][row] for row in rows], take)


def compile_matrices(program: Compiling, u: UOp) -> Together:
    """LDMATRIX: elements of rows that eight work-items address for each matrix."""
    number, lanes = program.add(u, []), program.lanes[u]
    words, own = u.src[1 : 1 + u.arg.word], u.src[1:]
    outer = tuple([r for r in lanes if r not in own])
    locate = program.compile_place(u.src[0], outer)
    where = f"{program.linear.name}: LDMATRIX"
    found = []
    for p in positions(lanes):
        part, matrix = register_of(words, p), register_of(own[len(words) :], p)
        found.append((instance(outer, p), matrix, part))

    def take(item: Item) -> None:
        first, lane = item.number // 32 * 32, item.number % 32
        values = []
        for group, matrix, part in found:
            column = lane % 4 * (1 << len(words)) + part
            row, column = (column, lane // 4) if u.arg.transposed else (lane // 4, column)
            array, elements = item.block.board[first + 8 * matrix + row]
            values.append(read_element(array, u.dtype, where, elements[group] + column))
        item.values[number] = values

    return Together(locate, take)


def compile_stored_matrices(program: Compiling, u: UOp) -> Together:
    """STMATRIX: elements go to rows that eight work-items address for each matrix."""
    lanes = tuple(sorted({*lanes_of(u), *u.src[2:]}, key=lambda r: r.arg.id))
    words, matrices = u.src[2 : 2 + u.arg.word], u.src[2 + u.arg.word :]
    outer = tuple([r for r in lanes if r not in u.src[2:]])
    locate = program.compile_place(u.src[0], outer)
    value, rows = program.reader(lanes, u.src[1])
    where = f"{program.linear.name}: STMATRIX"
    parts = [
        (instance(outer, p), register_of(matrices, p), register_of(words, p), row)
        for p, row in zip(positions(lanes), rows, strict=True)
    ]

    def take(item: Item) -> None:
        first, lane = item.number // 32 * 32, item.number % 32
        item.block.unfenced.add(item.number)
        for group, matrix, part, number in parts:
            column = lane % 4 * (1 << len(words)) + part
            row, column = (column, lane // 4) if u.arg.transposed else (lane // 4, column)
            array, elements = item.block.board[first + 8 * matrix + row]
            write_element(array, where, elements[group] + column, item.values[value][number])

    return Together(locate, take)


def compile_product(program: Compiling, u: UOp) -> Together:
    """MMA: each element of the result is a sum over elements of two rows of work-items."""
    core = TENSOR_CORES[u.arg.core]
    number, lanes = program.add(u, []), program.lanes[u]
    count = 2 + u.arg.a
    of_a, of_b = u.src[2:count], u.src[count : count + u.arg.b]
    own = u.src[count + u.arg.b :]
    outer = tuple([r for r in lanes if r not in own])
    operands = []
    for operand, value, mine in (("a", u.src[0], of_a), ("b", u.src[1], of_b)):
        node, rows = program.reader((*outer, *reversed(mine)), value)
        where = {
            tuple(sorted(core.place(operand, i, r).items())): (i, r)
            for i in range(core.warp)
            for r in range(1 << len(mine))
        }
        operands.append((node, rows, 1 << len(mine), where))
    kind, given = to_dtype(core.dtype), u.src[0].dtype

    def meant(x: Any) -> Any:
        # An operand of another dtype has the bits of the core's dtype.
        return x if given is kind else bitcast_value(x, given, kind)

    (a, a_rows, a_count, a_at), (b, b_rows, b_count, b_at) = operands
    results = [(instance(outer, p), register_of(own, p)) for p in positions(lanes)]

    def take(item: Item) -> None:
        first = item.number // core.warp * core.warp
        found = []
        for group, register in results:
            at = core.place("c", item.number - first, register)
            total = 0.0
            for k in range(core.size("k")):
                i, r = a_at[("k", k), ("m", at["m"])]
                j, s = b_at[("k", k), ("n", at["n"])]
                x = item.block.board[first + i][0][a_rows[group * a_count + r]]
                y = item.block.board[first + j][1][b_rows[group * b_count + s]]
                total += meant(x) * meant(y)
            found.append(round_float(total, u.dtype))
        item.values[number] = found

    return Together(lambda item: (item.values[a], item.values[b]), take)
