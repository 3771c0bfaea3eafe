"""What layers that are alike share while they are planned, and what planning takes as known."""

from __future__ import annotations

import random

import pytest

from aster_ml import Tensor
from aster_ml.dtype import dtypes
from aster_ml.engine.caches import CACHES
from aster_ml.engine.realize import prepare
from aster_ml.schedule.capture import Beforehand, capture
from aster_ml.schedule.fusion.body import Body, sum_of_steps
from aster_ml.schedule.kernels import kernelize
from aster_ml.schedule.steps import Schedule
from aster_ml.uop.graph import toposort
from aster_ml.uop.infer import infer_device, infer_shape
from aster_ml.uop.interned import UNSET
from aster_ml.uop.movement import flat_index, source_index
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import BodyArg, Ops
from aster_ml.uop.rules.symbolic import simplify
from tests.core.random_programs import draw_program


def layers_of(count: int) -> Schedule:
    """The schedule of normed and projected rows, a layer after the other."""
    x = Tensor.ones(16, 48).contiguous().realize()
    weights = [Tensor.ones(48, 48).contiguous().realize() for _ in range(count)]
    for w in weights:
        x = (x - x.mean(1, keepdim=True)) @ w + x
    CACHES.forget_schedules()
    prepared = prepare([x.uop])
    assert prepared is not None
    return prepared[2]


def test_kernels_that_are_alike_are_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[UOp] = []
    real = kernelize.close_kernel

    def noted(*args: object) -> UOp:
        made.append(real(*args))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(kernelize, "close_kernel", noted)
    few = layers_of(4)
    of_few = len(made)
    many = layers_of(12)
    assert of_few == len(made) - of_few < len(few.steps) < len(many.steps)
    assert {step.ast for step in many.steps} <= set(made)


def test_alike_kernels_read_their_own_memory() -> None:
    schedule = layers_of(6)
    arguments = [s for step in schedule.steps for s in step.slots[1:] if s < schedule.n_args]
    written = schedule.written
    assert set(arguments) == set(range(schedule.n_args)) - written


def test_a_place_in_memory_is_what_simplifying_a_row_major_index_gives() -> None:
    rng = random.Random(7)
    for _ in range(300):
        shape = tuple([rng.choice((1, 2, 3, 5, 8)) for _ in range(rng.randint(1, 5))])
        idxs = []
        for axis, size in enumerate(shape):
            r = UOp.range(size, axis)
            choices = [r, UOp.index_const(rng.randrange(size)), UOp.index_const(0)]
            if size % 2 == 0:
                choices.append(UOp.range(size * 3, axis + 10) // 3)
                choices.append(UOp.range(2, axis + 20) * (size // 2) + UOp.range(size // 2, axis))
            idxs.append(rng.choice(choices))
        assert simplify(sum_of_steps(tuple(idxs), shape)) is simplify(
            flat_index(tuple(idxs), shape)
        )


def test_what_capture_takes_as_known_is_what_would_be_inferred() -> None:
    for seed in range(60):
        program = draw_program(seed)
        tensors = [Tensor(a.copy()).realize() for a in program.draw_inputs(seed)]
        fresh = [
            UOp.new_memory("CPU", t.uop.shape, t.uop.dtype).store(t.uop)
            for t in program.run_tensors(*tensors)
        ]
        body = capture(fresh, [], lambda u: None).body
        known = 0
        for u in toposort(body):
            for s in u.src:
                assert s.shape is not UNSET
                assert s.device is not UNSET
            known += bool(u.src) and u._shape is not UNSET
            if u._shape is not UNSET:
                assert u._shape == infer_shape(u), f"seed {seed}: {u!r}"
            if u._device is not UNSET:
                assert u._device == infer_device(u), f"seed {seed}: {u!r}"
        assert known or len(toposort(body)) < 5


def test_what_is_known_beforehand_is_what_capture_finds() -> None:
    found = 0
    for seed in range(40):
        program = draw_program(seed, assigns=True)
        tensors = [Tensor(a.copy()).realize() for a in program.draw_inputs(seed)]
        results = [t.uop for t in program.run_tensors(*tensors)]
        roots = [
            UOp.new_memory("CPU", u.shape, u.dtype).store(UOp(Ops.CONTIGUOUS, u.dtype, (u,)))
            for u in results
        ]
        settled = {u: u.src[0] for u in toposort(*roots[:1]) if u.op is Ops.NEG}
        captured = capture(roots, [], settled.get)
        beforehand = Beforehand(settled.get)
        # One root after the other, as they are found.
        for i in range(len(roots)):
            beforehand.add(roots[: i + 1])
        assert beforehand.effects == captured.effects, f"seed {seed}"
        assert beforehand.laid_out == captured.laid_out, f"seed {seed}"
        found += len(captured.effects) > 0
    assert found


def test_a_reading_goes_beyond_a_source_where_simplifying_says_so() -> None:
    draw = random.Random(3)
    beyond = 0
    body = Body(UOp.sink(arg=BodyArg(0)), [])
    for _ in range(200):
        size, before, after = draw.randint(1, 6), draw.randint(0, 2), draw.randint(0, 2)
        pad = UOp.param(0, size, dtypes.float32)._mop(Ops.PAD, ((before, after),))
        r, s = UOp.range(draw.randint(2, 4), 0), UOp.range(2, 1)
        i = r * draw.randint(1, 2) + s * draw.randint(0, 2) + draw.randint(0, 2)
        if draw.random() < 0.3:
            i = i // 2
        if not (i.vmin >= 0 and i.vmax < size + before + after):
            continue
        way = body.way((i,), None, (r, s))
        valid = source_index(pad, (i,))[1]
        want = valid is not None and simplify(valid) is not UOp.const(dtypes.bool, True)
        assert body.reads_padding(pad, way) == want, f"{i.render(False)} in {size}, {before}"
        beyond += want
    assert beyond
