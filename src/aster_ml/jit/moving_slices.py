"""Arguments of a jitted function that are slices which begin elsewhere with every call.

Receives the arguments of a call; returns them as they are or, from the third place on at which such
slices begin, with copies in memory of their own, for which one recording is good. Functions that
write to what they are given, and arguments that gradients are wanted of, are left alone: a copy
would not be what they ask for.

why: `step(X[i : i + 32], Y[i : i + 32])` would be another recording for each i
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from aster_ml.jit.pytree import Inputs, rebuild
from aster_ml.tensor import Tensor

# How many combinations of places have recordings of their own.
OWN_RECORDINGS = 2


class Known(Protocol):
    """Facts of one combination of arguments."""

    writes_inputs: bool


class MovingSlices:
    """Which combinations of places there were, by all else that arguments are."""

    def __init__(self) -> None:
        self.known: dict[Hashable, list[Known]] = {}

    def note(self, inputs: Inputs, entry: Known) -> None:
        """Takes note of what is known for the slices of a call."""
        entries = self.known.setdefault(form_of(inputs), [])
        if len(entries) < OWN_RECORDINGS and entry not in entries:
            entries.append(entry)

    def copied(
        self, inputs: Inputs, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments with copies in place of slices, where that is called for."""
        entries = self.known.get(form_of(inputs), [])
        if len(entries) < OWN_RECORDINGS or any([e.writes_inputs for e in entries]):
            return None
        slices = [inputs.tensors[i] for i in inputs.slices]
        if any([t.requires_grad for t in slices]):
            return None
        copies = {id(t): t.detach().clone() for t in slices}
        Tensor.realize(*copies.values())
        new: tuple[tuple[Any, ...], dict[str, Any]]
        new = rebuild((args, kwargs), lambda leaf: copies.get(id(leaf), leaf))
        return new


def form_of(inputs: Inputs) -> Hashable:
    """The key of arguments, without where slices of them begin."""
    tokens, first = list(inputs.key), len(inputs.key) - len(inputs.tensors)
    for i in inputs.slices:
        t = inputs.tensors[i]
        tokens[first + i] = (t.shape, t.dtype, t.device)
    return tuple(tokens)
