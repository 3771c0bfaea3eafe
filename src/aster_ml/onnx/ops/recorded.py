"""Records a model for one combination of shapes and small numbers, and replays it.

Receives inputs that the runner has checked, or, for a call that is like the last one, as they are
given: then arrays are copied into memory that the recording reads anyway, and no tensor is made.
A file does not change while it is open, so what its graph reads needs no watching: `jit/guards`
does not search the code of this folder.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np

from aster_ml import Tensor, TinyJit
from aster_ml.device import Buffer
from aster_ml.dtype import DType
from aster_ml.extend import buffer_of
from aster_ml.onnx.ops.registry import Array, Value
from aster_ml.onnx.ops.run import Execution
from aster_ml.onnx.ops.types import numpy_type

# Devices whose programs are done when they return, so that their memory is written as it lies.
IN_STEP = ("CPU", "PYTHON")
NUMBERS = (int, float, bool)


class Recorded:
    """One recording: the tensors `names` go in; what `result` has of tensors comes out.

    `arrays` are the inputs that are no tensors, the same in every run.
    """

    def __init__(
        self,
        execution: Execution,
        names: list[str],
        arrays: dict[str, Value],
        result: dict[str, Any],
    ) -> None:
        graph = execution.model.graph
        self.names, self.arrays, self.device = names, arrays, execution.device
        self.outputs = [n for n, v in result.items() if isinstance(v, Tensor)]
        places = [i for i, name in enumerate(result) if name in self.outputs]

        def step(*tensors: Tensor) -> Any:
            found = execution.run(graph, ChainMap({**arrays, **dict(zip(names, tensors))}), {})
            made = [execution.tensor(found[i]).contiguous() for i in places]
            return made[0] if len(made) == 1 else made

        self.jit: TinyJit[Any] = TinyJit(step)
        self.again: Again | None = None
        self.is_plain = True

    def __call__(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        """The outputs for tensors of these shapes."""
        return self.named(self.jit(*tensors))

    def named(self, found: Any) -> dict[str, Tensor]:
        """Names the results of the recorded function."""
        return dict(zip(self.outputs, [found] if len(self.outputs) == 1 else found))

    def next(self, inputs: dict[str, Any], tensors: list[Tensor]) -> Again | None:
        """Finds the recording for calls with inputs like these; None while there is none."""
        if self.again is None and self.is_plain and self.jit.captured is not None:
            self.again = Again.of(self, inputs, tensors)
            self.is_plain = self.again is not None
        return self.again


class Place:
    """Memory of the recording for one input, and the array that shows it where the host sees it."""

    def __init__(self, name: str, dtype: DType, shape: Sequence[int], device: str | None) -> None:
        self.name, self.shape, self.dtype = name, tuple(shape), dtype
        self.kind = numpy_type(dtype)
        self.tensor = Tensor.zeros(self.shape, dtype=dtype, device=device).contiguous().realize()
        self.buffer: Buffer = buffer_of(self.tensor.uop.base).ensure_allocated()
        self.handle = self.buffer.handle
        self.view: Array | None = None
        if self.buffer.device.split(":")[0] in IN_STEP and self.buffer.is_seen_by_host():
            memory = self.buffer.as_memoryview()
            self.view = np.frombuffer(memory, self.kind).reshape(self.shape)

    def fits(self, value: Any) -> bool:
        """Whether an input may be put here, or in the place of it."""
        if value.__class__ is np.ndarray:
            return bool(
                value.dtype == self.kind
                and value.shape == self.shape
                and self.buffer._handle is self.handle
            )
        if value.__class__ is Tensor:
            # One number may be a constant, without memory.
            return value.dtype is self.dtype and value.shape == self.shape != ()
        return value.__class__ in NUMBERS and self.shape == ()

    def filled(self, value: Any) -> Tensor:
        """The tensor to run on: this memory with the numbers of an array, or a tensor as it is."""
        if value.__class__ is Tensor:
            return value
        if self.view is not None:
            np.copyto(self.view, value, casting="unsafe")
        else:
            self.buffer.copyin(np.ascontiguousarray(value, self.kind))
        return self.tensor

    def fill_part(self, value: Array, cut: tuple[slice, ...]) -> None:
        """Puts an array into a part of this memory."""
        if self.view is not None:
            self.view[cut] = value
            return
        memory = np.zeros(self.shape, self.kind)
        memory[cut] = value
        self.buffer.copyin(memory)


class Again:
    """Answers calls that are like the last one: the same names, shapes, dtypes, small numbers."""

    def __init__(self, recorded: Recorded, inputs: dict[str, Any], places: list[Place]) -> None:
        self.recorded, self.places = recorded, places
        self.names = frozenset(inputs)
        self.same = [(name, same_as(inputs[name])) for name in recorded.arrays]
        self.lock = Lock()

    @staticmethod
    def of(recorded: Recorded, inputs: dict[str, Any], tensors: list[Tensor]) -> Again | None:
        """For inputs like these; None where they are of kinds that are looked at one by one."""
        names = recorded.names
        given = [inputs.get(name) for name in (*names, *recorded.arrays)]
        if any(v.__class__ not in (np.ndarray, Tensor, *NUMBERS) for v in given[: len(names)]):
            return None
        if any(not is_plain(value) for value in given[len(names) :]):
            return None
        if any(0 in t.shape for t in tensors):
            return None
        made = Again(
            recorded,
            inputs,
            [Place(n, t.dtype, t.shape, recorded.device) for n, t in zip(names, tensors)],
        )
        found = recorded([place.filled(inputs[place.name]) for place in made.places])
        memory = {place.buffer for place in made.places}
        # An output that is an input would change with the next call.
        shown = {buffer_of(t.uop.base).base for t in found.values()}
        return None if memory & shown else made

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Tensor] | None:
        """The outputs; None where the call is another one."""
        if inputs.keys() != self.names:
            return None
        for name, is_same in self.same:
            if not is_same(inputs[name]):
                return None
        for place in self.places:
            if not place.fits(inputs[place.name]):
                return None
        # The memory belongs to one thread until the run is done.
        with self.lock:
            recorded = self.recorded
            return recorded.named(
                recorded.jit(*[place.filled(inputs[place.name]) for place in self.places])
            )


def same_as(known: Any) -> Callable[[Any], bool]:
    """A function that says whether a value is an array or number like this one."""
    kind = known.__class__
    if not isinstance(known, np.ndarray):
        return lambda value: value.__class__ is kind and bool(value == known)
    dtype, shape, data = known.dtype, known.shape, known.tobytes()

    def is_same(value: Any) -> bool:
        return bool(
            value.__class__ is kind
            and value.dtype == dtype
            and value.shape == shape
            and value.tobytes() == data
        )

    return is_same


def is_plain(value: Any) -> bool:
    """Whether a value is compared by its bytes, or as a number."""
    if isinstance(value, np.ndarray):
        return value.dtype != np.object_
    return isinstance(value, (np.generic, int, float))
