"""Recordings as plain data, for pickling, and back.

Receives a recording; returns what of it means something in another process: steps, content of the
memory that lives on between calls, the form of arguments and results. The function itself, what it
reads besides its arguments, and who holds the memory stay behind.
"""

from __future__ import annotations

from typing import Any

from aster_ml.device import Buffer, Device
from aster_ml.engine import storage
from aster_ml.engine.compile import compile_kernel
from aster_ml.jit.guards import Watch
from aster_ml.jit.pytree import Same, rebuild
from aster_ml.jit.replay import Place, Recorded, Replay
from aster_ml.ops.handle import Flag
from aster_ml.tensor import Tensor
from aster_ml.uop.node import UOp

# Fields of a recording that are plain data as they are.
PLAIN_FIELDS = ("n_inputs", "fresh", "wants_gradient", "content", "draws", "written_inputs")


class Scratch:
    """A part of memory that has no content between calls."""

    def __init__(self, number: int, b: Buffer) -> None:
        self.number = number
        self.size, self.dtype, self.offset = b.size, b.dtype, b.offset


class KeptResult:
    """A result that was a tensor before the call: the node of its memory."""

    def __init__(self, uop: UOp, requires_grad: Flag) -> None:
        self.uop = uop
        self.requires_grad = requires_grad


def pack_replay(replay: Replay) -> dict[str, Any]:
    """Steps and memory; a kernel is packed as its AST."""
    number = {id(b): i for i, b in enumerate(replay.scratch)}

    def pack(b: Any) -> Any:
        if isinstance(b, Place):
            return b
        found = number.get(id(b.base))
        return b if found is None else Scratch(found, b)

    return {
        "items": [
            (r.step, r.compiled is not None, [pack(b) for b in r.buffers], r.values)
            for r in replay.items
        ],
        "scratch": [(b.device, b.size, b.dtype) for b in replay.scratch],
        "sizes": replay.sizes,
        "borrowed": replay.borrowed,
    }


def unpack_replay(state: dict[str, Any]) -> Replay:
    """A replay over memory of its own."""
    inputs = [Buffer(*size).allocate() for size in state["sizes"]]
    scratch = [Buffer(*size).allocate() for size in state["scratch"]]

    def unpack(b: Any) -> Buffer:
        if isinstance(b, Place):
            return b.show(inputs[b.number])
        if isinstance(b, Scratch):
            base = scratch[b.number]
            whole = b.offset == 0 and b.size == base.size and b.dtype is base.dtype
            return base if whole else base.view(b.size, b.dtype, b.offset)
        found: Buffer = b
        return found.ensure_allocated()

    items = []
    for step, is_kernel, buffers, values in state["items"]:
        compiled = compile_kernel(step.ast, Device[step.device]) if is_kernel else None
        items.append(Recorded(step, compiled, [unpack(b) for b in buffers], values))
    ids = {id(b) for b in scratch}
    kept = [id(b.base) for r in items for b in r.buffers if id(b.base) not in ids]
    return Replay(items, inputs, state["borrowed"], kept)


def pack_recording(recording: Any) -> dict[str, Any]:
    """The fields of a `Recording` that mean something elsewhere."""

    def pack(leaf: Any) -> Any:
        return KeptResult(leaf.uop, leaf._requires_grad) if isinstance(leaf, Tensor) else leaf

    return {
        **{name: getattr(recording, name) for name in PLAIN_FIELDS},
        "result": rebuild(recording.result, pack),
        "outputs": [pack(leaf) for leaf in recording.outputs],
        "replay": pack_replay(recording.replay),
    }


def unpack_recording(recording: Any, state: dict[str, Any]) -> None:
    """Fills a `Recording` that has nothing yet."""

    def unpack(leaf: Any) -> Any:
        if not isinstance(leaf, KeptResult):
            return leaf
        return Tensor._naming(leaf.uop, leaf.requires_grad)

    for name in PLAIN_FIELDS:
        setattr(recording, name, state[name])
    recording.result = rebuild(state["result"], unpack)
    recording.outputs = [unpack(leaf) for leaf in state["outputs"]]
    recording.replay = unpack_replay(state["replay"])
    recording.replay.on_move.append(recording.look_again)
    recording.replay.on_free.append(recording.forget_results)
    # Nobody here names the memory, so nobody can exchange it.
    recording.watch = Watch([], lambda x: False)
    recording.bound, recording.staying, recording.states, recording.shown = [], [], [], []
    recording.unpacked, recording.grads = [], []
    recording.state_ids, recording.written_ids = set(), set()
    recording.written_states = []
    recording.latest = None
    recording.exchanges = storage.CLOCK.exchanges
    recording.make_places([lambda: None for _ in recording.fresh])


def means_something_elsewhere(key: tuple[Any, ...]) -> bool:
    """Whether the key of a recording names no object of this process."""
    return not any(isinstance(token, Same) for token in key[0])
