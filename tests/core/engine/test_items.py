"""Schedules run item by item; programs to look at; Opts by hand; estimates."""

from __future__ import annotations

import pickle
import weakref
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, GlobalCounters, Tensor, TinyJit, Variable
from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.device import Buffer
from aster_ml.engine import storage
from aster_ml.engine.items import BufferCopy, CompiledRunner, ExecItem, get_runner, run_schedule
from aster_ml.engine.program import get_program
from aster_ml.errors import ArgumentError, DeviceError, KernelOptError
from aster_ml.uop.ops import Ops
from tests.core.jit_helpers import vector


def product(n: int = 64) -> tuple[Tensor, np.ndarray]:
    """A product of two matrices, and what it should be."""
    a, b = Tensor.randn(n, n).realize(), Tensor.randn(n, n).realize()
    return a @ b, a.numpy().astype(np.float64) @ b.numpy()


def test_items_run_one_by_one() -> None:
    x, want = product()
    y = (x.relu() @ x).sum(1)
    items = y.schedule()
    assert len(items) >= 2
    assert not any(item.bufs[0].is_allocated() for item in items)
    for item in items:
        assert item.lower() is item
        assert isinstance(item.prg, CompiledRunner)
        assert item.run(wait=True) >= 0.0
    np.testing.assert_allclose(y.numpy(), (np.maximum(want, 0) @ want).sum(1), rtol=1e-3, atol=0.1)
    np.testing.assert_allclose(items[-1].bufs[0].numpy(), y.numpy())


def test_what_is_scheduled_is_memory_from_then_on() -> None:
    y = vector(1, 2) + 1
    items = y.schedule()
    assert y.uop.op is Ops.BUFFER
    assert y.schedule() == []
    run_schedule(items)
    assert items == []
    assert y.tolist() == [2, 3]


def test_what_turns_out_to_be_a_number_is_not_due() -> None:
    before = set(storage.DUE)
    zeros = [vector(1, 2, 3) * 0, (vector(4, 5) * 0).sum(), Tensor.zeros(3, 3).contiguous()]
    items = Tensor.schedule(*zeros)
    due = set(storage.DUE) - before
    assert all(u.op is Ops.BUFFER for u in due)
    run_schedule(items)
    assert set(storage.DUE) == before
    assert [t.tolist() for t in zeros] == [[0, 0, 0], 0, [[0, 0, 0]] * 3]


def test_reading_runs_what_is_left() -> None:
    y = (vector(1, 2) + 1).sum()
    z = y * 2
    items = y.schedule()
    assert z.item() == 10
    assert items[-1].bufs[0].is_allocated()
    GlobalCounters.reset()
    run_schedule(items)
    assert GlobalCounters.kernel_count == 0
    assert y.item() == 5


def test_effects_are_run_once() -> None:
    x = vector(1, 2)
    x += 1
    items = x.schedule()
    assert x.tolist() == [2, 3]
    for item in items:
        item.run()
    assert x.tolist() == [2, 3]
    x *= 2
    run_schedule(x.schedule())
    assert x.tolist() == [4, 6]


def test_scheduled_values_are_those_of_memory_as_it_was() -> None:
    x = vector(1, 2)
    y = x * 10
    y.schedule()
    x += 1
    x.realize()
    assert (x.tolist(), y.tolist()) == ([2, 3], [10, 20])
    y, z = x * 10, x
    y.schedule()
    z.assign(z + 1)
    run_schedule(z.schedule())
    assert (z.tolist(), y.tolist()) == ([3, 4], [20, 30])


def test_a_kernel_in_place_of_a_scheduled_one_counts() -> None:
    x, want = product()
    [item] = x.schedule()
    p = get_program(item.ast, opts=[Opt(OptOps.UPCAST, 0, 4), Opt(OptOps.UPCAST, 1, 2)])
    ExecItem(item.ast, list(item.bufs), prg=CompiledRunner(p)).run()
    GlobalCounters.reset()
    np.testing.assert_allclose(x.numpy(), want, atol=1e-3)
    assert GlobalCounters.kernel_count == 0


def test_a_jit_reads_and_records_scheduled_values() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        y = x + 1
        for item in y.schedule():
            item.run()
        return y * 2

    for i in range(5):
        x = vector(i, i + 1) * 1
        x.schedule()
        assert f(x).tolist() == [2 * i + 2, 2 * i + 4]


def test_nothing_is_kept_alive() -> None:
    x = vector(1, 2)
    y = x + 1
    items = y.schedule()
    buffers = [weakref.ref(b) for item in items for b in item.bufs if b is not x.uop.base]
    del y
    run_schedule(items)
    del x
    assert not any(b() is not None for b in buffers)


def test_copies_views_and_values() -> None:
    raw = Tensor(np.arange(8, dtype=np.int32)).to("PYTHON").realize()
    moved = raw.to("CPU")
    [item] = moved.schedule()
    assert item.ast.op is Ops.COPY
    assert isinstance(item.lower().prg, BufferCopy)
    item.run()
    assert moved.tolist() == list(range(8))
    n = Variable("n", 1, 8).bind(3)
    items, values = moved[:n].sum().schedule_with_vars()
    assert values == {"n": 3}
    assert items[-1].fixedvars == {"n": 3}
    items[-1].run({"n": 5})
    assert items[-1].bufs[0].numpy().tolist() == [10]


def test_counters_may_be_left_alone() -> None:
    [item] = (vector(1, 2) + 1).schedule()
    GlobalCounters.reset()
    item.run(do_update_stats=False)
    assert (
        GlobalCounters.kernel_count == GlobalCounters.global_ops == GlobalCounters.global_mem == 0
    )


def test_wrong_buffers_are_refused() -> None:
    [item] = (vector(1, 2) + vector(3, 4)).schedule()
    with pytest.raises(ArgumentError, match="1 buffers are given; it takes 3"):
        get_runner("CPU", item.ast)(item.bufs[:1])
    readonly = Tensor(b"\x00" * 8).uop.base
    item.bufs[0] = Buffer("CPU", 2, item.bufs[0].dtype, opaque=b"\x00" * 8)
    with pytest.raises(DeviceError, match="read-only"):
        item.run()
    assert readonly.op is Ops.BUFFER


def test_schedules_are_pickled() -> None:
    items = (vector(1, 2) + 1).schedule()
    again = pickle.loads(pickle.dumps(items))
    assert again[-1].ast is items[-1].ast
    again[-1].run()
    assert again[-1].bufs[0].numpy().tolist() == [2, 3]


def test_a_program_says_what_it_is() -> None:
    x, _ = product()
    [item] = x.schedule()
    p = get_program(item.ast, "CPU", [Opt(OptOps.UPCAST, 0, 4), Opt(OptOps.UNROLL, 0, 4)])
    assert p.name == p.function_name
    assert p.name in p.src
    assert p.device == "CPU"
    assert (p.outs, p.ins, p.globals, p.vars) == ([0], [1, 2], [0, 1, 2], [])
    assert p.local_size is None
    assert p.uops == list(p.linear.uops)
    assert [opt.op for opt in p.applied_opts][-1] is OptOps.UNROLL
    assert get_program(item.ast, opts=()).applied_opts == ()
    assert get_program(item.ast).applied_opts != ()


def test_no_program_of_what_is_no_kernel() -> None:
    with pytest.raises(ArgumentError, match="is no kernel"):
        get_program(vector(1).uop)


@pytest.mark.parametrize(
    "opts",
    [
        (),
        (Opt(OptOps.UPCAST, 0, 4),),
        (Opt(OptOps.UPCAST, 1, 4), Opt(OptOps.UPCAST, 0, 4)),
        (Opt(OptOps.UPCAST, 0, 4), Opt(OptOps.UPCAST, 1, 2), Opt(OptOps.UPCAST, 0, 4)),
        (Opt(OptOps.UPCAST, 2, 4),),
        (Opt(OptOps.UNROLL, 0, 0),),
        (Opt(OptOps.UNROLL, 0, 8), Opt(OptOps.UPCAST, 0, 0)),
        (Opt(OptOps.SWAP, 0, 1), Opt(OptOps.VECTOR, 0, 8)),
    ],
)
def test_asked_opts_are_applied(opts: tuple[Opt, ...]) -> None:
    x, want = product(16)
    y = x.contiguous(arg=opts)
    items = y.schedule()
    p = get_program(items[-1].ast)
    assert len(p.applied_opts) == len(opts)
    np.testing.assert_allclose(y.numpy(), want, atol=1e-3)


def test_asked_opts_are_for_one_kernel_alone() -> None:
    a = vector(*range(16))
    y = (a + 1).contiguous(arg=(Opt(OptOps.UPCAST, 0, 4),)) * 2
    items = y.schedule()
    assert [get_program(item.ast).ast.arg is not None for item in items] == [True, False]
    assert y.tolist() == [2.0 * (i + 1) for i in range(16)]


@pytest.mark.parametrize(
    "opt, said",
    [
        (Opt(OptOps.UPCAST, 0, 5), "5 does not divide"),
        (Opt(OptOps.UNROLL, 1, 4), "no axis 1 of reductions, but r2 of 16"),
        (Opt(OptOps.UPCAST, 9, 4), "no axis 9, but r0 of 16, r1 of 16, r2 of 16"),
        (Opt(OptOps.LOCAL, 0, 4), "no work-groups"),
        (Opt(OptOps.GROUPTOP, 0, 4), "no work-groups"),
        (Opt(OptOps.TC, 0, 0), "no TC on this device"),
    ],
)
def test_opts_that_cannot_be_are_refused(opt: Opt, said: str) -> None:
    x, _ = product(16)
    with pytest.raises(KernelOptError, match=said):
        x.contiguous(arg=(opt,)).realize()


def test_lanes_do_not_race() -> None:
    at = Tensor([0, 2, 2, 1]).realize()
    table = Tensor.zeros(3).contiguous().realize()
    adding = table[at].sum().gradient(table)[0].schedule()[-1]
    with pytest.raises(KernelOptError, match="add to the same elements"):
        get_program(adding.ast, opts=[Opt(OptOps.UPCAST, 0, 2)])


def estimates(x: Tensor, opts: Any = None) -> Any:
    """The estimates of the last kernel of a value."""
    return get_program(x.schedule()[-1].ast, opts=opts).estimates


def test_estimates_of_a_product() -> None:
    n = 64
    x = Tensor.empty(n, n) @ Tensor.empty(n, n)
    [item] = x.schedule()
    plain = get_program(item.ast, opts=()).estimates
    assert (plain.ops, plain.mem, plain.lds) == (2 * n**3, 3 * n * n * 4, 2 * n**3 * 4 + 4 * n * n)
    tile = get_program(item.ast, opts=[Opt(OptOps.UPCAST, 0, 4), Opt(OptOps.UPCAST, 1, 4)])
    assert tile.estimates.lds == 2 * n**3 * 4 // 4 + 4 * n * n


def test_estimates_of_memory() -> None:
    a, b = Tensor.empty(64, 64, dtype="uint8"), Tensor.empty(64, 1, dtype="uint8")
    assert estimates(a + a).mem == 2 * 64 * 64
    assert estimates(a + b).mem == 2 * 64 * 64 + 64
    assert estimates(a + 3).mem == 2 * 64 * 64


def test_estimates_of_memory_that_is_rewritten() -> None:
    a = Tensor.empty(64, 64, dtype="uint8").realize()
    x = a.assign(a + 1)
    assert estimates(x).mem == 2 * 64 * 64


def test_indices_are_no_operations() -> None:
    assert estimates(Tensor.arange(256)).ops == 0
    assert estimates(Tensor.arange(3, 300, 7)).ops == 0
    assert estimates(Tensor.arange(256) + Tensor([1]).realize()).ops == 256


def test_items_report_at_debug_2(capsys: pytest.CaptureFixture[str]) -> None:
    [item] = (vector(1, 2) + 1).schedule()
    with Context(DEBUG=2):
        item.run()
    assert "***" in capsys.readouterr().out


@pytest.mark.parametrize(
    "function, want",
    [
        (lambda a, b: a.reshape(2, 1).expand(2, 3).sum(), lambda a, b: 3 * a.sum()),
        (
            lambda a, b: (a.reshape(2, 1).expand(2, 3) + b).sum() + b,
            lambda a, b: 3 * a.sum() + 7 * b,
        ),
        (lambda a, b: a.reshape(2, 1, 1).expand(2, 300, 200).max(), lambda a, b: a.max()),
        (lambda a, b: a.reshape(1, 2).expand(70000, 2).sum(0), lambda a, b: 70000 * a),
        (
            lambda a, b: (a.reshape(1, 1, 2).expand(4, 3, 2) * b).sum((0, 2)),
            lambda a, b: np.full(3, 4 * (a * b[0]).sum()),
        ),
        (lambda a, b: b.expand(256, 256).sum(), lambda a, b: 65536 * b.sum()),
    ],
)
def test_what_only_repeats_is_multiplied(function: Any, want: Any) -> None:
    a, b = Tensor.randn(2).realize(), Tensor.randn(1, 1).realize()
    x = function(a, b)
    [item] = x.schedule()
    loops = [u for u in get_program(item.ast, opts=()).linear.uops if u.op is Ops.RANGE]
    assert sum(int(u.src[0].vmax) for u in loops) <= 5
    np.testing.assert_allclose(x.numpy(), want(a.numpy(), b.numpy()), rtol=1e-4, atol=1e-4)


def test_repeats_that_a_dtype_cannot_count_are_added() -> None:
    x = Tensor.full((1,), 0.25, dtype="half").contiguous().realize().expand(3000)
    assert x.sum(dtype="half").item() == 750.0
    small = Tensor([3], dtype="uint8").realize().expand(300)
    assert small.sum(dtype="uint8").item() == 900 % 256


def test_fuse_2_computes_reductions_where_they_are_read() -> None:
    a, b, c = [Tensor.randn(16, 16).realize() for _ in range(3)]
    want = a.numpy().astype(np.float64) @ b.numpy() @ c.numpy()
    with Context(FUSE=2):
        x = a @ b @ c
        assert len(x.schedule()) == 1
        y = (a @ b @ c).contiguous(arg=(Opt(OptOps.UPCAST, 2, 4), Opt(OptOps.UNROLL, 1, 4)))
        assert len(y.schedule()) == 1
        z = a.softmax().matmul(b).softmax()
        z.realize()
    np.testing.assert_allclose(x.numpy(), want, atol=1e-3)
    np.testing.assert_allclose(y.numpy(), want, atol=1e-3)
    np.testing.assert_allclose(z.numpy(), a.softmax().matmul(b).softmax().numpy(), atol=1e-5)


def test_a_triangle_takes_four_operations_an_element() -> None:
    x = Tensor.ones(64, 64).contiguous().realize()
    [item] = x.triu().schedule()
    counted = [u.op for u in get_program(item.ast, opts=()).linear.uops if u.dtype is x.dtype]
    assert Ops.CMPNE not in [u.op for u in get_program(item.ast, opts=()).linear.uops]
    assert counted.count(Ops.WHERE) == 1


def test_what_is_written_on_the_way_is_memory_after_a_schedule() -> None:
    a = Tensor.zeros(4).contiguous()
    a[1:2].assign(Tensor([5.0]))
    b = a + 2
    for item in b.schedule():
        item.run()
    assert a.uop.base.op is Ops.BUFFER
    assert a.tolist() == [0.0, 5.0, 0.0, 0.0]
    a.assign(Tensor([1.0, 2.0, 3.0, 4.0]).realize()).realize()
    assert b.tolist() == [2.0, 7.0, 2.0, 2.0]
