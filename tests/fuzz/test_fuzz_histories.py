"""Programs that build, read, write and differentiate in any order have the gradients of PyTorch.

The oracle never overwrites: each memory has a version for each write to it, a value is a function
of versions, and the gradient of a parameter is the sum of those of its versions. So it has the
gradient of what was computed, whatever has been written since. Aster gives the same, or says that
what the gradient reads is gone; that only where a version below is outdated.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor, nn
from aster_ml.errors import GradientError
from tests.fuzz.budget import check_all, draws

torch = pytest.importorskip("torch", reason="PyTorch is the oracle")

CONFIGS: list[dict[str, int | str]] = [{}, {"THREADS": 1}, {"NOOPT": 1}, {"ISA": "avx2"}]
SHAPE = (2, 3)
RTOL = 2e-3
LEARNING_RATE = 0.125

UNARY: dict[str, Callable[[Any], Any]] = {
    "square": lambda x: x * x,
    "sin": lambda x: x.sin(),
    "tanh": lambda x: x.tanh(),
    "scale": lambda x: x * 0.5,
    "shift": lambda x: x + 1,
    "spread": lambda x: x.sum(0, keepdim=True) * 0.25 + x,
    "quotient": lambda x: 1 / (x * x + 1),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: (x * y).sin(),
    "div": lambda x, y: x / (y * y + 1),
    "product": lambda x, y: (x @ y.T @ x).tanh(),
}


class Memory:
    """Some memory of the oracle as it is now, and what it was."""

    def __init__(self, content: Any, is_leaf: bool) -> None:
        self.is_leaf = is_leaf
        self.version = 0
        self.leaves: list[Any] = []
        # Whether something may have been computed from it.
        self.was_read = False
        self.deps: set[tuple[Memory, int]] = set()
        self.content = self.leaf_of(content) if is_leaf else content

    def leaf_of(self, content: Any) -> Any:
        """A version of a parameter, whose gradient is that of all of them together."""
        leaf = content.detach().clone().requires_grad_(True)
        self.leaves.append(leaf)
        return leaf

    def write(self, places: Any, value: Any, deps: set[tuple[Memory, int]]) -> None:
        """Writes to some places of it."""
        content = self.content.index_put((places.reshape(-1),), value.reshape(-1))
        self.deps = self.deps | deps | {(self, self.version)}
        self.version += 1
        self.content = self.leaf_of(content) if self.is_leaf else content


class Value:
    """A tensor, and the places that it shows of a memory of the oracle."""

    def __init__(self, tensor: Tensor, memory: Memory, places: Any, cut: bool = False) -> None:
        self.tensor = tensor
        self.memory = memory
        self.places = places
        # Whether no gradient passes.
        self.cut = cut
        self.is_flagged = False
        # Whether it is the tensor that was made of data, and no view of that.
        self.is_root = False

    @property
    def want(self) -> Any:
        """What it is now."""
        shown = self.memory.content[self.places]
        return shown.detach() if self.cut else shown

    @property
    def deps(self) -> set[tuple[Memory, int]]:
        """The versions that this is a function of."""
        return self.memory.deps | {(self.memory, self.memory.version)}

    @property
    def is_computed(self) -> bool:
        """Whether gradients follow writes to it."""
        return not self.memory.is_leaf and not self.cut


class History:
    """A random program, run on both sides as it is drawn; `text` tells it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.values: list[Value] = []
        self.text: list[str] = []
        self.refused = 0
        for _ in range(self.random.choice((1, 2, 3))):
            self.add_leaf(True)
        self.add_leaf(False)
        flagged = [v.tensor for v in self.values if v.is_flagged]
        self.optimizer = nn.optim.SGD(flagged, lr=LEARNING_RATE)

    def array(self, shape: tuple[int, ...] = SHAPE) -> Any:
        """Numbers that float32 has exactly."""
        return (self.rng.integers(-32, 33, shape) / 16).astype(np.float64)

    def add_leaf(self, flagged: bool) -> None:
        """A tensor made of data."""
        array = self.array()
        tensor = Tensor(array.astype(np.float32))
        how = self.random.choice(("", "realize", "clone"))
        if how:
            tensor = getattr(tensor, how)()
        memory = Memory(torch.from_numpy(array).reshape(-1), True)
        value = Value(tensor, memory, torch.arange(array.size).reshape(SHAPE))
        value.is_root = True
        if flagged:
            tensor.requires_grad = True
            value.is_flagged = True
        self.note(value, f"{'parameter' if flagged else 'data'} {how}")

    def note(self, value: Value, text: str) -> None:
        """One tensor more."""
        self.text.append(f"v{len(self.values)} = {text}")
        self.values.append(value)

    def pick(self, wanted: Callable[[Value], bool] = lambda _: True) -> int | None:
        """The number of one of the values."""
        found = [i for i, v in enumerate(self.values) if wanted(v)]
        return self.random.choice(found) if found else None

    def whole(self) -> int:
        """The number of a value of the usual shape."""
        found = self.pick(lambda v: tuple(v.places.shape) == SHAPE)
        assert found is not None
        return found

    def add_computed(self, tensor: Tensor, want: Any, deps: Any, text: str) -> None:
        """A tensor with a value of its own."""
        memory = Memory(want.reshape(-1), False)
        memory.deps = set(deps)
        places = torch.arange(want.numel()).reshape(want.shape)
        self.note(Value(tensor, memory, places), text)

    # steps

    def unary(self) -> None:
        i, name = self.whole(), self.random.choice(list(UNARY))
        v = self.values[i]
        self.add_computed(UNARY[name](v.tensor), UNARY[name](v.want), v.deps, f"{name}(v{i})")

    def binary(self) -> None:
        i, j, name = self.whole(), self.whole(), self.random.choice(list(BINARY))
        v, w = self.values[i], self.values[j]
        deps = v.deps | w.deps
        made = BINARY[name]
        self.add_computed(
            made(v.tensor, w.tensor), made(v.want, w.want), deps, f"{name}(v{i}, v{j})"
        )

    def view(self) -> None:
        i = self.whole()
        v, kind = self.values[i], self.random.choice(("row", "flip", "detach", "turned twice"))
        if kind == "row":
            tensor, places = v.tensor[0:1], v.places[0:1]
        elif kind == "flip":
            tensor, places = v.tensor.flip(0), v.places.flip(0)
        elif kind == "detach":
            tensor, places = v.tensor.detach(), v.places
        else:
            tensor, places = v.tensor.T.reshape(3, 2).T, v.places
        cut = v.cut or kind == "detach"
        self.note(Value(tensor, v.memory, places, cut), f"{kind}(v{i})")

    def compute(self) -> None:
        i = self.pick()
        assert i is not None
        v, how = self.values[i], self.random.choice(("realize", "numpy", "schedule"))
        self.text.append(f"v{i}.{how}()")
        if how == "realize":
            v.tensor.realize()
        elif how == "schedule":
            for item in v.tensor.schedule():
                item.lower().run()
        else:
            self.compare(i)

    def compare(self, i: int) -> None:
        """Raises AssertionError where a value is another one."""
        v = self.values[i]
        want = v.want.detach().numpy()
        got = v.tensor.numpy().astype(np.float64)
        allowed = RTOL * max(float(np.abs(want).max()), 1e-2)
        assert np.abs(got - want).max() <= allowed, f"v{i} is {got.tolist()}, not {want.tolist()}"

    def write(self) -> None:
        """An assignment to a parameter, to data, or to a value; and to views of these."""
        i = self.pick(lambda v: not v.cut or v.memory.is_leaf)
        j = self.pick()
        assert i is not None
        assert j is not None
        v, w = self.values[i], self.values[j]
        whole = tuple(v.places.shape)
        if tuple(w.places.shape) != whole:
            w = Value(Tensor(self.array(whole).astype(np.float32)), None, None)  # type: ignore[arg-type]
            array = w.tensor.numpy().astype(np.float64)
            w.memory = Memory(torch.from_numpy(array).reshape(-1), True)
            w.places = torch.arange(array.size).reshape(whole)
            j = -1
        follows = v.is_computed
        ours = w.tensor if follows else w.tensor.detach()
        want, deps = w.want if follows else w.want.detach(), w.deps
        kinds = ["assign", "add"]
        if whole == SHAPE:
            kinds.append("set")
        kind = self.random.choice(kinds)
        self.text.append(f"{kind} to v{i}: {'' if follows else 'detached '}v{j}")
        target = v.tensor if follows or v.is_flagged else v.tensor.detach()
        places = v.places
        if kind == "add":
            want = want + (v.want if follows else v.want.detach())
            target.assign((target if follows else target.detach()) + ours)
        elif kind == "assign":
            target.assign(ours)
        else:
            target = target if follows else target.detach()
            target[1:] = ours[1:]
            want, places = want[1:], places[1:]
        v.memory.write(places, want, deps)

    def flag(self) -> None:
        """Data, never written to, requires a gradient from now on; or a value does once more."""
        i = self.pick(self.may_be_flagged)
        if i is None:
            return
        v = self.values[i]
        self.text.append(f"v{i}.requires_grad_()")
        v.tensor.requires_grad_()
        v.is_flagged = v.memory.is_leaf

    def may_be_flagged(self, v: Value) -> bool:
        """Whether all that was and will be computed from it has the gradient of the oracle."""
        if v.is_computed:
            return bool(v.tensor.requires_grad)
        return v.is_root and not v.memory.was_read

    def drop(self) -> None:
        """A value that nobody names any more."""
        i = self.pick(lambda v: not v.memory.is_leaf)
        if i is not None and len(self.values) > 4:
            self.text.append(f"del v{i}")
            memory = self.values[i].memory
            tensor = Tensor(self.array().astype(np.float32))
            array = tensor.numpy().astype(np.float64)
            other = Memory(torch.from_numpy(array).reshape(-1), True)
            assert memory is not other
            self.values[i] = Value(tensor, other, torch.arange(6).reshape(SHAPE))

    def backward(self) -> None:
        i = self.pick(lambda v: v.is_computed)
        if i is None:
            return
        v = self.values[i]
        weights = self.array(tuple(v.places.shape))
        read_before = self.random.random() < 0.4
        self.text.append(f"{'read, ' if read_before else ''}v{i} backward")
        flagged = [x for x in self.values if x.is_flagged]
        leaves = [leaf for x in flagged for leaf in x.memory.leaves]
        loss = (v.want * torch.from_numpy(weights)).sum()
        if loss.requires_grad:
            grads = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
        else:
            grads = (None,) * len(leaves)
        ours = (v.tensor * Tensor(weights.astype(np.float32))).sum()
        if read_before:
            ours.item()
        refusal = None
        try:
            ours.backward()
        except GradientError as error:
            refusal = str(error)
        if refusal is not None:
            self.refused += 1
            no_gradient = "nothing below" in refusal and all(g is None for g in grads)
            gone = "written to since" in refusal and any(m.version > n for m, n in v.deps)
            # Docs: a value without a gradient that one with a gradient is written to.
            not_kept = "does not keep" in refusal
            assert no_gradient or gone or not_kept, f"v{i}: {refusal}"
            return
        for leaf, grad in zip(leaves, grads, strict=True):
            if grad is not None:
                leaf.grad = grad if leaf.grad is None else leaf.grad + grad
        if self.random.random() < 0.6:
            self.compare_gradients()

    def gradient_of(self, v: Value) -> Any:
        """What the oracle has for the gradient of a parameter, or None."""
        parts = [leaf.grad for leaf in v.memory.leaves if leaf.grad is not None]
        return sum(parts).reshape(SHAPE) if parts else None

    def compare_gradients(self) -> None:
        """Raises AssertionError where a parameter has another gradient."""
        for i, v in enumerate(self.values):
            if not v.is_flagged:
                continue
            want, got = self.gradient_of(v), v.tensor.grad
            if got is None:
                assert want is None or not want.any(), f"v{i} has no gradient, not {want.tolist()}"
                continue
            found = got.numpy().astype(np.float64)
            wanted = np.zeros(SHAPE) if want is None else want.numpy()
            allowed = RTOL * max(float(np.abs(wanted).max()), 1e-2)
            assert np.abs(found - wanted).max() <= allowed, (
                f"the gradient of v{i} is {found.tolist()}, not {wanted.tolist()}"
            )

    def zero_grad(self) -> None:
        self.text.append("zero_grad")
        for v in self.values:
            v.tensor.grad = None
            for leaf in v.memory.leaves:
                leaf.grad = None

    def optimize(self) -> None:
        """A step of the optimizer over the parameters of the beginning."""
        params = [v for v in self.values if any(v.tensor is t for t in self.optimizer.params)]
        if any(v.tensor.grad is None for v in params):
            return
        self.text.append("step")
        with Tensor.train():
            self.optimizer.step()
        for v in params:
            grad = self.gradient_of(v)
            if grad is not None:
                moved = v.want.detach() - LEARNING_RATE * grad
                v.memory.write(v.places, moved, set())

    def run(self, steps: int) -> None:
        """Draws steps and takes them; compares everything at the end."""
        kinds = [self.unary] * 4 + [self.binary] * 5 + [self.view] * 2 + [self.compute] * 4
        kinds += [self.write] * 4 + [self.flag, self.drop, self.zero_grad, self.optimize]
        kinds += [self.backward] * 3
        for _ in range(steps):
            self.random.choice(kinds)()
            for memory in {memory for v in self.values for memory, _ in v.memory.deps}:
                memory.was_read = True
        self.backward()
        self.compare_gradients()
        for i in range(len(self.values)):
            self.compare(i)


def check(seed: int) -> str | None:
    """What is wrong of a program; None if nothing is."""
    with Context(**CONFIGS[seed % len(CONFIGS)]):
        history = History(seed)
        try:
            history.run(history.random.choice((5, 10, 20)))
        except Exception as error:
            text = "\n  ".join(history.text)
            return f"{type(error).__name__}: {str(error)[:300]} in\n  {text}"
    return None


def test_histories(record_property: Callable[[str, str], None]) -> None:
    check_all("histories of writes and gradients", draws(20, 5000), check, record_property)
