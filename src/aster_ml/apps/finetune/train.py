"""Trains adapters beside frozen weights: one jitted step over rows of tokens.

Receives a model whose weights have fresh adapters, and rows; changes the adapters. What is written
to disk is in `checkpoint`, how lines become rows in `data`. The gradient goes through the weights
as they are kept: packed ones are unpacked in the products that need them, and nowhere else, but for
the matrix of the vocabulary.

Source: Hu et al., LoRA (2021); Loshchilov and Hutter, AdamW (2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from aster_ml import Tensor, TinyJit
from aster_ml.apps.finetune.data import (
    MULTIPLE,
    NOTHING,
    POSITIONS,
    TARGETS,
    TEXTS,
    TOKENS,
    Array,
    empty_row,
)
from aster_ml.apps.llm.adapters import matrices_of, modules_of
from aster_ml.apps.llm.model import Model, Texts
from aster_ml.apps.llm.weights import Adapter, Weights
from aster_ml.errors import ArgumentError
from aster_ml.nn.optim import AdamW
from aster_ml.nn.schedule import CosineLR

SHORT = {
    "q": "attn_q", "k": "attn_k", "v": "attn_v", "qkv": "attn_qkv", "o": "attn_output",
    "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip
TINY = 1e-6


@dataclass(frozen=True)
class Recipe:
    """Settings of training; all of them decide the losses, so a run that goes on has the same.

    `steps` of 0 are `epochs` times through the rows. A step is `batch` rows `accumulate` times.
    """

    rank: int = 8
    alpha: float = 16.0
    targets: str = "q,v"
    layers: str = "all"
    length: int = 0
    batch: int = 1
    accumulate: int = 4
    epochs: int = 1
    steps: int = 0
    rate: float = 1e-3
    warmup: int = 0
    decay: float = 0.0
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rank", "batch", "accumulate", "epochs"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} is {getattr(self, name)}; at least 1 is wanted")
        for name in ("length", "steps", "warmup", "decay", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ArgumentError(f"{name} is {getattr(self, name)}; 0 or more is wanted")
        for name in ("alpha", "rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ArgumentError(f"{name} is {getattr(self, name)}; more than 0 is wanted")

    def total(self, rows: int) -> int:
        """Number of steps."""
        each = -(-rows // (self.batch * self.accumulate))
        return self.steps or self.epochs * each

    def values(self) -> dict[str, Any]:
        """By name, as they are written down."""
        return asdict(self)


def layers_named(text: str, count: int) -> set[int]:
    """Layers such as "all", "last 4" or "0-3,7". Raises: ArgumentError for what is none."""
    words = text.split()
    spans: list[tuple[int, int]] = []
    try:
        if text == "all":
            spans = [(0, count - 1)]
        elif len(words) == 2 and words[0] == "last":
            spans = [(count - int(words[1]), count - 1)]
        else:
            for part in text.split(","):
                first, _, last = part.partition("-")
                spans.append((int(first), int(last or first)))
    except ValueError:
        spans = []
    if not spans or not all([0 <= first <= last < count for first, last in spans]):
        raise ArgumentError(
            f'--layers {text!r}: "all", "last 4" or "0-3,7" is wanted, of the layers 0 to '
            f"{count - 1}"
        )
    return {i for first, last in spans for i in range(first, last + 1)}


def matrices_named(model_config: Any, tensors: Sequence[str], recipe: Recipe) -> list[str]:
    """The matrices that get adapters.

    Raises: ArgumentError for names that the model has no matrices of.
    """
    known = modules_of(model_config)
    layers = layers_named(recipe.layers, model_config.layers)
    there = matrices_of(model_config, tensors)
    names = [name for name in SHORT if any([f".{SHORT[name]}." in t for t in there])]
    wanted = names if recipe.targets == "all" else recipe.targets.split(",")
    for name in wanted:
        if name not in names:
            raise ArgumentError(
                f"--targets {recipe.targets!r}: {name!r} is none of this model's; all, "
                f"{', '.join(names)} are"
            )
    full = {SHORT[name] for name in wanted if SHORT[name] in known}
    return [
        name for name in there if name.split(".")[2] in full and int(name.split(".")[1]) in layers
    ]


def fresh_adapters(
    shapes: Mapping[str, tuple[int, ...]], rank: int, alpha: float, seed: int
) -> dict[str, Adapter]:
    """Adapters that change nothing yet: `down` is drawn, `up` is 0."""
    rng = np.random.default_rng(seed)
    result = {}
    for name, (m, n) in shapes.items():
        drawn = rng.uniform(-1, 1, (rank, n)) / math.sqrt(n)
        down = Tensor(drawn.astype(np.float32), requires_grad=True)
        up = Tensor(np.zeros((m, rank), np.float32), requires_grad=True)
        result[name] = Adapter(down, up, alpha / rank)
    return result


def add_adapters(weights: Weights, config: Any, recipe: Recipe) -> dict[str, Adapter]:
    """Puts fresh adapters beside the matrices that a recipe names."""
    names = matrices_named(config, list(weights.tensors), recipe)
    shapes = {name: tuple(weights.tensors[name].shape) for name in names}
    adapters = fresh_adapters(shapes, recipe.rank, recipe.alpha, recipe.seed)
    for name, adapter in adapters.items():
        weights.adapt(name, adapter)
    return adapters


def unpack_head(model: Model) -> None:
    """Keeps a packed matrix of the vocabulary as float32; rows of embeddings are read packed.

    why: its products, both ways, are the largest by far, and unpacking it costs a sixth of a step
    """
    head = model.head
    if isinstance(head, Tensor) and model.weights.nbytes_of(head) < head.nbytes():
        model.head = head.float().contiguous().realize()


class Trainer:
    """A model that learns: rows, adapters, their gradients, an optimiser and its schedule."""

    def __init__(
        self, model: Model, adapters: Mapping[str, Adapter], rows: Array, recipe: Recipe
    ) -> None:
        self.model, self.rows, self.recipe = model, rows, recipe
        unpack_head(model)
        self.adapters = dict(adapters)
        self.parameters = [t for a in adapters.values() for t in (a.down, a.up)]
        self.total = recipe.total(len(rows))
        # The most that is learned of a batch, a round number.
        each = int((rows[:, TARGETS] != NOTHING).sum(-1).max())
        self.most = -(-each * recipe.batch // MULTIPLE) * MULTIPLE
        self.optimizer = AdamW(self.parameters, lr=recipe.rate, weight_decay=recipe.decay)
        warmup = min(recipe.warmup, self.total - 1)
        self.schedule = CosineLR(self.optimizer, recipe.rate, self.total, warmup)
        self.sums = [Tensor.zeros(*t.shape).contiguous() for t in self.parameters]
        Tensor.realize(*self.parameters, *self.sums, *self.optimizer.state())
        self.losses: list[float] = []
        self.add: Any = TinyJit(self.add_gradients)
        self.move: Any = TinyJit(self.move_parameters)

    def learned_of(self, batch: Array) -> Array:
        """Where what is learned stands in the rows, one after the other, and the tokens to learn.

        A batch is int [b, 4, n], the result int32 [2, k] with the same k for all batches.
        """
        result = np.zeros((2, self.most), np.int32)
        result[1] = NOTHING
        targets = batch[:, TARGETS].reshape(-1)
        places = np.flatnonzero(targets != NOTHING)
        result[:, : len(places)] = places, targets[places]
        return result

    def loss(self, batch: Tensor, learned: Tensor, share: Tensor) -> Tensor:
        """The sum of the losses of what is learned, times a share.

        Logits are those of these places alone: of a chat most tokens are not learned.

        Shapes: batch int [b, 4, n], learned int [2, k], share [1] -> [].
        """
        place = Texts(batch[:, POSITIONS], batch[:, TEXTS])
        hidden = self.model.hidden(batch[:, TOKENS], place)
        logits = self.model.logits(hidden.reshape(-1, hidden.shape[-1])[learned[0]])
        losses = logits.sparse_categorical_crossentropy(
            learned[1], ignore_index=NOTHING, reduction="sum"
        )
        return losses * share.sum()

    def add_gradients(self, batch: Tensor, learned: Tensor, share: Tensor) -> Tensor:
        """Adds the gradients of some rows to the sums; returns their part of the loss."""
        self.optimizer.zero_grad()
        loss = self.loss(batch, learned, share)
        loss.backward()
        for total, t in zip(self.sums, self.parameters):
            assert t.grad is not None
            total.assign(total + t.grad)
        self.optimizer.zero_grad()
        Tensor.realize(loss, *self.sums)
        return loss

    def move_parameters(self) -> Tensor:
        """One step along the sums, which are 0 afterwards; returns their length before clipping."""
        squares = [g.square().sum() for g in self.sums]
        norm = Tensor.stack(*squares).sum().sqrt()
        factor = (self.recipe.clip / (norm + TINY)).minimum(1.0)
        for t, g in zip(self.parameters, self.sums):
            t.grad = g * factor
        changed = [*self.optimizer.schedule_step(), *self.schedule.schedule_step()]
        self.optimizer.zero_grad()
        for g in self.sums:
            g.assign(Tensor.zeros(*g.shape))
        Tensor.realize(norm, *changed, *self.sums)
        return norm

    def batches(self, step: int) -> Iterator[Array]:
        """The rows of a step: those of an epoch in an order of its own, each once.

        Each is int32 [b, 4, n]; `accumulate` of them, or fewer where there are no more rows.
        """
        recipe, count = self.recipe, len(self.rows)
        each = recipe.batch * recipe.accumulate
        steps = -(-count // each)
        epoch, at = divmod(step, steps)
        order = np.random.default_rng([recipe.seed, epoch]).permutation(count)
        chosen = self.rows[order[at * each : (at + 1) * each]]
        for begin in range(0, len(chosen), recipe.batch):
            part = chosen[begin : begin + recipe.batch]
            lacking = recipe.batch - len(part)
            if lacking:
                empty = np.stack([empty_row(part.shape[-1])] * lacking)
                part = np.concatenate([part, empty])
            yield np.ascontiguousarray(part)

    def step(self) -> tuple[float, int]:
        """Learns from the next rows: the mean loss of what is learned, and the tokens read.

        Raises: ArithmeticError where the loss is no finite number; nothing is changed then.
        """
        batches = list(self.batches(len(self.losses)))
        count = sum([int((batch[:, TARGETS] != NOTHING).sum()) for batch in batches])
        share = Tensor(np.array([1 / max(1, count)], np.float32)).realize()
        with Tensor.train():
            parts = [self.add_batch(batch, share) for batch in batches]
            loss = math.fsum(parts)
            if not math.isfinite(loss):
                raise ArithmeticError(
                    f"the loss of step {len(self.losses) + 1} is {loss}; a smaller --rate may do"
                )
            self.move()
        self.losses.append(loss)
        return loss, sum([b.shape[0] * b.shape[2] for b in batches])

    def add_batch(self, batch: Array, share: Tensor) -> float:
        """Adds the gradients of a batch; returns its part of the loss."""
        learned = Tensor(self.learned_of(batch)).realize()
        return float(self.add(Tensor(batch).realize(), learned, share).item())

    def state(self) -> dict[str, Tensor]:
        """All that changes while it learns, by name."""
        optimizer, schedule = self.optimizer, self.schedule
        named = {f"optimizer.{i}": t for i, t in enumerate(optimizer.state())}
        named |= {f"parameter.{i}": t for i, t in enumerate(self.parameters)}
        return {**named, "rate": optimizer.lr, "steps_taken": schedule.steps_taken}
