"""Target: what hardware can do, as plain data.

The compiler receives a Target and never a device, so a kernel can be compiled for a machine that is
not there. A Target is hashable, prints to one line of text and parses back from it. Nothing here
asks the machine anything: the runtime of each device fills a Target in.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Any

from aster_ml.errors import ArgumentError
from aster_ml.target.copies import Copies, copies_of
from aster_ml.target.costs import Costs, costs_of

INTEGERS = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)
# Inside of blocks of so many bytes every processor with SIMD registers mixes two values at once.
BLOCK_NBYTES = 16
# Bytes of a cache line of most processors.
LINE_NBYTES = 64
PLAIN_DTYPES = INTEGERS | {"float32", "float64"}

# What every C-like target computes with one instruction or one standard expression.
PLAIN_OPS = frozenset(
    {
        "CAST", "BITCAST", "NEG", "SQRT", "RECIPROCAL", "TRUNC", "ADD", "SUB", "MUL", "FDIV",
        "IDIV", "MOD", "MAX", "CMPLT", "CMPNE", "CMPEQ", "XOR", "OR", "AND", "SHL", "SHR", "WHERE",
        "MULACC",
    }
)  # fmt: skip


# Kinds of machines: one with SIMD registers and threads, one with work-groups, one that runs the
# nodes of a kernel as they are, and one that runs none.
CPU, GPU, INTERPRETER, IDLE = "cpu", "gpu", "interpreter", "idle"
# A feature of a device on which those that nobody has run on hardware are not known to work.
UNTRIED = "untried"


@dataclass(frozen=True, eq=False)
class Target:
    """Capabilities of one kind of device.

    `device` is its name ("CPU"), `language` what its kernels are written in ("llvm", "c", "opencl",
    "cuda", "metal", "wgsl", "python", "null"), which only renderers and runtimes ask for; `kind` is
    one of `CPU`, `GPU`, `INTERPRETER` and `IDLE`, and `arch` names the processor and all else that
    makes compiled code differ. `vector_bits` is the width of a SIMD register, 0 without SIMD, and
    `move_bits` what one load or store moves at a time where that is another width, else 0. With
    `masks` a mask takes no SIMD register, and a masked store no more than another; with
    `broadcasts` arithmetic takes one element for all lanes from memory or from a lane by itself;
    `issue` SIMD instructions of arithmetic begin in a cycle. `cache_bytes` are the first, second
    and third level, 0 for a level that is not there, of lines of `line_nbytes`; each place of the
    second has room for `ways` of them, and memory is in pages of `page_nbytes`. `max_group` and
    `local_bytes` are the most work-items and the most shared memory of one work-group, `max_grid`
    the most work-groups along each dimension of a launch, `max_buffers` the most buffers of one
    kernel and `max_turns` the most turns of all loops of one work-item, 0 where there is no limit;
    `warp` work-items run in step, on `units` processors, 0 where
    that is not known. `features` are names of what else there is: "shuffle", "ldmatrix",
    "cp_async", "tma", "wgmma", "mma_fp8" where products of fp8 are single instructions, "vnni"
    where a DOT of int8 is one, and "untried" where no self-test has shown that those work which
    nobody has run on hardware;
    `tensor_cores` names rows of `target/tensor_cores`. `native_dtypes` have arithmetic of their
    own; `native_ops` are names of ops. `dot_dtypes` are the narrow dtypes for which Ops.DOT is an
    instruction, or a few, and `fused` says that MULACC is rounded once. `flushes` names the dtypes
    of which numbers below the least normal one may be taken for 0.
    """

    device: str
    language: str
    arch: str = "generic"
    kind: str = CPU
    vector_bits: int = 0
    move_bits: int = 0
    vector_registers: int = 0
    masks: bool = False
    broadcasts: bool = False
    issue: int = 2
    line_nbytes: int = LINE_NBYTES
    page_nbytes: int = 4096
    ways: int = 8
    cache_bytes: tuple[int, int, int] = (32 << 10, 512 << 10, 4 << 20)
    threads: int = 1
    has_local: bool = False
    has_barrier: bool = False
    max_group: int = 1
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    local_bytes: int = 0
    max_buffers: int = 0
    max_turns: int = 0
    warp: int = 0
    units: int = 0
    features: frozenset[str] = frozenset()
    tensor_cores: frozenset[str] = frozenset()
    index_bits: int = 64
    native_dtypes: frozenset[str] = PLAIN_DTYPES
    native_ops: frozenset[str] = PLAIN_OPS
    dot_dtypes: frozenset[str] = frozenset()
    fused: bool = False
    flushes: frozenset[str] = frozenset()

    @functools.cached_property
    def key(self) -> str:
        """The whole Target as one line, equal for equal targets in every process."""
        return " ".join(f"{f.name}={format_field(getattr(self, f.name))}" for f in fields(self))

    @staticmethod
    def parse(text: str) -> Target:
        """The Target whose `key` is `text`.

        Raises: ArgumentError where a field is unknown, missing or not of its type.
        """
        kinds = {f.name: type(f.default) for f in fields(Target)}
        values: dict[str, Any] = {}
        for part in text.split():
            name, separator, value = part.partition("=")
            if name not in kinds or not separator:
                raise ArgumentError(
                    f"target: {part!r} is no field; a target reads name=value, with the names "
                    f"{', '.join(kinds)}"
                )
            values[name] = parse_field(name, value, kinds[name])
        for name in ("device", "language"):
            if name not in values:
                raise ArgumentError(f"target: {text!r} has no field {name}")
        return Target(**values)

    @functools.cached_property
    def is_cpu(self) -> bool:
        """Whether kernels run on SIMD registers and threads that share memory."""
        return self.kind == CPU

    @functools.cached_property
    def compiles(self) -> bool:
        """Whether kernels become machine code, so that all in them has to be native."""
        return self.kind in (CPU, GPU)

    @functools.cached_property
    def costs(self) -> Costs:
        """Costs of operations on such a machine."""
        return costs_of(self.arch)

    @functools.cached_property
    def dots_at_once(self) -> bool:
        """Whether a DOT of int8 is one instruction, and not products of pairs."""
        return "vnni" in self.features

    @functools.cached_property
    def copies(self) -> Copies:
        """Means of copying memory to local memory beside other work."""
        return copies_of(self.features)

    @functools.cached_property
    def moved_nbytes(self) -> int:
        """Bytes that one load or store moves; 0 where it moves one element."""
        return (self.move_bits or self.vector_bits) // 8

    @functools.cached_property
    def registers(self) -> int:
        """SIMD registers; where that is not known, as few as any processor has."""
        return self.vector_registers or 16

    @functools.cached_property
    def instruction(self) -> float:
        """Cycles of an instruction of SIMD arithmetic, where nothing waits for another."""
        return 1 / self.issue

    def has_dtype(self, name: str) -> bool:
        """Whether the dtype of this name has native arithmetic."""
        return name in self.native_dtypes

    def has_op(self, name: str) -> bool:
        """Whether the op of this name is one instruction or call of the target's language."""
        return name in self.native_ops

    def lanes(self, itemsize: int) -> int:
        """Number of elements of `itemsize` bytes in one SIMD register; 1 without SIMD."""
        return max(1, self.vector_bits // (8 * itemsize))

    # Targets stand in many cache keys: comparing and hashing one string is cheaper than 14 fields.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.key


def format_field(value: Any) -> str:
    """One value of a Target as text without spaces."""
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    if isinstance(value, tuple):
        return ",".join(str(v) for v in value)
    if isinstance(value, bool):
        return str(int(value))
    text = str(value)
    if text.split() != [text]:
        raise ArgumentError(f"target: {text!r} has to be one word; it has spaces or is empty")
    return text


def parse_field(name: str, text: str, kind: type) -> Any:
    """The reverse of `format_field`; `kind` is the type of the field's default."""
    try:
        if kind is frozenset:
            return frozenset(text.split(",")) if text else frozenset()
        if kind is tuple:
            first, second, third = (int(v) for v in text.split(","))
            return (first, second, third)
        if kind is bool:
            return {"0": False, "1": True}[text]
        return int(text) if kind is int else text
    except (ValueError, KeyError):
        named: dict[Any, str] = {tuple: "three whole numbers", bool: "0 or 1"}
        wanted = named.get(kind, "a whole number")
        raise ArgumentError(f"target: {name}={text!r}, wanted {wanted}") from None
