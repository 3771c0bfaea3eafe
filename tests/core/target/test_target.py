"""Targets are values: equal by content, printable, and read back from their text."""

from __future__ import annotations

import pytest

from aster_ml.errors import ArgumentError
from aster_ml.target import PLAIN_OPS, Target
from aster_ml.uop.ops import Ops

GPU = Target(
    "OPENCL", "opencl", arch="gfx-9", kind="gpu", vector_bits=128, vector_registers=64,
    cache_bytes=(1, 2, 0), threads=7, has_local=True, has_barrier=True, max_group=256,
    local_bytes=65536, index_bits=32, native_dtypes=frozenset({"float32", "int32"}),
    native_ops=frozenset(),
)  # fmt: skip


@pytest.mark.parametrize("target", [Target("CPU", "llvm"), GPU])
def test_text_parses_back(target: Target) -> None:
    again = Target.parse(str(target))
    assert again == target
    assert hash(again) == hash(target)
    assert again.native_ops == target.native_ops
    assert again.cache_bytes == target.cache_bytes
    assert again.has_local is target.has_local


def test_every_field_is_in_the_key() -> None:
    base = Target("CPU", "llvm")
    others = [
        Target("NULL", "llvm"), Target("CPU", "c"), Target("CPU", "llvm", threads=2),
        Target("CPU", "llvm", native_ops=frozenset({"ADD"})),
        Target("CPU", "llvm", native_dtypes=frozenset({"int8"})),
        Target("CPU", "llvm", cache_bytes=(1, 2, 3)), Target("CPU", "llvm", has_barrier=True),
    ]  # fmt: skip
    assert len({base, *others}) == len(others) + 1
    assert len({t.key for t in (base, *others)}) == len(others) + 1


def test_key_does_not_depend_on_the_order_of_sets() -> None:
    names = sorted(PLAIN_OPS)
    assert (
        Target("CPU", "c", native_ops=frozenset(names)).key
        == Target("CPU", "c", native_ops=frozenset(reversed(names))).key
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("device=CPU language=llvm colour=red", "'colour=red' is no field"),
        ("device=CPU language=llvm threads", "'threads' is no field"),
        ("device=CPU", "has no field language"),
        ("device=CPU language=c threads=two", "threads='two', wanted a whole number"),
        ("device=CPU language=c has_local=yes", "has_local='yes', wanted 0 or 1"),
        ("device=CPU language=c cache_bytes=1,2", "wanted three whole numbers"),
    ],
)
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Target.parse(text)


def test_names_with_spaces_are_refused() -> None:
    with pytest.raises(ArgumentError, match="one word"):
        str(Target("CPU", "c", arch="two words"))


def test_questions() -> None:
    target = Target("CPU", "llvm", vector_bits=256)
    assert target.lanes(4) == 8
    assert target.lanes(8) == 4
    assert Target("PYTHON", "python").lanes(4) == 1
    assert target.has_op("ADD")
    assert not target.has_op("SIN")
    assert target.has_dtype("float64")
    assert not target.has_dtype("bfloat16")


def test_plain_ops_are_ops() -> None:
    assert {Ops[name].name for name in PLAIN_OPS} == PLAIN_OPS
