"""Complex numbers as pairs of tensors: ComplexTensor.

Receives two real tensors, complex arrays of NumPy, Python numbers; returns complex tensors, and
real ones where a result is real. Parts are ordinary tensors: they are lazy, differentiable and
computed by the same kernels; there is no complex dtype below this module. Fourier transforms stand
in `fft`; a jitted function takes and returns the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.dtype import least_upper_dtype
from aster_ml.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError

# The name of the pair of each dtype of parts.
NAMES = {dtypes.float32: "complex64", dtypes.float64: "complex128"}
PARTS = {name: part for part, name in NAMES.items()}
# What Python's numbers become, by the default float; complex64 where that is narrower.
OF_DEFAULT = {dtypes.float64: np.complex128}
NO_ORDER = "complex numbers have no order; compare .abs(), .real or .imag"


def floating(x: Tensor) -> Tensor:
    """A part as float32 or float64; narrower floats, ints and bools become float32."""
    return x if x.dtype in NAMES else x.cast(dtypes.float32)


def parts_of(data: Any, device: Any = None) -> tuple[Tensor, Tensor | None]:
    """The real and imaginary part of whatever can be complex; None where nothing is imaginary."""
    if isinstance(data, ComplexTensor):
        return data.real, data.imag
    if isinstance(data, Tensor):
        return floating(data), None
    array = np.asarray(data)
    if array.dtype.kind not in "fciub":
        raise DTypeError(f"ComplexTensor: {array.dtype} is no dtype of numbers; complex is wanted")
    if not isinstance(data, np.ndarray | np.generic):
        # Python's numbers have no dtype of their own, here as in Tensor.
        default = OF_DEFAULT.get(dtypes.default_float, np.complex64)
        array = array.astype(default if array.dtype.kind == "c" else default(0).real.dtype)
    if array.dtype.kind == "c":
        if array.dtype.itemsize > np.dtype(np.complex128).itemsize:
            raise DTypeError(f"ComplexTensor: {array.dtype} is wider than complex128; cast it")
        return Tensor(array.real.copy(), device=device), Tensor(array.imag.copy(), device=device)
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    return floating(Tensor(array, device=device)), None


class ComplexTensor:
    """Complex numbers of some shape: `real` and `imag`, tensors of one float dtype.

    `ComplexTensor(real, imag)` takes two real tensors; `ComplexTensor(data)` a complex array of
    NumPy, nested lists, a number, or one real tensor. float32 parts are complex64, float64 parts
    complex128; other real dtypes become float32, as for tensors beside one of them.

    Operators take complex and real tensors, arrays and numbers. With a Tensor on the left the
    complex one has to come first: `z * t`, or `ComplexTensor(t) * z`.
    """

    __slots__ = ("__weakref__", "imag", "real")
    # Arrays on the left leave operators to us.
    __array_priority__ = 1000

    real: Tensor
    imag: Tensor

    def __init__(self, real: Any, imag: Any = None, device: Any = None) -> None:
        re, im = parts_of(real, device)
        if imag is not None:
            if im is not None:
                raise DTypeError("ComplexTensor: the real part is complex; give its .real")
            im, more = parts_of(imag, re.device)
            if more is not None:
                raise DTypeError("ComplexTensor: the imaginary part is complex; give its .real")
            if im.shape != re.shape:
                raise ShapeError(
                    f"ComplexTensor: parts of shapes {re.shape} and {im.shape}; they must be equal"
                )
        if im is None:
            im = re.zeros_like()
        dtype = least_upper_dtype(re.dtype, im.dtype)
        self.real, self.imag = re.cast(dtype), im.cast(dtype)

    # what it is

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes of the axes."""
        shape: tuple[Any, ...] = self.real.shape
        return shape

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """`"complex64"` or `"complex128"`."""
        return NAMES[self.real.dtype]

    @property
    def device(self) -> Any:
        """Where the parts are."""
        return self.real.device

    def numel(self) -> int:
        """How many elements there are."""
        count: int = self.real.numel()
        return count

    def __len__(self) -> int:
        return len(self.real)

    def __iter__(self) -> Iterator[ComplexTensor]:
        for real, imag in zip(self.real, self.imag):
            yield ComplexTensor(real, imag)

    # values

    def realize(self) -> ComplexTensor:
        """Computes both parts together. Returns self."""
        self.real.realize(self.imag)
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a NumPy array of the same dtype, a copy."""
        self.realize()
        array = np.empty(self.shape, self.dtype)
        array.real, array.imag = self.real.numpy(), self.imag.numpy()
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The values as an array, which is always a copy.

        Raises: ValueError where `copy` is False.
        """
        if copy is False:
            raise ValueError("__array__: two parts as one array are a copy, and copy=False")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def item(self) -> complex:
        """The value of one element as a Python number."""
        self.realize()
        return complex(self.real.item(), self.imag.item())

    def tolist(self) -> Any:
        """The values as nested lists of Python's complex numbers."""
        return self.numpy().tolist()

    def __complex__(self) -> complex:
        return self.item()

    def __float__(self) -> float:
        raise TypeError("float() of a complex tensor; take .real, .imag or .abs()")

    __int__ = __index__ = __float__

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise TypeError(f"the truth of {self.numel()} complex numbers; compare, then .all()")
        return bool(self.item())

    def __repr__(self) -> str:
        head = f"ComplexTensor {self.dtype} {self.shape} on {self.device}"
        text = np.array2string(self.numpy(), threshold=100, separator=", ")
        return f"<{head}:\n {text.replace(chr(10), chr(10) + ' ')}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return ComplexTensor, (self.real, self.imag)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and hasattr(Tensor, name):
            raise UnsupportedAttributeError(
                f"ComplexTensor has no {name}; apply it to .real and .imag, or to .abs()"
            )
        raise AttributeError(f"ComplexTensor has no {name}")

    # moving

    def each(self, function: Callable[[Tensor], Tensor]) -> ComplexTensor:
        """What a linear function of real tensors makes of each part."""
        return ComplexTensor(function(self.real), function(self.imag))

    def __getitem__(self, indices: Any) -> ComplexTensor:
        return self.each(lambda part: part[indices])

    def __setitem__(self, indices: Any, value: Any) -> None:
        raise UnsupportedError(
            "ComplexTensor: elements are not assigned to; write to .real[...] and .imag[...]"
        )

    def reshape(self, *shape: Any) -> ComplexTensor:
        """The same elements in another shape."""
        return self.each(lambda part: part.reshape(*shape))

    def permute(self, *order: Any) -> ComplexTensor:
        """Axes in another order."""
        return self.each(lambda part: part.permute(*order))

    def transpose(self, dim0: int = 1, dim1: int = 0) -> ComplexTensor:
        """Two axes exchanged."""
        return self.each(lambda part: part.transpose(dim0, dim1))

    @property
    def T(self) -> ComplexTensor:
        """The last two axes exchanged, as of Tensor."""
        return self.each(lambda part: part.T)

    @property
    def mT(self) -> ComplexTensor:
        """The last two axes exchanged, without the conjugate."""
        return self.transpose(-2, -1)

    @property
    def mH(self) -> ComplexTensor:
        """The last two axes exchanged, and the conjugate taken."""
        return self.mT.conj()

    def flip(self, *axis: Any) -> ComplexTensor:
        """Elements in reverse along axes."""
        return self.each(lambda part: part.flip(*axis))

    def roll(self, shifts: Any, dims: Any = None) -> ComplexTensor:
        """Elements shifted along axes, those that leave coming in at the other end."""
        if dims is None:
            return self.each(lambda part: part.roll(shifts))
        return self.each(lambda part: part.roll(shifts, dims))

    def squeeze(self, dim: int | None = None) -> ComplexTensor:
        """Without axes of size 1."""
        return self.each(lambda part: part.squeeze(dim))

    def unsqueeze(self, dim: int) -> ComplexTensor:
        """With a new axis of size 1."""
        return self.each(lambda part: part.unsqueeze(dim))

    def expand(self, *shape: Any) -> ComplexTensor:
        """Axes of size 1 repeated."""
        return self.each(lambda part: part.expand(*shape))

    def pad(self, padding: Sequence[Any]) -> ComplexTensor:
        """Zeros around, as `Tensor.pad` has them."""
        return self.each(lambda part: part.pad(padding))

    def to(self, device: Any) -> ComplexTensor:
        """The same elements on another device."""
        return self.each(lambda part: part.to(device))

    def contiguous(self) -> ComplexTensor:
        """Parts in memory of their own."""
        return self.each(lambda part: part.contiguous())

    def detach(self) -> ComplexTensor:
        """The same values, through which no gradient passes."""
        return self.each(lambda part: part.detach())

    def cast(self, dtype: str) -> ComplexTensor:
        """As complex64 or complex128."""
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        if name not in PARTS:
            raise DTypeError(f"cast: {dtype!r}; complex64 or complex128 is wanted, or take .real")
        return self.each(lambda part: part.cast(PARTS[name]))

    @staticmethod
    def cat(items: Sequence[Any], dim: int = 0) -> ComplexTensor:
        """Complex tensors put together along an axis."""
        return joined("cat", items, dim)

    @staticmethod
    def stack(items: Sequence[Any], dim: int = 0) -> ComplexTensor:
        """Complex tensors put together along a new axis."""
        return joined("stack", items, dim)

    # arithmetic

    def other(self, x: Any) -> tuple[Any, Any]:
        """The parts of an operand; numbers stay numbers, and None is an imaginary part of 0."""
        if isinstance(x, bool | int | float | np.bool_ | np.integer | np.floating):
            return (float(x), None)
        if isinstance(x, complex | np.complexfloating):
            return float(x.real), float(x.imag)
        return parts_of(x, self.device)

    def __add__(self, x: Any) -> ComplexTensor:
        re, im = self.other(x)
        if im is None:
            real = self.real + re
            return ComplexTensor(real, self.imag.cast(real.dtype).expand(real.shape))
        return ComplexTensor(self.real + re, self.imag + im)

    __radd__ = __add__

    def __neg__(self) -> ComplexTensor:
        return self.each(lambda part: -part)

    def __pos__(self) -> ComplexTensor:
        return self

    def __sub__(self, x: Any) -> ComplexTensor:
        re, im = self.other(x)
        if im is None:
            real = self.real - re
            return ComplexTensor(real, self.imag.cast(real.dtype).expand(real.shape))
        return ComplexTensor(self.real - re, self.imag - im)

    def __rsub__(self, x: Any) -> ComplexTensor:
        return (-self).__add__(x)

    def __mul__(self, x: Any) -> ComplexTensor:
        re, im = self.other(x)
        if im is None:
            return ComplexTensor(self.real * re, self.imag * re)
        return ComplexTensor(self.real * re - self.imag * im, self.real * im + self.imag * re)

    __rmul__ = __mul__

    def __truediv__(self, x: Any) -> ComplexTensor:
        re, im = self.other(x)
        if im is None:
            return ComplexTensor(self.real / re, self.imag / re)
        if not isinstance(re, Tensor):
            re, im = (self.real.full_of((), float(part)) for part in (re, im))
        return divided(self.real, self.imag, re, im)

    def __rtruediv__(self, x: Any) -> ComplexTensor:
        return ComplexTensor(*self.full_parts(x)) / self

    def full_parts(self, x: Any) -> tuple[Tensor, Tensor]:
        """The parts of an operand as tensors."""
        re, im = self.other(x)
        if not isinstance(re, Tensor):
            return self.real.full_of((), re), self.real.full_of((), im or 0.0)
        return re, re.zeros_like() if im is None else im

    def __pow__(self, n: Any) -> ComplexTensor:
        if not isinstance(n, int | np.integer):
            raise UnsupportedError(
                f"ComplexTensor ** {n!r}: powers are whole numbers; (n * z.log()).exp() is another"
            )
        if n < 0:
            return (self ** -int(n)).__rtruediv__(1)
        left, square = int(n), self
        found = ComplexTensor(self.real.ones_like(), self.real.zeros_like())
        started = False
        while left:
            if left & 1:
                found = found * square if started else square
                started = True
            left >>= 1
            square = square * square if left else square
        return found

    def __matmul__(self, x: Any) -> ComplexTensor:
        re, im = parts_of(x, self.device)
        if im is None:
            return ComplexTensor(self.real @ re, self.imag @ re)
        return ComplexTensor(self.real @ re - self.imag @ im, self.real @ im + self.imag @ re)

    def __rmatmul__(self, x: Any) -> ComplexTensor:
        return ComplexTensor(x, device=self.device).__matmul__(self)

    def matmul(self, x: Any) -> ComplexTensor:
        """`self @ x`."""
        return self.__matmul__(x)

    def __eq__(self, x: object) -> Any:
        re, im = self.other(x)
        return self.real.eq(re) & self.imag.eq(0.0 if im is None else im)

    def __ne__(self, x: object) -> Any:
        return (self == x).logical_not()

    __hash__ = object.__hash__

    def __lt__(self, x: Any) -> Any:
        raise TypeError(NO_ORDER)

    __le__ = __gt__ = __ge__ = __lt__

    # functions

    def conj(self) -> ComplexTensor:
        """The conjugate."""
        return ComplexTensor(self.real, -self.imag)

    def abs(self) -> Tensor:
        """How far each number is from 0, without overflow: a real tensor."""
        return self.real.hypot(self.imag)

    __abs__ = abs

    def angle(self) -> Tensor:
        """The angle of each number, from -pi to pi: a real tensor."""
        return self.imag.atan2(self.real)

    def exp(self) -> ComplexTensor:
        """e to each number, which is finite in its imaginary part."""
        # A large real part overflows only where the result does.
        half = (self.real * 0.5).exp()
        imag = self.imag.eq(0).where(self.imag, half * self.imag.sin() * half)
        return ComplexTensor(half * self.imag.cos() * half, imag)

    def log(self) -> ComplexTensor:
        """The natural logarithm, with an imaginary part from -pi to pi."""
        return ComplexTensor(self.abs().log(), self.angle())

    def isfinite(self) -> Tensor:
        """Where both parts are finite."""
        return self.real.isfinite() & self.imag.isfinite()

    def isnan(self) -> Tensor:
        """Where either part is NaN."""
        return self.real.isnan() | self.imag.isnan()

    def sum(self, axis: Any = None, keepdim: bool = False) -> ComplexTensor:
        """The sum along axes."""
        return self.each(lambda part: part.sum(axis, keepdim))

    def mean(self, axis: Any = None, keepdim: bool = False) -> ComplexTensor:
        """The mean along axes."""
        return self.each(lambda part: part.mean(axis, keepdim))


class UnsupportedAttributeError(UnsupportedError, AttributeError):
    """An operation of real tensors that complex ones do not have."""


def divided(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> ComplexTensor:
    """(a + bi) / (c + di), where no square of the divisor overflows or vanishes.

    Source: R. Smith, Algorithm 116: complex division, 1962.
    """
    turned = c.abs() < d.abs()
    large, small = turned.where(d, c), turned.where(c, d)
    none = large.eq(0)
    ratio = none.where(0.0, small / none.where(1.0, large))
    below = none.where(0.0, large + small * ratio)
    real = turned.where(a * ratio + b, a + b * ratio) / below
    imag = turned.where(b * ratio - a, b - a * ratio) / below
    return ComplexTensor(real, imag)


def joined(name: str, items: Sequence[Any], dim: int) -> ComplexTensor:
    """The parts of complex tensors joined by a method of Tensor."""
    pairs = [x if isinstance(x, ComplexTensor) else ComplexTensor(x) for x in items]
    if not pairs:
        raise ArgumentError(f"{name}: no complex tensors; one at least is wanted")
    reals, imags = [z.real for z in pairs], [z.imag for z in pairs]
    join = getattr(Tensor, name)
    return ComplexTensor(join(*reals, dim=dim), join(*imags, dim=dim))
