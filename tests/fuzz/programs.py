"""Whole programs drawn from a seed: each step once on tensors and once with PyTorch in float64.

A value keeps what the oracle has for it, the same once more with every rounding on the way varied
at random, which shows how far rounding may carry, and whether it is exact (whole numbers and halves
that no sum of a program rounds). What jumps, as comparisons and sorts do, is drawn for exact values
alone. A step whose result is too large to tell rounding from error is left out, and so is one that
the oracle refuses.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from aster_ml import Tensor, dtypes

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle")

SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 64, 97, 128)
LONG = (1000, 1024, 4096, 20_011, 32_768, 70_000)
MOST, MOST_LARGE = 1 << 14, 1 << 21
# Values stay below these, so that what rounding does is small beside what a fault does.
GREATEST, GREATEST_NARROW = 1e5, 500.0
NARROW = frozenset({"float16", "bfloat16"})
# A result may differ by so many times what the varied roundings do.
SLACK = 24.0

Function = Callable[..., Any]


class Value(NamedTuple):
    """A tensor, and what the oracle knows of it. `varied` is None of ints and bools.

    `terms` is the most numbers that any step on the way may have added up.
    """

    tensor: Tensor
    want: torch.Tensor
    varied: torch.Tensor
    exact: bool
    eps: float
    terms: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """As the oracle has it."""
        return tuple(self.want.shape)

    @property
    def is_float(self) -> bool:
        """Whether it is of a float dtype."""
        return self.want.dtype is torch.float64

    def wrong(self, in_order: bool = False) -> str | None:
        """What is wrong with the tensor's values; None if nothing is.

        Numbers that are added up one after the other, `in_order`, are off by up to half an eps of
        the sum for each (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
        """
        have = self.tensor.cast(dtypes.float64) if self.is_float else self.tensor
        got = torch.from_numpy(np.array(have.numpy()))
        if tuple(got.shape) != self.shape:
            return f"has shape {tuple(got.shape)}, not {self.shape}"
        if not self.is_float:
            same = torch.equal(got.to(torch.int64), self.want.to(torch.int64))
            return None if same else f"differs: {got.flatten()[:5]} {self.want.flatten()[:5]}"
        if not got.numel():
            return None
        allowed = SLACK * ((self.want - self.varied).abs().max() + self.eps * self.want.abs())
        if in_order:
            allowed = allowed + self.terms * self.eps / 2 * self.want.abs()
        excess = (got - self.want).abs() - allowed - 1e-6
        if not bool((excess <= 0).all()):
            at = int(torch.where(excess.isnan(), math.inf, excess).argmax())
            return (
                f"is {got.flatten()[at]} for {self.want.flatten()[at]} at {at} of {self.shape}, "
                f"{float(allowed.flatten()[at]):.3g} allowed"
            )
        return None


class Program:
    """Draws steps; `values` are all that were made, `text` says how."""

    def __init__(self, seed: int, device: str | None = None, smooth: bool = False) -> None:
        self.random = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.noise = torch.Generator().manual_seed(seed)
        self.device = device
        # Of what has a gradient everywhere alone.
        self.smooth = smooth
        self.tracking = False
        self.large = device is None and self.random.random() < 0.12
        self.most = MOST_LARGE if self.large else MOST
        self.values: list[Value] = []
        self.inputs: list[Value] = []
        self.text: list[str] = []
        for _ in range(self.random.randint(1, 3)):
            self.add_input(self.draw_shape())

    # inputs

    def draw_size(self) -> int:
        """Any size; a long one at times."""
        if self.large and self.random.random() < 0.4:
            return self.random.choice(LONG)
        if not self.smooth and self.random.random() < 0.02:
            return 0
        return self.random.choice(SIZES)

    def draw_shape(self, least: int = 0) -> tuple[int, ...]:
        """Up to four axes."""
        shape: list[int] = []
        for _ in range(self.random.randint(max(least, 1), 4)):
            size = self.draw_size()
            shape.append(size if math.prod(shape) * size <= self.most else 1)
        return tuple(shape)

    def add_input(self, shape: tuple[int, ...], dtype: str | None = None) -> Value:
        """Memory with whole numbers, halves or normal numbers."""
        if dtype is None:
            others = () if self.smooth else ("float16", "bfloat16", "float64", "int32", "int8")
            dtype = self.random.choice(("float32",) * 6 + others)
        exact = "int" in dtype or (not self.smooth and self.random.random() < 0.6)
        if exact:
            numbers = self.rng.integers(-3, 4, shape) * (1.0 if "int" in dtype else 0.5)
        else:
            numbers = self.rng.standard_normal(shape)
        want = torch.from_numpy(np.asarray(numbers, dtype=np.float64))
        tensor = Tensor(numbers.astype(np.float32), device=self.device)
        tensor = tensor.cast(dtype).realize()
        if "int" in dtype:
            want = want.to(torch.int64)
        else:
            want = want.float().to(getattr(torch, dtype)).double()
        if self.tracking:
            want.requires_grad_()
            tensor.requires_grad_()
        value = Value(tensor, want, want.detach(), exact, eps_of(dtype))
        self.values.append(value)
        self.inputs.append(value)
        self.text.append(f"v{len(self.values) - 1} = {dtype}{list(shape)}")
        return value

    def track(self) -> None:
        """From now on both sides know what to differentiate by: the inputs."""
        self.tracking = True
        for v in self.inputs:
            v.want.requires_grad_()
            v.tensor.requires_grad_()

    # steps

    def pick(self, *, exact: bool = False, least: int = 0, floats: bool = False) -> int | None:
        """The number of a value, a late one rather than an early one."""
        fitting = [
            i
            for i, v in enumerate(self.values)
            if (v.exact or not exact)
            and len(v.shape) >= least
            and (v.is_float or not (floats or self.smooth))
        ]
        if not fitting:
            return None
        return self.random.choice((fitting[-1], *fitting[-3:], self.random.choice(fitting)))

    def step(
        self, text: str, args: list[int], ours: Function, theirs: Function, exact: bool = False
    ) -> bool:
        """Makes a value of others; whether it was made."""
        sources = [self.values[i] for i in args]
        exact = exact and all(v.exact for v in sources)
        try:
            # What the oracle warns of is no number, and so none that could be compared.
            with warnings.catch_warnings(action="error"):
                want = theirs(*[v.want for v in sources])
        except (RuntimeError, IndexError, ValueError, UserWarning):
            return False
        if want.numel() > self.most or not want.isfinite().all():
            return False
        if want.dtype.is_floating_point:
            want = want.double()
        tensor = ours(*[v.tensor for v in sources])
        # Each use of a value that rounds is another draw of what rounding did.
        varied = theirs(*[v.varied for v in sources])
        eps = max([eps_of(tensor.dtype.name), *[v.eps for v in sources]])
        if tensor.shape != tuple(want.shape):
            raise AssertionError(
                f"{text} has shape {tensor.shape}, not {tuple(want.shape)}, in\n  "
                + "\n  ".join([*self.text, f"{text} of {args}"])
            )
        greatest = GREATEST_NARROW if eps > 1e-4 else GREATEST
        if want.numel() and float(want.detach().double().abs().max()) > greatest:
            return False
        if want.dtype is torch.float64:
            varied = varied.double()
            sums = max([v.want.numel() for v in sources if v.is_float], default=1)
            most = float(want.detach().abs().max()) if want.numel() else 0.0
            exact = exact and most * (1 if "int" in text else sums) * eps < 0.25
            if not exact:
                noise = torch.rand(want.shape, generator=self.noise, dtype=torch.float64)
                varied = varied * (1 + eps * (2 * noise - 1))
            gap = float((varied - want).detach().abs().max()) if want.numel() else 0.0
            if not gap * SLACK <= 0.02 * most + 1e-9 and want.numel():
                return False
        elif want.dtype is not torch.bool:
            want = varied = want.to(torch.int64)
            if want.numel() and int(want.abs().max()) > 100:
                return False
        else:
            varied = want
        terms = max(
            [v.terms for v in sources] + [v.want.numel() for v in sources if v.is_float] + [1]
        )
        self.values.append(
            Value(tensor, want, varied, exact or not want.dtype.is_floating_point, eps, terms)
        )
        names = ", ".join([f"v{i}" for i in args])
        self.text.append(f"v{len(self.values) - 1} = {text}({names}) {list(want.shape)}")
        return True

    def grow(self, steps: int) -> None:
        """So many steps, fewer where some cannot be made."""
        kinds = [*SMOOTH_STEPS, *([] if self.smooth else OTHER_STEPS)]
        for _ in range(steps):
            self.random.choice(kinds)(self)

    def results(self) -> list[int]:
        """Which values are asked for: the last, and some others."""
        made = range(len(self.inputs), len(self.values))
        if not made:
            return []
        others = self.random.sample(made, min(len(made), self.random.randint(0, 3)))
        return sorted({*others, made[-1]})


def eps_of(dtype: str) -> float:
    """How much one rounding changes, and what functions of float32 may be off by."""
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, 2.0**-21)


# elementwise


def unary(p: Program) -> None:
    """What gives exact values of exact ones."""
    i = p.pick(floats=True)
    if i is not None:
        k = p.random.choice((-2.0, -1.0, 0.5, 1.0, 2.0, 3.0))
        name, ours, theirs = p.random.choice(
            [
                ("neg", lambda t: -t, lambda t: -t),
                ("abs", lambda t: t.abs(), torch.abs),
                ("relu", lambda t: t.relu(), torch.relu),
                ("square", lambda t: t.square(), torch.square),
                (f"times {k}", lambda t: t * k, lambda t: t * k),
                (f"plus {k}", lambda t: t + k, lambda t: t + k),
                (f"from {k}", lambda t: k - t, lambda t: k - t),
                ("clamp", lambda t: t.clamp(-1, 2), lambda t: t.clamp(-1, 2)),
                (
                    "leaky",
                    lambda t: t.leaky_relu(0.5),
                    lambda t: torch.nn.functional.leaky_relu(t, 0.5),
                ),
            ]
        )
        p.step(name, [i], ours, theirs, exact=True)


def function(p: Program) -> None:
    """Functions that round."""
    i = p.pick(floats=True)
    if i is None:
        return
    f = torch.nn.functional
    name, ours, theirs = p.random.choice(
        [
            ("exp", lambda t: (t * 0.25).exp(), lambda t: (t * 0.25).exp()),
            ("log", lambda t: (t.abs() + 1).log(), lambda t: (t.abs() + 1).log()),
            ("sqrt", lambda t: (t.abs() + 1).sqrt(), lambda t: (t.abs() + 1).sqrt()),
            ("rsqrt", lambda t: (t.square() + 1).rsqrt(), lambda t: (t.square() + 1).rsqrt()),
            ("tanh", lambda t: t.tanh(), torch.tanh),
            ("sigmoid", lambda t: t.sigmoid(), torch.sigmoid),
            ("sin", lambda t: t.sin(), torch.sin),
            ("erf", lambda t: t.erf(), torch.erf),
            ("gelu", lambda t: t.gelu(), lambda t: f.gelu(t, approximate="tanh")),
            ("silu", lambda t: t.silu(), f.silu),
            ("elu", lambda t: t.elu(), f.elu),
            ("softplus", lambda t: t.softplus(), f.softplus),
            ("inverse", lambda t: 1 / (t.abs() + 1), lambda t: 1 / (t.abs() + 1)),
            ("mish", lambda t: t.mish(), f.mish),
            ("logsigmoid", lambda t: t.logsigmoid(), f.logsigmoid),
            ("third power", lambda t: t**3, lambda t: t**3),
            ("atan", lambda t: t.atan(), torch.atan),
        ]
    )
    p.step(name, [i], ours, theirs)


def binary(p: Program) -> None:
    """Two values whose shapes broadcast."""
    i = p.pick(floats=p.smooth)
    if i is None:
        return
    shape = p.values[i].shape
    fitting = [
        j for j, v in enumerate(p.values) if (v.is_float or not p.smooth) and fits(v.shape, shape)
    ]
    j = p.random.choice(fitting)
    name, ours, theirs = p.random.choice(
        [
            ("add", lambda t, u: t + u, torch.add),
            (
                "sub",
                lambda t, u: t - u,
                lambda t, u: (
                    torch.sub(t.double(), u.double()) if bool in (kind(t), kind(u)) else t - u
                ),
            ),
            ("mul", lambda t, u: t * u, torch.mul),
            ("maximum", lambda t, u: t.maximum(u), torch.maximum),
            ("minimum", lambda t, u: t.minimum(u), torch.minimum),
        ]
    )
    if name != "mul" and "bool" in (p.values[i].tensor.dtype.name, p.values[j].tensor.dtype.name):
        return
    p.step(name, [i, j], ours, theirs, exact=True)


def kind(t: torch.Tensor) -> type | None:
    """bool of bools."""
    return bool if t.dtype is torch.bool else None


def fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes broadcast."""
    return all(x == y or x == 1 or y == 1 for x, y in zip(a[::-1], b[::-1]))


def divide(p: Program) -> None:
    """By what is at least 1."""
    i, j = p.pick(floats=True), p.pick(floats=True)
    if i is not None and j is not None and fits(p.values[i].shape, p.values[j].shape):
        p.step("div", [i, j], lambda t, u: t / (u.abs() + 1), lambda t, u: t / (u.abs() + 1))


def compare(p: Program) -> None:
    """A choice by a comparison of exact values."""
    i = p.pick(exact=True)
    if i is None:
        return
    fitting = [j for j, v in enumerate(p.values) if v.shape == p.values[i].shape and v.exact]
    j, k = p.random.choice(fitting), p.random.choice(fitting)
    name, ours, theirs = p.random.choice(
        [
            ("less", lambda t, u, v: t < u, lambda t, u, v: t < u),
            ("equal", lambda t, u, v: t == u, lambda t, u, v: t == u),
            (
                "where",
                lambda t, u, v: (t >= u).where(t, v),
                lambda t, u, v: torch.where(t >= u, t, v),
            ),
            (
                "masked",
                lambda t, u, v: t.masked_fill(u != v, 2),
                lambda t, u, v: t.masked_fill(u != v, 2),
            ),
        ]
    )
    if name in ("where", "masked") and "bool" in [p.values[x].tensor.dtype.name for x in (i, j, k)]:
        return
    p.step(name, [i, j, k], ours, theirs, exact=True)


def convert(p: Program) -> None:
    """Another dtype that holds the values."""
    i = p.pick(exact=True)
    if i is None:
        return
    to = p.random.choice(
        ("float16", "bfloat16", "float32", "float64", "int32", "int64", "int8", "bool")
    )
    source = p.values[i]
    if to == "int8" and source.want.numel() and float(source.want.double().abs().max()) > 100:
        return
    if to.startswith("float") or to == "bfloat16":
        theirs: Function = lambda t: t.double()  # noqa: E731
    else:
        theirs = lambda t: t.to(getattr(torch, to))  # noqa: E731
    p.step(f"to {to}", [i], lambda t: t.cast(to), theirs, exact=True)


# reductions


def reduce(p: Program) -> None:
    """Over some axes."""
    i = p.pick(floats=True, least=1)
    if i is None:
        return
    rank = len(p.values[i].shape)
    axes = tuple(sorted(p.random.sample(range(rank), p.random.randint(1, rank))))
    keep = p.random.random() < 0.6
    name, ours, theirs, exact = p.random.choice(
        [
            ("sum", lambda t: t.sum(axes, keepdim=keep), lambda t: t.sum(axes, keepdim=keep), True),
            (
                "max",
                lambda t: t.max(axes, keepdim=keep),
                lambda t: t.amax(axes, keepdim=keep),
                True,
            ),
            (
                "min",
                lambda t: t.min(axes, keepdim=keep),
                lambda t: t.amin(axes, keepdim=keep),
                True,
            ),
            (
                "mean",
                lambda t: t.mean(axes, keepdim=keep),
                lambda t: t.mean(axes, keepdim=keep),
                False,
            ),
            (
                "logsumexp",
                lambda t: t.logsumexp(axes, keepdim=keep),
                lambda t: t.logsumexp(axes, keepdim=keep),
                False,
            ),
            (
                "var",
                lambda t: t.var(axes, keepdim=keep, correction=0),
                lambda t: t.var(axes, keepdim=keep, correction=0),
                False,
            ),
        ]
    )
    if p.smooth and name in ("max", "min"):
        return
    p.step(f"{name} {axes} {keep}", [i], ours, theirs, exact)


def normal(p: Program) -> None:
    """A value beside its own reductions."""
    i = p.pick(floats=True, least=1)
    if i is None:
        return
    axis = p.random.randrange(len(p.values[i].shape))
    size = p.values[i].shape[axis:]
    f = torch.nn.functional
    name, ours, theirs = p.random.choice(
        [
            ("softmax", lambda t: t.softmax(axis), lambda t: t.softmax(axis)),
            ("log_softmax", lambda t: t.log_softmax(axis), lambda t: t.log_softmax(axis)),
            (
                "centred",
                lambda t: t - t.mean(axis, keepdim=True),
                lambda t: t - t.mean(axis, keepdim=True),
            ),
            (
                "scaled",
                lambda t: t / (t.square().sum(axis, keepdim=True) + 1).sqrt(),
                lambda t: t / (t.square().sum(axis, keepdim=True) + 1).sqrt(),
            ),
            (
                "layernorm",
                lambda t: t.layernorm(axis=tuple(range(axis, t.ndim)), eps=0.5),
                lambda t: f.layer_norm(t, size, eps=0.5),
            ),
        ]
    )
    p.step(f"{name} {axis}", [i], ours, theirs)


def scan(p: Program) -> None:
    """Along an axis."""
    i = p.pick(floats=True, least=1)
    if i is None:
        return
    axis = p.random.randrange(len(p.values[i].shape))
    name, ours, theirs, exact = p.random.choice(
        [
            ("cumsum", lambda t: t.cumsum(axis), lambda t: t.cumsum(axis), True),
            ("cumsum", lambda t: t.cumsum(axis), lambda t: t.cumsum(axis), True),
            ("logcumsumexp", lambda t: t.logcumsumexp(axis), lambda t: t.logcumsumexp(axis), False),
            (
                "cumprod",
                lambda t: (t.tanh() * 1.25).cumprod(axis),
                lambda t: (t.tanh() * 1.25).cumprod(axis),
                False,
            ),
        ]
    )
    p.step(f"{name} {axis}", [i], ours, theirs, exact)


def values_of(found: Any) -> Any:
    """The values of what may be values and places."""
    return found[0] if isinstance(found, tuple) else found


def order(p: Program) -> None:
    """Sorts and places, of exact values."""
    i = p.pick(exact=True, least=1, floats=True)
    if i is None or p.values[i].want.numel() > 5000:
        return
    axis = p.random.randrange(len(p.values[i].shape))
    n = p.values[i].shape[axis]
    k, down = p.random.randint(1, max(n, 1)), p.random.random() < 0.5
    name, ours, theirs = p.random.choice(
        [
            (
                "sort",
                lambda t: t.sort(axis, descending=down)[0],
                lambda t: t.sort(axis, descending=down)[0],
            ),
            ("topk", lambda t: t.topk(k, axis)[0], lambda t: t.topk(k, axis)[0]),
            ("cummax", lambda t: values_of(t.cummax(axis)), lambda t: t.cummax(axis)[0]),
            (
                "argmax",
                lambda t: (t == t.max(axis, keepdim=True)).sum(axis),
                lambda t: (t == t.amax(axis, keepdim=True)).sum(axis),
            ),
            ("argsort", lambda t: t.gather(axis, t.argsort(axis)), lambda t: t.sort(axis)[0]),
        ]
    )
    p.step(f"{name} {axis} {k} {down}", [i], ours, theirs, exact=True)


# movement


def move(p: Program) -> None:
    """The same elements elsewhere."""
    i = p.pick(least=1)
    if i is None:
        return
    shape = p.values[i].shape
    rank = len(shape)
    axis = p.random.randrange(rank)
    order_ = p.random.sample(range(rank), rank)
    axes = tuple(p.random.sample(range(rank), p.random.randint(1, rank)))
    pads = tuple((p.random.randint(0, 3), p.random.randint(0, 3)) for _ in shape)
    flat = [n for pair in reversed(pads) for n in pair]
    times = tuple(p.random.choice((1, 1, 2, 3)) for _ in shape)
    wide = tuple(p.random.choice((2, 3, 33)) if s == 1 else s for s in shape)
    shift = p.random.randint(-5, 5)
    new = split_shape(p, math.prod(shape))
    window = []
    for s in shape:
        a, b = sorted((p.random.randint(0, s), p.random.randint(0, s)))
        step = p.random.choice((1, 1, 1, 2, 3))
        window.append(slice(a, max(b, min(a + 1, s)), step))
    at = tuple(window)
    name, ours, theirs = p.random.choice(
        [
            (f"reshape {new}", lambda t: t.reshape(new), lambda t: t.reshape(new)),
            (f"permute {order_}", lambda t: t.permute(order_), lambda t: t.permute(order_)),
            (f"flip {axes}", lambda t: t.flip(axes), lambda t: t.flip(axes)),
            (f"pad {pads}", lambda t: t.pad(pads), lambda t: torch.nn.functional.pad(t, flat)),
            (f"slice {window}", lambda t: t[at], lambda t: t[at]),
            (f"repeat {times}", lambda t: t.repeat(times), lambda t: t.repeat(times)),
            (f"expand {wide}", lambda t: t.expand(wide), lambda t: t.expand(wide)),
            (f"expand {wide}", lambda t: t.expand(wide), lambda t: t.expand(wide)),
            (f"roll {shift} {axis}", lambda t: t.roll(shift, axis), lambda t: t.roll(shift, axis)),
            ("unsqueeze", lambda t: t.unsqueeze(axis), lambda t: t.unsqueeze(axis)),
            ("transpose", lambda t: t.transpose(0, -1), lambda t: t.transpose(0, -1)),
            ("triu", lambda t: t.triu(shift), lambda t: t.triu(shift)),
            (
                f"interleave {axis}",
                lambda t: t.repeat_interleave(2, axis),
                lambda t: t.repeat_interleave(2, axis),
            ),
            (
                f"unfold {axis}",
                lambda t: t.unfold(axis, min(2, shape[axis]), 2),
                lambda t: t.unfold(axis, min(2, shape[axis]), 2),
            ),
            ("diagonal", lambda t: t.diagonal(), lambda t: t.diagonal()),
        ]
    )
    if any(s.step != 1 for s in window) and name.startswith("slice") and 0 in shape:
        return
    p.step(f"{name} int", [i], ours, theirs, exact=True)


def split_shape(p: Program, left: int) -> tuple[int, ...]:
    """A shape with so many elements."""
    shape: list[int] = []
    while left > 1 and len(shape) < 4:
        divisors = [d for d in (1, 2, 3, 4, 5, 7, 8, 16, 32, left) if left % d == 0]
        size = p.random.choice(divisors)
        shape.append(size)
        left //= size
    shape.append(left)
    p.random.shuffle(shape)
    return tuple(shape)


def join(p: Program) -> None:
    """Values beside each other."""
    i = p.pick(least=1)
    if i is None:
        return
    v = p.values[i]
    same = [
        j for j, u in enumerate(p.values) if u.shape == v.shape and u.tensor.dtype is v.tensor.dtype
    ]
    chosen = [i, *p.random.choices(same, k=p.random.randint(1, 3))]
    axis = p.random.randrange(len(v.shape))
    if p.random.random() < 0.5:
        p.step(
            f"cat {axis} int",
            chosen,
            lambda *t: t[0].cat(*t[1:], dim=axis),
            lambda *t: torch.cat(t, axis),
            exact=True,
        )
    else:
        p.step(
            f"stack {axis} int",
            chosen,
            lambda *t: Tensor.stack(*t, dim=axis),
            lambda *t: torch.stack(t, axis),
            exact=True,
        )


def index(p: Program) -> None:
    """By lists of numbers, and written by them."""
    i = p.pick(least=1)
    if i is None or 0 in p.values[i].shape:
        return
    shape = p.values[i].shape
    axis = p.random.randrange(len(shape))
    count = p.random.choice((1, 2, 5, 17))
    rows = p.rng.integers(-shape[axis], shape[axis], count)
    rows_t = torch.from_numpy(rows)
    at = (slice(None),) * axis
    drawn = p.rng.integers(0, shape[axis], shape)
    places = torch.from_numpy(drawn)
    device = p.device

    def ours_rows(t: Tensor) -> Tensor:
        return t[(*at, Tensor(rows.astype(np.int32), device=device))]

    def ours_gather(t: Tensor) -> Tensor:
        return t.gather(axis, Tensor(drawn.astype(np.int32), device=device))

    def ours_add(t: Tensor) -> Tensor:
        return t.zeros_like().scatter_reduce(
            axis, Tensor(drawn.astype(np.int32), device=device), t, "sum"
        )

    name, ours, theirs = p.random.choice(
        [
            (f"rows {axis} int", ours_rows, lambda t: t[(*at, rows_t)]),
            (f"gather {axis} int", ours_gather, lambda t: t.gather(axis, places)),
            (
                f"scatter {axis}",
                ours_add,
                lambda t: torch.zeros_like(t).scatter_add(axis, places, t),
            ),
        ]
    )
    if p.values[i].tensor.dtype.name == "bool":
        return
    p.step(name, [i], ours, theirs, exact=True)


def mark(p: Program) -> None:
    """The same value, stored or realized."""
    i = p.pick()
    if i is None or p.smooth:
        return
    name, ours = p.random.choice(
        [
            ("contiguous", lambda t: t.contiguous()),
            ("realize", lambda t: t.contiguous().realize()),
            ("detach", lambda t: t.detach()),
        ]
    )
    p.step(f"{name} int", [i], ours, lambda t: t, exact=True)


# products


def product(p: Program) -> None:
    """Of matrices: with a new one, with itself, of batches."""
    i = p.pick(floats=True, least=1)
    if i is None or 0 in p.values[i].shape:
        return
    v = p.values[i]
    k = v.shape[-1]
    if p.random.random() < 0.3 and len(v.shape) > 1:
        p.step(
            "gram",
            [i],
            lambda t: t @ t.transpose(-1, -2),
            lambda t: t @ t.transpose(-1, -2),
            exact=True,
        )
        return
    n = p.draw_size()
    if math.prod(v.shape) * n > 2_000_000 * (10 if p.large else 1) or k * n > p.most:
        return
    p.add_input((k, n), v.tensor.dtype.name)
    p.step("matmul", [i, len(p.values) - 1], lambda t, w: t @ w, lambda t, w: t @ w, exact=True)


def convolution(p: Program) -> None:
    """Of one or two axes, plain or transposed, with any stride, padding, dilation and groups."""
    i = p.pick(floats=True, least=2)
    if i is None or 0 in p.values[i].shape:
        return
    v = p.values[i]
    axes = p.random.randint(1, 2)
    shape = (
        v.shape[-(axes + 2) :]
        if len(v.shape) >= axes + 2
        else (1,) * (axes + 2 - len(v.shape)) + v.shape
    )
    shape = (math.prod(v.shape) // math.prod(shape[1:]), *shape[1:])
    groups = p.random.choice([d for d in (1, 1, 2, 3, shape[1]) if shape[1] % d == 0])
    outputs = groups * p.random.choice((1, 2, 5, 8))
    kernel = tuple(p.random.randint(1, 4) for _ in range(axes))
    stride = tuple(p.random.randint(1, 3) for _ in range(axes))
    dilation = tuple(p.random.randint(1, 2) for _ in range(axes))
    transposed = p.random.random() < 0.4
    padding = tuple(p.random.randint(0, 2) for _ in range(axes))
    extra = tuple(p.random.randint(0, min(s, 2) - 1) if min(s, 2) > 1 else 0 for s in stride)
    work = math.prod(shape) * outputs * math.prod(kernel)
    if work > 3_000_000 * (10 if p.large else 1):
        return
    if transposed:
        weight = (shape[1], outputs // groups, *kernel)
        config: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "output_padding": extra,
        }
        theirs_of = (
            torch.nn.functional.conv_transpose1d
            if axes == 1
            else torch.nn.functional.conv_transpose2d
        )
        sizes = [
            (s - 1) * st - 2 * pd + d * (kk - 1) + e + 1
            for s, st, pd, d, kk, e in zip(shape[2:], stride, padding, dilation, kernel, extra)
        ]
    else:
        weight = (outputs, shape[1] // groups, *kernel)
        config = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        theirs_of = torch.nn.functional.conv1d if axes == 1 else torch.nn.functional.conv2d
        sizes = [
            s + 2 * pd - d * (kk - 1) for s, pd, d, kk in zip(shape[2:], padding, dilation, kernel)
        ]
    if min(sizes) < 1:
        return
    p.add_input(weight, v.tensor.dtype.name)

    def ours(t: Tensor, w: Tensor) -> Tensor:
        x = t.reshape(shape)
        return x.conv_transpose2d(w, **config) if transposed else x.conv2d(w, **config)

    text = f"{'transposed ' * transposed}conv {shape} {weight} {config}"
    p.step(
        text,
        [i, len(p.values) - 1],
        ours,
        lambda t, w: theirs_of(t.reshape(shape), w, **config),
        exact=True,
    )


def pool(p: Program) -> None:
    """Windows of two axes."""
    i = p.pick(floats=True, least=2)
    if i is None or 0 in p.values[i].shape:
        return
    kernel = (p.random.randint(1, 3), p.random.randint(1, 3))
    stride = (p.random.randint(1, 3), p.random.randint(1, 3))
    padding = p.random.randint(0, min(kernel) // 2)
    v = p.values[i]
    shape = (math.prod(v.shape[:-2]), 1, *v.shape[-2:])
    if any(s + 2 * padding < k for s, k in zip(shape[2:], kernel)):
        return
    f = torch.nn.functional
    if p.random.random() < 0.5 and not p.smooth:
        p.step(
            f"max_pool {kernel} {stride} {padding}",
            [i],
            lambda t: t.reshape(shape).max_pool2d(kernel, stride=stride, padding=padding),
            lambda t: f.max_pool2d(t.reshape(shape), kernel, stride, padding),
            exact=True,
        )
    else:
        p.step(
            f"avg_pool {kernel} {stride} {padding}",
            [i],
            lambda t: t.reshape(shape).avg_pool2d(kernel, stride=stride, padding=padding),
            lambda t: f.avg_pool2d(t.reshape(shape), kernel, stride, padding),
        )


def chain(p: Program) -> None:
    """Many elementwise steps in a row."""
    i = p.pick(floats=True)
    if i is None:
        return
    n = p.random.choice((5, 20, 60))

    def run(t: Any) -> Any:
        for k in range(n):
            t = t * 0.875 if k % 3 == 0 else (t + 0.25 if k % 3 == 1 else t - t * 0.125)
        return t

    p.step(f"chain {n}", [i], run, run)


SMOOTH_STEPS: list[Callable[[Program], None]] = [
    unary,
    unary,
    function,
    function,
    binary,
    binary,
    binary,
    divide,
    reduce,
    reduce,
    normal,
    scan,
    move,
    move,
    move,
    join,
    index,
    product,
    convolution,
    pool,
    chain,
]
OTHER_STEPS: list[Callable[[Program], None]] = [
    compare,
    compare,
    convert,
    convert,
    order,
    mark,
    mark,
]


def draw_program(seed: int, device: str | None = None) -> tuple[Program, list[int]]:
    """The program of a seed, and which of its values are wanted."""
    p = Program(seed, device)
    p.grow(p.random.choice((3, 6, 12, 25)))
    return p, p.results()
