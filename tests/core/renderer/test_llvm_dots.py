"""Sums of DOTs of int8 by one instruction each, or as pairs of int16."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Context, Tensor, dtypes
from aster_ml.renderer.llvm.dots import Dot, add_dots, most_of_bytes
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, ParamArg

LANES, BLOCKS = 16, 3
ISAS = ("avx2", "avxvnni", "")


def fields_of(codes: Tensor, bits: int) -> list[Tensor]:
    """The fields of bytes, the lowest first."""
    return [(codes >> (bits * i)) & ((1 << bits) - 1) for i in range(8 // bits)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_sums_are_exact_for_the_largest_and_smallest_numbers(bits: int, isa: str) -> None:
    for words in (1, 2, 4, 9):
        places = 8 // bits
        rng = np.random.default_rng(words)
        codes = rng.integers(0, 256, (2, BLOCKS, words, LANES, 4)).astype(np.uint8)
        given = rng.integers(-128, 128, (BLOCKS, places, words, 4)).astype(np.int8)
        codes[0, :2], given[0], given[1] = 255, -128, 127
        with Context(ISA=isa):
            total = None
            cut = fields_of(Tensor(codes).realize(), bits)
            for i, field in enumerate(cut):
                x = Tensor(given).realize()[:, i].reshape(1, BLOCKS, words, 1, 4)
                term = x.cast(dtypes.int32) * field.cast(dtypes.int32)
                total = term if total is None else total + term
            assert total is not None
            got = (total.sum((2, 4)).float() * Tensor.ones(2, BLOCKS, LANES)).sum(1).numpy()
        want = np.zeros((2, BLOCKS, LANES), np.int64)
        for i in range(places):
            field = codes.astype(np.int64) >> (bits * i) & ((1 << bits) - 1)
            want += (field * given.astype(np.int64)[None, :, i, :, None]).sum((2, 4))
        assert (got == want.sum(1)).all(), (bits, words, isa)


class Lines:
    """What writes lines, as renderers do."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.lines: list[str] = []

    def emit(self, line: str) -> str:
        """A line, and the name of its value."""
        self.lines.append(line)
        return f"%{len(self.lines)}"

    def call(self, kind: str, name: str, args: str, kinds: str) -> str:
        """A call."""
        return self.emit(f"call {kind} @{name}({args})")


def names_of(most: int, count: int, target: Target) -> list[str]:
    """The instructions that so many DOTs become, without names of their widths."""
    lines = Lines(target)
    add_dots(lines, target.lanes(4), [Dot("%x", "%y", most)] * count, target)
    return [line.split("@llvm.x86.")[1].split("(")[0] for line in lines.lines if "@llvm" in line]


def test_narrow_fields_are_widened_once_for_as_many_words_as_16_bits_hold() -> None:
    avx2 = Target("CPU", "llvm", arch="x86_64-any", vector_bits=256)
    pairs, wide = "avx2.pmadd.ub.sw", "avx2.pmadd.wd"
    assert names_of(15, 8, avx2) == [*[pairs] * 8, wide]
    assert names_of(31, 5, avx2) == [*[pairs] * 4, wide, pairs, wide]
    assert names_of(63, 3, avx2) == [*[pairs] * 2, wide, pairs, wide]
    assert names_of(127, 2, avx2) == [pairs, wide] * 2
    assert names_of(255, 2, avx2) == [wide] * 4
    vnni = Target("CPU", "llvm", vector_bits=256, features=frozenset({"vnni"}))
    assert names_of(15, 8, vnni) == ["avx512.vpdpbusd.256"] * 8


def test_the_largest_byte_is_read_off_bitwise_ops() -> None:
    memory = UOp(Ops.PARAM, dtypes.uint32, (), ParamArg(0, 64))
    word = memory.index(UOp.index_const(0)).load()
    high = UOp.const(dtypes.uint32, 0x80808080)

    def number(n: int) -> UOp:
        return UOp.const(dtypes.uint32, n)

    assert most_of_bytes(word ^ high) == 255
    assert most_of_bytes((word & number(0x0F0F0F0F)) ^ high) == 15
    fifth = ((word >> 2) & number(0x01010101)) << 4
    assert most_of_bytes(((word & number(0x0F0F0F0F)) | fifth) ^ high) == 31
    assert most_of_bytes(word & number(0x0F0F0F0F)) == 15
    chosen = (word < number(3)).where(word & number(0x03030303), word & number(0x07070707))
    assert most_of_bytes(chosen ^ high) == 7
