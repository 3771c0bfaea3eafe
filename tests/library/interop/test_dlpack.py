"""Memory that is shared with other packages, both ways, and what happens to it."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, dtypes
from aster_ml.dtype import to_numpy_dtype
from aster_ml.runtime import dlpack
from tests.library.interop.counting import Copied

NUMPY_KINDS = [d for d in (*dtypes.ints, dtypes.bool, *dtypes.floats) if d.fmt is not None]


@pytest.mark.parametrize("dtype", NUMPY_KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3), (4, 1, 5)], ids=str)
def test_there_and_back_is_the_same_memory(dtype: Any, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape))
    t = Tensor(np.arange(count).reshape(shape).astype(to_numpy_dtype(dtype)))
    array = np.from_dlpack(t)
    assert array.shape == shape
    assert array.tolist() == t.tolist()
    again = Tensor.from_dlpack(array)
    assert again.dtype is dtype
    assert np.shares_memory(np.from_dlpack(again), array)


@pytest.mark.torch
@pytest.mark.parametrize("name", [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
    "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2",
])  # fmt: skip
def test_every_dtype_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.arange(4).to(getattr(torch, name))
    ours = Tensor.from_dlpack(theirs)
    assert ours.tolist() == theirs.tolist()
    back = torch.from_dlpack(ours)
    assert back.dtype is theirs.dtype
    assert back.data_ptr() == theirs.data_ptr()


def test_no_byte_is_copied() -> None:
    t = Tensor(np.arange(1000, dtype=np.float32)).realize()
    for take in (np.from_dlpack, np.asarray):
        with Copied() as copied:
            take(t)
        assert copied.nbytes == 0
    array = np.arange(1000.0)
    with Copied() as copied:
        Tensor.from_dlpack(array)
    assert copied.nbytes == 0
    with Copied() as copied:
        Tensor.from_dlpack(array, copy=True)
    assert copied.nbytes == array.nbytes


def test_writes_are_seen_on_both_sides() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    t = Tensor.from_dlpack(array)
    array[0, 0] = 10
    assert t.tolist()[0][0] == 10
    t[1] = 5
    t.realize()
    assert array[1].tolist() == [5, 5, 5]
    t.assign(t + 1).realize()
    assert array.tolist() == [[11, 2, 3], [6, 6, 6]]


def test_what_is_computed_from_shared_memory_is_computed_anew() -> None:
    array = np.zeros(4, np.float32)
    t = Tensor.from_dlpack(array)
    one = (t + 1).realize()
    array[:] = 7
    two = (t + 1).realize()
    assert (one.tolist(), two.tolist()) == ([1] * 4, [8] * 4)
    own = Tensor([1.0, 2.0]).realize()
    before = (own * 2).realize()
    np.from_dlpack(own)[:] = 3
    assert (before.tolist(), (own * 2).tolist()) == ([2, 4], [6, 6])


def test_equal_values_are_not_handed_out_together() -> None:
    t = Tensor([1.0, 2.0]).realize()
    one, two = (t + 1).realize(), (t + 1).realize()
    np.from_dlpack(one)[0] = 50
    assert (one.tolist(), two.tolist(), (t + 1).tolist()) == ([50, 3], [2, 3], [2, 3])
    ones = Tensor.ones(3)
    np.from_dlpack(ones)[1] = 4
    assert (ones.tolist(), Tensor.ones(3).tolist()) == ([1, 4, 1], [1, 1, 1])


@pytest.mark.parametrize("view", [
    lambda t: t.permute(1, 0),
    lambda t: t[1:],
    lambda t: t[:, 1:2],
    lambda t: t.detach(),
    lambda t: t.reshape(3, 2),
    lambda t: t.permute(1, 0)[1],
])  # fmt: skip
def test_views_are_handed_out_in_place(view: Callable[[Any], Any]) -> None:
    t = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).realize()
    whole, part = np.from_dlpack(t), np.from_dlpack(view(t))
    assert np.shares_memory(whole, part)
    assert part.tolist() == view(t).tolist()
    part[...] = -1
    assert t.tolist() == whole.tolist()
    assert (view(t) == -1).all().item()


def test_what_strides_cannot_show_is_a_copy() -> None:
    t = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).realize()
    for view in (t.flip(0), t.reshape(2, 1, 3).expand(2, 2, 3), t.permute(1, 0).reshape(6)):
        assert np.from_dlpack(view).tolist() == view.tolist()
        with pytest.raises(BufferError, match="copy=None copies it"):
            view.__dlpack__(copy=False)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2), (2, 1, 0)])
def test_dense_arrays_come_in_place_in_any_order_of_axes(order: tuple[int, ...]) -> None:
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4).transpose(order)
    t = Tensor.from_dlpack(array, copy=False)
    assert t.tolist() == array.tolist()
    array[1, 1, 1] = -5
    assert t.tolist() == array.tolist()


def test_gaps_and_steps_are_copied_or_refused() -> None:
    array = np.arange(10.0)[::2]
    assert Tensor.from_dlpack(array).tolist() == array.tolist()
    with pytest.raises(BufferError, match="cannot be shared"):
        Tensor.from_dlpack(array, copy=False)


def test_read_only_memory_is_read_and_never_written() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    t = Tensor.from_dlpack(array)
    assert np.shares_memory(t._memory().numpy(), array)
    t.assign(t + 1).realize()
    assert (array.tolist(), t.tolist()) == ([0, 1, 2], [1, 2, 3])
    raw = Tensor(b"abcd")
    assert np.from_dlpack(raw).tolist() == list(b"abcd")
    assert Tensor(b"abcd").tolist() == list(b"abcd")


def test_a_capsule_is_taken_once() -> None:
    capsule = np.arange(3).__dlpack__()
    assert Tensor.from_dlpack(capsule).tolist() == [0, 1, 2]
    with pytest.raises(BufferError, match="can be taken once"):
        Tensor.from_dlpack(capsule)
    for wrong in (3, "text", [1, 2]):
        with pytest.raises(BufferError, match="no DLPack capsule"):
            Tensor.from_dlpack(wrong)


def test_capsules_have_the_version_that_is_asked_for() -> None:
    t = Tensor([1.0, 2.0])
    named = {None: b"dltensor", (0, 8): b"dltensor", (1, 0): b"dltensor_versioned"}
    for version, name in named.items():
        assert dlpack.pointer_in(t.__dlpack__(max_version=version), name)
    assert t.__dlpack_device__() == (1, 0)
    found = dlpack.array_in(t.cast("bfloat16").__dlpack__(max_version=(1, 0)))
    assert (found.code, found.bits, found.ndim) == (4, 16, 1)


def test_copies_that_are_asked_for() -> None:
    t = Tensor([1.0, 2.0]).realize()
    array = np.from_dlpack(t, copy=True)
    array[0] = 9
    assert t.tolist() == [1, 2]


def test_what_cannot_be_is_a_buffer_error() -> None:
    t = Tensor([1.0], requires_grad=True)
    with pytest.raises(BufferError, match=r"t\.detach\(\)"):
        t.__dlpack__()
    assert np.from_dlpack(t.detach()).tolist() == [1]
    with pytest.raises(BufferError, match=r"device \(2, 0\)"):
        Tensor([1.0]).__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream"):
        Tensor([1.0]).__dlpack__(stream=1)
    two = Tensor([1.0, 2.0]).shard(("CPU:1", "CPU:2"), 0)
    with pytest.raises(BufferError, match="cannot be shared"):
        two.__dlpack__(copy=False)
    assert np.from_dlpack(two).tolist() == [1, 2]


def test_memory_outlives_the_tensor() -> None:
    array = np.from_dlpack(Tensor(np.arange(1000, dtype=np.float32)).realize() + 1)
    gc.collect()
    others = [Tensor.full((1000,), float(i)).contiguous().realize() for i in range(4)]
    assert array.tolist() == [i + 1 for i in range(1000)]
    assert len(others) == 4
    t = Tensor.from_dlpack(np.arange(1000.0))
    gc.collect()
    assert t.tolist() == list(range(1000))


def test_an_array_goes_when_its_tensor_goes() -> None:
    array = np.arange(100.0)
    before = sys.getrefcount(array)
    t = Tensor.from_dlpack(array)
    assert t.sum().item() == 4950
    del t
    gc.collect()
    assert sys.getrefcount(array) == before


def test_consumers_may_outlive_the_interpreter_itself() -> None:
    program = (
        "import numpy as np, sys\n"
        "from aster_ml import Tensor\n"
        "sys.kept = np.from_dlpack(Tensor.ones(5).contiguous())\n"
        "sys.capsule = Tensor.ones(5).__dlpack__(max_version=(1, 0))\n"
        "sys.ours = Tensor.from_dlpack(np.arange(3.0))\n"
        "print(sys.kept.sum())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "5.0\n", "")


def test_replays_see_what_others_write() -> None:
    array = np.zeros(4, np.float32)
    state = Tensor.from_dlpack(array)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        state.assign(state + x).realize()
        return (state * 2).realize()

    for i in range(5):
        array[:] = i
        got = step(Tensor.full((4,), 1.0).contiguous().realize())
        assert got.tolist() == [2 * (i + 1)] * 4
        assert array.tolist() == [i + 1] * 4


def test_results_of_replays_that_were_handed_out_stay() -> None:
    @TinyJit
    def double(x: Tensor) -> Tensor:
        return (x * 2).realize()

    kept = []
    for i in range(6):
        kept.append(np.from_dlpack(double(Tensor([float(i)] * 8).realize())))
    assert [k[0] for k in kept] == [0, 2, 4, 6, 8, 10]


def test_capsules_of_vectors_and_other_devices_are_refused() -> None:
    class Elsewhere:
        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError("not asked")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 1)

    with pytest.raises(BufferError, match=r"\(2, 1\)"):
        Tensor.from_dlpack(Elsewhere(), copy=False)
    capsule = np.arange(4.0).__dlpack__()
    dlpack.array_in(capsule).lanes = 2
    with pytest.raises(BufferError, match="2 lanes"):
        Tensor.from_dlpack(capsule)
    dlpack.array_in(capsule).lanes = 1


def test_the_structures_are_those_of_the_header() -> None:
    assert ctypes.sizeof(dlpack.ArrayInMemory) == 48
    assert ctypes.sizeof(dlpack.Versioned) == 80


def test_asarray_without_a_copy_or_an_error() -> None:
    t = Tensor([1.0, 2.0]).realize()
    assert np.shares_memory(np.asarray(t, copy=False), np.asarray(t))
    assert not np.shares_memory(np.array(t), np.asarray(t))
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(t, dtype=np.float64, copy=False)
    assert np.asarray(t, dtype=np.float64).dtype == np.float64
    assert np.asarray(t.cast("bfloat16")).dtype == np.float32


def test_jax_both_ways() -> None:
    jnp = pytest.importorskip("jax.numpy", reason="jax is not installed")
    theirs = jnp.arange(6.0).reshape(2, 3)
    ours = Tensor.from_dlpack(theirs)
    assert ours.tolist() == theirs.tolist()
    back = jnp.from_dlpack(ours)
    assert back.tolist() == theirs.tolist()
