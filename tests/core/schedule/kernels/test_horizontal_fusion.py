"""Kernels over the same loops become one: counts, and values of memory that is overwritten."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Context, Tensor, nn
from aster_ml.uop.graph import toposort
from aster_ml.uop.ops import Ops


def vector(size: int = 40, seed: int = 0) -> tuple[Tensor, np.ndarray]:
    array = np.random.default_rng(seed).integers(-4, 5, size).astype(np.float32)
    return Tensor(array.copy()).realize(), array


def kernels(*tensors: Tensor) -> list:
    """The kernels that make these tensors, which run as well."""
    items = Tensor.schedule(*tensors)
    for item in items:
        item.run()
    return [item.ast for item in items if item.ast.op is Ops.SINK]


def count(ast, op: Ops) -> int:
    return sum(u.op is op for u in toposort(ast))


def check_values(tensors: list[Tensor], arrays: list[np.ndarray]) -> None:
    for t, array in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(t.numpy(), array)


def test_what_two_results_share_is_loaded_once() -> None:
    (x, a), (y, b) = vector(seed=1), vector(seed=2)
    results = [x + y, x * y, x - 3]
    (ast,) = kernels(*results)
    assert count(ast, Ops.STORE) == 3
    assert count(ast, Ops.LOAD) == 2
    check_values(results, [a + b, a * b, a - 3])


def test_results_that_share_nothing_stay_apart() -> None:
    (x, a), (y, b) = vector(seed=1), vector(seed=2)
    results = [x + 1, y + 1]
    assert len(kernels(*results)) == 2
    check_values(results, [a + 1, b + 1])


def test_a_reduction_with_several_readers_is_computed_once() -> None:
    x, a = vector()
    total = x.sum()
    results = [total + 2, total * 4, (total + 2) * total]
    (ast,) = kernels(*results)
    assert count(ast, Ops.REDUCE) == 1
    s = a.sum()
    check_values(results, [s + 2, s * 4, (s + 2) * s])


def test_reductions_of_kernels_that_become_one_keep_their_own_ranges() -> None:
    (x, a), (y, b), (v, c) = vector(24, 1), vector(24, 2), vector(4, 3)
    results = [x.reshape(4, 6).sum(1) + v, y.reshape(4, 6).max(1) * v]
    (ast,) = kernels(*results)
    ranges = [set(u.src[1:]) for u in toposort(ast) if u.op is Ops.REDUCE]
    assert len(ranges) == 2
    assert ranges[0].isdisjoint(ranges[1])
    check_values(results, [a.reshape(4, 6).sum(1) + c, b.reshape(4, 6).max(1) * c])


def test_layers_alike_are_one_kernel() -> None:
    x = vector(2 * 4 * 7 * 7)[0].reshape(2, 4, 7, 7)
    for seed in range(6):
        weight = vector(4 * 4 * 9, seed)[0].reshape(4, 4, 3, 3)
        x = x.conv2d(weight, padding=1).relu().contiguous()
    items = Tensor.schedule(x)
    assert len(items) >= 6
    assert len({item.ast for item in items[1:]}) == 1


def test_equal_results_have_memory_of_their_own() -> None:
    x, a = vector()
    one, other = x + 1, x + 1
    assert len(kernels(one, other)) == 1
    one.assign(Tensor.zeros(40)).realize()
    check_values([one, other], [np.zeros(40), a + 1])


def test_memory_that_is_asked_for_stays_between() -> None:
    x, a = vector()
    out = (x + 1).contiguous() * 2
    assert len(kernels(out)) == 2
    check_values([out], [(a + 1) * 2])


def test_a_reader_of_other_elements_is_another_kernel() -> None:
    x, a = vector()
    y = (x + 1).contiguous()
    results = [y, y.flip(0) * 2]
    assert len(kernels(*results)) == 2
    check_values(results, [a + 1, (a + 1)[::-1] * 2])


@pytest.mark.parametrize("size", [1, 7, 33, 40, 1000, 50_000])
@pytest.mark.parametrize("settings", [{}, {"NOOPT": 1}, {"THREADS": 1}], ids=str)
def test_old_values_are_read_before_they_are_overwritten(size, settings) -> None:
    with Context(**settings):
        (x, a), (y, b) = vector(size, 1), vector(size, 2)
        old = x * 2 + y
        x.assign(y + 1)
        new = x + old
        y.assign(old)
        kernels(old, x, new, y)
        check_values([old, x, new, y], [a * 2 + b, b + 1, b + 1 + a * 2 + b, a * 2 + b])


@pytest.mark.parametrize("size", [1, 7, 40, 1000, 50_000])
def test_two_memories_are_exchanged(size) -> None:
    (x, a), (y, b) = vector(size, 1), vector(size, 2)
    from_x, from_y = x * 3, y * 5
    x.assign(from_y)
    y.assign(from_x)
    kernels(x, y)
    check_values([x, y], [b * 5, a * 3])


def test_a_write_elsewhere_is_not_merged_with_a_read() -> None:
    x, a = vector(64)
    read = x.flip(0) + 1
    x.assign(x * 2)
    assert len(kernels(read, x)) == 2
    check_values([read, x], [a[::-1] + 1, a * 2])


def test_an_update_of_adam_is_one_kernel() -> None:
    weight = Tensor.ones(48, 48, requires_grad=True).contiguous().realize()
    optimizer = nn.optim.Adam([weight], lr=0.1)
    # What an optimizer starts from is lazy: the first step would fill it too.
    Tensor.realize(*nn.state.get_parameters(optimizer))
    weight.grad = (Tensor.ones(48, 48) * 0.5).contiguous().realize()
    with Tensor.train():
        asts = kernels(*optimizer.schedule_step())
    assert sorted(count(ast, Ops.STORE) for ast in asts) in ([2, 3], [1, 1, 3])
    np.testing.assert_allclose(weight.numpy(), np.full((48, 48), 0.9), rtol=1e-5)


def test_a_large_product_keeps_its_loops_to_itself() -> None:
    x, w = Tensor.ones(128, 256).contiguous().realize(), Tensor.ones(256, 128).contiguous()
    bias = Tensor.ones(128, 128).contiguous().realize()
    w.realize()
    product = (x @ w).contiguous()
    results = [product, (product + bias).exp().sin() * bias.log() + bias.sqrt()]
    assert len(kernels(*results)) == 2


def test_a_small_reduction_inside_of_another_is_not_stored() -> None:
    array = np.random.default_rng(3).integers(-2, 3, (8, 6, 5)).astype(np.float32)
    x = Tensor(array).realize()
    out = x.sum(2).relu().sum(1)
    (ast,) = kernels(out)
    assert count(ast, Ops.REDUCE) == 2
    check_values([out], [np.maximum(array.sum(2), 0).sum(1)])


def test_a_result_that_is_a_view_of_a_computed_value_is_not_copied() -> None:
    array = np.random.default_rng(4).integers(-4, 5, (6, 8)).astype(np.float32)
    x = Tensor(array).realize()
    total = x.sum(0)
    results = [total.reshape(2, 4), total.max()]
    assert len(kernels(*results)) == 2
    check_values(results, [array.sum(0).reshape(2, 4), array.sum(0).max()])


def test_padding_of_a_quotient_is_zero() -> None:
    x, y = Tensor.full((4, 4), 2.0).contiguous(), Tensor.full((4, 4), 4.0).contiguous()
    Tensor.realize(x, y)
    out = (x.reciprocal() * y).pad((None, (0, 1)))
    np.testing.assert_array_equal(out.numpy(), np.pad(np.full((4, 4), 2.0), ((0, 0), (0, 1))))
    assert out.sum().item() == 32


@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), (1, 2)])
def test_a_convolution_without_padding_is_one_kernel(stride, dilation) -> None:
    rng = np.random.default_rng(5)
    image = rng.integers(-2, 3, (2, 3, 12, 12)).astype(np.float32)
    weight = rng.integers(-2, 3, (4, 3, 3, 3)).astype(np.float32)
    x, w = Tensor(image).realize(), Tensor(weight).realize()
    out = x.conv2d(w, stride=stride, dilation=dilation).relu()
    assert len(kernels(out)) == 1
    size = (12 - 2 * dilation - 1) // stride + 1
    want = np.zeros((2, 4, size, size), np.float32)
    for i in range(3):
        for j in range(3):
            rows = slice(i * dilation, i * dilation + size * stride, stride)
            columns = slice(j * dilation, j * dilation + size * stride, stride)
            part = image[:, :, rows, columns]
            want += np.einsum("bchw,oc->bohw", part, weight[:, :, i, j])
    check_values([out], [np.maximum(want, 0)])


def test_a_first_step_of_adam_uses_the_averages_that_it_makes() -> None:
    with Tensor.train():
        w, b = Tensor.ones(7).contiguous(), Tensor.zeros(7).contiguous()
        for t in (w, b):
            t.requires_grad = True
            t.realize()
        adam = nn.optim.AdamW([w, b], lr=0.01, eps=1e-3, weight_decay=0.0)
        x = Tensor(np.cos(np.arange(42, dtype=np.float32)).reshape(3, 2, 7)).realize()
        ((x.layernorm(eps=1e-5) * w + b).mean(-1) - 1).square().mean().backward()
        adam.step()
    np.testing.assert_allclose(b.numpy(), np.full(7, 0.01), rtol=0.05)


@pytest.mark.parametrize("shapes", ["equal", "different"])
def test_updates_of_many_parameters_are_one_kernel_each_at_most(shapes: str) -> None:
    """What a step makes of a gradient is joined however many like it lie between."""
    n = 30
    sizes = [(8, 8) if shapes == "equal" else (3 + i, 5) for i in range(n)]
    params = [Tensor.ones(*size, requires_grad=True).contiguous().realize() for size in sizes]
    for p in params:
        p.requires_grad_()
    opt = nn.optim.Adam(params, lr=0.125)
    with Tensor.train():
        for _ in range(2):
            opt.zero_grad()
            Tensor.stack(*[(p * p).sum() for p in params]).sum().backward()
            made = kernels(*opt.schedule_step())
    assert len(made) <= n + 4
    for p in params:
        np.testing.assert_allclose(p.numpy(), np.full(p.shape, 0.75), rtol=1e-3)
