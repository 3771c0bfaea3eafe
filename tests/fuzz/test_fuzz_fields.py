"""Fields that are cut out of bytes, in wider integers, against what each op says of bytes.

A case draws steps over loads of bytes: masks, shifts, joins, sums, choices. Its fields are worked
out byte by byte, as int32, and four at once as words.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from aster_ml.codegen.transforms.wide_fields import CUT, SHIFTS, cut_out, load_word
from aster_ml.dtype import dtypes
from aster_ml.uop.evaluate import evaluate_expr
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops, ParamArg
from tests.fuzz.budget import check_all, draws

BYTE, STEPS = dtypes.uint8, sorted(CUT, key=lambda op: op.name)
WORDS = 3
W, G = UOp.range(WORDS, 0, AxisType.LOOP), UOp.range(4, 1, AxisType.REDUCE)
MEMORY = [UOp(Ops.PARAM, BYTE, (), ParamArg(i, 4 * WORDS)) for i in range(2)]


def drawn(rng: random.Random) -> UOp:
    """A field of bytes that lie side by side along G."""
    made = [m.index(W * 4 + G).load() for m in MEMORY]
    for _ in range(rng.randint(1, 6)):
        x, y, op = rng.choice(made), rng.choice(made), rng.choice(STEPS)
        number = UOp.const(
            BYTE, rng.choice([0, 1, 3, 15, 16, 127, 128, 240, 255, rng.randrange(256)])
        )
        if op is Ops.WHERE:
            made.append(W.alu(Ops.CMPLT, UOp.index_const(rng.randint(0, WORDS))).where(x, y))
        elif op in SHIFTS:
            few, many = (UOp.const(BYTE, rng.randrange(8)) for _ in range(2))
            some = W.alu(Ops.CMPLT, UOp.index_const(1)).where(few, many)
            made.append(x.alu(op, rng.choice([few, few, some])))
        else:
            made.append(x.alu(op, rng.choice([number, y])))
    return made[-1]


def value_of(u: UOp, memory: list[bytes], place: dict[UOp, int]) -> int:
    """What a value is at one place of both ranges."""
    values: dict[UOp, int] = dict(place)
    for load in [x for x in toposort(u) if x.op is Ops.LOAD]:
        buffer, index = load.src[0].src
        i = evaluate_expr(index, place)
        nbytes = load.dtype.itemsize
        values[load] = int.from_bytes(memory[buffer.arg.slot][i : i + nbytes], "little")
    return int(evaluate_expr(u, values))


def judge(seed: int) -> str | None:
    """What is wrong with the fields of one case."""
    rng = random.Random(seed)
    field, memory = drawn(rng), [rng.randbytes(4 * WORDS) for _ in MEMORY]
    memory[0] = rng.choice([memory[0], bytes([255] * 4 * WORDS)])
    steps = toposort(field)
    refused = any([u.op is Ops.ADD or (u.op in SHIFTS and u.src[1].op is Ops.WHERE) for u in steps])
    for w in range(WORDS):
        bytes_of = [value_of(field, memory, {W: w, G: g}) for g in range(4)]
        found = cut_out(field), cut_out(field, G)
        if None in found and not refused:
            return "bitwise steps were refused"
        for wide, places in zip(found, ([{W: w, G: g} for g in range(4)], [{W: w}])):
            if wide is None:
                continue
            got = [value_of(wide, memory, place) for place in places]
            want = bytes_of if wide.dtype is dtypes.int32 else [int.from_bytes(bytes_of, "little")]
            if got != want:
                return f"{wide.dtype}: {got} for {want}"
    return None


def test_fields_are_those_of_bytes(record_property: Callable[[str, str], None]) -> None:
    check_all("fields of bytes", draws(60, 6000), judge, record_property)


def test_bytes_that_lie_apart_are_no_word() -> None:
    apart = MEMORY[0].index(G * 4 + W).load()
    assert load_word(apart, G) is None
    assert cut_out(apart & UOp.const(BYTE, 15), G) is None


def test_a_sum_beyond_a_byte_is_refused() -> None:
    x = MEMORY[0].index(W * 4 + G).load()
    low = x & UOp.const(BYTE, 15)
    assert cut_out(low + low, G) is not None
    assert cut_out(x + low) is None
    assert cut_out(x + low, G) is None
