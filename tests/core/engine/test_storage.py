"""What stays after a realize: values that tensors name, and nothing that no tensor needs."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import GlobalCounters, Tensor, TinyJit, nn
from aster_ml.allocator import MEMORY
from aster_ml.engine import storage
from aster_ml.nn.optim import SGD, Adam
from aster_ml.uop.interned import NODES
from aster_ml.uop.ops import Ops


def kernels(*tensors: Tensor) -> int:
    """How many kernels realizing these takes."""
    before = GlobalCounters.kernel_count
    Tensor.realize(*tensors)
    return GlobalCounters.kernel_count - before


def vector(n: int = 4) -> Tensor:
    return Tensor(np.arange(1, n + 1, dtype=np.float32)).clone().realize()


# what was stored on the way


def test_a_stored_value_that_a_tensor_names_is_memory_afterwards() -> None:
    x = vector()
    a = (x * 3 + 1).contiguous()
    b = a.sum() * 2
    assert kernels(b) == 2
    assert kernels(a) == 0
    assert kernels(a + 2) == 1
    assert a.tolist() == [4, 7, 10, 13]
    assert b.item() == 68


@pytest.mark.parametrize(
    "view",
    [lambda a: a.reshape(2, 2), lambda a: a.detach(), lambda a: a[1:3], lambda a: a.flip(0)],
    ids=["reshape", "detach", "shrink", "flip"],
)
def test_views_name_it_too(view: Callable[[Tensor], Tensor]) -> None:
    a = (vector() * 5 + 1).contiguous()
    shown = view(a)
    want = view(vector() * 5 + 1).tolist()
    other = a * 2
    del a
    assert kernels(other) == 2
    assert kernels(shown) == 0
    assert shown.tolist() == want


def test_what_is_asked_for_in_another_shape_is_stored_once() -> None:
    a = (vector() * 7 + 1).contiguous()
    shown = a.reshape(2, 2)
    assert kernels(shown) == 1
    assert kernels(a + shown.reshape(4)) == 1
    b = (vector() * 8 + 1).contiguous()
    assert kernels(b, b.reshape(2, 2), b.reshape(4, 1), b) == 1


def test_gradients_go_through_a_value_that_became_memory() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    a = (x * x).contiguous()
    (a * 3).sum().realize()
    (a * 5).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [10, 20]


def test_memory_goes_with_the_tensor_that_names_it() -> None:
    x = Tensor.ones(1 << 18).contiguous().realize()
    gc.collect()
    before = MEMORY.in_use()
    total = ((x * 2).contiguous() * 3).sum().realize()
    gc.collect()
    unnamed = MEMORY.in_use() - before
    assert unnamed < 1 << 16
    a = (x * 2).contiguous()
    more = (a * 3).sum().realize()
    assert MEMORY.in_use() - before >= 4 << 18
    del a
    gc.collect()
    assert MEMORY.in_use() - before < 1 << 16
    assert total.item() == more.item()


def test_a_write_leaves_what_was_stored_before() -> None:
    x = vector()
    a = (x * 2).contiguous()
    b = (a + 1).realize()
    x.assign(x * 0)
    x.realize()
    assert a.tolist() == [2, 4, 6, 8]
    assert b.tolist() == [3, 5, 7, 9]
    a += 1
    assert a.tolist() == [3, 5, 7, 9]
    assert b.tolist() == [3, 5, 7, 9]


def test_in_a_jitted_function() -> None:
    @TinyJit
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        a = (x * 2).contiguous()
        b = (a.sum() + 1).realize()
        return (a + b).realize(), a

    for i in range(5):
        first, second = both(Tensor([float(i), 1.0]).realize())
        assert second.tolist() == [2 * i, 2]
        assert first.tolist() == [4 * i + 3, 2 * i + 5]


# steps


class Net:
    def __init__(self) -> None:
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm(4)
        self.last = nn.Linear(4, 2)

    def __call__(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.conv(x)).relu().mean((2, 3)))


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_no_nodes_stay_from_step_to_step(kind: Callable[[list[Tensor]], SGD]) -> None:
    net = Net()
    optimiser = kind(nn.state.get_parameters(net))

    def step() -> None:
        optimiser.zero_grad()
        net(Tensor.rand(2, 3, 8, 8)).square().mean().backward()
        optimiser.step()

    def count() -> tuple[int, int, int]:
        gc.collect()
        # The count of batches is a number, and another one after each step: whether something
        # beside the test holds that number is chance.
        nodes = [op for op, *_ in NODES if op is not Ops.CONST]
        return len(nodes), len(storage.REALIZED_VIEWS), GlobalCounters.schedule_misses

    with Tensor.train():
        for _ in range(4):
            step()
        nodes, *others = count()
        for _ in range(5):
            step()
    after, *others_after = count()
    assert after <= nodes
    assert others_after == others
    assert net.norm.num_batches_tracked.item() == 9


def test_a_counter_is_a_number_at_each_step() -> None:
    for start in (Tensor.zeros(()), Tensor.zeros(2, 3), Tensor(5)):
        counter, first = start, start.numpy()
        misses = GlobalCounters.schedule_misses
        for _ in range(20):
            counter.assign(counter * 1 + 1)
            assert kernels(counter) == 0
        assert GlobalCounters.schedule_misses == misses
        np.testing.assert_array_equal(counter.numpy(), first + 20)
