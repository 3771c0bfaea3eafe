"""Defines element types: the class DType, the namespace `dtypes`, promotion, conversion of values.

Receives and returns plain Python values and dtypes. Knows nothing of nodes, tensors or devices.
The promotion lattice is that of JAX (docs.jax.dev, "Type promotion semantics"), save that int64
goes to uint64.
"""

from __future__ import annotations

import functools
import math
import struct
import threading
from enum import Enum
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias

import ml_dtypes
import numpy as np

from aster_ml.config import DEFAULT_FLOAT
from aster_ml.errors import DTypeError, FloatWantedError, NumberRangeError, UnknownDTypeError
from aster_ml.helpers import cdiv, kind_of
from aster_ml.plugins import open_module

# What errors of complex numbers end with.
COMPLEX_ADVICE = (
    "; complex numbers are pairs of tensors, aster_ml.complex.ComplexTensor, which takes this"
)
ConstType: TypeAlias = "float | int | bool"


class DType:
    """An element type. There is one object for each, so `is` and `==` agree.

    `priority` orders types within the promotion lattice; `fmt` is the struct code of the type, or
    None where struct has none; `kind` is one of "bool", "int", "uint", "float", "void", "index".
    """

    __slots__ = ("fmt", "itemsize", "kind", "name", "priority")
    registry: ClassVar[dict[str, DType]] = {}

    def __init__(self, priority: int, itemsize: int, name: str, fmt: str | None, kind: str) -> None:
        self.priority = priority
        self.itemsize = itemsize
        self.name = name
        self.fmt = fmt
        self.kind = kind
        DType.registry[name] = self

    def __repr__(self) -> str:
        return f"dtypes.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return to_dtype, (self.name,)

    def __eq__(self, other: object) -> bool:
        """Of two of ours, whether they are the same; names and others' dtypes are looked up."""
        return self is other or (
            not isinstance(other, DType) and other is not None and known_dtype(other) is self
        )

    __hash__ = object.__hash__

    @property
    def __numpy_dtype__(self) -> Any:
        if self not in NUMPY_TYPES:
            raise AttributeError(f"{self!r} has no NumPy dtype")
        return NUMPY_TYPES[self]

    # As NumPy asked before 2.4.
    dtype = __numpy_dtype__

    def __lt__(self, other: DType) -> bool:
        return (self.priority, self.itemsize, self.name) < (
            other.priority,
            other.itemsize,
            other.name,
        )

    @property
    def bits(self) -> int:
        """Width in bits."""
        return self.itemsize * 8

    @property
    def bitsize(self) -> int:
        """Number of bits that carry information: one of a bool, all of others."""
        return 1 if self.kind == "bool" else self.bits

    @property
    def base(self) -> DType:
        """Type that a pointer points to; of any other type, the type itself."""
        return self

    def scalar(self) -> DType:
        """The type of one lane; of any other type, the type itself."""
        return self

    @property
    def count(self) -> int:
        """Number of elements of one value: 1, save for vectors and pointers to them."""
        return 1

    @property
    def vcount(self) -> int:
        """Number of lanes of a value of this type."""
        return self.count

    def vec(self, lanes: int) -> DType:
        """The type of `lanes` values side by side, for kernels that are written by hand."""
        return self if lanes == 1 else vector_dtype(self, lanes)

    def ptr(self, size: int = -1, addrspace: AddrSpace | None = None) -> PtrDType:
        """The type of memory that holds `size` elements of this one (-1: unknown how many)."""
        return pointer_dtype(self, size, addrspace or AddrSpace.GLOBAL, 1)

    @property
    def min(self) -> ConstType:
        """Least value (minus infinity for floats)."""
        least: ConstType = dtypes.min(self)
        return least

    @property
    def max(self) -> ConstType:
        """Greatest value (infinity for floats)."""
        greatest: ConstType = dtypes.max(self)
        return greatest


class AddrSpace(Enum):
    """Address space of memory: a buffer, scratch of a block, registers of a work-item."""

    GLOBAL = 1
    LOCAL = 2
    REG = 3

    def __repr__(self) -> str:
        return f"AddrSpace.{self.name}"


class VectorDType(DType):
    """`lanes` elements of one type side by side.

    Only hand-written kernels use it: the compiler makes each lane a value of its own, and decides
    later which lanes share a register.
    """

    __slots__ = ("element", "lanes")

    def __init__(self, element: DType, lanes: int) -> None:
        if element.__class__ is not DType:
            raise DTypeError(f"vec: {element} is no element type, so it has no vectors")
        self.priority, self.kind, self.fmt = element.priority, element.kind, None
        self.itemsize = element.itemsize * lanes
        self.name = f"{element.name}x{lanes}"
        self.element, self.lanes = element, lanes

    def __repr__(self) -> str:
        return f"dtypes.{short_name(self.element)}.vec({self.lanes})"

    def __reduce__(self) -> tuple[Any, ...]:
        return vector_dtype, (self.element, self.lanes)

    @property
    def bits(self) -> int:
        """Width of a lane in bits."""
        return self.element.bits

    @property
    def count(self) -> int:
        """Number of lanes."""
        return self.lanes

    def scalar(self) -> DType:
        """The type of one lane."""
        return self.element


class PtrDType(DType):
    """A pointer to elements of `base`, or a vector of `v` such pointers.

    Only hand-written kernels use it; in a graph memory is an op.
    """

    __slots__ = ("addrspace", "pointee", "size", "v")

    def __init__(self, pointee: DType, size: int, addrspace: AddrSpace, v: int) -> None:
        self.priority, self.kind, self.fmt = pointee.priority, pointee.kind, None
        self.itemsize = pointee.itemsize
        self.pointee, self.size, self.addrspace, self.v = pointee, size, addrspace, v
        self.name = repr(self).removeprefix("dtypes.")

    def __repr__(self) -> str:
        inner = (
            [str(self.size)] if self.size != -1 or self.addrspace is not AddrSpace.GLOBAL else []
        )
        if self.addrspace is not AddrSpace.GLOBAL:
            inner.append(repr(self.addrspace))
        base = self.pointee
        text = repr(base) if base.__class__ is VectorDType else f"dtypes.{short_name(base)}"
        return f"{text}.ptr({', '.join(inner)}){'' if self.v == 1 else f'.vec({self.v})'}"

    def __reduce__(self) -> tuple[Any, ...]:
        return pointer_dtype, (self.pointee, self.size, self.addrspace, self.v)

    @property
    def base(self) -> DType:
        """Type of one element."""
        return self.pointee

    @property
    def count(self) -> int:
        """Number of lanes of one element."""
        return self.pointee.count

    @property
    def vcount(self) -> int:
        """Number of pointers."""
        return self.v

    def scalar(self) -> PtrDType:
        """The type of one pointer."""
        return pointer_dtype(self.pointee, self.size, self.addrspace, 1)

    def vec(self, lanes: int) -> DType:
        """The type of a vector of `lanes` pointers."""
        if self.v != 1:
            raise DTypeError(f"vec: {self} is a vector already; scalar().vec() would do")
        return pointer_dtype(self.pointee, self.size, self.addrspace, lanes)

    def ptr(self, size: int = -1, addrspace: AddrSpace | None = None) -> PtrDType:
        """Raises DTypeError, since there are no pointers to pointers."""
        raise DTypeError(f"ptr: {self} is a pointer already; base.ptr() would do")


@functools.cache
def vector_dtype(element: DType, lanes: int) -> VectorDType:
    """The one vector type of these lanes."""
    return VectorDType(element, lanes)


@functools.cache
def pointer_dtype(pointee: DType, size: int, addrspace: AddrSpace, v: int) -> PtrDType:
    """The one pointer type of this kind."""
    return PtrDType(pointee, size, addrspace, v)


def short_name(dtype: DType) -> str:
    """`float` for float32, `int` for int32: the name that C programs have for it."""
    return SHORT_NAMES.get(dtype.name, dtype.name)


SHORT_NAMES = {
    "int8": "char",
    "uint8": "uchar",
    "int16": "short",
    "uint16": "ushort",
    "int32": "int",
    "uint32": "uint",
    "int64": "long",
    "uint64": "ulong",
    "float16": "half",
    "float32": "float",
    "float64": "double",
}
# A dtype, a name of one, or that of Python, NumPy or PyTorch.
DTypeLike: TypeAlias = "str | DType | type | np.dtype[Any] | Any"


class Defaults(threading.local):
    """Default float dtype of the thread that asks."""

    # What a thread begins with.
    initial: ClassVar[DType]

    def __init__(self) -> None:
        self.default_float = Defaults.initial


def set_default_float(_: type[dtypes], dtype: DType) -> None:
    """Sets the default float for this thread and for every thread that has not read it yet."""
    DEFAULTS.default_float = Defaults.initial = dtype


def reset_default_float(_: type[dtypes]) -> None:
    """Resets the default float to that of the setting."""
    follow_default_float()
    Defaults.initial = DEFAULTS.default_float


class DTypesType(type):
    """Attributes of the class itself: a default for each thread."""

    # Read without a call of Python.
    default_float: DType = property(  # type: ignore[assignment]
        attrgetter("_defaults.default_float"), set_default_float, reset_default_float
    )


class dtypes(metaclass=DTypesType):
    """All element types, by name, and questions about them."""

    void = DType(-1, 0, "void", None, "void")
    # Index arithmetic has no width: bounds decide the width when a kernel is lowered.
    index = DType(-1, 8, "index", None, "index")
    bool = DType(0, 1, "bool", "?", "bool")
    int8 = DType(1, 1, "int8", "b", "int")
    uint8 = DType(2, 1, "uint8", "B", "uint")
    int16 = DType(3, 2, "int16", "h", "int")
    uint16 = DType(4, 2, "uint16", "H", "uint")
    int32 = DType(5, 4, "int32", "i", "int")
    uint32 = DType(6, 4, "uint32", "I", "uint")
    int64 = DType(7, 8, "int64", "q", "int")
    uint64 = DType(8, 8, "uint64", "Q", "uint")
    fp8e4m3 = DType(9, 1, "fp8e4m3", None, "float")
    fp8e5m2 = DType(10, 1, "fp8e5m2", None, "float")
    float16 = DType(11, 2, "float16", "e", "float")
    bfloat16 = DType(12, 2, "bfloat16", None, "float")
    float32 = DType(13, 4, "float32", "f", "float")
    float64 = DType(14, 8, "float64", "d", "float")

    half = float16
    float = float32
    double = float64
    uchar = uint8
    ushort = uint16
    uint = uint32
    ulong = uint64
    char = int8
    short = int16
    int = int32
    long = int64

    fp8s = (fp8e4m3, fp8e5m2)
    floats = (fp8e4m3, fp8e5m2, float16, bfloat16, float32, float64)
    sints = (int8, int16, int32, int64)
    uints = (uint8, uint16, uint32, uint64)
    ints = uints + sints
    all = (*floats, *ints, bool, index)
    index_like = (index, int32)

    _defaults: ClassVar[Defaults]
    default_int: ClassVar[DType] = int32

    @staticmethod
    def is_float(dtype: DType) -> Any:
        """Tests whether the type is a floating-point type."""
        return dtype.kind == "float"

    @staticmethod
    def is_int(dtype: DType) -> Any:
        """Tests whether the type is an integer type (index included, bool not)."""
        return dtype.kind in ("int", "uint", "index")

    @staticmethod
    def is_unsigned(dtype: DType) -> Any:
        """Tests whether the type is an unsigned integer type."""
        return dtype.kind == "uint"

    @staticmethod
    def is_bool(dtype: DType) -> Any:
        """Tests whether the type is bool."""
        return dtype.kind == "bool"

    @staticmethod
    def from_py(value: Any) -> DType:
        """The default type of a Python number, or of the widest in a nested list."""
        if isinstance(value, (list, tuple)):
            return max((dtypes.from_py(v) for v in value), default=dtypes.default_float)
        if value.__class__ is float or isinstance(value, np.floating):
            return dtypes.default_float
        if value.__class__ is bool or isinstance(value, np.bool_):
            return dtypes.bool
        if isinstance(value, (int, np.integer)):
            return dtypes.default_int
        if isinstance(value, PY_FLOAT):
            return dtypes.default_float
        raise DTypeError(f"{value!r} is {kind_of(value)}; a float, int or bool is wanted")

    @staticmethod
    def as_const(value: Any, dtype: DType) -> Any:
        """`value` as the Python type that constants of `dtype` have; tuples element by element."""
        if isinstance(value, tuple):
            return tuple(dtypes.as_const(v, dtype) for v in value)
        kind = dtype.kind
        if isinstance(value, str):
            raise DTypeError(f"{value!r} is text; a number for {dtype.name} is wanted")
        return (
            PY_FLOAT(value)
            if kind == "float"
            else (PY_BOOL(value) if kind == "bool" else PY_INT(value))
        )

    @staticmethod
    @functools.cache
    def min(dtype: DType) -> Any:
        """Least value of the type (minus infinity for floats)."""
        if dtype.kind == "index":
            return -(1 << 63)
        if dtype.kind == "int":
            return -(1 << (dtype.bits - 1))
        return -math.inf if dtype.kind == "float" else (0 if dtype.kind == "uint" else False)

    @staticmethod
    @functools.cache
    def max(dtype: DType) -> Any:
        """Greatest value of the type (infinity for floats)."""
        if dtype.kind == "index":
            return (1 << 63) - 1
        if dtype.kind == "int":
            return (1 << (dtype.bits - 1)) - 1
        if dtype.kind == "uint":
            return (1 << dtype.bits) - 1
        return math.inf if dtype.kind == "float" else True

    @staticmethod
    def finfo(dtype: DType) -> tuple[Any, Any]:
        """Exponent and mantissa width, in bits."""
        if dtype not in FLOAT_BITS:
            raise FloatWantedError(f"{dtype} is no floating-point type")
        return FLOAT_BITS[dtype]

    @staticmethod
    def fields() -> dict[str, DType]:
        """Every name and the type of elements that it means, short names included."""
        return {
            k: v
            for k, v in dtypes.__dict__.items()
            if isinstance(v, DType)
            and not k.startswith("default")
            and v is not dtypes.void
            and v is not dtypes.index
        }


PY_FLOAT, PY_INT, PY_BOOL = float, int, bool

LARGEST_FP8 = {dtypes.fp8e4m3: 448.0, dtypes.fp8e5m2: 57344.0}
FLOAT_BITS = {
    dtypes.fp8e4m3: (4, 3),
    dtypes.fp8e5m2: (5, 2),
    dtypes.float16: (5, 10),
    dtypes.bfloat16: (8, 7),
    dtypes.float32: (8, 23),
    dtypes.float64: (11, 52),
}


def number_dtype(value: Any) -> DType:
    """The dtype of a Python number: the default one, or the narrowest wider int that holds it.

    Raises: NumberRangeError for an int that no dtype holds.
    """
    dtype = dtypes.from_py(value)
    if dtype is dtypes.default_int:
        for candidate in (dtype, dtypes.int64, dtypes.uint64):
            if dtypes.min(candidate) <= value <= dtypes.max(candidate):
                return candidate
        raise NumberRangeError(f"Tensor: {value} fits no int dtype; uint64 goes up to 2**64 - 1")
    return dtype


def stored_number(value: Any, dtype: DType) -> Any:
    """A Python number as `dtype` stores it: floats rounded (to an int dtype, towards zero).

    Raises: NumberRangeError for what an int dtype does not hold, as NumPy does.
    """
    found = truncate(value, dtype) if value - value == 0 or dtype.kind == "float" else None
    if dtype.kind in ("int", "uint") and (found is None or not -1 < value - found < 1):
        raise NumberRangeError(
            f"{value} does not fit {dtype.name}, which holds {dtypes.min(dtype)} to "
            f"{dtypes.max(dtype)}; a wider dtype would do, and .cast({dtype.name!r}) of one wraps"
        )
    return bool(value) if found is None else found


def to_dtype(dtype: DTypeLike) -> DType:
    """A dtype from itself, from its name, or from that of Python, NumPy or PyTorch.

    Raises: UnknownDTypeError for what is no dtype, or one that has no equal here.
    """
    if isinstance(dtype, DType):
        return dtype
    found = known_dtype(dtype)
    if found is not None:
        return found
    advice = COMPLEX_ADVICE if "complex" in str(dtype) else ""
    raise UnknownDTypeError(
        f"{dtype!r} is no dtype; there are {', '.join(d.name for d in dtypes.all)}{advice}"
    )


# Names that other packages have for dtypes of ours.
ALSO_CALLED = {
    "float8_e4m3fn": "fp8e4m3",
    "float8_e5m2": "fp8e5m2",
    "float8_e4m3": "fp8e4m3",
    "bool_": "bool",
}
# What Python's own types are to NumPy and to PyTorch.
OF_PYTHON: dict[Any, DType] = {bool: dtypes.bool, int: dtypes.int64, float: dtypes.float64}


# Abstract NumPy types, which are not dtypes.
KINDS_OF_NUMPY = frozenset(
    {
        *(np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger, np.inexact),
        *(np.floating, np.complexfloating, np.flexible, np.character),
    }
)


def known_dtype(given: Any) -> DType | None:
    """The dtype that a name or another package's dtype means; None without an equivalent."""
    if given.__class__ is type and given in OF_PYTHON:
        return OF_PYTHON[given]
    if isinstance(given, str):
        name = given.lower()
    elif isinstance(given, np.dtype):
        name = given.name
    elif isinstance(given, type) and issubclass(given, np.generic):
        name = "" if given in KINDS_OF_NUMPY else np.dtype(given).name
    elif given.__class__.__name__ == "dtype" and given.__class__.__module__ == "torch":
        name = str(given).removeprefix("torch.")
    else:
        # Such as jax.numpy.float32.
        own = getattr(given, "dtype", None)
        if not isinstance(own, np.dtype):
            return None
        name = own.name
    name = ALSO_CALLED.get(name, name)
    return dtypes.fields().get(name) or DType.registry.get(name)


# Each type and the types that it promotes to directly.
PROMOTES_TO = {
    dtypes.bool: (dtypes.int8, dtypes.uint8),
    dtypes.int8: (dtypes.int16,),
    dtypes.int16: (dtypes.int32,),
    dtypes.int32: (dtypes.int64,),
    dtypes.int64: (dtypes.uint64,),
    dtypes.uint8: (dtypes.int16, dtypes.uint16),
    dtypes.uint16: (dtypes.int32, dtypes.uint32),
    dtypes.uint32: (dtypes.int64, dtypes.uint64),
    dtypes.uint64: (dtypes.fp8e4m3, dtypes.fp8e5m2),
    dtypes.fp8e4m3: (dtypes.float16, dtypes.bfloat16),
    dtypes.fp8e5m2: (dtypes.float16, dtypes.bfloat16),
    dtypes.float16: (dtypes.float32,),
    dtypes.bfloat16: (dtypes.float32,),
    dtypes.float32: (dtypes.float64,),
    dtypes.float64: (),
}


@functools.cache
def promotions(dtype: DType) -> frozenset[DType]:
    """`dtype` and everything it can be promoted to."""
    return frozenset({dtype}.union(*[promotions(d) for d in PROMOTES_TO[dtype]]))


@functools.cache
def least_upper_dtype(*ds: DType) -> DType:
    """The least type that all of them promote to.

    Raises: DTypeError where no type is above all of them (void, index with others).
    """
    if len(set(ds)) == 1:
        return ds[0]
    if any(d not in PROMOTES_TO for d in ds):
        raise DTypeError(f"no common dtype for {', '.join(d.name for d in ds)}")
    return min(set.intersection(*[set(promotions(d)) for d in ds]))


def least_upper_float(dtype: DType) -> DType:
    """`dtype` itself when it is a float, else what it becomes beside the default float."""
    if dtypes.is_float(dtype):
        return dtype
    return least_upper_dtype(dtype, dtypes.default_float)


def can_lossless_cast(source: DType, target: DType) -> bool:
    """Whether every value of `source` is exactly a value of `target`."""
    if source is target or source.kind == "bool":
        return True
    if target.kind == "index":
        return source.kind in ("int", "uint") and source is not dtypes.uint64
    if source.kind == "float":
        if target.kind != "float":
            return False
        (e0, m0), (e1, m1) = FLOAT_BITS[source], FLOAT_BITS[target]
        return e0 <= e1 and m0 <= m1
    if target.kind == "float":
        bits = source.bits - (source.kind == "int")
        return bits <= FLOAT_BITS[target][1] + 1 and target not in dtypes.fp8s
    if target.kind == "uint":
        return source.kind == "uint" and source.bits <= target.bits
    if target.kind == "int":
        return source.bits < target.bits or (source.kind == "int" and source.bits <= target.bits)
    return False


@functools.cache
def sum_acc_dtype(dtype: DType) -> DType:
    """The type in which a sum of `dtype` accumulates, and which it returns for ints."""
    if dtype.kind == "uint":
        return least_upper_dtype(dtype, dtypes.uint32)
    if dtype.kind in ("int", "bool"):
        return least_upper_dtype(dtype, dtypes.int32)
    return least_upper_dtype(dtype, dtypes.float32) if dtype.kind == "float" else dtype


NUMPY_TYPES: dict[DType, Any] = {
    dtypes.bool: np.dtype(np.bool_),
    **{d: np.dtype(d.name) for d in dtypes.ints},
    **{d: np.dtype(d.name) for d in (dtypes.float16, dtypes.float32, dtypes.float64)},
    dtypes.bfloat16: np.dtype(ml_dtypes.bfloat16),
    dtypes.fp8e4m3: np.dtype(ml_dtypes.float8_e4m3fn),
    dtypes.fp8e5m2: np.dtype(ml_dtypes.float8_e5m2),
}
FROM_NUMPY = {v: k for k, v in NUMPY_TYPES.items()}


def to_numpy_dtype(dtype: DType) -> Any:
    """The NumPy (or ml_dtypes) dtype that holds the same bits."""
    return NUMPY_TYPES[dtype]


def from_numpy_dtype(dtype: Any) -> DType:
    """The dtype for a NumPy dtype.

    Raises: DTypeError for one that has no equal here (complex, object, strings, ...).
    """
    found = FROM_NUMPY.get(np.dtype(dtype).newbyteorder("="))
    if found is None:
        is_complex = np.dtype(dtype).kind == "c"
        raise DTypeError(
            f"NumPy dtype {np.dtype(dtype)} has no equal here; cast it to one of "
            f"{', '.join(str(d) for d in FROM_NUMPY)}{COMPLEX_ADVICE if is_complex else ''}"
        )
    return found


def round_float(value: float, dtype: DType) -> float:
    """`value` rounded to the nearest of `dtype`, ties to even, overflow to infinity.

    In fp8 a finite number saturates at the greatest of its type; infinity is NaN in fp8e4m3, which
    has none (OCP OFP8).
    """
    if dtype is dtypes.float64 or value != value or value in (math.inf, -math.inf):
        if dtype is dtypes.fp8e4m3 and abs(value) == math.inf:
            return math.nan
        return value
    if dtype.fmt is not None:
        try:
            rounded: float = struct.unpack(dtype.fmt, struct.pack(dtype.fmt, value))[0]
            return rounded
        except OverflowError:
            return math.copysign(math.inf, value)
    if dtype in LARGEST_FP8 and abs(value) > LARGEST_FP8[dtype]:
        return math.copysign(LARGEST_FP8[dtype], value)
    with np.errstate(over="ignore"):
        return float(np.float32(odd_float32(value)).astype(NUMPY_TYPES[dtype]))


@functools.cache
def neighbour(value: float, dtype: DType, up: bool) -> float:
    """The next value of a float dtype above (or below) `value` rounded to that dtype."""
    own = NUMPY_TYPES[dtype].type
    most = 448.0 if dtype is dtypes.fp8e4m3 else math.inf
    end = own(most if up else -most)
    with np.errstate(all="ignore"):
        return float(np.nextafter(own(round_float(value, dtype)), end))


@functools.cache
def largest(dtype: DType) -> float:
    """The greatest finite value of a float dtype."""
    return LARGEST_FP8.get(dtype) or neighbour(math.inf, dtype, False)


def odd_float32(value: float) -> float:
    """`value` as float32, rounded to odd: an inexact one becomes the neighbour whose last bit is 1.

    why: rounding the result again to fewer bits equals a single rounding
    """
    near = round_float(value, dtypes.float32)
    if near == value or math.isinf(near):
        return near
    bits: int = struct.unpack("<I", struct.pack("<f", near))[0]
    if bits & 1 == 0:
        bits += 1 if abs(near) < abs(value) else -1
    odd: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return odd


def truncate(value: Any, dtype: DType) -> Any:
    """`value` as a value of `dtype`: floats rounded, ints wrapped to the width, bool by truth."""
    kind = dtype.kind
    if kind == "float":
        return round_float(float(value), dtype)
    if kind == "bool":
        return bool(value)
    if kind == "int":
        half = 1 << (dtype.bits - 1)
        return ((int(value) + half) & ((half << 1) - 1)) - half
    if kind == "uint":
        return int(value) & ((1 << dtype.bits) - 1)
    return int(value)


def cast_value(value: Any, source: DType, target: DType) -> Any:
    """Casts one value.

    A float that does not fit an integer type saturates and NaN gives 0 (as LLVM's saturating
    conversions and WebAssembly do); integers wrap; to unsigned small types a float goes through
    the 32-bit integer first, as C programs on common hardware see it.
    """
    if target.kind in ("int", "uint") and source.kind == "float":
        if value != value:
            return 0
        wide = target if target.bits >= 32 else dtypes.int32
        clipped = max(min(value, dtypes.max(wide)), dtypes.min(wide))
        return truncate(int(clipped), target)
    return truncate(value, target)


def bitcast_value(value: Any, source: DType, target: DType) -> Any:
    """The same bits read as another type of equal width."""
    raw = np.array(value, dtype=NUMPY_TYPES[source]).view(NUMPY_TYPES[target])
    return dtypes.as_const(raw.item() if target.kind != "float" else float(raw), target)


def int_div(x: int, y: int) -> int:
    """Integer division as IDIV means it: towards zero; 0 when `y` is 0."""
    return cdiv(x, y)


def follow_default_float() -> None:
    """Sets the dtype of Python floats to that of the setting DEFAULT_FLOAT.

    Raises: DTypeError for what is no floating-point dtype.
    """
    name = str(DEFAULT_FLOAT.value).lower()
    found = dtypes.fields().get(name)
    if found is None or found.kind != "float":
        names = ", ".join([n.upper() for n, d in dtypes.fields().items() if d.kind == "float"])
        raise DTypeError(f"DEFAULT_FLOAT={DEFAULT_FLOAT.value} is no float dtype; {names} are")
    DEFAULTS.default_float = found


Defaults.initial = dtypes.float32
DEFAULTS = dtypes._defaults = Defaults()
DEFAULT_FLOAT.changed = follow_default_float
follow_default_float()
Defaults.initial = DEFAULTS.default_float

open_module(__name__)
