"""Draws random numbers from a counter: a seed gives the same numbers in whatever order they are
computed.

Receives shapes; returns tensors. Each call takes the next numbers of its device's stream when it is
built: a buffer of four words, two of key and two of counter, says which. Streams of two devices
differ by key.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11), Threefry-2x32 with 20
rounds; which word goes where is as in `jax.random`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from aster_ml.device import Device
from aster_ml.dtype import DType, DTypeLike, dtypes, to_dtype
from aster_ml.errors import (
    ArgumentError,
    DTypeError,
    FloatWantedError,
    PreconditionError,
    ShapeError,
    SymbolicSizeError,
)
from aster_ml.helpers import ceildiv, kind_of, prod
from aster_ml.ops import Self as T
from aster_ml.ops.create import check_range, shape_of
from aster_ml.ops.data import copied_node
from aster_ml.ops.handle import Handle
from aster_ml.thread_state import ENGINE, STATE
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

H = TypeVar("H", bound=Handle)
WORD = (1 << 32) - 1

# An unsigned type of each width, and the bits of 1.0 in the float type of that width.
UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


class Streams:
    """Where each device stands in its stream."""

    def __init__(self) -> None:
        self.seed = time.time_ns() & WORD
        self.counters: dict[str, int] = {}
        # The key words of the devices, in the order in which they first drew.
        self.keys: dict[str, int] = {}
        # For each device in use tensors that show its key and where it stands, and the memory of
        # the latter. `kind` makes the tensors; set by the layer that has them.
        self.kind: Callable[..., Any] | None = None
        self.seeds: dict[str, Any] = {}
        self.places: dict[str, Any] = {}
        self.shown: dict[str, np.ndarray[Any, Any]] = {}

    def reset(self, seed: int) -> None:
        """Starts all streams again from a seed."""
        self.seed = seed & WORD
        for table in (self.counters, self.keys, self.seeds, self.places, self.shown):
            table.clear()

    def take(self, device: str, count: int) -> tuple[int, int]:
        """The key word of a device, and the counter from which `count` words are taken."""
        counter = self.counters.get(device, 0)
        self.counters[device] = counter + count
        if device not in self.keys:
            number = len(self.keys).to_bytes(4, "big")
            self.keys[device] = int.from_bytes(hashlib.sha256(number).digest()[-4:], "big")
        if device not in self.shown and self.kind is not None:
            self.shown[device] = np.zeros(1, dtype=np.uint32)
            words = np.array([self.keys[device], self.seed], dtype=np.uint32)
            self.seeds[device] = self.kind(words, "CPU")
            self.places[device] = self.kind(self.shown[device], "CPU")
        if device in self.shown:
            self.shown[device][0] = (counter + count) & WORD
        return self.keys[device], counter


STREAMS = Streams()


def draw_state(device: str, count: int) -> np.ndarray[Any, Any]:
    """Two words of key and two of counter; `count` words of the stream are used up."""
    with ENGINE:
        key, counter = STREAMS.take(device, count)
    return np.array([key, STREAMS.seed, counter & WORD, counter >> 32], dtype=np.uint32)


def draw_words(half: int, count: int, device: str | tuple[str, ...]) -> UOp:
    """`half` values of 64 random bits on one axis; `count` words of the stream are used up.

    Several devices have the same values: those of the first one's stream.
    """
    if not isinstance(device, str):
        return draw_words(half, count, device[0]).shard(device)
    state = copied_node(draw_state(device, count), device)
    # A recorded call of a jitted function notes the buffer of key and counter, and how many words
    # were drawn: a replay moves the counter on.
    if STATE.note_draw is not None:
        STATE.note_draw(state, count)
    parts = [state._mop(Ops.SHRINK, ((i, i + 1),)) for i in range(4)]
    # Past 2**32 words the key changes.
    low, high = parts[0], parts[1].alu(Ops.XOR, parts[3])
    first = UOp.iota(half).cast(dtypes.uint32).alu(Ops.ADD, parts[2]._broadcast_to((half,)))
    second = first.alu(Ops.ADD, UOp.const(dtypes.uint32, half & WORD))
    counters = join_words(first, second)
    return counters.alu(Ops.THREEFRY, join_words(low, high)._broadcast_to((half,)))


def join_words(low: UOp, high: UOp) -> UOp:
    """Two uint32 as one uint64."""
    shifted = high.cast(dtypes.uint64).alu(Ops.SHL, UOp.const(dtypes.uint64, 32))
    return low.cast(dtypes.uint64).alu(Ops.OR, shifted)


def split_words(x: UOp) -> tuple[UOp, UOp]:
    """The low and the high uint32 of a uint64."""
    high = x.alu(Ops.SHR, UOp.const(dtypes.uint64, 32))
    return x.cast(dtypes.uint32), high.cast(dtypes.uint32)


def random_words(count: int, device: str) -> UOp:
    """`count` random uint32 on one axis."""
    half = ceildiv(count, 2)
    bits = draw_words(half, count, device)
    both = bits._mop(Ops.RESHAPE, (1, half))._broadcast_to((2, half))
    low, high = split_words(both)
    upper = UOp.iota(2).alu(Ops.CMPNE, UOp.index_const(0))._mop(Ops.RESHAPE, (2, 1))
    words = upper._broadcast_to((2, half)).alu(Ops.WHERE, high, low)._mop(Ops.RESHAPE, (2 * half,))
    return words if count == 2 * half else words._mop(Ops.SHRINK, ((0, count),))


def random_bits(count: int, itemsize: int, device: str) -> UOp:
    """`count` unsigned ints of `itemsize` bytes, all bits random, on one axis."""
    words = random_words(ceildiv(count * itemsize, 4), device)
    if itemsize == 4:
        return words
    if itemsize == 8:
        pairs = words._mop(Ops.RESHAPE, (count, 2))
        low = pairs._mop(Ops.SHRINK, ((0, count), (0, 1)))
        high = pairs._mop(Ops.SHRINK, ((0, count), (1, 2)))
        return join_words(low, high)._mop(Ops.RESHAPE, (count,))
    per = 4 // itemsize
    total = words.shape[0]
    spread = words._mop(Ops.RESHAPE, (total, 1))._broadcast_to((total, per))
    shift = (
        UOp.iota(per)
        .cast(dtypes.uint32)
        .alu(Ops.MUL, UOp.const(dtypes.uint32, 8 * itemsize))
        ._mop(Ops.RESHAPE, (1, per))
    )
    pieces = spread.alu(Ops.SHR, shift._broadcast_to((total, per))).cast(UNSIGNED[itemsize])
    flat = pieces._mop(Ops.RESHAPE, (total * per,))
    return flat if flat.shape == (count,) else flat._mop(Ops.SHRINK, ((0, count),))


def unit_floats(bits: UOp, dtype: DType) -> UOp:
    """Random bits as floats from 0 to below 1, all multiples of the spacing just below 1 * 2."""
    exponent, mantissa = dtypes.finfo(dtype)
    unsigned = bits.dtype
    drawn = bits.alu(Ops.SHR, UOp.const(unsigned, 8 * dtype.itemsize - mantissa))
    if dtype.itemsize == 1:
        scaled = drawn.cast(dtypes.float32).alu(Ops.MUL, UOp.const(dtypes.float32, 2.0**-mantissa))
        return scaled.cast(dtype)
    # The bits below the exponent of 1.0 make a number from 1 to below 2.
    one = ((1 << (exponent - 1)) - 1) << mantissa
    number = drawn.alu(Ops.OR, UOp.const(unsigned, one)).bitcast(dtype)
    return number.alu(Ops.SUB, UOp.const(dtype, 1.0))


class RandomMixin(Handle):
    """Tensors of random numbers.

    For each device that has drawn since the seed was set, `_device_seeds` has the two words of its
    key and `_device_rng_counters` how many words it has used up, as tensors on the CPU.
    """

    __slots__ = ()
    _device_seeds: ClassVar[dict[str, Any]] = STREAMS.seeds
    _device_rng_counters: ClassVar[dict[str, Any]] = STREAMS.places

    if TYPE_CHECKING:
        # What CreateMixin gives; Tensor lists it before this class.
        @classmethod
        def zeros(cls, *shape: Any, **kwargs: Any) -> Self:
            """Zeros of this shape."""

    @classmethod
    def _threefry_random_bits(cls, key: Self, counts0: Self, counts1: Self) -> Self:
        """Two random uint32 for each pair of counters, the first of each pair in front.

        Shapes: key int [2], counts0 int [n], counts1 int [n] -> [2 * n].
        """
        words = [key.uop._mop(Ops.SHRINK, ((i, i + 1),)) for i in (0, 1)]
        pairs = join_words(counts0.uop, counts1.uop)
        low, high = split_words(
            pairs.alu(Ops.THREEFRY, join_words(words[0], words[1])._broadcast_to(pairs.shape))
        )
        both: Any = cls.from_uop(low, False)
        made: Self = both.cat(cls.from_uop(high, False))
        return made

    @staticmethod
    def manual_seed(seed: int = 0) -> None:
        """Starts the streams of all devices again from `seed`."""
        if not isinstance(seed, (int, np.integer)):
            raise ArgumentError(f"manual_seed: {seed!r} is {kind_of(seed)}; an int is wanted")
        STATE.seeded += 1
        with ENGINE:
            STREAMS.reset(int(seed))

    @classmethod
    def rand(
        cls,
        *shape: Any,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        contiguous: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Equally likely numbers from 0 to below 1.

        Shapes: shape=(n, m) -> [n, m].
        Raises: DTypeError unless the dtype is a float.
        """
        sizes, element, place = drawing("rand", shape, dtype, device)
        if not isinstance(place, str):
            raise ArgumentError(
                f"rand: device {place!r}; numbers are drawn on one device, .shard(...) or .to(...) "
                "puts them on several"
            )
        count = prod(sizes)
        if count == 0:
            return cls.zeros(sizes, dtype=element, device=place, requires_grad=requires_grad)
        bits = random_bits(count, element.itemsize, place)
        return stored(cls, unit_floats(bits, element), sizes, contiguous, requires_grad)

    @classmethod
    def randn(
        cls,
        *shape: Any,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        contiguous: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Normally distributed numbers of mean 0 and variance 1 (Box and Muller's method).

        Dtype: `dtype`; another than a float takes what a cast leaves of the numbers.
        Shapes: shape=(n, m) -> [n, m].
        """
        given = None if dtype is None else to_dtype(dtype)
        if given is not None and given.kind in ("int", "uint", "bool"):
            drawn = cls.randn(*shape, device=device, dtype=dtypes.float32, contiguous=False)
            made = drawn.cast(given)
            return kept(made, requires_grad) if contiguous else made.requires_grad_(requires_grad)
        sizes, element, place = drawing("randn", shape, dtype, device)
        count = prod(sizes)
        if count == 0:
            return cls.zeros(sizes, dtype=element, device=place, requires_grad=requires_grad)
        if element is dtypes.float64:
            both = random_bits(2 * count, 8, place)
            low, high = [both._mop(Ops.SHRINK, ((i * count, (i + 1) * count),)) for i in (0, 1)]
        else:
            low, high = split_words(draw_words(count, 2 * count, place))
        wide = element if element is dtypes.float64 else dtypes.float32
        parts: list[Any] = [cls.from_uop(unit_floats(bits, wide), False) for bits in (low, high)]
        angle, size = parts
        value = (angle * (2 * math.pi)).cos() * ((1 - size).log() * -2).sqrt()
        return stored(cls, value.cast(element).uop, sizes, contiguous, requires_grad)

    @classmethod
    def randint(
        cls,
        *shape: Any,
        low: int = 0,
        high: int = 10,
        device: str | None = None,
        dtype: DTypeLike = dtypes.int32,
        contiguous: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Equally likely ints from `low` to below `high`.

        Shapes: shape=(n, m) -> [n, m].
        Raises: ArgumentError unless low < high, and where the dtype does not hold all between;
            DTypeError unless they and the dtype are ints.
        """
        for bound in (low, high):
            if not isinstance(bound, (int, np.integer)):
                raise DTypeError(
                    f"randint: the bound {bound!r} is {kind_of(bound)}; ints are wanted"
                )
        if low >= high or high - low > 1 << 32:
            raise ArgumentError(
                f"randint: from {low} to below {high}; there has to be an int "
                "between, and at most 2**32"
            )
        element = to_dtype(dtype)
        if element.kind not in ("int", "uint"):
            raise DTypeError(f"randint: dtype {element.name}; an int dtype is wanted")
        check_range(low, high - 1, element, 1, "randint")
        sizes = fixed_sizes("randint", shape)
        place = Device.canonicalize(device)
        count = prod(sizes)
        if count == 0:
            return cls.zeros(sizes, dtype=element, device=place, requires_grad=requires_grad)
        # The upper word of 32 random bits times the number of choices.
        words = random_words(count, place).cast(dtypes.uint64)
        product = words.alu(Ops.MUL, UOp.const(dtypes.uint64, int(high - low)))
        offset = product.alu(Ops.SHR, UOp.const(dtypes.uint64, 32)).cast(dtypes.int64)
        value = offset.alu(Ops.ADD, UOp.const(dtypes.int64, int(low))).cast(element)
        return stored(cls, value, sizes, contiguous, requires_grad)

    @classmethod
    def uniform(
        cls,
        *shape: Any,
        low: float = 0.0,
        high: float = 1.0,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Equally likely numbers from `low` to below `high`.

        Shapes: shape=(n, m) -> [n, m].
        """
        for bound in (low, high):
            if not isinstance(bound, (int, float)):
                raise ArgumentError(
                    f"uniform: the bound {bound!r} is {kind_of(bound)}; a number is wanted"
                )
        element = dtypes.default_float if dtype is None else to_dtype(dtype)
        drawn = element if element.kind == "float" else dtypes.default_float
        value = cls.rand(*shape, dtype=drawn, contiguous=False, **kwargs) * (high - low) + low
        return kept(value.cast(element), requires_grad)

    @classmethod
    def normal(
        cls,
        *shape: Any,
        mean: float = 0.0,
        std: float = 1.0,
        requires_grad: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Normally distributed numbers.

        Shapes: shape=(n, m) -> [n, m].
        """
        return kept(cls.randn(*shape, contiguous=False, **kwargs) * std + mean, requires_grad)

    @classmethod
    def scaled_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """From -1 to 1, divided by the root of how many there are.

        Shapes: shape=(n, m) -> [n, m].
        """
        sizes = fixed_sizes("scaled_uniform", shape)
        bound = max(prod(sizes), 1) ** -0.5
        return cls.uniform(sizes, low=-bound, high=bound, **kwargs)

    @classmethod
    def glorot_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Equally likely within sqrt(6 / (first size + product of the others)).

        Shapes: shape=(n, m) -> [n, m].
        Source: Glorot and Bengio, 2010.
        """
        sizes = weight_sizes("glorot_uniform", shape)
        bound = math.sqrt(6 / max(sizes[0] + prod(sizes[1:]), 1))
        return cls.uniform(sizes, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Equally likely, of variance 2 / (1 + a**2) / (product of all sizes but the first).

        Shapes: shape=(n, m) -> [n, m].
        Source: He et al., 2015.
        """
        sizes = weight_sizes("kaiming_uniform", shape)
        bound = math.sqrt(6 / (1 + a * a) / max(prod(sizes[1:]), 1))
        return cls.uniform(sizes, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Normally distributed, of variance 2 / (1 + a**2) / (product of all sizes but the first).

        Shapes: shape=(n, m) -> [n, m].
        Source: He et al., 2015.
        """
        sizes = weight_sizes("kaiming_normal", shape)
        std = math.sqrt(2 / (1 + a * a) / max(prod(sizes[1:]), 1))
        return cls.normal(sizes, std=std, **kwargs)

    @classmethod
    def randperm(
        cls, n: int, device: str | None = None, dtype: DTypeLike = dtypes.int32, **kwargs: Any
    ) -> Self:
        """The ints from 0 to below n in random order.

        Shapes: n=n -> [n].
        """
        if not isinstance(n, int) or n < 0:
            raise ArgumentError(f"randperm: {n!r}; a number that is not negative is wanted")
        if n == 0:
            return cls.zeros(0, dtype=dtype, device=device)
        drawn: Any = cls.rand(n, device=device)
        made: Self = kept(drawn.argsort().cast(dtype), kwargs.get("requires_grad"))
        return made


def multinomial(self: T, num_samples: int = 1, replacement: bool = False) -> T:
    """Places drawn in proportion to the weights along the last axis.

    Shapes: self [n, m], num_samples=m, replacement=True -> [n, m];
        self [n], num_samples=2, replacement=True -> [2].
    Raises: ArgumentError when more are drawn than there are, without replacement.
    """
    if self.ndim not in (1, 2):
        raise PreconditionError(
            f"multinomial: weights of {show_shape(self.shape)}; one or two axes are wanted"
        )
    if not isinstance(num_samples, int) or num_samples < 1:
        raise PreconditionError(
            f"multinomial: {num_samples!r} samples; a positive number is wanted"
        )
    weights = self._floating().unsqueeze(0) if self.ndim == 1 else self._floating()
    rows, size = weights.shape
    if replacement or num_samples == 1:
        total = weights.cumsum(1)
        share = total / total.shrink((None, (size - 1, size)))
        drawn = self.rand(num_samples, rows, 1, device=self.device)
        chosen = (drawn >= share.unsqueeze(0)).sum(2).minimum(size - 1)
        found = chosen.permute((1, 0))
    else:
        if num_samples > size:
            raise PreconditionError(
                f"multinomial: {num_samples} samples of {size} without "
                "replacement; there are too few"
            )
        # The greatest of log-weights with Gumbel noise are such a sample (Efraimidis and
        # Spirakis, 2006).
        noise = self.rand(rows, size, device=self.device).maximum(1e-30).log().neg().log()
        found = (weights.log() - noise).topk(num_samples, 1)[1]
    found = found.cast(dtypes.int32)
    return found.squeeze(0) if self.ndim == 1 else found


def rand_like(self: T, **kwargs: Any) -> T:
    """`rand` with the shape, dtype and device of self unless given.

    Shapes: self [*s] -> [*s].
    """
    kwargs.setdefault("dtype", self.dtype)
    if self.device.__class__ is tuple:
        return drawn_on_each(self, "rand_like", self.rand, kwargs)
    kwargs.setdefault("device", self.device)
    return self.rand(self.shape, **kwargs)


def drawn_on_each(self: T, what: str, draw: Callable[..., Any], kwargs: dict[str, Any]) -> T:
    """Numbers of its own for each part of self, or the same for all devices."""
    if self.uop.axis is not None:
        return self._made_on_each(what, draw, kwargs)
    if "device" in kwargs:
        self._made_on_each(what, draw, kwargs)
    flag = kwargs.pop("requires_grad", None)
    drawn = draw(self.shape, device=self.device[0], **kwargs)
    return self.from_uop(drawn.uop.shard(self.device), flag)


def randn_like(
    self: T, dtype: DTypeLike | None = None, requires_grad: bool | None = None, **kwargs: Any
) -> T:
    """`randn` with the shape, dtype and device of self unless given.

    Shapes: self [*s] -> [*s].
    """
    kwargs["dtype"] = self.dtype if dtype is None else dtype
    kwargs["requires_grad"] = requires_grad
    if self.device.__class__ is tuple:
        return drawn_on_each(self, "randn_like", self.randn, kwargs)
    kwargs.setdefault("device", self.device)
    return self.randn(self.shape, **kwargs)


def fixed_sizes(what: str, shape: tuple[Any, ...]) -> tuple[int, ...]:
    """The sizes, none of them symbolic."""
    sizes = shape_of(what, shape)
    if not all(isinstance(size, int) for size in sizes):
        raise SymbolicSizeError(
            f"{what}: {show_shape(sizes)} has a symbolic size; draw the largest and shrink it"
        )
    return sizes


def weight_sizes(what: str, shape: tuple[Any, ...]) -> tuple[int, ...]:
    """The sizes of a weight, of which there is at least one."""
    sizes = fixed_sizes(what, shape)
    if not sizes:
        raise ShapeError(f"{what}: a scalar has no fan-in; a shape of one axis or more is wanted")
    return sizes


def drawing(
    what: str, shape: tuple[Any, ...], dtype: DTypeLike | None, device: str | None
) -> tuple[tuple[int, ...], DType, str]:
    """Sizes, float dtype and device of what is drawn, checked."""
    element = dtypes.default_float if dtype is None else to_dtype(dtype)
    if element.kind != "float":
        raise FloatWantedError(
            f"{what}: dtype {element.name}; a float dtype is wanted, randint draws ints"
        )
    return fixed_sizes(what, shape), element, Device.canonicalize(device)


def stored(
    cls: type[H], uop: UOp, sizes: tuple[int, ...], contiguous: bool, requires_grad: bool | None
) -> H:
    """A drawn row as a tensor of these sizes; stored, unless its one consumer computes it."""
    if sizes != uop.shape:
        uop = uop._mop(Ops.RESHAPE, sizes)
    if contiguous:
        uop = UOp(Ops.CONTIGUOUS, uop.dtype, (uop,))
    return cls.from_uop(uop, requires_grad)


def kept(value: H, requires_grad: bool | None) -> H:
    """Stores what was computed from drawn numbers, with no gradient towards them."""
    made = value.contiguous()
    made.requires_grad = requires_grad
    return made
