"""Random programs of a few kernels, and the Targets that kernels are compiled for.

A program is drawn from a seed: shapes of arguments with their dtypes, and a function of Tensors.
Sizes are 0, 1, primes and powers of two; `large` ones reach beyond the caches, to be compiled and
not run. What is checked is decided in `test_fuzz_kernels`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.export.web import web_target
from aster_ml.target import PLAIN_OPS, Target
from aster_ml.target.cuda import cuda_target
from aster_ml.target.metal import metal_target

SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17, 19, 23, 31, 32, 33, 48, 64, 65, 81,
         96, 97, 100, 127, 128, 129)  # fmt: skip
LARGE_SIZES = (*SIZES[2:], 192, 256, 257, 320, 509, 512, 768, 1000, 1021, 1024, 2048, 4096, 4099)
# Most elements of an argument: of what is run, and of what is compiled only.
MOST, MOST_LARGE = 6_000, 1 << 26
FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
DTYPES = (*FLOATS, "int8", "uint8", "int16", "int32", "int64", "uint32", "bool")


class Argument(NamedTuple):
    """The shape and the dtype of an argument."""

    shape: tuple[int, ...]
    dtype: str

    def values(self, seed: int) -> Any:
        """Numbers of small size, for NumPy; bfloat16 as the float32 that it is made of."""
        rng = np.random.default_rng(seed)
        if self.dtype == "bool":
            return rng.integers(0, 2, self.shape).astype(bool)
        if "int" in self.dtype:
            low = 0 if self.dtype.startswith("u") else -9
            return rng.integers(low, 10, self.shape).astype(self.dtype)
        kind = "float32" if self.dtype == "bfloat16" else self.dtype
        return rng.uniform(-2, 2, self.shape).astype(kind)


class Program(NamedTuple):
    """A function of Tensors with its arguments, and what it is in words."""

    text: str
    arguments: tuple[Argument, ...]
    function: Callable[..., Tensor]

    def on_memory(self, seed: int, device: str = "CPU") -> Tensor:
        """The result, unrealized, of arguments that are memory."""
        made = [
            Tensor(a.values(seed + i), dtype=getattr(dtypes, a.dtype), device=device).realize()
            for i, a in enumerate(self.arguments)
        ]
        return self.function(*made)

    def on_nothing(self, device: str = "CPU") -> Tensor:
        """The result of arguments that have no memory yet: to be compiled, and not run."""
        made = [
            Tensor.empty(*a.shape, dtype=getattr(dtypes, a.dtype), device=device)
            for a in self.arguments
        ]
        return self.function(*made)


class Drawing:
    """Draws a program from a seed."""

    def __init__(self, seed: int, large: bool = False) -> None:
        self.rng = random.Random(seed)
        self.sizes = LARGE_SIZES if large else SIZES
        self.most = MOST_LARGE if large else MOST

    def program(self) -> Program:
        """One of all kinds."""
        kinds = (
            self.elementwise, self.reduction, self.normalization, self.transpose, self.product,
            self.convolution, self.transposed_convolution, self.pool, self.windows, self.indexed,
            self.scanned, self.joined, self.mixed, self.trained,
        )  # fmt: skip
        return self.rng.choice(kinds)()

    # numbers

    def size(self, most: int = 1 << 30) -> int:
        """One size."""
        return self.rng.choice([n for n in self.sizes if n <= most])

    def shape(self, least: int = 1, most: int = 4) -> tuple[int, ...]:
        """Sizes of some axes, so few elements that they may be run."""
        found: list[int] = []
        for _ in range(self.rng.randint(least, most)):
            room = self.most // max(math.prod(found), 1)
            found.append(self.size(max(room, 1)))
        self.rng.shuffle(found)
        return tuple(found)

    def images(self, channels: int = 40) -> tuple[int, ...]:
        """Batch, channels, height and width; none of them 0 but for the batch and the channels."""
        while True:
            n, c = self.size(9), self.size(channels)
            h, w = max(self.size(), 1), max(self.size(), 1)
            if max(n, 1) * max(c, 1) * h * w <= self.most:
                return n, c, h, w

    def axes(self, rank: int) -> tuple[int, ...]:
        """Some axes."""
        return tuple(sorted(self.rng.sample(range(rank), self.rng.randint(1, rank))))

    def dtype(self) -> str:
        """A dtype, mostly a float."""
        return self.rng.choice(FLOATS if self.rng.random() < 0.7 else DTYPES)

    # kinds

    def steps(self, x: Tensor, count: int, rng: random.Random) -> Tensor:
        """Elementwise operations and views, one after the other."""
        for _ in range(count):
            x = rng.choice(STEPS)(x, rng)
        return x

    def elementwise(self) -> Program:
        """A chain of operations and views of two arguments that broadcast."""
        shape, dtype, seed = self.shape(), self.dtype(), self.rng.random()
        other = tuple([n if self.rng.random() < 0.7 else 1 for n in shape])
        count = self.rng.randint(1, 5)

        def function(a: Tensor, b: Tensor) -> Tensor:
            rng = random.Random(seed)
            return self.steps(rng.choice(BINARY)(a, b), count, rng)

        arguments = (Argument(shape, dtype), Argument(other, dtype))
        return Program(f"elementwise {shape} {other} {dtype} {count} {seed}", arguments, function)

    def reduction(self) -> Program:
        """A reduction over some axes of a chain of operations."""
        shape, dtype, seed = self.shape(), self.dtype(), self.rng.random()
        name = self.rng.choice(("sum", "max", "min", "mean", "prod", "any", "all", "var", "argmax"))
        count, axes = self.rng.randint(0, 2), self.axes(len(shape))
        while name in ("max", "min", "argmax") and 0 in shape:
            name = "sum"

        def function(a: Tensor) -> Tensor:
            a = self.steps(a, count, random.Random(seed))
            if name in ("max", "min", "argmax") and 0 in a.shape:
                return a + a
            if a.ndim <= max(axes):
                return a.sum()
            if name == "argmax":
                return a.argmax(axes[0])
            if name in ("mean", "var"):
                a = a.float()
            return getattr(a, name)(axes, keepdim=bool(count % 2))

        return Program(
            f"{name} {axes} of {count} of {shape} {dtype} {seed}", (Argument(shape, dtype),),
            function,
        )  # fmt: skip

    def normalization(self) -> Program:
        """Softmax and its kin, once or twice, with scales."""
        shape, axis = self.shape(1, 3), -1
        names = [
            self.rng.choice(("softmax", "log_softmax", "layernorm", "logsumexp", "std", "gelu"))
            for _ in range(self.rng.randint(1, 3))
        ]
        dtype = self.rng.choice(FLOATS)
        if self.rng.random() < 0.3:
            axis = self.rng.randrange(len(shape))

        def function(a: Tensor) -> Tensor:
            for name in names:
                if 0 in a.shape:
                    return a * 2
                if name == "std":
                    a = a / (a.std(axis, keepdim=True, correction=0) + 1)
                elif name == "logsumexp":
                    a = a - a.logsumexp(axis, keepdim=True)
                elif name == "layernorm":
                    a = a.layernorm(axis, eps=0.01) * 0.5
                elif name == "gelu":
                    a = a.gelu()
                else:
                    a = getattr(a, name)(axis)
            return a

        return Program(f"{names} {shape} {axis} {dtype}", (Argument(shape, dtype),), function)

    def transpose(self) -> Program:
        """A permutation, with some arithmetic around it or none."""
        shape, dtype = self.shape(2, 4), self.dtype()
        order = [*range(len(shape))]
        self.rng.shuffle(order)
        some = self.rng.choice((lambda x: x, lambda x: x + x, lambda x: x.exp(), lambda x: x * 3))

        def function(a: Tensor) -> Tensor:
            return some(a.float() if dtype == "bool" else a).permute(*order).contiguous()

        return Program(f"permute {shape} {order} {dtype}", (Argument(shape, dtype),), function)

    def product(self) -> Program:
        """A product of matrices in batches or alone, either of them turned, with an epilogue."""
        dtype = self.rng.choice((*FLOATS, "int8", "int32"))
        while True:
            m, n, k = (self.size(), self.size(), self.size())
            batch = (self.size(5),) if self.rng.random() < 0.3 else ()
            most = max(*batch, 1) if batch else 1
            if max(m * k, n * k, m * n) * most <= self.most and m * n * k <= 40 * self.most:
                break
        left, right = self.rng.random() < 0.3, self.rng.random() < 0.3
        a, b = (*batch, *((k, m) if left else (m, k))), (*batch, *((n, k) if right else (k, n)))
        late = self.rng.choice((None, "relu", "bias", "softmax", "sum"))

        def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
            x, y = x.transpose(-1, -2) if left else x, y.transpose(-1, -2) if right else y
            made = x.matmul(y, dtype=dtypes.int32 if dtype == "int8" else None)
            if late == "bias":
                made = made + z
            elif late == "softmax" and dtype in FLOATS and n:
                made = made.softmax()
            elif late == "sum":
                made = made.sum(0)
            return made.relu() if late == "relu" else made

        arguments = (Argument(a, dtype), Argument(b, dtype), Argument((n,), dtype))
        return Program(f"{a} @ {b} {dtype} {late}", arguments, function)

    def convolution(self) -> Program:
        """A convolution, its gradient for the images or for the weights."""
        n, c, h, w = self.images()
        groups = self.rng.choice((1, 1, 1, c, 2))
        groups = groups if groups and c % groups == 0 else 1
        each = self.size(40)
        kh, kw = self.rng.choice((1, 1, 2, 3, 3, 5)), self.rng.choice((1, 2, 3, 3, 4, 7))
        stride = (self.rng.choice((1, 1, 2, 3)), self.rng.choice((1, 1, 2, 4)))
        dilation, padding = self.rng.choice((1, 1, 2)), self.rng.choice((0, 1, 1, 2))
        of = self.rng.choice((None, None, "images", "weights"))
        fits = all([size + 2 * padding > dilation * (k - 1) for size, k in ((h, kh), (w, kw))])
        kh, kw = (kh, kw) if fits else (1, 1)
        out = groups * max(each // max(groups, 1), 1)
        images, weights = (n, c, h, w), (out, c // groups, kh, kw)

        def function(x: Tensor, y: Tensor) -> Tensor:
            made = x.conv2d(y, groups=groups, stride=stride, dilation=dilation, padding=padding)
            if of is None or 0 in (*x.shape, *y.shape, *made.shape):
                return made
            return made.square().sum().gradient(x if of == "images" else y)[0]

        dtype = self.rng.choice(("float32", "float32", "float64", "float16"))
        return Program(
            f"conv {images} {weights} groups {groups} stride {stride} dilation {dilation} "
            f"padding {padding} {dtype}, gradient of {of}",
            (Argument(images, dtype), Argument(weights, dtype)),
            function,
        )

    def transposed_convolution(self) -> Program:
        """A transposed convolution, with strides, or its gradient."""
        n, c, h, w = self.images(9)
        out, kh, kw = self.size(9), self.rng.choice((1, 2, 3, 4)), self.rng.choice((1, 2, 3, 4, 5))
        stride = (self.rng.choice((1, 1, 2, 3)), self.rng.choice((1, 2, 2, 3, 4)))
        padding = (self.rng.choice((0, 0, 1)), self.rng.choice((0, 1)))
        fits = all(
            [
                (size - 1) * s + k > 2 * p
                for size, s, k, p in zip((h, w), stride, (kh, kw), padding, strict=True)
            ]
        )
        padding = padding if fits else (0, 0)
        of = self.rng.choice((None, None, "images", "weights"))
        images, weights = (n, c, h, w), (c, out, kh, kw)

        def function(x: Tensor, y: Tensor) -> Tensor:
            made = x.conv_transpose2d(y, stride=stride, padding=padding)
            if of is None or 0 in (*x.shape, *y.shape, *made.shape):
                return made
            return made.square().sum().gradient(x if of == "images" else y)[0]

        return Program(
            f"conv_transpose {images} {weights} stride {stride} padding {padding}, "
            f"gradient of {of}",
            (Argument(images, "float32"), Argument(weights, "float32")),
            function,
        )

    def pool(self) -> Program:
        """A pool of maxima or averages, or its gradient."""
        shape, kernel = self.images(), self.rng.choice((2, 2, 3, (1, 3), (3, 2), (5, 1)))
        stride, padding = self.rng.choice((None, 1, 2, 3)), self.rng.choice((0, 0, 1))
        name, grad = self.rng.choice(("max_pool2d", "avg_pool2d")), self.rng.random() < 0.5
        sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        fits = all([n + 2 * padding >= k for n, k in zip(shape[2:], sides, strict=True)])
        kernel = kernel if fits and min(sides) >= 2 * padding else 1
        padding = padding if kernel != 1 else 0

        def function(x: Tensor) -> Tensor:
            made = getattr(x, name)(kernel, stride, padding=padding)
            if not grad or 0 in made.shape:
                return made
            return made.square().sum().gradient(x)[0]

        return Program(
            f"{name} {shape} {kernel} {stride} {padding}, gradient {grad}",
            (Argument(shape, "float32"),), function,
        )  # fmt: skip

    def windows(self) -> Program:
        """Windows along an axis, added up, or the gradient of that."""
        shape = tuple([max(n, 1) for n in self.shape(1, 3)])
        axis = self.rng.randrange(len(shape))
        size = self.rng.randint(1, min(shape[axis], 6))
        step, grad = self.rng.randint(1, 4), self.rng.random() < 0.6

        def function(x: Tensor) -> Tensor:
            made = x.unfold(axis, size, step)
            return made.square().sum().gradient(x)[0] if grad else made.sum(-1)

        return Program(
            f"unfold {shape} {axis} {size} {step}, gradient {grad}",
            (Argument(shape, "float32"),), function,
        )  # fmt: skip

    def indexed(self) -> Program:
        """Elements at places that are data, of memory or of what is computed."""
        shape = tuple([max(n, 1) for n in self.shape(1, 3)])
        count, dtype = max(self.size(130), 1), self.rng.choice(FLOATS)
        axis, seed = self.rng.randrange(len(shape)), self.rng.randrange(100)
        places = random.Random(seed)
        at = [places.randrange(shape[axis]) for _ in range(count)]
        way = self.rng.choice(("pick", "computed", "gradient", "sort", "topk"))

        def function(x: Tensor) -> Tensor:
            key: list[Any] = [slice(None)] * len(shape)
            key[axis] = Tensor(at, dtype=dtypes.int32, device=x.device)
            if way == "sort":
                return x.sort(axis)[0]
            if way == "topk":
                return x.topk(min(3, shape[axis]), axis)[0]
            if way == "gradient":
                return x[tuple(key)].square().sum().gradient(x)[0]
            return (x * 2 + 1 if way == "computed" else x)[tuple(key)]

        return Program(f"{way} {shape} {axis} {count} {dtype}", (Argument(shape, dtype),), function)

    def scanned(self) -> Program:
        """Sums and maxima so far, in either direction."""
        shape = tuple([max(n, 1) for n in self.shape(1, 3)])
        axis, name = self.rng.randrange(len(shape)), self.rng.choice(("cumsum", "cumprod"))
        flips = self.rng.random() < 0.3

        def function(x: Tensor) -> Tensor:
            made = getattr(x.flip(axis) if flips else x, name)(axis)
            return made + 1 if flips else made

        return Program(f"{name} {shape} {axis}", (Argument(shape, "float32"),), function)

    def joined(self) -> Program:
        """Values side by side: cat, stack, of computed parts."""
        shape, dtype = self.shape(1, 3), self.dtype()
        axis, count = self.rng.randrange(len(shape)), self.rng.randint(2, 4)
        name = self.rng.choice(("cat", "stack"))

        def function(a: Tensor, b: Tensor) -> Tensor:
            parts = [a, b, a + b, b * 2][:count]
            return getattr(parts[0], name)(*parts[1:], dim=axis)

        arguments = (Argument(shape, dtype), Argument(shape, dtype))
        return Program(f"{name} {shape} {axis} {dtype}", arguments, function)

    def trained(self) -> Program:
        """A gradient of a small network: convolution, normalization, activation, classes."""
        n, c, h, w = (max(size, 1) for size in self.images())
        out, classes = max(self.size(64), 1), max(self.size(20), 1)
        kernel, norm = self.rng.choice((1, 3, 5)), self.rng.random() < 0.5
        of, stride = self.rng.randrange(3), self.rng.choice((1, 1, 2))

        def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
            a = x.conv2d(y, padding=kernel // 2, stride=stride)
            if norm:
                a = a - a.mean((0, 2, 3), keepdim=True)
                a = a / (a.square().mean((0, 2, 3), keepdim=True) + 0.1).sqrt()
            loss = -(a.relu().mean((2, 3)) @ z).log_softmax()[:, 0].mean()
            return loss.gradient((x, y, z)[of])[0]

        shapes = (n, c, h, w), (out, c, kernel, kernel), (out, classes)
        return Program(
            f"network {shapes} norm {norm} stride {stride}, gradient {of}",
            tuple([Argument(shape, "float32") for shape in shapes]), function,
        )  # fmt: skip

    def mixed(self) -> Program:
        """One program's result through steps and a reduction of another kind."""
        inner = self.rng.choice((self.product, self.convolution, self.pool, self.normalization))()
        seed, count = self.rng.random(), self.rng.randint(1, 3)
        keep = self.rng.random() < 0.5

        def function(*arguments: Tensor) -> Tensor:
            made = self.steps(inner.function(*arguments), count, random.Random(seed))
            if not made.ndim or 0 in made.shape:
                return made + made
            return made - made.mean(-1, keepdim=True) if keep else made.sum(-1)

        return Program(f"{count} {seed} of {inner.text}", inner.arguments, function)


def number(x: Tensor) -> Tensor:
    """Booleans as numbers."""
    return x.int() if x.dtype is dtypes.bool else x


def near_zero(x: Tensor, rng: random.Random) -> int:
    """A small number that a dtype has."""
    n = rng.randint(-3, 3)
    return abs(n) if x.dtype.kind == "uint" else n


def real(x: Tensor) -> Tensor:
    """All but floats as float32."""
    return x if dtypes.is_float(x.dtype) else x.float()


def reshaped(x: Tensor, rng: random.Random) -> Tensor:
    """Other axes over the same elements."""
    if x.ndim > 1 and rng.random() < 0.5:
        return x.reshape(-1) if x.numel() else x
    n = next((n for n in (4, 3, 2) if x.ndim and x.shape[-1] and x.shape[-1] % n == 0), None)
    return x.reshape(*x.shape[:-1], n, x.shape[-1] // n) if n else x


def shrunk(x: Tensor, rng: random.Random) -> Tensor:
    """A part of the last axis, every element or every second one."""
    if not x.ndim or x.shape[-1] < 3:
        return x
    return x[..., rng.randint(0, 1) : x.shape[-1] - rng.randint(0, 1) : rng.choice((1, 1, 2))]


def padded(x: Tensor, rng: random.Random) -> Tensor:
    """Zeros around the last axis."""
    return x.pad((rng.randint(0, 3), rng.randint(0, 3))) if x.ndim else x


def permuted(x: Tensor, rng: random.Random) -> Tensor:
    """Axes in another order."""
    order = [*range(x.ndim)]
    rng.shuffle(order)
    return x.permute(*order) if x.ndim else x


def rolled(x: Tensor, rng: random.Random) -> Tensor:
    """Elements in another place of an axis."""
    axis = rng.randrange(max(x.ndim, 1))
    return x.roll(rng.randint(-2, 2), axis) if x.ndim and x.shape[axis] else x


def repeated(x: Tensor, rng: random.Random) -> Tensor:
    """Elements of the last axis several times."""
    small = x.ndim and x.numel() <= MOST
    return x.repeat_interleave(rng.randint(1, 3), -1) if small else x


BINARY: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda a, b: number(a) + number(b),
    lambda a, b: number(a) - number(b),
    lambda a, b: number(a) * number(b),
    lambda a, b: number(a).maximum(number(b)),
    lambda a, b: real(a) / (real(b).square() + 1),
    lambda a, b: (a < b).where(a, b),
    lambda a, b: (a == b).int(),
    lambda a, b: number(a) // (number(b).abs() + 1),
    lambda a, b: number(a) % (number(b).abs() + 1),
)
STEPS: tuple[Callable[[Tensor, random.Random], Tensor], ...] = (
    lambda x, rng: number(x) + near_zero(x, rng),
    lambda x, rng: -number(x),
    lambda x, rng: real(x).exp2() * 0.01,
    lambda x, rng: (real(x).abs() + 1).log(),
    lambda x, rng: (real(x).abs() + 0.5).sqrt(),
    lambda x, rng: real(x).sin(),
    lambda x, rng: real(x).sigmoid(),
    lambda x, rng: number(x).relu(),
    lambda x, rng: (number(x) > 0).where(x, 0),
    lambda x, rng: x.cast(dtypes.float32),
    lambda x, rng: x.flip(x.ndim - 1) if x.ndim else x,
    reshaped, shrunk, padded, permuted, rolled, repeated,
)  # fmt: skip


# Processors of each kind. Small caches, so that what is chosen beyond them is chosen for kernels of
# any size; and those of a processor of today.
SMALL, USUAL = (1 << 10, 64 << 10, 32 << 10), (32 << 10, 1 << 20, 32 << 20)
AVX512 = Target(
    "CPU", "llvm", arch="x86_64-any", vector_bits=512, vector_registers=32, masks=True,
    broadcasts=True, cache_bytes=USUAL, threads=8,
    native_ops=PLAIN_OPS | {"DOT", "LDEXP", "EXP2_32NDS"},
    dot_dtypes=frozenset({"int8", "bfloat16"}), features=frozenset({"vnni"}), fused=True,
)  # fmt: skip
AVX2 = replace(
    AVX512, vector_bits=256, vector_registers=16, masks=False, broadcasts=False,
    native_ops=PLAIN_OPS | {"DOT"},
    dot_dtypes=frozenset({"int8"}), features=frozenset(),
)  # fmt: skip
NEON = replace(
    AVX512,
    arch="arm64-any",
    vector_bits=128,
    masks=False,
    native_ops=PLAIN_OPS,
    dot_dtypes=frozenset(),
    features=frozenset(),
)
GROUPS = Target(
    "OPENCL", "opencl", arch="any", kind="gpu", vector_bits=128, vector_registers=16,
    has_local=True,
    has_barrier=True, max_group=256, local_bytes=32 << 10, index_bits=32,
    native_ops=PLAIN_OPS | {"EXP2", "LOG2", "SIN", "POW"},
)  # fmt: skip
TARGETS: dict[str, Target] = {
    "avx512": AVX512,
    "avx512, small caches, one thread": replace(AVX512, cache_bytes=SMALL, threads=1),
    "avx512 without VNNI": replace(AVX512, features=frozenset()),
    "avx512 that moves halves": replace(AVX512, move_bits=256, threads=3, cache_bytes=SMALL),
    "avx2": AVX2,
    "avx2 with VNNI": replace(AVX2, features=frozenset({"vnni"})),
    "avx2, small caches": replace(AVX2, cache_bytes=SMALL, threads=2),
    "avx2 in C": replace(AVX2, language="c", native_ops=PLAIN_OPS, dot_dtypes=frozenset()),
    "sse": replace(AVX2, vector_bits=128, threads=1, dot_dtypes=frozenset(), fused=False),
    "neon": NEON,
    "neon, small caches": replace(NEON, cache_bytes=SMALL, threads=3),
    "no SIMD": replace(NEON, vector_bits=0, vector_registers=0, broadcasts=False, threads=2),
    "work-groups": GROUPS,
    "work-groups without float64": replace(
        GROUPS, max_group=64, native_dtypes=GROUPS.native_dtypes - {"float64"}
    ),
    "CUDA, sm_80": cuda_target("sm_80"),
    "Metal": metal_target(),
    "WebGPU in a browser": web_target(),
}
