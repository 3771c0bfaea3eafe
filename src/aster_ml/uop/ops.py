"""Defines the closed list of ops, one row each, and the arguments that nodes carry.

A new op is one row here and one row in each table that `tests/lint` names (inference, evaluation,
gradient, renderers). Nothing here computes anything.
"""

from __future__ import annotations

import math
from enum import Enum, EnumType, IntEnum, auto, nonmember
from typing import Any, NamedTuple, TypeVar

from aster_ml.plugins import open_module
from aster_ml.uop.dialect import DialectOps

# Python 3.11 looks members of an Enum up by way of `EnumType.__getattr__`, which takes five times
# as long as an attribute of any other class, and the compiler names an op with every node it looks
# at. This is that metaclass (what makes new classes aside) as it is from 3.12 on: without it.
DirectEnumType = type(
    "DirectEnumType",
    (type,),
    {
        name: value
        for name, value in vars(EnumType).items()
        if name not in ("__getattr__", "__new__", "__prepare__", "__dict__", "__weakref__")
    },
)
E = TypeVar("E", bound=type[Enum])


def direct_members(cls: E) -> E:
    """Makes the members of a finished Enum attributes as any other."""
    if "__getattr__" in vars(EnumType):
        cls.__class__ = DirectEnumType  # type: ignore[method-assign]
    return cls


class Group(Enum):
    """Family of an op."""

    LEAF = auto()  # has no value sources
    UNARY = auto()  # elementwise, one source
    BINARY = auto()  # elementwise, two sources
    TERNARY = auto()  # elementwise, three sources
    MOVEMENT = auto()  # the same values under other indices
    REDUCE = auto()  # fewer values
    WARP = auto()  # values that the work-items of a warp have together
    MARK = auto()  # the same value, with a promise or a boundary
    MEMORY = auto()  # places and accesses
    CONTROL = auto()  # loops, barriers, roots


class OpInfo(NamedTuple):
    """A row of the op table."""

    group: Group
    doc: str


@direct_members
class Ops(IntEnum):
    """All ops. The comment-like text of each is in `OP_TABLE`."""

    # leaves
    CONST = auto()
    BUFFER = auto()
    PARAM = auto()
    DEFINE_VAR = auto()
    IOTA = auto()
    RANGE = auto()
    DEFINE_LOCAL = auto()
    DEFINE_REG = auto()
    # marks
    BIND = auto()
    DEVICE = auto()
    CONTIGUOUS = auto()
    CONTIGUOUS_BACKWARD = auto()
    DETACH = auto()
    CUSTOM_GRADIENT = auto()
    COPY = auto()
    MULTI = auto()
    AFTER = auto()
    # movement
    RESHAPE = auto()
    EXPAND = auto()
    PERMUTE = auto()
    PAD = auto()
    SHRINK = auto()
    FLIP = auto()
    NAME = auto()
    # unary
    CAST = auto()
    BITCAST = auto()
    NEG = auto()
    EXP2 = auto()
    LOG2 = auto()
    SIN = auto()
    TANH = auto()
    SQRT = auto()
    RECIPROCAL = auto()
    TRUNC = auto()
    EXP2_32NDS = auto()
    # binary
    ADD = auto()
    SUB = auto()
    MUL = auto()
    FDIV = auto()
    IDIV = auto()
    MOD = auto()
    MAX = auto()
    POW = auto()
    CMPLT = auto()
    CMPNE = auto()
    CMPEQ = auto()
    XOR = auto()
    OR = auto()
    AND = auto()
    SHL = auto()
    SHR = auto()
    THREEFRY = auto()
    DOT = auto()
    LDEXP = auto()
    # ternary
    WHERE = auto()
    MULACC = auto()
    # reduce
    REDUCE = auto()
    SCATTER = auto()
    # memory
    CALL = auto()
    STAGE = auto()
    INDEX = auto()
    LOAD = auto()
    STORE = auto()
    PREFETCH = auto()
    ACCUMULATE = auto()
    # control
    END = auto()
    BARRIER = auto()
    TMA_LOAD = auto()
    COMMIT = auto()
    WAIT = auto()
    MMA_WAIT = auto()
    WARP_ROLE = auto()
    ACQUIRE = auto()
    RELEASE = auto()
    TMA_STORE = auto()
    FENCE = auto()
    TMA_STORE_WAIT = auto()
    SINK = auto()
    # warps
    SHUFFLE = auto()
    LDMATRIX = auto()
    STMATRIX = auto()
    MMA = auto()

    def __repr__(self) -> str:
        return f"Ops.{self.name}"

    __str__ = __repr__
    # of hand-written kernels: see `uop.dialect`
    DEFINE_GLOBAL = nonmember(DialectOps.DEFINE_GLOBAL)
    SPECIAL = nonmember(DialectOps.SPECIAL)
    VECTORIZE = nonmember(DialectOps.VECTORIZE)
    VCONST = nonmember(DialectOps.VCONST)
    GEP = nonmember(DialectOps.GEP)
    UNROLL = nonmember(DialectOps.UNROLL)
    CONTRACT = nonmember(DialectOps.CONTRACT)
    GROUP = nonmember(DialectOps.GROUP)
    NOOP = nonmember(DialectOps.NOOP)
    INVALID = nonmember(DialectOps.INVALID)
    IF = nonmember(DialectOps.IF)
    ENDIF = nonmember(DialectOps.ENDIF)
    UNIQUE = nonmember(DialectOps.UNIQUE)
    REDUCE_AXIS = nonmember(DialectOps.REDUCE_AXIS)


# Of CONTIGUOUS_BACKWARD: what gradients read of the value is not kept for them.
ANEW = "anew"

OP_TABLE: dict[Ops, OpInfo] = {
    Ops.CONST: OpInfo(Group.LEAF, "One value (arg). At the tensor stage src may name its DEVICE."),
    Ops.BUFFER: OpInfo(Group.LEAF, "Memory of one device (BufferArg); a flat row of elements."),
    Ops.PARAM: OpInfo(Group.LEAF, "A numbered buffer argument of a body or kernel (ParamArg)."),
    Ops.DEFINE_VAR: OpInfo(Group.LEAF, "A named integer with bounds, known at launch (VarArg)."),
    Ops.IOTA: OpInfo(Group.LEAF, "0, 1, 2, ... below src[0], along one axis; index dtype."),
    Ops.RANGE: OpInfo(Group.LEAF, "Takes 0 <= i < src[0]; how it runs is its kind (RangeArg)."),
    Ops.DEFINE_LOCAL: OpInfo(Group.LEAF, "Scratch of one block or work-item (ScratchArg)."),
    Ops.DEFINE_REG: OpInfo(Group.LEAF, "An accumulator: src[0] starts it, the rest are its lanes."),
    Ops.BIND: OpInfo(Group.MARK, "src[0], a DEFINE_VAR, has the value of src[1], a CONST, now."),
    Ops.DEVICE: OpInfo(Group.LEAF, "Names a device (DeviceArg), for constants."),
    Ops.CONTIGUOUS: OpInfo(Group.MARK, "src[0], stored row-major in memory of its own."),
    Ops.CONTIGUOUS_BACKWARD: OpInfo(
        Group.MARK, "src[0]; its gradient is stored; with arg ANEW gradients compute src[0] anew."
    ),
    Ops.DETACH: OpInfo(Group.MARK, "src[0]; no gradient passes."),
    Ops.CUSTOM_GRADIENT: OpInfo(
        Group.MARK,
        "src[0]; its gradient, times the derivative src[i + 1], goes to src[i] for each odd i, or "
        "by a named rule (RuleArg) to src[1:].",
    ),
    Ops.COPY: OpInfo(Group.MARK, "src[0], on another device (DeviceArg)."),
    Ops.MULTI: OpInfo(
        Group.MARK,
        "One value on several devices: each source is what one of them holds (MultiArg).",
    ),
    Ops.AFTER: OpInfo(Group.MARK, "src[0], read once the effects src[1:] have happened."),
    Ops.RESHAPE: OpInfo(Group.MOVEMENT, "Another shape with the same elements in the same order."),
    Ops.EXPAND: OpInfo(Group.MOVEMENT, "Axes of size 1 repeated to the sizes of arg."),
    Ops.PERMUTE: OpInfo(Group.MOVEMENT, "Axis i of the result is axis arg[i] of src[0]."),
    Ops.PAD: OpInfo(Group.MOVEMENT, "Zeros before and after each axis, arg[i] = (before, after)."),
    Ops.SHRINK: OpInfo(Group.MOVEMENT, "Each axis cut to arg[i] = (start, stop)."),
    Ops.FLIP: OpInfo(Group.MOVEMENT, "The axes in arg, reversed."),
    Ops.NAME: OpInfo(
        Group.MOVEMENT, "src[0] as the value of one tensor (NameArg), which gradients tell apart."
    ),
    Ops.CAST: OpInfo(Group.UNARY, "The value as another dtype."),
    Ops.BITCAST: OpInfo(Group.UNARY, "The bits as another dtype of the same width."),
    Ops.NEG: OpInfo(Group.UNARY, "-x."),
    Ops.EXP2: OpInfo(Group.UNARY, "2**x."),
    Ops.LOG2: OpInfo(Group.UNARY, "log2(x); NaN below 0, -inf at 0."),
    Ops.SIN: OpInfo(Group.UNARY, "sin(x), x in radians."),
    Ops.TANH: OpInfo(Group.UNARY, "tanh(x); zeros keep their sign."),
    Ops.SQRT: OpInfo(Group.UNARY, "Square root; NaN below 0."),
    Ops.RECIPROCAL: OpInfo(Group.UNARY, "1/x."),
    Ops.TRUNC: OpInfo(Group.UNARY, "Rounded towards zero."),
    Ops.EXP2_32NDS: OpInfo(
        Group.UNARY, "2**(n / 32) in float32, n what the low five bits of the float32 x are."
    ),
    Ops.ADD: OpInfo(Group.BINARY, "x + y; ints wrap; bool: or."),
    Ops.SUB: OpInfo(Group.BINARY, "x - y; ints wrap."),
    Ops.MUL: OpInfo(Group.BINARY, "x * y; ints wrap; bool: and."),
    Ops.FDIV: OpInfo(Group.BINARY, "x / y on floats."),
    Ops.IDIV: OpInfo(Group.BINARY, "x / y on ints, towards zero; of index dtype, rounded down."),
    Ops.MOD: OpInfo(Group.BINARY, "x - y * (x IDIV y)."),
    Ops.MAX: OpInfo(Group.BINARY, "The larger; NaN if either is NaN; +0 above -0."),
    Ops.POW: OpInfo(Group.BINARY, "x**y as C's pow; ints: exact, wrapped."),
    Ops.CMPLT: OpInfo(Group.BINARY, "x < y, a bool."),
    Ops.CMPNE: OpInfo(Group.BINARY, "x != y, a bool; true for NaN."),
    Ops.CMPEQ: OpInfo(Group.BINARY, "x == y, a bool."),
    Ops.XOR: OpInfo(Group.BINARY, "Bitwise exclusive or."),
    Ops.OR: OpInfo(Group.BINARY, "Bitwise or."),
    Ops.AND: OpInfo(Group.BINARY, "Bitwise and."),
    Ops.SHL: OpInfo(Group.BINARY, "x shifted left by y bits; 0 when y is not below the width."),
    Ops.SHR: OpInfo(Group.BINARY, "x shifted right by y bits; signed types keep the sign."),
    Ops.THREEFRY: OpInfo(Group.BINARY, "Threefry-2x32-20: uint64 counter x under uint64 key y."),
    Ops.DOT: OpInfo(
        Group.BINARY,
        "Products of what lies in the uint32 x and y, added up: as float32 of two bfloat16 each, "
        "as int32 of four int8 each, where 128 is added to those of x.",
    ),
    Ops.LDEXP: OpInfo(
        Group.BINARY, "x * 2**floor(y) on floats, rounded once; y is a number, or NaN as x is."
    ),
    Ops.WHERE: OpInfo(Group.TERNARY, "src[1] where the bool src[0] holds, else src[2]."),
    Ops.MULACC: OpInfo(Group.TERNARY, "src[0] * src[1] + src[2], rounded once where possible."),
    Ops.REDUCE: OpInfo(
        Group.REDUCE,
        "Tensor stage: axes of arg folded to size 1. Kernel stage: "
        "src[0] folded over the ranges src[1:].",
    ),
    Ops.SCATTER: OpInfo(
        Group.REDUCE,
        "What meets of src[0] at the indices src[1:], one an axis of the result of arg.shape, "
        "folded with arg.op: sums are the reverse of INDEX.",
    ),
    Ops.CALL: OpInfo(
        Group.MEMORY,
        "What the source arg.output is once a hand-written kernel has run on all sources.",
    ),
    Ops.STAGE: OpInfo(Group.MEMORY, "src[0] stored over the ranges src[1:] (StageArg)."),
    Ops.INDEX: OpInfo(
        Group.MEMORY,
        "The element of src[0] at src[1:], one index an axis. Linear "
        "stage: src[1] counts elements, src[2] adds what the lanes add.",
    ),
    Ops.LOAD: OpInfo(
        Group.MEMORY,
        "The value at the INDEX src[0]; 0 where the bool src[1] fails. A uint32 read from a "
        "narrower dtype is as many elements as it has room for, the first in its lowest bits.",
    ),
    Ops.STORE: OpInfo(Group.MEMORY, "Writes src[1] to src[0] where the bool src[2] holds."),
    Ops.PREFETCH: OpInfo(
        Group.MEMORY, "What the INDEX src[0] names is wanted soon: a hint, no effect."
    ),
    Ops.ACCUMULATE: OpInfo(
        Group.MEMORY,
        "Folds src[1] into the DEFINE_REG src[0], lane after lane of src[2:] (arg: the op).",
    ),
    Ops.END: OpInfo(
        Group.CONTROL,
        "src[0], done for every value of the ranges src[1:]. Linear "
        "stage: the loop over src[0], a RANGE, ends here.",
    ),
    Ops.BARRIER: OpInfo(
        Group.CONTROL, "All work-items of a block have done src before any goes on."
    ),
    Ops.TMA_LOAD: OpInfo(
        Group.CONTROL,
        "A box of the tensor in src[1], a PARAM, is copied to local memory from src[0], an INDEX, "
        "on; behind them its place in each dimension, and a gate. A block begins it once; what is "
        "outside of the tensor is 0 (TmaArg, `target/tensor_maps`).",
    ),
    Ops.COMMIT: OpInfo(
        Group.CONTROL,
        "Stores that may come later (StoreArg) since the last COMMIT are a group. Where copies end "
        "at barriers in memory, src[0] is the stage that they fill, of arg stages, and src[1] "
        "whether there are any.",
    ),
    Ops.WAIT: OpInfo(
        Group.CONTROL,
        "All groups of stores but the last arg ones are done. Where copies end at barriers in "
        "memory, src[0] is the stage waited for, and src[1] how often it was filled before.",
    ),
    Ops.MMA_WAIT: OpInfo(
        Group.CONTROL,
        "Products of operands in local memory are in their accumulators, but those of the last arg "
        "ACCUMULATEs.",
    ),
    Ops.WARP_ROLE: OpInfo(
        Group.CONTROL,
        "What follows is done by one of so many more work-items than have a LOCAL number, and the "
        "others do nothing; with 0, by those that have one (WarpRoleArg).",
    ),
    Ops.ACQUIRE: OpInfo(
        Group.CONTROL,
        "All warps, of a cluster all of its blocks, have released the stage src[0] as often as "
        "src[1] says, since it was filled so often before.",
    ),
    Ops.RELEASE: OpInfo(
        Group.CONTROL, "A warp reads no more of the stage src[0], where src[1] holds."
    ),
    Ops.SINK: OpInfo(Group.CONTROL, "The root: everything that has to happen."),
    Ops.SHUFFLE: OpInfo(
        Group.WARP,
        "What src[0] is for the work-item whose number differs in the bits of arg; all work-items "
        "of a warp run it together.",
    ),
    Ops.TMA_STORE: OpInfo(
        Group.CONTROL,
        "A box of local memory from src[0], an INDEX, on is copied to the tensor in src[1], a "
        "PARAM; behind them its place in each dimension, and a gate. A block begins it once, and "
        "it comes later; what is outside of the tensor is left out (TmaArg).",
    ),
    Ops.FENCE: OpInfo(
        Group.CONTROL,
        "What a work-item has stored in local memory is there for boxes that are stored behind a "
        "BARRIER behind it.",
    ),
    Ops.TMA_STORE_WAIT: OpInfo(
        Group.CONTROL,
        "All boxes stored so far have been read from local memory; behind a BARRIER behind it, "
        "that may change.",
    ),
    Ops.LDMATRIX: OpInfo(
        Group.WARP,
        "Parts of matrices of 8 rows of 16 bytes in local memory: each work-item of a warp names a "
        "row by the INDEX src[0], and gets of each matrix a word of 32 bits. Lanes that follow: "
        "the bits of an element in its word, then those of a matrix (LdmatrixArg). All work-items "
        "of a warp run it together.",
    ),
    Ops.STMATRIX: OpInfo(
        Group.WARP,
        "The reverse of LDMATRIX: src[1] is stored, each word of it to the row that a work-item of "
        "the warp names by the INDEX src[0]. Lanes that follow are those of LDMATRIX.",
    ),
    Ops.MMA: OpInfo(
        Group.WARP,
        "The product of matrices of which each work-item of a warp has a part of src[0] and of "
        "src[1], in the lanes that follow: those of the first, of the second, of the result "
        "(MmaArg, `target/tensor_cores`). All work-items of a warp run it together.",
    ),
}


def of_group(*groups: Group) -> frozenset[Ops]:
    """The ops of these groups."""
    return frozenset(op for op, info in OP_TABLE.items() if info.group in groups)


UNARY = of_group(Group.UNARY)
BINARY = of_group(Group.BINARY)
TERNARY = of_group(Group.TERNARY)
ELEMENTWISE = UNARY | BINARY | TERNARY
# What computes or loads a value in a kernel.
VALUES = ELEMENTWISE | {Ops.LOAD}
MOVEMENT = of_group(Group.MOVEMENT)
# The value is that of src[0]; only gradients differ.
GRADIENT_MARKS = frozenset({Ops.DETACH, Ops.CUSTOM_GRADIENT})
COMPARE = frozenset({Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ})
COMMUTATIVE = frozenset({Ops.ADD, Ops.MUL, Ops.MAX, Ops.CMPNE, Ops.CMPEQ, Ops.XOR, Ops.OR, Ops.AND})
DIVISIONS = frozenset({Ops.IDIV, Ops.MOD})
ASSOCIATIVE = frozenset({Ops.ADD, Ops.MUL, Ops.MAX, Ops.XOR, Ops.OR, Ops.AND})


@direct_members
class AxisType(Enum):
    """Way in which a RANGE runs."""

    LOOP = "loop"  # one after the other
    THREAD = "thread"  # split over the threads of a CPU
    GLOBAL = "global"  # one block each (GPU)
    LOCAL = "local"  # one work-item of the block each (GPU)
    REDUCE = "reduce"  # folded, one after the other
    GROUP = "group"  # folded by the work-items of a block together (GPU)
    UPCAST = "upcast"  # lanes: written once per value; of a reduction: accumulators side by side
    UNROLL = "unroll"  # lanes of a reduction, folded into one accumulator in order
    VECTOR = "vector"  # lanes in one SIMD value

    # Whether the range is written out by the renderer instead of looped over.
    is_lane: bool

    def __init__(self, name: str) -> None:
        self.is_lane = name in ("upcast", "unroll", "vector")

    # Members are compared as the objects they are.
    __hash__ = object.__hash__


class Memory(Enum):
    """Where a STAGE keeps its value."""

    GLOBAL = "global"  # a buffer: kernels are cut here
    LOCAL = "local"  # scratch of one block
    REG = "reg"  # accumulators


class BufferArg(NamedTuple):
    """Of BUFFER: `id` makes it one of its kind; `size` in elements."""

    id: int
    device: str
    size: int


class ParamArg(NamedTuple):
    """Of PARAM: position among the arguments, size in elements, device where it matters."""

    slot: int
    size: int
    device: str | None = None


class VarArg(NamedTuple):
    """Of DEFINE_VAR: inclusive bounds."""

    name: str
    min: Any
    max: Any


class RangeArg(NamedTuple):
    """Of RANGE: `id` tells ranges of equal size apart."""

    id: int
    kind: AxisType


class ReduceArg(NamedTuple):
    """Of REDUCE: ADD, MUL or MAX (or OR, AND); `axes` is empty at the kernel stage."""

    op: Ops
    axes: tuple[int, ...] = ()


class MmaArg(NamedTuple):
    """Of MMA: the name of the tensor core, and how many lanes the two operands have.

    Operands in local memory have none: they are loads of their first element. `majors` says along
    which axis the elements of each are neighbours there: "kn" where along k of A and n of B, and
    "rn" where work-items have A in registers.
    """

    core: str
    a: int
    b: int
    majors: str = ""


class TmaArg(NamedTuple):
    """Of TMA_LOAD and TMA_STORE: the tensor, in elements of the argument, and the box.

    As `target/tensor_maps` has them.

    Where `blocks` is more than 1 a cluster has so many; the box goes to the same place of each of
    them, and each of them begins one such box.
    """

    start: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    blocks: int = 1


class WarpRoleArg(NamedTuple):
    """Of WARP_ROLE: how many work-items more than have a LOCAL number do what follows, or 0.

    Each has so many registers from then on, where that is not 0.
    """

    items: int
    registers: int = 0


class LdmatrixArg(NamedTuple):
    """Of LDMATRIX and STMATRIX: how many lanes are those of an element in a word of 32 bits.

    A work-item gets of row i the words at i // 4; of matrices of 16 bits that are `transposed`, the
    elements at column i // 4 of two rows.
    """

    word: int
    transposed: bool = False


class RuleArg(NamedTuple):
    """Of a CUSTOM_GRADIENT with a named rule: the name, and a number that the rule takes.

    The rule says which sources follow the value. Rules are in `matrix_gradient` and in the rows of
    the kernel library.
    """

    rule: str
    number: float = 0.0


class NameArg(NamedTuple):
    """Of NAME: the number of the tensor, and what the tensor is to another one with that value.

    A "view" shows the other tensor, and hands its gradient on. An "equal" tensor was computed by
    itself: its gradient goes on to what both were made of. A "detached" one hands nothing on.
    """

    number: int
    kind: str = "equal"


class ScatterArg(NamedTuple):
    """Of SCATTER: how values that meet are combined (ADD or MAX), and the shape of the result."""

    op: Ops
    shape: tuple[int, ...]


class StageArg(NamedTuple):
    """Of STAGE: the memory it lives in, and on which device when that is GLOBAL."""

    memory: Memory
    device: str | None = None


class BodyArg(NamedTuple):
    """Of the SINK of a captured body.

    Its first `fresh` STOREs fill new memory, which belongs to the value alone; the others overwrite
    memory that has had a value before.
    """

    fresh: int


class DeviceArg(NamedTuple):
    """Of COPY and DEVICE; a DEVICE may name several, which then hold the same."""

    device: str | tuple[str, ...]


class MultiArg(NamedTuple):
    """Of MULTI: the axis that the sources are equal parts of; None where each is the whole."""

    axis: int | None


class PowerArg(NamedTuple):
    """Of EXP2, where it has one: the exponent is not above 0, or NaN (`falls`), a promise.

    It is a multiple of a difference that has been rounded. A power that is smaller than normal
    numbers may be 0.
    """

    falls: bool


class LoadArg(NamedTuple):
    """Of LOAD, where it has one: what lies `ahead` elements further is wanted soon, a hint."""

    ahead: int


class StoreArg(NamedTuple):
    """Of STORE, where it has one: what is stored goes past the caches (`streams`), a hint.

    One of a LOAD that comes `later` may be done at any time until the WAIT for its group: a copy
    that goes on beside the work.
    """

    streams: bool = False
    later: bool = False


class ScratchArg(NamedTuple):
    """Of DEFINE_LOCAL and DEFINE_REG: `size` in elements.

    A DEFINE_LOCAL is shared by a block, or each work-item has its own (`private`). With an `xor` of
    three numbers of bits (n, to, off) what has place x lies where n bits of x from bit `to` on are
    changed by those from bit `off` on, as lowered indices have it (`codegen/work_groups/swizzle`).
    Memory that is `over` others, by id, begins where these do, which lie one behind the other.
    """

    id: int
    size: int = 1
    private: bool = False
    xor: tuple[int, int, int] | None = None
    over: tuple[int, ...] = ()


class CallArg(NamedTuple):
    """Of CALL: a kernel whose PARAM i is source `slots[i]`, and which source is asked for.

    `values` are those of its variables.

    `grad_fxn`, given the gradient of the result and the CALL, gives that of each source.
    """

    kernel: Any
    slots: tuple[int, ...]
    output: int = 0
    grad_fxn: Any = None
    values: tuple[tuple[str, int], ...] = ()

    def __repr__(self) -> str:
        return f"CallArg({self.kernel.key}, {self.slots}, {self.output}, {self.values})"


class KernelArg(NamedTuple):
    """Of the SINK of a kernel that somebody has written or scheduled by hand.

    `opts` are the Opts to apply, as text, None where the cost decides. With `in_order` stores have
    an order: loops run as they are nested, and no axis is split, merged or moved.
    """

    name: str = ""
    opts: str | None = None
    in_order: bool = False


class RunArg(NamedTuple):
    """Of the SINK of kernels that run one after another for each part of some axes.

    `axes` are (variable, size, part): the variable is where the part begins; the last part of an
    axis ends with it, and may overlap the one before. The outermost `shared` may be shared out, in
    at most `lanes` lanes. PARAM i of kernel k is slot `slots[k][i]` of the run; of a slot that is
    scratch each lane has its own `scratch[slot]` bytes, 0 of memory that is whole.
    """

    axes: tuple[tuple[str, int, int], ...]
    shared: int
    lanes: int
    slots: tuple[tuple[int, ...], ...]
    scratch: tuple[int, ...]

    @property
    def shared_parts(self) -> int:
        """Parts of the shared axes together."""
        return math.prod([-(-size // part) for _, size, part in self.axes[: self.shared]])

    @property
    def parts(self) -> int:
        """All parts."""
        return math.prod([-(-size // part) for _, size, part in self.axes])


open_module(__name__)
