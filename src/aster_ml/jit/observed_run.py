"""One observed run of a jitted function: what it computes, changes and leaves behind.

Receives a function and its arguments, taken apart; returns the function's result, computed, and
knows afterwards what ran on which memory. Raises where the function does what no replay repeats.
Keeps nothing from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, TypeVar

from aster_ml.engine import storage
from aster_ml.engine.launch import observe
from aster_ml.engine.multi import all_parts
from aster_ml.engine.realize import realize_readers
from aster_ml.engine.realized import find_memory, find_realized
from aster_ml.errors import JitError
from aster_ml.jit.pytree import Inputs, base_buffer, is_apart, leaves, memory_of_whole
from aster_ml.jit.replay import Alias, Recorder
from aster_ml.ops.handle import Touched, own_memory
from aster_ml.ops.live import LIVE, live_handles, wake
from aster_ml.ops.views import Cell, new_cell
from aster_ml.tensor import Tensor
from aster_ml.thread_state import STATE, others_run
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import UOp

T = TypeVar("T")


class Run:
    """One run of the function, observed: what it ran, what it left behind.

    With `records` the inputs are names of their own for the same memory, so that a use of that
    memory by any other way (a weight, say) is told from a use of the input. Memory that is
    `reached` by the function itself, too, keeps its name: all uses are one, none is exchanged.
    """

    def __init__(
        self, inputs: Inputs, records: bool, reached: frozenset[UOp] = frozenset()
    ) -> None:
        self.inputs = inputs
        self.records = records
        # Tensors that exist, and what they name.
        self.before = {ref: handle.uop for ref in list(LIVE) if (handle := ref()) is not None}
        # Of which cell they are views, by its id: who names a cell is counted.
        self.showed = {
            ref: (id(handle._cell), handle._steps)
            for ref in self.before
            if (handle := ref()) is not None and handle._steps is not None
        }
        lazy = [u for u in self.before.values() if find_realized(u) is None]
        outside = set(all_parts(lazy))
        # What the function computes is computed in each replay, also where a tensor from before is
        # the same expression: that one has, or will have, the value of now.
        storage.forget_values(toposort(*lazy, enter=lambda u: storage.realized_view(u) is None))
        self.places: dict[UOp, UOp] = {}
        # Views with memory of their own: what they are views of is not to be written to.
        self.apart = [
            (t, cell, cell.root)
            for t in inputs.tensors
            if (cell := t._cell) is not None and is_apart(t)
        ]
        if records:
            # Inputs get other names, so who wants their content has to get it before.
            realize_readers(set(inputs.bases))
            for base in inputs.bases:
                if base in reached:
                    self.places[base] = base
                    continue
                place = UOp.new_buffer(base.arg.device, base.arg.size, base.dtype)
                storage.attach(place, Alias(storage.buffer_of(base)))
                self.places[base] = place
        self.reached = reached if records else frozenset()
        names = [self.places.get(b, b) for b in inputs.bases]
        self.recorder = Recorder(names, outside, records, self.reached)
        self.draws: list[tuple[UOp, int]] = []
        self.outputs: list[Tensor] = []
        # Handles that this thread has made or changed in the run; None where there is no other.
        self.touched: Touched | None = None

    def note_draw(self, state: UOp, count: int) -> None:
        """Random numbers that the function draws: the node that holds key and counter."""
        self.recorder.drawn[base_buffer(state)] = len(self.draws)
        self.draws.append((state, count))

    def call(self, function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """Runs the function, then computes its results and the effects that it left pending."""
        tensors = self.inputs.tensors
        before = [t.uop for t in tensors]
        views = [substitute(u, self.places) for u in before] if self.records else before
        outer, observers = STATE.note_draw, STATE.observers

        def note_draw(state: UOp, count: int) -> None:
            self.note_draw(state, count)
            if outer is not None:
                outer(state, count)

        seeded = STATE.seeded
        apart = self.set_apart() if self.records else []
        for t, u in zip(tensors, views):
            t.uop = u
            wake(t)
        STATE.note_draw = note_draw
        observe([*observers, self.recorder])
        try:
            result = self.run_alone(function, args, kwargs)
            self.outputs = list(
                {id(leaf): leaf for _, leaf in leaves(result) if isinstance(leaf, Tensor)}.values()
            )
            late = [late_part(t) for t in tensors if find_realized(t.uop) is None]
            for t, _ in self.changed():
                part = late_part(t)
                if find_memory(part.uop) is not None:
                    # What it shows of memory is computed; what was written there is not.
                    late.append(part)
            # Of what results are views together, there is one memory.
            for t in self.outputs:
                t._leave()
            cells = {id(t._cell): t._cell for t in self.outputs if t._cell is not None}
            roots = [c.root for c in cells.values() if find_realized(c.root) is None]
            if roots:
                Tensor.realize(*[Tensor._naming(root) for root in roots])
            if self.outputs or late:
                Tensor.realize(*self.outputs, *late)
            mine = {id(t) for t, _, _ in self.apart}
            for t in [*tensors, *[t for t, _ in self.changed()]]:
                if id(t) not in mine and is_apart(t) and memory_of_whole(t):
                    # Replays write to its whole; what it shows then is computed when it is read.
                    del t.uop
                    wake(t)
            for t in self.outputs:
                place = find_realized(t.uop)
                for base in storage.buffers_below(place) if place is not None else ():
                    self.recorder.note_result(base)
                    # Results are memory without a graph: no gradient may end there unnoticed.
                    if t._requires_grad and base in self.recorder.made:
                        storage.NO_GRADIENT.add(base)
        except BaseException:
            # What the function has made so far goes on under the names that the caller knows.
            self.restore(live_handles())
            raise
        finally:
            observe(observers)
            STATE.note_draw = outer
            for t, view, u in zip(tensors, views, before):
                t.uop = u if t.uop is view else t.uop
                wake(t)
            self.put_together(apart)
        self.restore([*tensors, *self.outputs])
        if self.records and STATE.seeded != seeded:
            raise JitError(
                "the random seed is set inside of a jitted function: replays go on "
                "with new numbers; call Tensor.manual_seed outside"
            )
        return result

    def set_apart(self) -> list[tuple[Cell, Cell]]:
        """Gives inputs that are views cells whose roots have the names of the recording.

        Other tensors that show the same get a cell with the old names meanwhile: a use of them is
        none of the input.
        """
        apart = {id(t) for t, _, _ in self.apart}
        views = [t for t in self.inputs.tensors if t._cell is not None and id(t) not in apart]
        mine = {id(t) for t in views}
        made = []
        for view, cell in {id(t._cell): (t, t._cell) for t in views}.values():
            if cell is None or self.reached.issuperset(memory_of_whole(view)):
                continue
            members = [t for ref in list(cell.fresh) if (t := ref()) is not None]
            found = find_realized(cell.root)
            others = new_cell(cell.root if found is None else found)
            cell.root, cell.fresh = substitute(others.root, self.places), {}
            for t in members:
                if t._cell is cell:
                    t._join(cell if id(t) in mine else others, t._steps)
            made.append((cell, others))
        return made

    def put_together(self, cells: list[tuple[Cell, Cell]]) -> None:
        """Gives cells the names of before, and all of their tensors."""
        kept = {id(t) for t, cell, whole in self.apart if not self.is_written(cell, whole)}
        for cell, others in cells:
            cell.renew(self.renamed(cell.root))
            for ref in list(others.fresh):
                t = ref()
                if t is not None and t._cell is others:
                    t._cell = cell
                    if id(t) in kept:
                        cell.note(t)
                    else:
                        # It may have been computed from what is written now.
                        del t.uop
                    wake(t)

    def is_written(self, cell: Cell, whole: UOp) -> bool:
        """Whether the run has written to what one of the views `apart` shows, `whole` before."""
        found = find_realized(whole)
        if found is None or found is not self.renamed(cell.root):
            return cell.root is not whole
        memory = [self.places.get(b, b) for b in storage.buffers_below(found)]
        return not self.recorder.written.keys().isdisjoint(memory)

    def written_views(self) -> frozenset[int]:
        """The numbers of inputs with memory of their own, though the run writes to their whole."""
        written = {id(t) for t, cell, whole in self.apart if self.is_written(cell, whole)}
        return frozenset([i for i, t in enumerate(self.inputs.tensors) if id(t) in written])

    def run_alone(
        self, function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        """Runs the function, and tells what it touches from what other threads do meanwhile."""
        if not others_run():
            return function(*args, **kwargs)
        with Touched() as touched:
            self.touched = touched
            return function(*args, **kwargs)

    def is_ours(self, t: Tensor) -> bool:
        """Whether a tensor that is new or another than before is so by this run."""
        return self.touched is None or self.touched.has(t)

    def restore(self, tensors: list[Tensor]) -> None:
        """Gives what names the inputs' memory by its name in the recording its own name again."""
        apart = {id(cell) for _, cell, whole in self.apart if not self.is_written(cell, whole)}
        for t in tensors if self.places else ():
            if id(t._cell) in apart:
                t.uop = self.renamed(t.uop)
                wake(t)
                continue
            node = self.renamed(t._whole)
            if node is not t._whole:
                t._whole = node

    def renamed(self, u: UOp) -> UOp:
        """A node with the inputs' own names; one whose effects have happened without these."""
        back = {place: base for base, place in self.places.items()}
        found = find_realized(u)
        return substitute(u if found is None else found, back)

    def changed(self) -> list[tuple[Tensor, UOp]]:
        """Tensors from before, no inputs, that name something else now, and what they named."""
        mine = {id(t) for t in self.inputs.tensors}
        return [
            (t, u)
            for ref, u in self.before.items()
            if (t := ref()) is not None and t.uop is not u and id(t) not in mine and self.is_ours(t)
        ]

    def give_memory(self) -> None:
        """After a plain run: what was given another value is memory from now on.

        why: the next run then writes it in place, which a recording can repeat
        """
        for t, _ in self.changed():
            has_memory = find_memory(late_part(t).uop) is not None
            if not has_memory and all(isinstance(s, int) for s in t.shape):
                t._whole = own_memory(t._whole, t.device)
                t.realize()

    def replaces_values(self) -> bool:
        """Whether a tensor from before that had no memory yet was given another value."""
        return any([find_memory(old) is None for _, old in self.replaced()])

    def replaced(self) -> list[tuple[Tensor, UOp]]:
        """Tensors from before that were given another value in no way to repeat, and the old."""
        found = []
        for t, old in self.changed():
            place = find_memory(t.uop)
            if 0 in t.shape or (
                t._cell is not None
                and find_memory(t._cell.root) is not None
                and (
                    # A view of memory in a way that is computed, or has been, or one that had
                    # memory of its own and shows the whole again.
                    place is None
                    or is_apart(t)
                    or self.showed.get(t._ref) == (id(t._cell), t._steps)
                )
            ):
                continue
            if place is None or (find_memory(old) is not place and find_realized(old) is not place):
                found.append((t, old))
        return found

    def check_replaced(self) -> None:
        """Raises JitError where a tensor from before was given another value in no way to repeat.

        A tensor that is gone, though the recording reads it, was replaced by another.
        """
        written = self.written_views()
        for i, (t, bases) in enumerate(zip(self.inputs.tensors, self.inputs.below)):
            if bases not in [storage.buffers_below(p) for p in places_of(t)] or i in written:
                raise JitError(
                    f"a jitted function replaces its argument {t!r} by another value; "
                    "use assign, or return the value"
                )
        for t, _ in self.replaced():
            raise JitError(
                f"a jitted function replaces {t!r}, which existed before, by another value; give "
                "it memory before: t.replace(t.contiguous().realize()), and use assign"
            )
        touched = {*self.recorder.states, *self.recorder.written}
        named = {b for t in live_handles() for b in storage.buffers_below(t.uop)}
        for ref, old in self.before.items():
            if ref() is None:
                place = find_memory(old)
                below = [] if place is None else storage.buffers_below(place)
                if any([b in touched and b not in named for b in below]):
                    raise JitError(
                        f"a jitted function uses a tensor of {show_shape(old.shape)} from before "
                        "the call and puts another in its place, so a replay would read the old "
                        "one; write it in place with assign"
                    )

    def check_aliases(self) -> None:
        """Raises JitError where an argument is memory that was also used by another way."""
        recorder = self.recorder
        written = {i for u, i in recorder.inputs.items() if u in recorder.written}
        states = {id(b.base) for b in recorder.states.values()}
        changed = {id(b.base) for u, b in recorder.states.items() if u in recorder.written}
        i = number_shared(self.inputs, written, changed, states, self.reached)
        if i is not None:
            base = self.inputs.bases[i]
            named = [t for t, below in zip(self.inputs.tensors, self.inputs.below) if base in below]
            raise JitError(
                f"{(named or self.inputs.tensors)[0]!r} is an argument of a jitted function, which "
                "also uses it by another way and writes to it; pass it in one way only"
            )

    def lose_escaped(self) -> None:
        """Tensors made in the run that outlive it and are no results read no stale memory."""
        results = {id(t) for t in self.outputs}
        own = {*self.places.values(), *self.recorder.made}.difference(self.reached)
        lost = {*own, *self.recorder.written}
        for ref in list(LIVE):
            t: Any = ref()
            if t is None or ref in self.before or id(t) in results or not self.is_ours(t):
                continue
            settled = find_realized(t.uop)
            if settled is not None and own.isdisjoint(storage.buffers_below(settled)):
                continue
            order = toposort(t.uop, enter=lambda u: storage.realized_view(u) is None)
            memory = [u if (found := storage.realized_view(u)) is None else found for u in order]
            if any(u.base in lost for u in memory):
                t.uop = storage.lost_node(
                    t.uop,
                    JitError(
                        "this tensor was made inside of a jitted function and is none of its "
                        "results, so replays do not compute it: return it from the function"
                    ),
                )


def places_of(t: Tensor) -> list[UOp]:
    """The memory that a tensor names, and that of what it is a view of where that is other."""
    nodes = [t.uop] if t._cell is None else [t.uop, t._cell.root]
    return [place for u in nodes if (place := find_memory(u)) is not None]


def late_part(t: Tensor) -> Tensor:
    """A tensor, or what it is a view of in a way that is computed, where that is memory."""
    cell = t._cell
    if cell is None or find_memory(t.uop) is not None or find_memory(cell.root) is None:
        return t
    return Tensor._naming(cell.root)


def number_shared(
    inputs: Inputs,
    written_inputs: set[int],
    written: set[int],
    states: set[int],
    reached: Container[UOp] = (),
) -> int | None:
    """The number of an input's memory that a function also gets at by itself, where one writes.

    `written` and `states` are ids of what it gets at. What is `reached` was recorded as one.
    """
    for i, base in enumerate(inputs.bases):
        memory = id(storage.buffer_of(base).base)
        if base not in reached and (
            memory in written or (i in written_inputs and memory in states)
        ):
            return i
    return None
