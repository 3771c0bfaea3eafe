"""Kernels that hand on large temporaries run part by part: which do, memory, values, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aster_ml import Context, Tensor, TinyJit, Variable, dtypes, nn
from aster_ml.codegen.kernel import Kernel
from aster_ml.engine.caches import CACHES
from aster_ml.engine.memory import check_plan, plan_memory
from aster_ml.engine.program import get_program
from aster_ml.engine.realize import schedule_uops
from aster_ml.errors import ArgumentError
from aster_ml.ops.winograd import Way, winograd
from aster_ml.schedule.kernels import tile_parts
from aster_ml.schedule.steps import Schedule
from aster_ml.target.costs import ASSUMED
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops, RunArg
from aster_ml.uop.print.text import parse, to_text
from aster_ml.uop.ranges import size_of
from tests.core.schedule.test_random_programs import check_seeds

RANDOM = np.random.default_rng(7)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs wherever there can be one, with parts of a few rows."""
    monkeypatch.setattr(tile_parts, "ASSUMED", replace(ASSUMED, part_nbytes=1 << 9))
    monkeypatch.setattr(tile_parts, "MIN_ROWS", 4)
    CACHES.forget_schedules()
    with Context(DEPTH_FIRST=2):
        yield
    CACHES.forget_schedules()


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def schedule_of(*tensors: Tensor) -> Schedule:
    """The schedule, whose temporaries have places that do not overlap."""
    schedule = schedule_uops([t.uop for t in tensors])[0]
    check_plan(schedule, plan_memory(schedule))
    return schedule


def runs_of(schedule: Schedule) -> list[RunArg]:
    """The runs of a schedule; each is read back from its text."""
    found = [s.ast for s in schedule.steps if s.ast is not None and isinstance(s.ast.arg, RunArg)]
    assert all(parse(to_text(ast)) is ast for ast in found)
    return [ast.arg for ast in found]


def loops_of(ast: UOp | None) -> list[int]:
    """Sizes of the loops of a kernel, those of CPUs merged, the outermost first."""
    assert ast is not None
    return [size_of(r) for r in Kernel(ast).outputs]


def temporary_nbytes(schedule: Schedule) -> int:
    return sum(plan_memory(schedule).arena_nbytes.values())


def attention(q: Tensor, k: Tensor, v: Tensor, **config: Any) -> Tensor:
    return q.scaled_dot_product_attention(k, v, **config)


def with_gradients(make: Callable[..., Tensor], *arrays: np.ndarray) -> list[Tensor]:
    """What a function makes of tensors of these, and a gradient for each."""
    tensors = [Tensor(a.copy(), requires_grad=True).realize() for a in arrays]
    result = make(*tensors)
    weights = Tensor(np.cos(np.arange(int(np.prod(result.shape))))).cast(dtypes.float32)
    (result * weights.reshape(result.shape)).sum().backward()
    return [result, *[t.grad for t in tensors]]


def check_as_without(
    make: Callable[..., Tensor], *arrays: np.ndarray, atol: float = 2e-6, runs: int = 1
) -> None:
    """Asserts that a value and its gradients are those of plain kernels, made in a run at least."""
    have = with_gradients(make, *arrays)
    assert len(runs_of(schedule_of(*have))) >= runs
    Tensor.realize(*have)
    with Context(DEPTH_FIRST=0):
        want = with_gradients(make, *arrays)
        assert not runs_of(schedule_of(*want))
        for h, w in zip(have, want, strict=True):
            np.testing.assert_allclose(
                h.cast(dtypes.float32).numpy(), w.cast(dtypes.float32).numpy(), rtol=1e-5, atol=atol
            )


# which kernels run so, and what it spares


def test_long_scores_are_never_there() -> None:
    q, k, v = (Tensor.empty(8, 4096, 64) for _ in range(3))
    scores = 8 * 4096 * 4096 * 4
    schedule = schedule_of(attention(q, k, v))
    assert len(runs_of(schedule)) == len(schedule.steps) == 1
    assert temporary_nbytes(schedule) < scores // 10
    with Context(DEPTH_FIRST=0):
        assert temporary_nbytes(schedule_of(attention(q, k, v))) > scores


@pytest.mark.parametrize("causal", [False, True])
def test_training_a_block_never_has_its_scores(causal: bool) -> None:
    x = Tensor.empty(2, 2048, 512)
    weights = [Tensor.empty(512, 512, requires_grad=True) for _ in range(4)]
    q, k, v = [(x @ w).reshape(2, 2048, 8, 64).transpose(1, 2) for w in weights[:3]]
    mixed = attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(2, 2048, 512) @ weights[3]
    loss = ((mixed + x) ** 2).mean()
    loss.backward()
    schedule = schedule_of(loss, *[w.grad for w in weights])
    # The scores are made once for the value, and again for the gradients.
    assert len(runs_of(schedule)) == 2
    scores = 2 * 8 * 2048 * 2048 * 4
    activations = 2 * 2048 * 512 * 4
    assert temporary_nbytes(schedule) < scores // 10 + 12 * activations


def test_equal_parts_are_one_kernel() -> None:
    q, k, v = (Tensor.empty(2, n, 64) for n in (8192, 4096, 4096))
    schedule = schedule_of(attention(q, k, v))
    (arg,) = runs_of(schedule)
    assert arg.parts >= 128
    assert len(schedule.steps[0].ast.src) <= 5


def test_small_scores_stay_as_they_are() -> None:
    q, k, v = (Tensor.empty(4, 64, 32) for _ in range(3))
    assert not runs_of(schedule_of(attention(q, k, v)))


def test_a_product_of_large_operands_is_no_run() -> None:
    x, w1, w2 = Tensor.empty(2048, 2048), Tensor.empty(2048, 2048), Tensor.empty(2048, 2048)
    assert not runs_of(schedule_of((x @ w1).relu() @ w2))


def test_what_a_gradient_reads_as_well_is_made_once() -> None:
    """No run whose results would all be made anew after it."""
    x = Tensor.empty(32, 64, 56, 56)
    (grad,) = x.max_pool2d(3, stride=2, padding=1).square().sum().gradient(x)
    found = schedule_of(grad)
    with Context(DEPTH_FIRST=0):
        assert len(found.steps) == len(schedule_of(grad).steps)
    assert not runs_of(found)


def test_parts_without_products_are_as_small_as_a_cache_wants() -> None:
    """Rows that are sorted fit the cache; columns, neighbours in memory, come in whole lines."""
    (arg,) = runs_of(schedule_of(Tensor.empty(256, 4096).topk(10)[0]))
    assert sum(arg.scratch) <= tile_parts.ASSUMED.part_nbytes
    (arg,) = runs_of(schedule_of(Tensor.empty(1024, 1024).sort(0)[0]))
    assert arg.axes[-1][2] >= tile_parts.MIN_ROWS


def test_loops_that_are_split_stay_in_the_order_of_memory() -> None:
    x = Tensor.empty(64, 32, 48, 48)
    (grad,) = x.max_pool2d(2).square().sum().gradient(x)
    assert loops_of(schedule_of(grad).steps[-1].ast) == [64, 32, 24, 2, 24, 2]


def test_symbolic_lengths_are_no_run(small_parts: None) -> None:
    n = Variable("n", 1, 64).bind(40)
    q, k, v = (Tensor(random(2, 64, 8))[:, :n] for _ in range(3))
    assert not runs_of(schedule_of(attention(q, k, v)))


def test_other_devices_have_no_runs(small_parts: None) -> None:
    q, k, v = (Tensor(random(2, 16, 8), device="PYTHON") for _ in range(3))
    assert not runs_of(schedule_of(attention(q, k, v)))


# values


MASK = RANDOM.random((20, 24)) < 0.7


@pytest.mark.parametrize(
    "config",
    [{}, {"is_causal": True}, {"attn_mask": MASK}, {"attn_mask": random(20, 24)}],
    ids=["plain", "causal", "bool mask", "float mask"],
)
def test_attention_in_parts(small_parts: None, config: dict[str, Any]) -> None:
    given = {k: Tensor(v) if isinstance(v, np.ndarray) else v for k, v in config.items()}
    arrays = random(2, 3, 20, 8), random(2, 3, 24, 8), random(2, 3, 24, 8)
    check_as_without(lambda q, k, v: attention(q, k, v, **given), *arrays)


@pytest.mark.parametrize("shape", [(1, 1, 37, 37, 8), (2, 2, 31, 6, 5), (3, 1, 24, 100, 16)])
def test_odd_sizes(small_parts: None, shape: tuple[int, ...]) -> None:
    b, h, n, m, e = shape
    check_as_without(attention, random(b, h, n, e), random(b, h, m, e), random(b, h, m, e))


def test_rows_that_do_not_divide_overlap(small_parts: None) -> None:
    q, k, v = (random(2, n, 8) for n in (37, 40, 40))
    result = attention(*[Tensor(a) for a in (q, k, v)])
    (arg,) = runs_of(schedule_of(result))
    assert arg.axes[-1][1] % arg.axes[-1][2]
    scores = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(8))
    want = scores / scores.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(result.numpy(), want, rtol=1e-5, atol=1e-6)


def test_shared_heads(small_parts: None) -> None:
    arrays = random(1, 4, 24, 8), random(1, 2, 24, 8), random(1, 2, 24, 8)
    check_as_without(lambda q, k, v: attention(q, k, v, enable_gqa=True), *arrays)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(small_parts: None, dtype: str) -> None:
    arrays = random(2, 24, 8), random(2, 24, 8), random(2, 24, 8)
    atol = 2e-2 if dtype == "bfloat16" else 4e-3
    check_as_without(lambda *t: attention(*[x.cast(dtype) for x in t]), *arrays, atol=atol)


def test_fully_masked_rows_are_zero(small_parts: None) -> None:
    mask = MASK.copy()
    mask[3] = False
    q, k, v = Tensor(random(2, 20, 8)), Tensor(random(2, 24, 8)), Tensor(random(2, 24, 8))
    result = attention(q, k, v, attn_mask=Tensor(mask))
    assert runs_of(schedule_of(result))
    have = result.numpy()
    assert (have[:, 3] == 0).all()
    assert (np.abs(np.delete(have, 3, axis=1)).sum(-1) > 0).all()


def test_dropout_of_a_run_is_that_of_its_gradient(small_parts: None) -> None:
    with Tensor.train():
        q, k, v = (Tensor(random(2, 24, 8), requires_grad=True) for _ in range(3))
        result = attention(q, k, v, dropout_p=0.5)
        result.sum().backward()
        Tensor.realize(result, v.grad)
    # The sum of the result is linear in the values, so its gradient times them is the sum.
    np.testing.assert_allclose((v.grad * v).sum().item(), result.sum().item(), rtol=1e-4)


def test_a_block_that_makes_scores_again(small_parts: None) -> None:
    def block(x: Tensor, w: Tensor, o: Tensor) -> Tensor:
        heads = (x @ w).reshape(2, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = attention(heads[0], heads[1], heads[2], is_causal=True)
        return ((mixed.transpose(1, 2).reshape(2, 16, 8) @ o + x) ** 2).sum(-1)

    arrays = random(2, 16, 8), random(8, 24) / 3, random(8, 8) / 3
    check_as_without(block, *arrays, atol=2e-5, runs=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, w: (x @ w).softmax(-1) @ w.T,
        lambda x, w: (x @ w).relu().layernorm() @ w.T,
        lambda x, w: ((x @ w).sigmoid() * (x @ w)).sum(-1),
    ],
    ids=["softmax", "layernorm", "gated"],
)
def test_rows_of_other_kinds(small_parts: None, make: Callable[..., Tensor]) -> None:
    check_as_without(make, random(36, 8), random(8, 64), atol=2e-4)


def test_a_maximum_over_all_parts_leaves_nothing_to_a_run(small_parts: None) -> None:
    """What would be maximized is read by the gradient too, so that a run would make all twice."""

    def make(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w).exp() @ w.T).max(0)

    arrays = random(36, 8), random(8, 64)
    check_as_without(make, *arrays, atol=2e-4, runs=0)
    schedule = schedule_of(*with_gradients(make, *arrays))
    assert not runs_of(schedule)
    with Context(DEPTH_FIRST=0):
        assert len(schedule.steps) == len(schedule_of(*with_gradients(make, *arrays)).steps)


def test_replays(small_parts: None) -> None:
    @TinyJit
    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, is_causal=True).realize()

    for _ in range(4):
        arrays = [random(2, 20, 8) for _ in range(3)]
        have = step(*[Tensor(a).realize() for a in arrays]).numpy()
        with Context(DEPTH_FIRST=0):
            want = attention(*[Tensor(a) for a in arrays], is_causal=True).numpy()
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_memory_that_is_overwritten_keeps_its_readers(small_parts: None) -> None:
    arrays = [random(2, 20, 8) for _ in range(3)]
    q, k, v = (Tensor(a.copy()).realize() for a in arrays)
    result = attention(q, k, v)
    q.assign(result * 2)
    k.assign(k + 1)
    Tensor.realize(result, q, k)
    with Context(DEPTH_FIRST=0):
        want = attention(*[Tensor(a) for a in arrays]).numpy()
    np.testing.assert_allclose(result.numpy(), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(q.numpy(), 2 * want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(k.numpy(), arrays[1] + 1)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_the_parts_out(small_parts: None, threads: int) -> None:
    arrays = [random(5, 20, 8) for _ in range(3)]
    with Context(THREADS=threads):
        have = [t.numpy() for t in with_gradients(attention, *arrays)]
    with Context(THREADS=1):
        want = [t.numpy() for t in with_gradients(attention, *arrays)]
    for h, w in zip(have, want, strict=True):
        np.testing.assert_array_equal(h, w)


@pytest.mark.cc
def test_as_c(small_parts: None) -> None:
    with Context(CLANG=1):
        check_as_without(attention, random(2, 20, 8), random(2, 24, 8), random(2, 24, 8))


def test_random_graphs_in_parts(small_parts: None) -> None:
    check_seeds(range(7000, 7040), assigns=True)


@pytest.mark.torch
@pytest.mark.parametrize("causal", [False, True])
def test_attention_as_torch_has_it(causal: bool) -> None:
    torch = pytest.importorskip("torch")
    arrays = [random(4, 700, 64) for _ in range(3)]
    with Context(THREADS=2):
        have = with_gradients(lambda *t: attention(*t, is_causal=causal), *arrays)
        assert runs_of(schedule_of(*have))
        results = [h.numpy() for h in have]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    result = torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=causal)
    weights = torch.cos(torch.arange(result.numel())).reshape(result.shape)
    (result * weights).sum().backward()
    for h, w in zip(results, [result, *[t.grad for t in theirs]], strict=True):
        np.testing.assert_allclose(h, w.detach().numpy(), rtol=1e-4, atol=1e-5)


# looking at one


def test_a_run_is_explained_and_scheduled(small_parts: None) -> None:
    arrays = [random(2, 20, 8) for _ in range(3)]
    text = attention(*[Tensor(a) for a in arrays]).explain()
    assert "one after another for each part (1 of 2, 4 of 20)" in text
    result = attention(*[Tensor(a).realize() for a in arrays])
    (item,) = Tensor.schedule(result)
    item.run()
    np.testing.assert_allclose(
        result.numpy(), attention(*[Tensor(a) for a in arrays]).numpy(), atol=1e-6
    )
    with pytest.raises(ArgumentError, match="a run of 3 kernels"):
        get_program(item.ast)


# convolutions of few multiplications, whose kernels have blocks of tiles for axes


@pytest.mark.parametrize(
    ("shape", "way"),
    [
        ((4, 3, 12, 10), Way(2, 1, 2)),
        ((4, 3, 12, 10), Way(2, 2, 6)),
        ((2, 5, 13, 7), Way(2, 1, 3)),
        ((6, 4, 8, 8), Way(4, 3, 2)),
        # Several sums of several blocks for the gradient of the weights.
        ((2, 2, 32, 126), Way(2, 1, 1)),
        ((48, 3, 14, 14), Way(2, 1, 7)),
    ],
    ids=str,
)
def test_blocks_of_a_convolution(small_parts: None, shape: tuple[int, ...], way: Way) -> None:
    def make(x: Tensor, w: Tensor) -> Tensor:
        return x._derive_with(winograd(x.uop, w.uop, ((1, 1), (1, 1)), 1, way), w).relu()

    check_as_without(make, random(*shape), random(4, shape[1], 3, 3), atol=1e-3)


def test_a_range_that_others_have_as_two_is_split_for_a_run_alone() -> None:
    """Rows of tiles are one range where they are made, blocks and rows where they are read."""
    x, w = Tensor.empty(8, 64, 56, 56).realize(), Tensor.empty(64, 64, 3, 3).realize()
    y = x.conv2d(w, padding=1)
    schedule = schedule_of(y)
    (run,) = runs_of(schedule)
    assert [size for _, size, _ in run.axes] == [8, 7]
    with Context(DEPTH_FIRST=0):
        plain = {s.ast for s in schedule_of(y).steps}
    assert {s.ast for s in schedule.steps if s.ast is None or s.ast.arg is not run} <= plain


def test_a_range_is_split_only_where_its_steps_meet_the_others() -> None:
    # Blocks of 24 rows in one kernel, of 32 in another: neither is a part of the other.
    with Tensor.train():
        x = Tensor.empty(96, 1, 28, 28)
        convs = [nn.Conv2d(a, b, 3, padding=1) for a, b in ((1, 32), (32, 64), (64, 64))]
        norms = [nn.BatchNorm(n) for n in (32, 64, 64)]
        weights = [w for layer in (*convs, *norms) for w in (layer.weight, layer.bias)]
        h = norms[0](convs[0](x)).relu()
        h = norms[1](convs[1](h)).relu().max_pool2d(2)
        h = norms[2](convs[2](h)).relu()
        loss = h.square().mean()
        gradients = loss.gradient(*[w for w in weights if w is not None])
    with Context(THREADS=2):
        assert len(schedule_of(loss, *gradients).steps) > 10


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_run_that_one_thread_alone_could_do_is_none(workers: int) -> None:
    """Sums over all parts wait for each other; kernels one by one keep all threads busy."""
    with Context(THREADS=workers):
        tensors = with_gradients(attention, *[random(1, 2048, 8) for _ in range(3)])
        runs = runs_of(schedule_of(*tensors))
    assert all([run.lanes == min(workers, run.shared_parts) for run in runs])
    assert any([run.shared_parts == 1 for run in runs]) == (workers == 1)


@given(size=st.integers(2, 8), scale=st.integers(1, 3), data=st.data())
def test_gates_bound_sums_of_ranges(size: int, scale: int, data: st.DataObject) -> None:
    """Gates that are neither always true nor always false: those a rewrite has folded."""
    i, j = (UOp.range(size, n, AxisType.LOOP) for n in range(2))
    high = data.draw(st.integers(2, (scale + 1) * (size - 1)), "high")
    low = data.draw(st.integers(0, high - 2), "low")
    total = index_alu(Ops.ADD, index_alu(Ops.MUL, i, UOp.index_const(scale)), j)
    above = index_alu(Ops.CMPLT, UOp.index_const(low), total)
    below = index_alu(Ops.CMPLT, total, UOp.index_const(high))
    limits = tile_parts.limits_of(above.alu(Ops.AND, below))
    assert limits == [({i: scale, j: 1}, low + 1, high - 1)]


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), min_size=1),
    st.lists(st.integers(1, 1000), min_size=10, max_size=10),
)
def test_slots_share_scratch_only_one_after_the_other(
    kernels: list[list[int]], sizes: list[int]
) -> None:
    used = {s for slots in kernels for s in slots}
    place, nbytes = tile_parts.share_scratch(kernels, {s: sizes[s] for s in used})
    times = {s: [i for i, slots in enumerate(kernels) if s in slots] for s in used}
    for s in used:
        assert nbytes[place[s]] >= sizes[s]
        assert nbytes[place[s]] % 64 == 0
        for t in used - {s}:
            apart = times[s][-1] < times[t][0] or times[t][-1] < times[s][0]
            assert apart or place[s] != place[t]


def test_a_chain_of_convolutions_has_scratch_for_what_is_needed_at_once() -> None:
    layers = [nn.Conv2d(32, 32, 3, padding=1) for _ in range(6)]
    x = Tensor(random(8, 32, 32, 32)).realize()
    y = x
    for layer in layers:
        y = layer(y).relu()
    arg = max(runs_of(schedule_of(y)), key=lambda arg: len(arg.slots))
    # What a kernel reads and what it writes, however long the chain is.
    assert len(arg.slots) > 12
    assert sum([n > 0 for n in arg.scratch]) <= 3
