"""Tensors on several devices: making, moving, writing, reading, saving, and what is refused."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes, nn
from aster_ml.engine.counters import GlobalCounters
from aster_ml.errors import ArgumentError, DeviceError, PreconditionError, ShapeError
from aster_ml.uop.multi import parts_of
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

TWO, FOUR = ("CPU:1", "CPU:2"), ("CPU", "CPU:1", "CPU:2", "CPU:3")
X = np.arange(32, dtype=np.float32).reshape(4, 8)


# making and moving


def test_shard_gives_each_device_an_equal_part() -> None:
    x = Tensor(X).shard(TWO, 0)
    assert x.device == TWO
    assert x.shape == (4, 8)
    assert x.uop.axis == 0
    assert [part.shape for part in x.uop.src] == [(2, 8), (2, 8)]
    assert [part.device for part in x.uop.src] == list(TWO)
    assert x.uop.bounds == ((0, 2), (2, 4))
    assert Tensor(X).shard(TWO, -1).uop.axis == 1
    np.testing.assert_array_equal(x.numpy(), X)


def test_without_an_axis_each_device_has_all() -> None:
    for x in (Tensor(X).shard(TWO), Tensor(X).to(TWO), Tensor(X).to_(list(TWO))):
        assert x.device == TWO
        assert x.uop.axis is None
        assert [part.shape for part in x.uop.src] == [(4, 8), (4, 8)]
        np.testing.assert_array_equal(x.numpy(), X)


def test_names_are_canonical_and_one_device_is_no_tuple() -> None:
    assert Tensor(X).shard(("cpu:0", "CPU:01"), 0).device == ("CPU", "CPU:1")
    assert Tensor(X).shard(("CPU:1",), 0).device == "CPU:1"
    assert Tensor(X).shard("CPU:1").device == "CPU:1"
    assert Tensor(X).shard(TWO, 0).to(TWO).uop.axis == 0


def test_a_device_may_have_two_parts() -> None:
    x = Tensor(X).shard(("CPU:1", "CPU:1"), 0)
    np.testing.assert_array_equal((x + x.sum(0)).numpy(), X + X.sum(0))


def test_shard_in_place_and_like_another() -> None:
    x = Tensor(X)
    assert x.shard_(TWO, 1) is x
    assert x.uop.axis == 1
    assert Tensor(X).shard_like(x).uop.axis == 1
    assert Tensor(X).shard_like(Tensor(X).shard(TWO)).uop.axis is None
    assert Tensor(X).shard_like(Tensor(X)).device == "CPU"
    assert x.shard_like(x) is x
    assert x.shard_like(Tensor(X)).device == "CPU"


def test_constants_take_no_copies() -> None:
    GlobalCounters.reset()
    x = Tensor.ones(4, 4).shard(TWO, 0)
    assert x.realize().uop.axis == 0
    assert GlobalCounters.kernel_count == 0
    assert (x + 1).tolist() == [[2.0] * 4] * 4


@pytest.mark.parametrize(
    "made",
    [
        lambda: Tensor.ones(4, 8, device=TWO),
        lambda: Tensor.full((4, 8), 1.0, device=TWO),
        lambda: Tensor(np.ones((4, 8), dtype=np.float32), device=TWO),
        lambda: Tensor([[1.0] * 8] * 4, device=TWO),
        lambda: Tensor(1.0, device=TWO).expand(4, 8),
        lambda: Tensor.ones(4, 8).to(TWO).contiguous(),
        lambda: Tensor.empty(4, 8, device=TWO).assign(Tensor.ones(4, 8, device=TWO)),
        lambda: Tensor(Tensor.ones(4, 8).shard(TWO, 0), device=TWO),
        lambda: Tensor(Tensor.ones(4, 8).contiguous().uop, device=TWO),
    ],
)
def test_creation_on_several_devices(made: Any) -> None:
    x = made()
    assert x.device == TWO
    np.testing.assert_array_equal(x.numpy(), np.ones((4, 8), dtype=np.float32))
    np.testing.assert_array_equal((x + Tensor(X).shard(TWO, 1)).numpy(), X + 1)


def test_ranges_on_several_devices() -> None:
    assert Tensor.arange(5, device=TWO).tolist() == [0, 1, 2, 3, 4]
    assert Tensor.eye(3, device=TWO).tolist() == np.eye(3).tolist()
    assert Tensor.linspace(0, 1, 3, device=TWO).tolist() == [0, 0.5, 1]
    assert Tensor.arange(6).shard(TWO, 0).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("axis", [0, None])
def test_likes_lie_like_the_original(axis: int | None) -> None:
    x = Tensor(X).shard(TWO, axis)
    made = [x.full_like(2.0), x.zeros_like(), x.ones_like(), x.empty_like(), x.rand_like()]
    for y in (*made, x.randn_like(), (x + x).rand_like(), x.clone()):
        assert y.device == TWO
        assert y.uop.axis == axis
        assert y.shape == x.shape
        assert y.dtype is dtypes.float32
    assert x.full_like(2.0).tolist() == [[2.0] * 8] * 4
    assert x.cast("int32").rand_like(dtype="float32").dtype is dtypes.float32
    drawn = x.rand_like().numpy()
    assert 0 <= drawn.min() < drawn.max() < 1
    assert axis is None or not np.array_equal(drawn[:2], drawn[2:])


def test_random_numbers_are_drawn_on_one_device() -> None:
    with pytest.raises(ArgumentError, match=r"rand: device \('CPU:1', 'CPU:2'\)"):
        Tensor.rand(4, device=TWO)
    x = Tensor.randn(64, device=TWO)
    parts = [Tensor(part, device=part.device).numpy() for part in x.realize().uop.src]
    np.testing.assert_array_equal(parts[0], parts[1])


def test_streams_of_devices_differ_by_the_order_of_their_first_draw() -> None:
    Tensor.manual_seed(5)
    first, second = Tensor.rand(8, device="CPU").tolist(), Tensor.rand(8, device="CPU:1").tolist()
    Tensor.manual_seed(5)
    flipped = Tensor.rand(8, device="CPU:1").tolist(), Tensor.rand(8, device="CPU").tolist()
    assert (first, second) == flipped
    assert first != second


# reading and moving back


def test_to_one_device_copies_what_it_lacks() -> None:
    x = Tensor(X).shard(TWO, 0).realize()
    for device in ("CPU", "CPU:1", "CPU:5"):
        there = x.to(device)
        assert there.device == device
        np.testing.assert_array_equal(there.numpy(), X)
    same = Tensor(X).shard(FOUR).realize()
    there = same.to("CPU:5")
    assert len(there.schedule()) == 1
    np.testing.assert_array_equal(there.numpy(), X)


def test_a_node_on_several_devices_becomes_a_tensor_on_one() -> None:
    x = Tensor([1, 2]).shard(TWO, 0)
    y = Tensor(x.uop)
    assert y.device == "CPU"
    assert y.tolist() == [1, 2]
    with pytest.raises(AssertionError, match="int32 and float32 is asked for"):
        Tensor(x.uop, dtype="float32")


def test_items_lists_and_pickles() -> None:
    x = Tensor(X).shard(TWO, 1)
    assert x.sum().item() == X.sum()
    assert x.tolist() == X.tolist()
    y = pickle.loads(pickle.dumps(x))
    assert y.device == TWO
    assert y.uop.axis == 1
    np.testing.assert_array_equal(y.numpy(), X)
    node = pickle.dumps((x + 1).uop)
    reading = (
        "import pickle, sys; from aster_ml import Tensor; n = pickle.loads(sys.stdin.buffer.read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{reading}; print(Tensor(n).sum().item())"],
        input=node, capture_output=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) == X.sum() + X.size
    assert "CPU:1" in repr(x)


def test_copies_that_a_tensor_names_are_made_once() -> None:
    x = Tensor(X).contiguous().realize().shard(TWO, 0)
    (x + 1).realize()
    GlobalCounters.reset()
    (x + 2).realize()
    assert GlobalCounters.kernel_count == 2


def test_kernels_of_all_devices_are_the_same_object() -> None:
    x = Tensor(X).shard(TWO, 0).realize()
    kernels = [item.ast for item in (x * 3 + 1).schedule()]
    assert len(kernels) == 2
    assert kernels[0] is kernels[1]


# writing


def test_assign_writes_each_part_in_place() -> None:
    x = Tensor.zeros(4, 8).shard(TWO, 0).contiguous().realize()
    memory = x.uop
    x.assign(Tensor(X).shard(TWO, 0)).realize()
    assert x.uop is memory
    np.testing.assert_array_equal(x.numpy(), X)
    x.assign(Tensor(X + 1).shard(TWO, 1)).realize()
    assert x.uop is memory
    np.testing.assert_array_equal(x.numpy(), X + 1)


def test_a_shard_does_not_write_to_what_it_was_made_of() -> None:
    x = Tensor(X).contiguous().realize()
    for axis in (0, None):
        y = x.shard(FOUR, axis).realize()
        y.assign(y + 1).realize()
        np.testing.assert_array_equal(x.numpy(), X)
        np.testing.assert_array_equal(y.numpy(), X + 1)
    z = x.shard(TWO).realize()
    at = z.to("CPU:1")
    z.assign(z * 0).realize()
    np.testing.assert_array_equal(at.numpy(), X)


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("realized", [True, False])
def test_writing_by_index(axis: int | None, realized: bool) -> None:
    x, want = Tensor(X).shard(TWO, axis), X.copy()
    if realized:
        x.realize()
    x[1:3] = 5
    want[1:3] = 5
    x[:, 2] = -1
    want[:, 2] = -1
    x[3, 4:6] = Tensor([7.0, 8.0], device=TWO)
    want[3, 4:6] = [7, 8]
    x[::2, ::3] = 9
    want[::2, ::3] = 9
    x[Tensor([0, 3], device=TWO)] = 2
    want[[0, 3]] = 2
    x[x > 20] = 0
    want[want > 20] = 0
    np.testing.assert_array_equal(x.numpy(), want)


def test_a_view_follows_what_it_shows() -> None:
    x = Tensor(X).shard(TWO, 0).contiguous().realize()
    column = x[:, 1:2]
    x.assign(x * 2).realize()
    np.testing.assert_array_equal(column.numpy(), X[:, 1:2] * 2)
    column.assign(column * 0).realize()
    want = X * 2
    want[:, 1:2] = 0
    np.testing.assert_array_equal(x.numpy(), want)


def test_random_programs_of_writes_and_reads() -> None:
    for seed in range(12):
        check_random_program(seed)


def check_random_program(seed: int) -> None:
    """Runs a program of tensors on two devices beside the same in NumPy."""
    rng = random.Random(seed)
    pool = [new_pair(rng) for _ in range(3)]
    for _ in range(24):
        i, j = rng.randrange(len(pool)), rng.randrange(len(pool))
        (x, a), (y, b) = pool[i], pool[j]
        match rng.choice(["new", "mix", "sum", "assign", "rows", "column", "keep", "read", "cat"]):
            case "new":
                pool.append(new_pair(rng))
            case "mix":
                pool.append((x * 2 - y, a * 2 - b))
            case "sum":
                pool.append((x + y.sum(0), a + b.sum(0)))
            case "assign":
                x.assign(y + 1)
                pool[i] = (x, b + 1)
            case "rows":
                x[1:3] = y[0:2]
                pool[i] = (x, np.concatenate([a[:1], b[:2], a[3:]]))
            case "column":
                x[:, 2] = 3
                pool[i] = (x, np.concatenate([a[:, :2], 0 * a[:, :1] + 3, a[:, 3:]], 1))
            case "keep":
                Tensor.realize(*[t for t, _ in pool])
            case "read":
                np.testing.assert_array_equal(x.numpy(), a, err_msg=f"seed {seed}")
            case "cat":
                pool.append((x[2:].cat(y[:2]).to("CPU:1").to(TWO), np.concatenate([a[2:], b[:2]])))
        if len(pool) > 6:
            pool.pop(rng.randrange(len(pool)))
    for x, a in pool:
        np.testing.assert_array_equal(x.numpy(), a, err_msg=f"seed {seed}")


def new_pair(rng: random.Random) -> tuple[Tensor, Any]:
    """Small whole numbers on two devices, memory or not, and the array."""
    array = np.array([[rng.randint(-3, 3) for _ in range(4)] for _ in range(4)], dtype=np.float32)
    tensor = Tensor(array.copy()).shard(TWO, rng.choice([0, 1, None]))
    return (tensor.realize() if rng.random() < 0.6 else tensor), array


# state


def test_state_dicts_go_to_where_the_model_is(tmp_path: Path) -> None:
    source = nn.Linear(8, 4)
    want = source.weight.numpy()
    model = nn.Linear(8, 4)
    model.weight.shard_(TWO, 1)
    model.bias.shard_(TWO)
    nn.state.load_state_dict(model, nn.state.get_state_dict(source), verbose=False)
    assert model.weight.device == TWO
    assert model.weight.uop.axis == 1
    assert model.bias.uop.axis is None
    np.testing.assert_array_equal(model.weight.numpy(), want)
    nn.state.safe_save(nn.state.get_state_dict(model), str(tmp_path / "model.safetensors"))
    back = nn.Linear(8, 4)
    state = nn.state.safe_load(str(tmp_path / "model.safetensors"))
    nn.state.load_state_dict(back, state, verbose=False)
    np.testing.assert_array_equal(back.weight.numpy(), want)
    nn.state.load_state_dict(back, nn.state.get_state_dict(model), verbose=False)
    assert back.weight.device == "CPU"
    np.testing.assert_array_equal(back.weight.numpy(), want)


def test_a_file_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(16)))
    x = Tensor(path).shard(TWO, 0)
    assert (x.cast("int32") + 1).tolist() == list(range(1, 17))


# folding by hand


def test_allreduce_gives_every_device_all_parts_folded() -> None:
    x = Tensor(X).shard(TWO, 0)
    total = X[:2] + X[2:]
    folded = x.uop.allreduce(Ops.ADD, TWO)
    np.testing.assert_array_equal(Tensor(folded).numpy(), np.concatenate([total, total]))
    one = x.uop.allreduce(Ops.MAX, "CPU")
    np.testing.assert_array_equal(Tensor(one).numpy(), np.maximum(X[:2], X[2:]))


def test_parts_become_one_longer_value() -> None:
    x = Tensor(X, device=TWO)
    longer = Tensor(x.uop.multi(0), device=TWO)
    assert longer.shape == (8, 8)
    assert longer.uop.axis == 0
    np.testing.assert_array_equal(longer.numpy(), np.concatenate([X, X]))


# what is refused


def test_an_axis_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"axis 0 of \[4,8\] does not divide evenly over 3"):
        Tensor(X).shard(("CPU:1", "CPU:2", "CPU:3"), 0)
    with pytest.raises(IndexError, match="axis 2"):
        Tensor(X).shard(TWO, 2)


def test_what_is_on_several_devices_is_not_sharded_again() -> None:
    x = Tensor(X).shard(TWO)
    with pytest.raises(DeviceError, match="on several devices already, CPU:1, CPU:2"):
        x.shard(TWO, 0)
    with pytest.raises(DeviceError, match="on several devices already"):
        x.shard_like(Tensor(X).shard(TWO, 0))


def test_devices_have_to_be_the_same() -> None:
    x = Tensor(X).shard(TWO, 0)
    for y in (Tensor(X), Tensor(X).shard(("CPU:2", "CPU:1"), 0)):
        with pytest.raises(DeviceError, match="moves it"):
            (x + y).realize()
        with pytest.raises(DeviceError, match="moves it"):
            x.assign(y)
    with pytest.raises(DeviceError, match="rand_like: device"):
        x.rand_like(device=("CPU:2", "CPU:3"))
    with pytest.raises(DeviceError, match="full_like: device 'CPU'"):
        x.full_like(1.0, device="CPU")


@pytest.mark.parametrize("device", [(), 5, ("CPU", 1), object()])
def test_what_names_no_device_is_refused(device: Any) -> None:
    with pytest.raises(ArgumentError, match="a name such as 'CPU' is wanted"):
        Tensor(X).to(device)
    with pytest.raises(DeviceError, match="unknown"):
        Tensor(X).shard(("CPU", "TOASTER"), 0)


def test_movement_that_takes_parts_apart_is_refused() -> None:
    x = Tensor(X).shard(TWO, 1)
    with pytest.raises(PreconditionError, match=r"reshape: \[4,8\] to \[32\] would move elements"):
        x.reshape(32)
    with pytest.raises(PreconditionError, match="axis 1 is split over 2"):
        x.shrink((None, (0, 3)))
    with pytest.raises(PreconditionError, match="shrink"):
        x.shrink(((0, 2), (0, 4)))
    np.testing.assert_array_equal(x.shrink((None, (4, 8))).numpy(), X[:, 4:])
    np.testing.assert_array_equal(x[:2, :3].numpy(), X[:2, :3])


def test_a_part_across_devices_is_not_assigned_to() -> None:
    x = Tensor(X).shard(TWO, 0).realize()
    with pytest.raises(DeviceError, match=r"write by index, x\[a:b\] = value"):
        x[0:2].assign(Tensor.zeros(2, 8, device=TWO))


def test_an_op_without_a_rule_names_the_devices() -> None:
    made = UOp(Ops.BARRIER, dtypes.void, (Tensor(X).shard(TWO, 0).uop,))
    with pytest.raises(DeviceError, match="BARRIER of a value on CPU:1, CPU:2"):
        parts_of(made, lambda u: (u,))


# where the axis goes


def test_where_a_reshape_takes_the_axis() -> None:
    x = Tensor.empty(26, 15, 7).shard(("CPU:1", "CPU:2", "CPU:3"), 1)
    for shape, axis in [
        ((26, 3, 5, 7), 1), ((26, 3, 35), 1), ((26, 105), 1), ((26, 1, 105), 2),
        ((2, 13, 3, 5, 7), 2), ((13, 2, 3, 7, 5), 2), ((1, 13, 2, 3, 1, 7, 5), 3),
    ]:  # fmt: skip
        assert x.reshape(shape).uop.axis == axis, shape


def test_which_axis_results_have() -> None:
    x, y, z = [Tensor(X).shard(TWO, axis) for axis in (0, 1, None)]
    assert (x + z).uop.axis == 0
    assert (z + x).uop.axis == 0
    assert (x + y).uop.axis == 1
    assert (y + x).uop.axis == 0
    assert (x @ z.T).uop.axis == 0
    assert (z @ x.T).uop.axis == 1
    assert (y @ y.T).uop.axis is None
    assert x.T.uop.axis == 1
    assert x.sum(1).uop.axis == 0
    assert x.sum(0).uop.axis is None
    assert x.flip(0).uop.axis == 0
    assert x.pad(((1, 0), None)).uop.axis is None
    assert x[:, Tensor([1, 2], device=TWO)].uop.axis == 0
    assert z[Tensor([1, 2]).shard(TWO, 0)].uop.axis == 0
    assert Tensor(X).uop.axis is None


def test_a_stored_value_that_a_tensor_names_is_memory_afterwards() -> None:
    x = Tensor(np.arange(8, dtype=np.float32)).shard(("CPU:0", "CPU:1"), 0).realize()
    a = (x * 2 + 1).contiguous()
    (a.sum() + 1).realize()
    before = GlobalCounters.kernel_count
    a.realize()
    assert GlobalCounters.kernel_count == before
    assert a.tolist() == (np.arange(8) * 2 + 1).tolist()


def test_copies_between_devices_that_keep_nothing() -> None:
    two = ("NULL:1", "NULL:2")
    x = Tensor.ones(4, 4, device="NULL").contiguous().realize()
    assert x.to("NULL:1").realize().device == "NULL:1"
    for axis in (0, 1, None):
        total = (x.shard(two, axis=axis).realize() + 1).sum(0).realize()
        assert (total.device, total.shape) == (two, (4,))
    with pytest.raises(DeviceError, match="NULL keeps no data"):
        x.to("CPU").realize()


@pytest.mark.parametrize("axis", [0, 1])
def test_copies_along_the_axis_that_is_split_are_joined(axis: int) -> None:
    x = Tensor(X).shard(TWO, axis)
    for dim in (0, 1):
        np.testing.assert_array_equal(x.roll(3, dim).numpy(), np.roll(X, 3, dim))
    for counts in ((2, 3), (1, 2), (3, 1), (2, 1, 2), (0, 2)):
        np.testing.assert_array_equal(x.repeat(*counts).numpy(), np.tile(X, counts))
    wrapped = x.pad(((1, 2), (0, 3)), mode="circular")
    np.testing.assert_array_equal(wrapped.numpy(), np.pad(X, ((1, 2), (0, 3)), mode="wrap"))
    y = Tensor(X, requires_grad=True)
    (y.shard(TWO, axis).roll(1, axis).to("CPU") * Tensor(X)).sum().backward()
    assert y.grad is not None
    np.testing.assert_array_equal(y.grad.numpy(), np.roll(X, -1, axis))
