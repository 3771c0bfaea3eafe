"""Programs of views, values and writes, drawn at random, against NumPy.

The oracle knows two things: an array for each memory, and for each view the places that it shows
there. A write puts numbers at these places; whatever else is computed is an array of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit
from aster_ml.engine import realize, storage
from aster_ml.engine.readers import nodes_above
from aster_ml.engine.realized import find_realized
from aster_ml.errors import JitError, UnsupportedError
from aster_ml.ops.handle import nodes_of
from aster_ml.ops.live import LIVE
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from tests.fuzz.budget import check_all, draws

DTYPES = ("int32", "int32", "int64", "uint8", "float32", "float32", "float64", "bool")
SHAPES = ((5,), (7,), (16,), (1,), (2, 3), (4, 4), (3, 5), (2, 2, 3), (1, 4), (0, 3), ())
OPTIONS = ("CPU", "CPU", "CPU", "CPU", "CPU:1")


@dataclass(eq=False)
class Seen:
    """A tensor beside what it has to show: these places of this memory."""

    tensor: Tensor
    memory: np.ndarray[Any, Any]
    places: np.ndarray[Any, Any]

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """What it shows now."""
        return np.asarray(self.memory[self.places]).astype(self.memory.dtype)

    @property
    def is_apart(self) -> bool:
        """Whether no two elements are one place, so that it can be written to."""
        return np.unique(self.places).size == self.places.size

    def put(self, values: Any) -> None:
        """Writes values, which are read first."""
        values = np.broadcast_to(np.asarray(values, dtype=self.memory.dtype), self.places.shape)
        self.memory[self.places] = values.copy()


def memory_of(tensor: Tensor, array: Any) -> Seen:
    """A tensor with memory of its own."""
    flat = np.array(array).reshape(-1).copy()
    return Seen(tensor, flat, np.arange(flat.size).reshape(np.shape(array)))


@dataclass
class Program:
    """What a seed draws: tensors so far, and what was done, as text."""

    rng: random.Random
    device: str
    seen: list[Seen] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    # drawing

    def pick(self) -> Seen:
        """One of the tensors; those of late more often."""
        return self.rng.choice(self.seen[-4:] if self.rng.random() < 0.4 else self.seen)

    def numbers(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """Small numbers, exact in every dtype."""
        size = int(np.prod(shape))
        return np.array([self.rng.randrange(5) for _ in range(size)]).reshape(shape).astype(dtype)

    def make(self) -> None:
        """New memory, or a value without."""
        shape, dtype = self.rng.choice(SHAPES), self.rng.choice(DTYPES)
        array = self.numbers(shape, dtype)
        how = self.rng.choice(("data", "data", "realized", "zeros", "full", "computed", "ones"))
        if how == "data":
            tensor = Tensor(array, device=self.device)
        elif how == "realized":
            tensor = Tensor(array, device=self.device).realize()
        elif how == "computed":
            tensor = (
                Tensor(array, device=self.device).bitwise_not().bitwise_not()
                if (array.dtype.kind in "iub")
                else Tensor(array, device=self.device) * 1
            )
        else:
            value = {"zeros": 0, "ones": 1, "full": 3}[how]
            array = np.full(shape, value, dtype)
            tensor = Tensor.full(shape, value, dtype=dtype, device=self.device)
            if self.rng.random() < 0.5:
                tensor = tensor.contiguous()
            if self.rng.random() < 0.5:
                tensor = tensor.realize()
        self.add(memory_of(tensor, array), f"{how} {dtype}{list(shape)}")

    def add(self, s: Seen, what: str) -> None:
        """Keeps a tensor."""
        assert s.tensor.shape == s.places.shape, f"{what}: {s.tensor.shape}, not {s.places.shape}"
        self.seen.append(s)
        self.done.append(f"t{len(self.seen) - 1} = {what}")

    def name(self, s: Seen) -> str:
        """What the text calls it."""
        return f"t{self.seen.index(s)}" if s in self.seen else "new"

    def slice_of(self, size: int) -> Any:
        """A slice or an int for an axis."""
        if size and self.rng.random() < 0.25:
            return self.rng.randrange(-size, size)
        step = self.rng.choice((None, None, None, 1, 2, 3, -1, -1, -2, 5))
        low, high = [self.rng.choice((None, self.rng.randrange(-size, size + 1))) for _ in range(2)]
        return slice(low, high, step)

    def index(self, shape: tuple[int, ...]) -> Any:
        """A basic index."""
        parts: list[Any] = [self.slice_of(n) for n in shape[: self.rng.randrange(len(shape) + 1)]]
        if self.rng.random() < 0.15:
            parts.insert(self.rng.randrange(len(parts) + 1), None)
        elif self.rng.random() < 0.15 and len([p for p in parts if p is not None]) < len(shape):
            parts.append(Ellipsis)
        return tuple(parts)

    # views

    def view_of(self, s: Seen) -> tuple[Seen, str]:
        """A view of a tensor, not kept yet."""
        x, p, rng = s.tensor, s.places, self.rng
        rank = p.ndim
        kinds = ["index", "index", "detach", "flatten", "unsqueeze", "same"]
        if rank:
            kinds += ["flip", "chunk", "split", "squeeze", "index", "expand", "unfold", "reshape"]
        if rank >= 2:
            kinds += ["permute", "T", "transpose", "diagonal", "unflatten"]
        if s.memory.dtype.itemsize in (4, 1) and s.memory.dtype.kind != "b":
            kinds.append("bitcast")
        kind = rng.choice(kinds)
        axis = rng.randrange(rank) if rank else 0
        if kind == "index":
            index = self.index(p.shape)
            return Seen(x[index], s.memory, p[index]), f"[{show_index(index)}]"
        if kind == "flip":
            return Seen(x.flip(axis), s.memory, np.flip(p, axis)), f".flip({axis})"
        if kind == "same" and rng.random() < 0.5:
            return Seen(Tensor(x), s.memory, p), ", Tensor of it"
        if kind == "detach":
            return Seen(x.detach(), s.memory, p), ".detach()"
        if kind == "flatten":
            return Seen(x.flatten(), s.memory, p.reshape(-1)), ".flatten()"
        if kind == "unsqueeze":
            return Seen(x.unsqueeze(axis), s.memory, np.expand_dims(p, axis)), f".unsqueeze({axis})"
        if kind == "squeeze":
            return Seen(x.squeeze(), s.memory, np.squeeze(p)), ".squeeze()"
        if kind in ("chunk", "split") and p.shape[axis]:
            n = rng.randrange(1, 4)
            sizes = n if kind == "split" else -(-p.shape[axis] // n)
            parts = getattr(x, kind)(n, dim=axis)
            i = rng.randrange(len(parts))
            cut = [slice(None)] * axis + [slice(i * sizes, (i + 1) * sizes)]
            return Seen(parts[i], s.memory, p[tuple(cut)]), f".{kind}({n}, {axis})[{i}]"
        if kind == "reshape" and p.size:
            shape = (p.size // 2, 2) if p.size % 2 == 0 else (1, p.size, 1)
            return Seen(x.reshape(shape), s.memory, p.reshape(shape)), f".reshape{shape}"
        if kind == "unflatten" and p.shape[0] and p.shape[0] % 2 == 0:
            shape = (2, p.shape[0] // 2, *p.shape[1:])
            return Seen(x.unflatten(0, (2, -1)), s.memory, p.reshape(shape)), ".unflatten(0, 2)"
        if kind == "permute":
            order = rng.sample(range(rank), rank)
            return Seen(x.permute(order), s.memory, p.transpose(order)), f".permute({order})"
        if kind == "T":
            return Seen(x.T, s.memory, p.T), ".T"
        if kind == "transpose":
            return Seen(x.transpose(0, 1), s.memory, np.swapaxes(p, 0, 1)), ".transpose(0, 1)"
        if kind == "diagonal":
            k = rng.randrange(-1, 2)
            return Seen(x.diagonal(k), s.memory, np.diagonal(p, k)), f".diagonal({k})"
        if kind == "unfold" and p.shape[axis]:
            size, step = rng.randrange(1, p.shape[axis] + 1), rng.randrange(1, 4)
            windows = np.lib.stride_tricks.sliding_window_view(p, size, axis)
            cut = tuple([slice(None)] * axis + [slice(None, None, step)])
            what = f".unfold({axis}, {size}, {step})"
            return Seen(x.unfold(axis, size, step), s.memory, windows[cut]), what
        if kind == "expand":
            shape = tuple([rng.randrange(1, 3) if n == 1 else n for n in p.shape])
            return Seen(x.expand(shape), s.memory, np.broadcast_to(p, shape)), f".expand{shape}"
        if kind == "bitcast":
            to = {"int32": "float32", "float32": "int32", "uint8": "int8"}
            name = to.get(str(s.memory.dtype))
            if name is not None:
                return Seen(x.bitcast(name), s.memory.view(name), p), f".bitcast({name})"
        return Seen(x.view(p.shape), s.memory, p), ".view()"

    def value_of(self, s: Seen) -> tuple[Seen, str]:
        """Something computed, which no write changes afterwards."""
        x, a, rng = s.tensor, s.array, self.rng
        rank = a.ndim
        kinds: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
            ("where", lambda: (x.eq(x)).where(x, x), lambda: a.copy()),
            (".clone()", x.clone, lambda: a.copy()),
        ]
        if a.dtype.kind != "b":
            kinds += [
                ("+ 0", lambda: x + 0, lambda: a.copy()),
                ("** 1", lambda: x**1, lambda: a.copy()),
                ("* 2", lambda: x * 2, lambda: (a * 2).astype(a.dtype)),
                ("+ itself", lambda: x + x, lambda: (a + a).astype(a.dtype)),
                ("* 1", lambda: x * 1, lambda: a.copy()),
            ]
        if rank:
            axis = rng.randrange(rank)
            once = [1] * rank
            edges = [(rng.randrange(2), rng.randrange(2)) for _ in range(rank)]
            shift = rng.randrange(3)
            kinds += [
                (f".repeat{once}", lambda: x.repeat(once), lambda: a.copy()),
                (f".pad({edges})", lambda: x.pad(edges), lambda: np.pad(a, edges)),
                (f".roll({shift}, {axis})", lambda: x.roll(shift, axis),
                 lambda: np.roll(a, shift, axis)),
                (".cat()", lambda: x.cat(dim=axis), lambda: a.copy()),
                (".cat(self)", lambda: x.cat(x, dim=axis), lambda: np.concatenate([a, a], axis)),
                (".repeat_interleave(1)", lambda: x.repeat_interleave(1, axis), lambda: a.copy()),
            ]  # fmt: skip
            if a.shape[axis] == 1:
                kinds += [
                    (".max of one", lambda: x.max(axis, keepdim=True), lambda: a.copy()),
                ]
        what, make, want = rng.choice(kinds)
        return memory_of(make(), want()), what

    # writing

    def write(self) -> None:
        """One write, through a tensor that is kept or a view of it that is not."""
        rng = self.rng
        target, what = self.pick(), ""
        if rng.random() < 0.4:
            target, how = self.view_of(s := target)
            what = f"{self.name(s)}{how}"
        else:
            what = self.name(target)
        kind = rng.choice(("add", "add", "times", "assign", "number", "set", "set", "set", "mask"))
        kind = rng.choice((kind, kind, kind, "ints"))
        if target.memory.dtype == np.bool_ and kind in ("add", "times"):
            kind = "assign"
        before = target.array
        if not target.is_apart:
            self.done.append(f"{what} {kind}, to be refused")
            try:
                target.tensor.assign(target.tensor * 1 if target.memory.dtype != np.bool_ else True)
            except UnsupportedError:
                return
            # What nobody else shows may as well be a value of its own.
            return
        if kind == "add":
            other, name = self.operand(target)
            self.done.append(f"{what} += {name}")
            values = (before + other_array(other, target)).astype(target.memory.dtype)
            target.tensor += other if isinstance(other, int) else other.tensor
            target.put(values)
        elif kind == "times":
            self.done.append(f"{what} *= 2")
            target.tensor *= 2
            target.put((before * 2).astype(target.memory.dtype))
        elif kind in ("assign", "number"):
            other, name = self.operand(target)
            self.done.append(f"{what}.assign({name})")
            values = other_array(other, target)
            target.tensor.assign(other if isinstance(other, int) else other.tensor)
            target.put(values)
        elif kind == "mask" and before.ndim:
            mask = self.numbers(before.shape, np.int32) > 2
            self.done.append(f"{what}[mask] = 1")
            target.tensor[Tensor(mask, device=self.device)] = 1
            before[mask] = 1
            target.put(before)
        elif kind == "ints" and before.ndim and before.shape[0]:
            rows = rng.sample(range(before.shape[0]), rng.randrange(1, before.shape[0] + 1))
            self.done.append(f"{what}[{rows}] = 2")
            index = Tensor(rows, device=self.device) if rng.random() < 0.5 else rows
            target.tensor[index] = 2
            before[rows] = 2
            target.put(before)
        else:
            index = self.index(before.shape)
            part = Seen(target.tensor, target.memory, target.places[index])
            other, name = self.operand(part)
            self.done.append(f"{what}[{show_index(index)}] = {name}")
            values = other_array(other, part)
            target.tensor[index] = other if isinstance(other, int) else other.tensor
            part.put(values)

    def operand(self, target: Seen) -> tuple[Any, str]:
        """A number, or a tensor that fits: a view of what is kept, the target's own memory too."""
        for _ in range(6):
            s, what = self.pick(), ""
            name = self.name(s)
            if self.rng.random() < 0.6:
                s, what = self.view_of(s)
            same = s.memory.dtype == target.memory.dtype
            if same and s.places.shape == target.places.shape:
                return s, name + what
        if self.rng.random() < 0.3:
            array = self.numbers(target.places.shape, target.memory.dtype)
            return memory_of(Tensor(array, device=self.device), array), "new"
        return self.rng.randrange(2), "n"

    # the whole

    def step(self) -> None:
        """One step of the program."""
        r = self.rng.random()
        if r < 0.08:
            self.make()
        elif r < 0.28:
            s = self.pick()
            made, how = self.view_of(s)
            self.add(made, self.name(s) + how)
        elif r < 0.40:
            s = self.pick()
            made, how = self.value_of(s)
            self.add(made, f"{self.name(s)} {how}")
        elif r < 0.80:
            self.write()
        elif r < 0.88:
            s = self.pick()
            self.done.append(f"{self.name(s)}.realize()")
            s.tensor.realize()
        elif r < 0.93 and len(self.seen) > 2:
            self.done.append(f"del {self.name(s := self.pick())}, all later names one less")
            self.seen.remove(s)
        else:
            self.done.append(f"read {self.name(s := self.pick())}")
            self.check(s)

    def check(self, s: Seen) -> None:
        """Raises AssertionError where a tensor shows something else."""
        got, want = s.tensor.numpy(), s.array
        same = got.dtype == want.dtype and got.shape == want.shape
        if not same or got.tobytes() != want.tobytes():
            raise AssertionError(f"{self.name(s)} is {got.tolist()}, {want.tolist()} is wanted")

    def run(self, steps: int) -> str | None:
        """Runs so many steps, then looks at everything; says what is wrong."""
        try:
            for _ in range(2):
                self.make()
            for _ in range(steps):
                self.step()
            order = self.rng.sample(self.seen, len(self.seen))
            if self.rng.random() < 0.3 and order:
                Tensor.realize(*[s.tensor for s in order])
            for s in order:
                self.check(s)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:300]}\n    " + "; ".join(self.done)
        return None


def other_array(other: Any, target: Seen) -> np.ndarray[Any, Any]:
    """The numbers that an operand stands for, as they are now."""
    if isinstance(other, int):
        return np.full(target.places.shape, other, target.memory.dtype)
    return np.array(other.array)


def show_index(index: tuple[Any, ...]) -> str:
    """An index as it is written."""

    def one(i: Any) -> str:
        if isinstance(i, slice):
            return ":".join("" if v is None else str(v) for v in (i.start, i.stop, i.step))
        return "..." if i is Ellipsis else str(i)

    return ", ".join([one(i) for i in index]) or "()"


def wrong_program(seed: int, device: str | None = None) -> str | None:
    """One program without a jit."""
    rng = random.Random(seed)
    program = Program(rng, device or rng.choice(OPTIONS))
    return program.run(rng.randrange(4, 14))


# jitted programs


@dataclass
class Op:
    """One step of a jitted function: what is made of the numbered tensors, or written to one."""

    kind: str
    source: int
    other: int = 0
    index: Any = ()


VIEWS = ("index", "flip", "T", "detach", "flatten")
VALUES = ("add", "twice", "roll", "sum of two")
WRITES = ("+= 1", "+= other", "assign", "set", "set other")


def on_tensor(op: Op, x: Any, y: Any) -> Any:
    """The step on tensors; None where something is written."""
    match op.kind:
        case "index":
            return x[op.index]
        case "flip":
            return x.flip(0)
        case "T":
            return x.T
        case "detach":
            return x.detach()
        case "flatten":
            return x.flatten()
        case "add":
            return x + 1
        case "twice":
            return x * 2
        case "roll":
            return x.roll(1, 0)
        case "sum of two":
            return x + y
        case "+= 1":
            x += 1
        case "+= other":
            x += y
        case "assign":
            x.assign(y)
        case "set":
            x[op.index] = 3
        case "set other":
            x[op.index] = y[op.index]
    return None


def on_places(op: Op, x: Seen, y: Seen) -> Seen | None:
    """The step on places of arrays."""
    p, a = x.places, x.array
    views = {
        "index": lambda: p[op.index],
        "flip": lambda: np.flip(p, 0),
        "T": lambda: p.T,
        "detach": lambda: p,
        "flatten": lambda: p.reshape(-1),
    }
    if op.kind in views:
        return Seen(x.tensor, x.memory, views[op.kind]())
    values = {
        "add": lambda: a + 1,
        "twice": lambda: a * 2,
        "roll": lambda: np.roll(a, 1, 0),
        "sum of two": lambda: a + y.array,
    }
    if op.kind in values:
        return memory_of(x.tensor, values[op.kind]())
    if op.kind == "+= 1":
        x.put(a + 1)
    elif op.kind == "+= other":
        x.put(a + y.array)
    elif op.kind == "assign":
        x.put(y.array)
    else:
        part = Seen(x.tensor, x.memory, p[op.index])
        part.put(3 if op.kind == "set" else y.array[op.index])
    return None


def drawn_function(rng: random.Random, shapes: list[tuple[int, ...]]) -> tuple[list[Op], list[int]]:
    """The steps of a function of tensors of these shapes, and which of them it returns."""
    draw = Program(rng, "CPU")
    shapes, ops = list(shapes), []
    for _ in range(rng.randrange(2, 7)):
        kind = rng.choice(rng.choice((VIEWS, VALUES, WRITES, WRITES)))
        i = rng.randrange(len(shapes))
        same = [k for k, shape in enumerate(shapes) if shape == shapes[i]]
        op = Op(kind, i, rng.choice(same), draw.index(shapes[i]))
        if not shapes[i] or 0 in shapes[i]:
            op.kind = "+= 1"
        ops.append(op)
        dummy = memory_of(cast(Any, None), np.zeros(shapes[i], np.int32))
        made = on_places(
            op, dummy, memory_of(cast(Any, None), np.zeros(shapes[op.other], np.int32))
        )
        if made is not None:
            shapes.append(made.places.shape)
    count = rng.randrange(1, 3)
    returned = [
        i for i in rng.sample(range(len(shapes)), min(count, len(shapes))) if 0 not in shapes[i]
    ]
    return ops, returned


def run_ops(ops: list[Op], values: list[Any], step: Callable[[Op, Any, Any], Any]) -> list[Any]:
    """What the steps make of values, which go first."""
    values = list(values)
    for op in ops:
        made = step(op, values[op.source], values[op.other])
        if made is not None:
            values.append(made)
    return values


def wrong_jitted(seed: int, refused: list[str] | None = None) -> str | None:
    """A jitted function of memory and views of it, called several times; says what is wrong.

    What it says no to counts among the `refused`.
    """
    rng = random.Random(seed)
    program = Program(rng, rng.choice(OPTIONS))
    for shape in ((4,), (3, 4))[: rng.randrange(1, 3)] * 2:
        array = program.numbers(shape, np.int32)
        tensor = Tensor(array, device=program.device).realize()
        program.add(memory_of(tensor, array), f"memory {shape}")
    for _ in range(rng.randrange(3)):
        s = program.pick()
        made, how = program.view_of(s)
        if made.is_apart and made.places.size and made.memory.dtype == np.int32:
            program.add(made, program.name(s) + how)
            if made.tensor.dtype.name != "int32":
                program.seen.pop()
    pool = list(program.seen)
    args = rng.sample(pool, rng.randrange(1, len(pool) + 1))
    others = [s for s in pool if s not in args][: rng.randrange(3)]
    used = [*args, *others]
    ops, returned = drawn_function(rng, [s.places.shape for s in used])
    given, read = [[program.name(s) for s in part] for part in (args, others)]
    program.done.append(f"f({given}) with {read}: {ops} -> {returned}")

    @TinyJit
    def function(*given: Tensor) -> list[Tensor]:
        values = run_ops(ops, [*given, *[s.tensor for s in others]], on_tensor)
        return [values[i] for i in returned]

    kept: list[Seen] = []
    try:
        for call in range(rng.randrange(3, 6)):
            got = function(*[s.tensor for s in args])
            want = run_ops(ops, used, on_places)
            for tensor, i in zip(got, returned, strict=True):
                program.check(Seen(tensor, want[i].memory, want[i].places))
                if rng.random() < 0.5:
                    kept.append(Seen(tensor, want[i].memory, want[i].places))
            for _ in range(rng.randrange(2)):
                s = program.pick()
                program.done.append(f"{call}: {program.name(s)} *= 2")
                s.tensor *= 2
                s.put(s.array * 2)
            for s in rng.sample([*pool, *kept], rng.randrange(len(pool) + 1)):
                program.done.append(f"{call}: read {program.name(s)}")
                program.check(s)
        for s in [*pool, *kept]:
            program.check(s)
    except JitError as error:
        if refused is not None:
            refused.append(str(error))
        return None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}\n    " + "; ".join(program.done)
    return None


def test_programs(record_property: Callable[[str, str], None]) -> None:
    check_all("views and writes", draws(60, 10_000), wrong_program, record_property)


def reads(u: UOp, memory: set[UOp]) -> bool:
    """Whether a node that is still to be computed is made of memory, by a walk over all of it."""
    for v in toposort(u, enter=lambda v: storage.realized_view(v) is None):
        shown = storage.realized_view(v)
        if (v if shown is None else shown).base in memory:
            return True
    return False


@pytest.fixture(autouse=True)
def readers_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a write asks who reads memory, nobody is left out who does."""

    def checked(memory: set[UOp]) -> list[UOp]:
        found = nodes_above(memory)
        live = {u for ref in list(LIVE) for u in nodes_of(ref) if find_realized(u) is None}
        assert not [u for u in live.difference(found) if reads(u, memory)]
        return found

    monkeypatch.setattr(realize, "nodes_above", checked)


def test_jitted_programs(record_property: Callable[[str, str], None]) -> None:
    refused: list[str] = []
    seeds = draws(60, 3_000)
    check_all(
        "jitted views and writes", seeds, lambda seed: wrong_jitted(seed, refused), record_property
    )
    record_property("fuzz", f"jitted views and writes: {len(refused)} refused")
    # Functions that do nothing.
    assert all("ran no kernel" in why for why in refused), refused
    assert len(refused) <= 1 + len(seeds) // 100


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_programs_on_each_device(device: str, record_property: Callable[[str, str], None]) -> None:
    check_all(
        f"views and writes on {device}",
        draws(12, 1_000),
        lambda seed: wrong_program(seed, device),
        record_property,
    )
