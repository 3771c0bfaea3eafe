"""Defines ComplexTensor: complex numbers as a pair of tensors.

Receives two real tensors, complex arrays of NumPy, Python numbers; returns complex tensors, and
real ones where a result is real. Parts are ordinary tensors: they are lazy, differentiable and
computed by the same kernels; there is no complex dtype below this package. Elementary functions
stand in `functions`, Fourier transforms in `aster_ml.fft`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.complex.dtype import BY_PART, ComplexDType, known_complex_dtype, to_complex_dtype
from aster_ml.complex.moves import ComplexMoves
from aster_ml.dtype import least_upper_dtype
from aster_ml.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from aster_ml.extend import BINARY, COMPLEX_KINDS, UNARY, as_numpy, resolved

NO_ORDER = "complex numbers have no order; compare .abs(), .real or .imag"


def floating(x: Tensor) -> Tensor:
    """A part as float32 or float64; narrower floats, ints and bools become float32."""
    return x if x.dtype in BY_PART else x.cast(dtypes.float32)


def parts_of(data: Any, device: Any = None) -> tuple[Tensor, Tensor | None]:
    """The real and imaginary part of whatever can be complex; None where nothing is imaginary."""
    if isinstance(data, ComplexTensor):
        return data.real, data.imag
    if isinstance(data, Tensor):
        return floating(data), None
    # PyTorch conjugates and negates by marks, which arrays cannot carry.
    data = resolved(data)
    data = data.detach() if getattr(data, "requires_grad", False) else data
    array = np.asarray(data)
    if array.dtype.kind not in "fciub":
        raise DTypeError(f"ComplexTensor: {array.dtype} is no dtype of numbers; complex is wanted")
    if not isinstance(data, np.ndarray | np.generic):
        # Python's numbers have no dtype of their own, here as in Tensor.
        default = np.dtype(to_complex_dtype(complex).name)
        array = array.astype(default if array.dtype.kind == "c" else default.type(0).real.dtype)
    if array.dtype.kind == "c":
        if array.dtype.itemsize > np.dtype(np.complex128).itemsize:
            raise DTypeError(f"ComplexTensor: {array.dtype} is wider than complex128; cast it")
        return Tensor(array.real.copy(), device=device), Tensor(array.imag.copy(), device=device)
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    return floating(Tensor(array, device=device)), None


class ComplexTensor(ComplexMoves):
    """Complex numbers of some shape: `real` and `imag`, tensors of one float dtype.

    `ComplexTensor(real, imag)` takes two real tensors; `ComplexTensor(data)` a complex array of
    NumPy, nested lists, a number, or one real tensor. float32 parts are complex64, float64 parts
    complex128; other real dtypes become float32, as for tensors beside one of them.

    Operators take complex and real tensors, arrays and numbers, in either order. A jitted function
    takes and returns complex tensors as it does real ones.
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

    def made(self, real: Any, imag: Any) -> ComplexTensor:
        """A complex tensor of parts."""
        return ComplexTensor(real, imag)

    @classmethod
    def from_dlpack(cls, x: Any) -> ComplexTensor:
        """A copy of a complex array of another package; ours has its parts in places of their own.

        Raises: BufferError where the host does not see its memory.
        """
        return cls(np.from_dlpack(x))

    # as part of a nest of a jitted function

    def tensor_parts(self) -> tuple[Any, ...]:
        """The tensors that it is made of."""
        return self.real, self.imag

    def with_tensor_parts(self, parts: Sequence[Any]) -> ComplexTensor:
        """One like it, made of others."""
        return of_parts(*parts)

    # what it is

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes of the axes."""
        shape: tuple[Any, ...] = self.real.shape
        return shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements, as NumPy has it."""
        return self.numel()

    @property
    def dtype(self) -> ComplexDType:
        """complex64 or complex128, which are equal to these names."""
        return BY_PART[self.real.dtype]

    @property
    def requires_grad(self) -> bool:
        """Whether a part is to have a gradient."""
        return bool(self.real.requires_grad or self.imag.requires_grad)

    @property
    def device(self) -> Any:
        """Where the parts are."""
        return self.real.device

    def numel(self) -> int:
        """Number of elements."""
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
        array = np.empty(self.shape, self.dtype.name)
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

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule of the values, which is always a copy.

        Raises: BufferError where `copy` is False.
        """
        if copy is False:
            raise BufferError("__dlpack__: two parts as one array are a copy, and copy=False")
        return self.numpy().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.real.__dlpack_device__()

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The functions of the array API standard: `aster_ml.array_api`."""
        return self.real.__array_namespace__(api_version=api_version)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """A complex tensor where one of our methods means the same, else what NumPy makes."""
        if method == "__call__" and not kwargs:
            name = {"conjugate": "conj"}.get(ufunc.__name__, UNARY.get(ufunc.__name__, ""))
            if len(inputs) == 1 and hasattr(type(self), name):
                return getattr(self, name)()
            if len(inputs) == 2 and hasattr(type(self), BINARY.get(ufunc.__name__, ("",))[0]):
                first = ComplexTensor(inputs[0], device=self.device)
                return getattr(first, BINARY[ufunc.__name__][0])(inputs[1])
        return getattr(ufunc, method)(*plain_arrays(inputs), **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Applies a function of NumPy to our elements as an array."""
        return func(*plain_arrays(args), **dict(zip(kwargs, plain_arrays(kwargs.values()))))

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

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __contains__(self, x: Any) -> bool:
        return bool((self == x).any().item())

    def _repr_html_(self) -> str:
        """Text of the tensor as a notebook shows it."""
        return f"<pre>{html.escape(repr(self))}</pre>"

    def __repr__(self) -> str:
        head = f"ComplexTensor {self.dtype} {self.shape} on {self.device}"
        text = np.array2string(self.numpy(), threshold=100, separator=", ")
        return f"<{head}:\n {text.replace(chr(10), chr(10) + ' ')}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return of_parts, (self.real, self.imag)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and hasattr(Tensor, name):
            raise UnsupportedAttributeError(
                f"ComplexTensor has no {name}; apply it to .real and .imag, or to .abs()"
            )
        raise AttributeError(f"ComplexTensor has no {name}")

    # parts

    def __getitem__(self, indices: Any) -> ComplexTensor:
        return self.each(lambda part: part[indices])

    def __setitem__(self, indices: Any, value: Any) -> None:
        real, imag = self.other(value)
        self.real[indices] = real
        self.imag[indices] = 0.0 if imag is None else imag

    def cast(self, dtype: Any) -> ComplexTensor:
        """As complex64 or complex128."""
        wanted = known_complex_dtype(dtype)
        if wanted is None:
            raise DTypeError(f"cast: {dtype!r}; complex64 or complex128 is wanted, or take .real")
        return self.each(lambda part: part.cast(wanted.part))

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
            re, im = (self.real._full_of((), float(part)) for part in (re, im))
        return divided(self.real, self.imag, re, im)

    def __rtruediv__(self, x: Any) -> ComplexTensor:
        return ComplexTensor(*self.full_parts(x)) / self

    def full_parts(self, x: Any) -> tuple[Tensor, Tensor]:
        """The parts of an operand as tensors."""
        re, im = self.other(x)
        if not isinstance(re, Tensor):
            return self.real._full_of((), re), self.real._full_of((), im or 0.0)
        return re, re.zeros_like() if im is None else im

    def __pow__(self, n: Any) -> ComplexTensor:
        if not isinstance(n, int | np.integer):
            return power(
                self, n if isinstance(n, ComplexTensor) else ComplexTensor(*self.full_parts(n))
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

    def __rpow__(self, x: Any) -> ComplexTensor:
        return power(ComplexTensor(*self.full_parts(x)), self)

    def square(self) -> ComplexTensor:
        """self * self."""
        return self * self

    def reciprocal(self) -> ComplexTensor:
        """1 / self."""
        return self.__rtruediv__(1)

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

    # As methods of Tensor are called.
    add, sub, mul, div, pow = __add__, __sub__, __mul__, __truediv__, __pow__
    eq, ne = __eq__, __ne__
    __hash__ = object.__hash__

    def __lt__(self, x: Any) -> Any:
        raise TypeError(NO_ORDER)

    __le__ = __gt__ = __ge__ = __lt__

    def sum(self, axis: Any = None, keepdim: bool = False) -> ComplexTensor:
        """The sum along axes."""
        return self.each(lambda part: part.sum(axis, keepdim))

    def prod(self, axis: Any = None, keepdim: bool = False) -> ComplexTensor:
        """The product along axes, of all where none is named, in pairs of halves."""
        ndim = self.ndim
        axes = range(ndim) if axis is None else [axis] if isinstance(axis, int) else axis
        axes = sorted({a % ndim for a in axes})
        kept = [i for i in range(ndim) if i not in axes]
        z = self.permute(*kept, *axes) if ndim else self
        shape = [self.shape[i] for i in kept]
        z = z.reshape(*shape, math.prod([self.shape[a] for a in axes]))
        while (n := z.shape[-1]) > 1:
            half = n // 2
            rest = [z[..., 2 * half :]] if n % 2 else []
            z = ComplexTensor.cat([z[..., :half] * z[..., half : 2 * half], *rest], -1)
        one = ComplexTensor(z.real.ones_like(), z.imag.zeros_like()).sum(-1)
        found = z[..., 0] if z.shape[-1] else one + 1
        return found.reshape(*[1 if i in axes else s for i, s in enumerate(self.shape)]) if (
            keepdim) else found  # fmt: skip

    def cumprod(self, axis: int) -> ComplexTensor:
        """The product of all elements up to each along an axis, in doubling steps."""
        z, step = self.transpose(axis, -1), 1
        while step < z.shape[-1]:
            z = ComplexTensor.cat([z[..., :step], z[..., step:] * z[..., :-step]], -1)
            step *= 2
        return z.transpose(axis, -1)

    def mean(self, axis: Any = None, keepdim: bool = False) -> ComplexTensor:
        """The mean along axes."""
        return self.each(lambda part: part.mean(axis, keepdim))


COMPLEX_KINDS.add(ComplexTensor)


def of_parts(real: Any, imag: Any) -> ComplexTensor:
    """A complex tensor of these very parts."""
    made = object.__new__(ComplexTensor)
    made.real, made.imag = real, imag
    return made


def plain_arrays(values: Any) -> Any:
    """Arguments of NumPy's functions, with complex tensors as arrays."""
    return as_numpy([v.numpy() if isinstance(v, ComplexTensor) else v for v in values])


def power(z: ComplexTensor, n: ComplexTensor) -> ComplexTensor:
    """z to the power n: exp(n * log z), and of 0 the power 0 is 1."""
    none, first = z.eq(0), n.eq(0)
    kept = ComplexTensor(none.where(1, z.real), z.imag)
    found = (n * kept.log()).exp()
    limit = (n.real > 0).where(found.real._full_of((), 0.0), math.nan)
    real = first.where(1, none.where(limit, found.real))
    return ComplexTensor(real, first.where(0, none.where(limit, found.imag)))


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
