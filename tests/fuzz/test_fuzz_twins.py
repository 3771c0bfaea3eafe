"""Gradients of tensors that equal or show one another, realized on the way: against PyTorch.

A case has a few leaves, steps that often make an equal tensor once more, and between them tensors
that become memory, are read, or are let go. Each tensor that is left is asked for its gradient.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from tests.fuzz.budget import check_all, draws

torch = pytest.importorskip("torch", reason="PyTorch is the oracle")

pad = torch.nn.functional.pad
SIZES = (0, 1, 1, 2, 3, 4)
# A step as it is done to a tensor of either side.
Step = Callable[[Any], Any]


def both(ours: Step, theirs: Step | None = None) -> tuple[Step, Step]:
    """A step that both sides spell alike, or each in its own way."""
    return ours, ours if theirs is None else theirs


class Twins:
    """A program, and what its tensors are on both sides."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.text: list[str] = []
        self.pairs: dict[int, tuple[Tensor, Any]] = {}
        self.count = 0
        # Steps that were done, to be done once more.
        self.done: list[tuple[int, str, Step, Step]] = []
        shape = tuple([self.rng.choice(SIZES) for _ in range(self.rng.randrange(3))])
        for _ in range(self.rng.randrange(1, 4)):
            self.add_leaf(shape)
        for _ in range(self.rng.randrange(3, 16)):
            kind = self.rng.random()
            if kind < 0.3 and self.done:
                number, text, ours, theirs = self.rng.choice(self.done)
                if number in self.pairs:
                    self.step(number, text, ours, theirs)
            elif kind < 0.7:
                self.draw_step()
            elif kind < 0.9:
                self.draw_event()
            else:
                self.draw_pair()

    def add(self, ours: Tensor, theirs: Any, text: str) -> None:
        """Names a tensor; what a step gave back as it was is no other one."""
        if all(ours is not o for o, _ in self.pairs.values()):
            self.text.append(f"t{self.count} = {text}")
            self.pairs[self.count] = ours, theirs
            self.count += 1

    def add_leaf(self, shape: tuple[int, ...]) -> None:
        rng = self.rng
        kind = rng.choice(("data", "full", "arange", "lazy", "view"))
        count = int(np.prod(shape))
        if kind == "full":
            ours = Tensor.full(shape, 2.0)
        elif kind == "arange":
            ours = Tensor.arange(count).float().reshape(shape)
        elif kind == "lazy":
            ours = Tensor(np.full(shape, 1.0, np.float32)) * 1.5
        elif kind == "view":
            ours = Tensor(np.arange(2 * count, dtype=np.float32).reshape(2, *shape))[1]
        else:
            ours = Tensor(np.full(shape, 1.5, np.float32))
            if rng.random() < 0.5:
                ours.realize()
        theirs = torch.from_numpy(np.array((ours + 0).numpy())).requires_grad_()
        ours.requires_grad = True
        self.add(ours, theirs, f"{kind}{shape}")

    def step(self, number: int, text: str, ours: Step, theirs: Step) -> None:
        """Does a step to a tensor."""
        x, y = self.pairs[number]
        self.done.append((number, text, ours, theirs))
        self.add(ours(x), theirs(y), text.format(f"t{number}"))

    def draw_step(self) -> None:
        """One step on one tensor."""
        rng = self.rng
        number = rng.choice([*self.pairs])
        shape = self.pairs[number][0].shape
        flat = (int(np.prod(shape)),)
        steps: list[tuple[str, tuple[Step, Step]]] = [
            ("{} * 2", both(lambda x: x * 2)),
            ("{} + 0", both(lambda x: x + 0)),
            ("{}.exp()", both(lambda x: x.exp() * 0.01)),
            ("{}.reshape(flat)", both(lambda x: x.reshape(flat))),
            ("{}[None]", both(lambda x: x[None])),
            ("{}.contiguous()", both(lambda x: x.contiguous(), lambda y: y * 1)),
            ("{}.clone()", both(lambda x: x.clone())),
            ("{}.sum()", both(lambda x: x.sum())),
            ("{}.cast", both(lambda x: x.double().float())),
            ("{}.expand", both(lambda x: x.expand(2, *shape))),
            ("{}.detach()", both(lambda x: x.detach() * 1)),
            ("{}.detach().requires_grad_()", both(lambda x: x.detach().requires_grad_())),
        ]
        if shape:
            steps += [
                ("{}.flip(0)", both(lambda x: x.flip(0), lambda y: y.flip((0,)))),
                ("{}[0:1]", both(lambda x: x[0:1])),
                ("{}[1:]", both(lambda x: x[1:])),
                ("{}[::2]", both(lambda x: x[::2])),
                ("{}.sum(0)", both(lambda x: x.sum(0))),
                ("{}.transpose", both(lambda x: x.transpose(0, -1))),
                ("cat({} twice)", both(lambda x: x.cat(x), lambda y: torch.cat((y, y)))),
                ("pad({})", both(lambda x: x.pad((1, 0)), lambda y: pad(y, (1, 0)))),
            ]
        text, (ours, theirs) = rng.choice(steps)
        self.step(number, text, ours, theirs)

    def draw_pair(self) -> None:
        """A product of two tensors."""
        a, b = self.rng.choice([*self.pairs]), self.rng.choice([*self.pairs])
        (x, y), (v, w) = self.pairs[a], self.pairs[b]
        try:
            np.broadcast_shapes(x.shape, v.shape)
        except ValueError:
            return
        self.add(x * v, y * w, f"t{a} * t{b}")

    def draw_event(self) -> None:
        """What changes no value: memory for some tensors, a look at one, the end of one."""
        rng = self.rng
        number = rng.choice([*self.pairs])
        kind = rng.choice(("realize", "realize", "realize all", "read", "drop"))
        if kind == "realize":
            self.pairs[number][0].realize()
        elif kind == "realize all":
            some = [i for i in self.pairs if rng.random() < 0.6] or [number]
            first, *rest = [self.pairs[i][0] for i in some]
            first.realize(*rest)
            self.text.append(f"realize {some}")
            return
        elif kind == "read":
            self.pairs[number][0].numpy()
        elif len(self.pairs) > 2:
            del self.pairs[number]
        self.text.append(f"{kind} t{number}")

    def loss(self, chosen: list[int], side: int) -> Any:
        """A sum of these tensors, each with a weight of its own."""
        total: Any = None
        for i in chosen:
            part = self.pairs[i][side].sum() * float(i + 1)
            total = part if total is None else total + part
        return total


def check(seed: int) -> str | None:
    """What is wrong with the gradients of a program; None if nothing is."""
    p = Twins(seed)
    rng = p.rng
    parts = [i for i in p.pairs if rng.random() < 0.5] or [*p.pairs][-1:]
    theirs = p.loss(parts, 1)
    if not theirs.requires_grad:
        return None
    is_early = rng.random() < 0.4
    ours = p.loss(parts, 0) if is_early else None
    for _ in range(rng.randrange(4)):
        p.draw_event()
    if ours is None:
        parts = [i for i in parts if i in p.pairs]
        if not parts:
            return None
        ours, theirs = p.loss(parts, 0), p.loss(parts, 1)
        if not theirs.requires_grad:
            return None
    if rng.random() < 0.3:
        ours.realize()
        p.text.append("realize loss")
    asked = [i for i in p.pairs if p.pairs[i][1].requires_grad]
    if not asked:
        return None
    text = f"{'; '.join(p.text)}; loss of {parts}{' before' if is_early else ''}"
    wanted = torch.autograd.grad(
        theirs, [p.pairs[i][1] for i in asked], allow_unused=True, materialize_grads=True,
        retain_graph=True,
    )  # fmt: skip
    found = ours.gradient(*[p.pairs[i][0] for i in asked], materialize_grads=True)
    for i, g, w in zip(asked, found, wanted, strict=True):
        if wrong(g, w):
            return f"t{i} has {g.tolist()} for {w.tolist()} in {text}"
    leaves = [i for i in asked if p.pairs[i][1].is_leaf]
    if leaves and rng.random() < 0.5:
        theirs.backward()
        grads = [p.pairs[i][1].grad for i in leaves]
        if not any(g is not None and g.any() for g in grads):
            # What is a number, as x[0:0].sum() is, depends on nothing here.
            return None
        ours.backward()
        for i in leaves:
            o, t = p.pairs[i]
            if t.grad is None:
                t.grad = torch.zeros_like(t)
            got = Tensor.zeros(*o.shape) if o.grad is None else o.grad
            if wrong(got, t.grad):
                return f"t{i}.grad is {got.tolist()} for {t.grad.tolist()} in {text}"
    return None


def wrong(got: Tensor, wanted: Any) -> bool:
    """Whether a gradient is another one."""
    g, w = got.numpy(), wanted.numpy()
    return g.shape != w.shape or not np.allclose(g, w, rtol=1e-4, atol=1e-5)


def test_gradients_of_tensors_that_show_one_another(
    record_property: Callable[[str, str], None],
) -> None:
    check_all("gradients of twins and views", draws(40, 2000), check, record_property)
