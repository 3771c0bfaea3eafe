"""Fast path of a jitted function that is called again, with as little Python as it takes.

Receives a recording and the arguments of a call that has replayed it; answers the next call when
that is like it in every respect that the long way (`TinyJit.__call__`, `Inputs`, `Recording.run`)
looks at, and returns DIFFERENT otherwise: then the long way goes, which decides, and raises.

It knows no rule of its own. The long way works out what a call is: a key of its arguments, a
recording that fits, memory to exchange. Here it is enough that each argument names the very node
that it named before, or memory of the same form, and that whatever the recording depends on is what
it was. Only recordings that write nothing but their results and run as one native graph are
answered here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from aster_ml.device import Buffer
from aster_ml.dtype import dtypes
from aster_ml.engine import storage
from aster_ml.engine.counters import TOTALS
from aster_ml.engine.storage import CLOCK, DUE
from aster_ml.jit.guard_codegen import Writer
from aster_ml.jit.pytree import PLAIN, Inputs, Template
from aster_ml.jit.recording import Recording
from aster_ml.jit.results import ResultPlace
from aster_ml.ops.handle import Flag
from aster_ml.ops.live import LIVE, TensorRef, forget
from aster_ml.tensor import Tensor
from aster_ml.thread_state import ENGINE, HELD, STATE, TURN, Turn
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# The answer to a call that is not like the last one.
DIFFERENT: Any = object()
new_object = object.__new__
# Calls in a row with the same arguments after which a check is written for them.
STEADY = 4


def nothing() -> None:
    """In place of a node, for arguments that are no tensors."""


# What a recording depends on besides arguments and what its function reads; `surroundings` has it.
# The token stands for the thread, for training, the settings that are marked, and for who observes.
SURROUNDINGS = (
    "CLOCK.exchanges",
    "STATE.token",
    "dtypes.default_float",
    "dtypes.default_int",
)


def surroundings() -> tuple[Any, ...]:
    """Reads the present values of SURROUNDINGS."""
    return (
        CLOCK.exchanges,
        STATE.token,
        dtypes.default_float,
        dtypes.default_int,
    )


class FastPath:
    """A recording, and what it was last called with.

    `known` has for each argument its node and its memory (weakly: they are the caller's), the
    handle of that memory, `requires_grad`, and where it stands; for a plain value that value in
    place of a handle.
    """

    def __init__(self, recording: Recording[Any]) -> None:
        self.recording = recording
        self.replay = recording.replay
        self.places = recording.places
        # A result that is one tensor, and shows all of its memory, is made here.
        self.only: ResultPlace | None = None
        result = recording.result
        if result.__class__ is Template and result.whole is not None:
            slot, shape = result.whole
            place = recording.places[slot - recording.n_inputs]
            if len(recording.places) == 1 and place.shape == shape:
                self.only, self.flag = place, result.flag

    def remember_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Inputs) -> bool:
        """Takes note of a call that has just been replayed; False when it is no plain one."""
        graph = self.replay.single
        if graph is None or not self.recording.is_pure or len(inputs.bases) != len(inputs.tensors):
            return False
        if not self.recording.watch.holds():
            return False
        self.known: list[tuple[Any, ...]] = []
        self.forms: list[Any] = []
        self.bases: list[weakref.ref[UOp]] = []
        # For each argument that is a tensor, its number among the inputs of the replay.
        self.numbers: dict[int, int] = {}
        self.names = list(kwargs)
        for arg in (*args, *kwargs.values()):
            if arg.__class__ is Tensor:
                base = inputs.bases[len(self.bases)]
                buffer = storage.buffer_of(base)
                if buffer.base is not buffer:
                    return False
                self.numbers[len(self.known)] = len(self.bases)
                self.forms.append(form(arg.uop, base))
                self.bases.append(weakref.ref(base))
                self.note(len(self.known), arg.uop, buffer, arg._requires_grad)
            elif isinstance(arg, (*PLAIN, float)):
                self.known.append((nothing, nothing, arg, None, None))
            else:
                return False
        self.token = self.recording.latest = object()
        self.graph, self.launch = graph, graph.entry()
        self.surroundings = surroundings()
        self.is_same: Callable[..., bool] | None = None
        self.steady = 0
        return True

    def write_check(self) -> Callable[[Any], bool]:
        """Compiles `is_like` to one function of the arguments, for this call.

        It says False, or raises what a name that is gone raises, where that is not known. It is
        right until an argument is exchanged.
        """
        writer = Writer(CLOCK=CLOCK, DUE=DUE, STATE=STATE)
        writer.names.update(replay=self.replay, dtypes=dtypes, Tensor=Tensor, type=type)
        writer.tests += ["not DUE.data"]
        writer.same("replay.single", self.graph)
        for text, value in zip(SURROUNDINGS, self.surroundings, strict=True):
            writer.same(text, value)
        names: list[str] = []
        for node, memory, handle, flag, at in self.known:
            names.append(f"a{len(names)}")
            if at is None:
                writer.same(names[-1], handle)
                continue
            writer.same(f"type({names[-1]})", Tensor)
            writer.same(f"{names[-1]}._requires_grad", flag)
            writer.tests.append(f"{names[-1]}.uop is {writer.name(node)}()")
            writer.same(f"{writer.name(memory)}()._handle", handle)
        for state in self.recording.states:
            ref, uop = writer.name(state.ref), writer.name(state.uop)
            writer.tests.append(f"((t := {ref}()) is None or t.uop is {uop})")
        checks = self.recording.watch.quick_checks()
        writer.tests += [f"{writer.name(check)}()" for check in checks]
        return writer.function(*names)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], turn: Turn = TURN) -> Any:
        """The function's result, or DIFFERENT.

        Between its first and its last line no other thread comes to what threads share.
        """
        turn.inside = True
        try:
            if turn.shared:
                turn.inside = False
                with ENGINE:
                    if self.recording.latest is not self.token:
                        # Another thread has replayed it since, with other memory in its places.
                        return DIFFERENT
                    return self.call(args, kwargs, HELD)
            replay = self.replay
            try:
                same = self.is_same is not None and not kwargs and self.is_same(*args)
            except (AttributeError, KeyError, NameError, TypeError):
                # Something that is looked at is gone, or there are more arguments or fewer.
                same = False
            if not same:
                if kwargs or self.names:
                    if list(kwargs) != self.names:
                        return DIFFERENT
                    args = (*args, *kwargs.values())
                if not self.is_like(args):
                    return DIFFERENT
                self.steady += 1
                if self.steady == STEADY and not self.names:
                    self.is_same = self.write_check()
            totals = TOTALS
            totals.kernel_count += replay.kernels
            totals.global_ops += replay.ops
            totals.global_mem += replay.mem
            place = self.only
            if place is None:
                for other in self.places:
                    other.take(replay)
                self.launch()
                tensors = [arg for arg in args if arg.__class__ is Tensor]
                bases = [b for base in self.bases if (b := base()) is not None]
                return self.recording.fill(bases, tensors, {})
            held = place.current
            if held is None or held.others():
                held = place.take(replay)
            self.launch()
            t = held.tensor
            if t is None:
                # `Tensor.from_uop` without its questions, whose answers are known for memory.
                t = new_object(Tensor)
                t.uop = held.view
                t._cell = t._steps = t._old_nodes = None
                # It is memory, so it rests.
                t._ref = TensorRef(t, forget)
                LIVE[t._ref] = None
                if not self.flag:
                    # One that asks for a gradient would be given one whenever it is alive.
                    held.keep(t)
            t.grad = None
            t._requires_grad = self.flag
            return t
        finally:
            turn.inside = False

    def is_like(self, args: tuple[Any, ...]) -> bool:
        """Whether this call is like the last one, once memory of the same form is in its place."""
        recording = self.recording
        if (
            self.replay.single is not self.graph
            or len(args) != len(self.known)
            or DUE.data
            or surroundings() != self.surroundings
        ):
            return False
        for arg, (node, memory, handle, flag, at) in zip(args, self.known):
            if arg.__class__ is not Tensor:
                if at is not None or arg is not handle:
                    return False
            elif arg._requires_grad is not flag:
                return False
            elif node() is arg.uop:
                if memory()._handle is not handle:
                    return False
            elif at is None or not self.exchange(at, arg.uop):
                return False
        for state in recording.states:
            t = state.ref()
            if t is not None and t.uop is not state.uop:
                return False
        return not recording.watch.conditions or recording.watch.holds()

    def exchange(self, at: int, u: UOp) -> bool:
        """Puts memory of the same form in the place of an argument, if `u` shows such."""
        number = self.numbers[at]
        wanted = self.forms[number]
        base = u.src[0] if u.op is Ops.RESHAPE else u
        if wanted is None or base.op is not Ops.BUFFER or form(u, base) != wanted:
            return False
        for known in self.bases:
            if known() is base:
                # Two arguments are one memory now, or are about to change places.
                return False
        buffer = storage.buffer_of(base)
        if buffer.base is not buffer:
            return False
        self.replay.set_input(number, buffer.ensure_allocated())
        self.is_same, self.steady = None, 0
        self.bases[number] = weakref.ref(base)
        self.note(at, u, buffer, self.known[at][3])
        return True

    def note(self, at: int, u: UOp, buffer: Buffer, flag: Flag) -> None:
        """Keeps what is known of the tensor at this place."""
        known = (weakref.ref(u), weakref.ref(buffer), buffer.handle, flag, at)
        self.known[at : at + 1] = [known]


def form(u: UOp, base: UOp) -> tuple[Any, ...] | None:
    """Form that other memory needs to take the place of this; None where `u` is a view."""
    shape = None
    if u is not base:
        if u.op is not Ops.RESHAPE or u.src != (base,):
            return None
        shape = u.arg
    return shape, base.dtype, base.arg.device, base.arg.size
