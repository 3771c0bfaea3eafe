"""Gradients are those of the tensors that were asked for, whatever equals them: against PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit
from tests.fuzz.budget import check_all, draws

torch = pytest.importorskip("torch", reason="PyTorch is the oracle")

SIZES = (0, 1, 2, 3, 4)


class Pair:
    """A tensor of ours and the same of PyTorch."""

    def __init__(self, ours: Tensor, theirs: Any, is_leaf: bool) -> None:
        self.ours, self.theirs, self.is_leaf = ours, theirs, is_leaf


class Drawn:
    """A program over tensors that often are equal, and often show one another."""

    def __init__(self, seed: int, keeps: bool) -> None:
        # What was asked to require a gradient keeps its way to it when values become memory.
        self.keeps = keeps
        self.random = random.Random(seed)
        self.text: list[str] = []
        self.pairs: list[Pair] = []
        self.n, self.m = self.random.choice(SIZES), self.random.choice(SIZES)
        for _ in range(self.random.randrange(2, 6)):
            self.add_leaf()
        for _ in range(self.random.randrange(2, 12)):
            self.add_value()

    def add(self, ours: Tensor, theirs: Any, text: str, is_leaf: bool = False) -> None:
        """Names a value; what an operation gave back as it was is no other tensor."""
        if any(p.ours is ours for p in self.pairs):
            return
        self.text.append(f"t{len(self.pairs)} = {text}")
        self.pairs.append(Pair(ours, theirs, is_leaf))

    def add_leaf(self) -> None:
        """A tensor of data or of numbers alone."""
        shape = self.random.choice([(self.n, self.m), (self.n, self.m), (self.m,), ()])
        count = int(np.prod(shape))
        kinds: list[tuple[str, Callable[[], Tensor]]] = [
            ("zeros", lambda: Tensor.zeros(*shape)),
            ("ones", lambda: Tensor.ones(*shape)),
            ("full", lambda: Tensor.full(shape, 3.0)),
            ("arange", lambda: Tensor.arange(count).float().reshape(shape)),
            ("linspace", lambda: Tensor.linspace(0, 1, count).reshape(shape)),
            ("eye", lambda: Tensor.eye(self.n, self.m) if len(shape) == 2 else Tensor(2.0)),
            ("rand", lambda: seeded(shape)),
            ("scalar", lambda: Tensor(3.0)),
            ("data", lambda: Tensor(np.full(shape, 1.5, np.float32)).realize()),
        ]
        name, make = self.random.choice(kinds)
        ours = make()
        theirs = torch.from_numpy(np.array(ours.numpy())).requires_grad_()
        # Reading a value is one way to change what a tensor is; another tensor is read instead.
        if self.random.random() < 0.8:
            ours = make()
        if self.keeps:
            ours.requires_grad = True
        self.add(ours, theirs, f"{name}{ours.shape}", is_leaf=True)

    def add_value(self) -> None:
        """A value made of one or two others."""
        number = self.random.randrange(len(self.pairs))
        a = self.pairs[number]
        kind = self.random.choice(
            ["again", "mul", "add", "pair", "pair", "view", "view", "reduce", "cut", "crop", "show"]
        )
        x, y, name = a.ours, a.theirs, f"t{number}"
        if kind in ("again", "mul"):
            self.add(x * 2.0, y * 2.0, f"{name} * 2")
            if kind == "again":
                self.add(x * 2.0, y * 2.0, f"{name} * 2")
        elif kind == "add":
            self.add(x + 1.0, y + 1.0, f"{name} + 1")
        elif kind == "pair":
            other = self.random.randrange(len(self.pairs))
            b = self.pairs[other]
            try:
                np.broadcast_shapes(x.shape, b.ours.shape)
            except ValueError:
                return
            self.add(x * b.ours, y * b.theirs, f"{name} * t{other}")
        elif kind == "view":
            self.add(x.reshape(-1) if x.numel() else x + 0, y.reshape(-1) if y.numel() else y + 0,
                     f"{name}.reshape(-1)")  # fmt: skip
        elif kind == "reduce":
            self.add(x.sum(), y.sum(), f"{name}.sum()")
        elif kind == "cut" and x.ndim:
            self.add(x[0:1], y[0:1], f"{name}[0:1]")
            self.add(x[0:1], y[0:1], f"{name}[0:1]")
            self.add(x[0:0], y[0:0], f"{name}[0:0]")
        elif kind == "crop" and x.ndim == 1:
            self.add(x.pad(((-x.shape[0], 0),)), y[y.shape[0] :], f"{name}.pad(all away)")
        elif kind == "show":
            self.add(x.contiguous(), y * 1.0, f"{name}.contiguous()")
            if self.keeps and self.random.random() < 0.5:
                self.pairs[-1].ours.realize()
                self.text.append("realized")

    def loss(self, ours: bool) -> Any:
        """A sum over a part of the values, each with a weight of its own."""
        total: Any = None
        for i, p in enumerate(self.pairs):
            if (i * 7 + 3) % 4:
                part = (p.ours if ours else p.theirs).sum() * float(i + 1)
                total = part if total is None else total + part
        return total


def seeded(shape: tuple[int, ...]) -> Tensor:
    """The same random numbers each time."""
    Tensor.manual_seed(5)
    return Tensor.rand(*shape)


def differs(got: Any, want: Any) -> bool:
    """Whether a gradient is another one."""
    return got.shape != want.shape or not np.allclose(got, want, rtol=1e-4, atol=1e-5)


def check(seed: int) -> str | None:
    """What is wrong with the gradients of a program; None if nothing is."""
    way = ("gradient", "backward", "late", "realized")[seed % 4]
    p = Drawn(seed, way == "realized")
    text = "; ".join(p.text)
    theirs = p.loss(ours=False)
    chosen = [q for q in p.pairs if p.random.random() < 0.6] or p.pairs[:1]
    if way in ("gradient", "realized"):
        if way == "realized":
            for q in p.pairs:
                if p.random.random() < 0.4:
                    q.ours.realize()
        want = torch.autograd.grad(
            theirs, [q.theirs for q in chosen], allow_unused=True, materialize_grads=True
        )
        found = p.loss(ours=True).gradient(*[q.ours for q in chosen], materialize_grads=True)
        for q, g, w in zip(chosen, found, want, strict=True):
            if differs(g.numpy(), w.numpy()):
                number = p.pairs.index(q)
                return f"{way}: t{number} has {g.tolist()} for {w.tolist()} in {text}"
        return None
    leaves = [q for q in chosen if q.is_leaf]
    if not leaves:
        return None
    theirs.backward()
    loss = p.loss(ours=True) if way == "late" else None
    for q in leaves:
        q.ours.requires_grad = True
    if loss is None:
        # What was made before shows the leaves as well.
        loss = p.loss(ours=True)
    if all(q.theirs.grad is None for q in leaves):
        return None
    loss.backward()
    for q in leaves:
        want = q.theirs.grad
        got = q.ours.grad
        if want is None or got is None:
            if not (want is None or not want.any()) or (got is not None and got.numpy().any()):
                return f"{way}: t{p.pairs.index(q)} has {got} for {want} in {text}"
        elif differs(got.numpy(), want.numpy()):
            return f"{way}: t{p.pairs.index(q)} has {got.tolist()} for {want.tolist()} in {text}"
    return None


def test_gradients_of_equal_tensors(record_property: Callable[[str, str], None]) -> None:
    check_all("gradients of equal tensors", draws(40, 2000), check, record_property)


def test_a_jitted_function_tells_equal_tensors_apart() -> None:
    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, ...]:
        b, c = Tensor.zeros(3), Tensor.zeros(3)
        return tuple(g.realize() for g in (x * (b * 2 + c * 3)).sum().gradient(b, c))

    for i in range(4):
        g, h = step(Tensor([1.0, 2.0, float(i)]).realize())
        assert g.tolist() == [2, 4, 2 * i]
        assert h.tolist() == [3, 6, 3 * i]
