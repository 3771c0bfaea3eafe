"""Kernels written by hand, run on every device by `Tensor.custom_kernel`; NumPy is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Device, Tensor, TinyJit, UOp, dtypes
from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.compat.kernels import KernelInfo
from aster_ml.dtype import AddrSpace, DType
from aster_ml.engine.counters import GlobalCounters
from aster_ml.engine.program import get_program
from aster_ml.errors import ArgumentError, DeviceError, GradientError, ShapeError
from aster_ml.uop.ops import AxisType, Ops

RNG = np.random.default_rng(7)


def has_device(name: str) -> bool:
    """Whether a device can be opened here."""
    try:
        Device[name]
    except DeviceError:
        return False
    return True


DEVICES = [
    pytest.param("CPU", 0, id="llvm"),
    pytest.param("CPU", 1, id="c"),
    pytest.param("PYTHON", 0, id="python"),
    pytest.param(
        "OPENCL", 0, id="opencl",
        marks=pytest.mark.skipif(not has_device("OPENCL"), reason="no OpenCL platform"),
    ),
]  # fmt: skip
BLOCKS = [p for p in DEVICES if p.id in ("python", "opencl")]


def info(name: str, **kwargs: Any) -> KernelInfo:
    return KernelInfo(name=name, **kwargs)


def run(
    device: str, clang: int, fxn: Callable[..., UOp], out: tuple[int, ...], *arrays: Any,
    dtype: DType = dtypes.float32,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """What a kernel leaves in its first argument, new memory of shape `out`."""
    with Context(CLANG=clang):
        inputs = [Tensor(a, device=device) for a in arrays]
        made = Tensor.empty(*out, device=device, dtype=dtype).custom_kernel(*inputs, fxn=fxn)[0]
        return np.asarray(made.numpy())


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


# kernels


def add(C: UOp, A: UOp, B: UOp) -> UOp:
    C, A, B = C.flatten(), A.flatten(), B.flatten()
    i = UOp.range(C.size, 0)
    return C[i].store(A[i] + B[i]).end(i).sink(arg=info("add"))


def gemm(C: UOp, A: UOp, B: UOp) -> UOp:
    i, j = UOp.range(C.shape[0], 0), UOp.range(C.shape[1], 1)
    k = UOp.range(A.shape[1], 2, axis_type=AxisType.REDUCE)
    C = C[i, j].set(0.0)
    C = C[i, j].set(C.after(k)[i, j] + A[i, k] * B[k, j], end=k)
    return C.end(i, j).sink(arg=info("gemm", opts_to_apply=()))


def gemm_by_reduce(C: UOp, A: UOp, B: UOp) -> UOp:
    i, j = UOp.range(C.shape[0], 0), UOp.range(C.shape[1], 1)
    k = UOp.range(A.shape[1], 2, AxisType.REDUCE)
    total = (A[i, k] * B[k, j]).reduce(k, arg=Ops.ADD)
    return C[i, j].store(total).end(i, j).sink(arg=info("gemm_by_reduce"))


def attention(out: UOp, Q: UOp, K: UOp, V: UOp) -> UOp:
    """Scores are summed in one register, results in another, loops three deep."""
    n, d = Q.shape
    i, column = UOp.range(n, 0), UOp.range(d, 1)
    j, inner = UOp.range(n, 2, AxisType.REDUCE), UOp.range(d, 3, AxisType.REDUCE)
    score = UOp.placeholder((1,), dtypes.float32, 0, addrspace=AddrSpace.REG).after(i, j)[0].set(0)
    score = score[0].set(score.after(inner)[0] + Q[i, inner] * K[j, inner], end=inner)
    total = UOp.placeholder((1,), dtypes.float32, 1, addrspace=AddrSpace.REG)
    total = total.after(i, column)[0].set(0)
    total = total[0].set(total.after(j)[0] + score[0] * V[j, column], end=j)
    return out[i, column].store(total[0]).end(column).end(i).sink(arg=info("attention"))


def running_sum(B: UOp, A: UOp) -> UOp:
    """Each turn of a loop reads what the one before it has stored."""
    i = UOp.range(A.shape[0] - 1, 0)
    first = B[0].set(A[0])
    return first[i + 1].set(first.after(i)[i] + A[i + 1], end=i).sink(arg=info("running_sum"))


def rows_in_registers(B: UOp, A: UOp) -> UOp:
    """A row goes through an array of registers and comes out in reverse."""
    n, width = A.shape
    r = UOp.range(n, 0)
    load, store = UOp.range(width, 1), UOp.range(width, 2)
    row = UOp.placeholder((width,), dtypes.float32, 0, addrspace=AddrSpace.REG)
    row = row.after(r)[load].set(A[r, load] * 2, end=load)
    return B[r, store].store(row[width - 1 - store]).end(store).end(r).sink(arg=info("rows"))


def flip_lanes(B: UOp, A: UOp) -> UOp:
    i, j = UOp.range(A.shape[0], 0), UOp.range(A.shape[1], 1, AxisType.UPCAST)
    vec = A[i, j].contract(j)
    stores = [B[i, k].store(vec.gep(A.shape[1] - 1 - k)) for k in range(A.shape[1])]
    return UOp.group(*stores).end(i).sink(arg=info("flip_lanes", opts_to_apply=()))


def shifted(B: UOp, A: UOp) -> UOp:
    """Elements from before the beginning are 0; odd ones are not written by the second store."""
    i = UOp.range(A.size, 0)
    return B[i].store(A[(i - 2).valid(i > 1)]).end(i).sink(arg=info("shifted"))


def slices(B: UOp, A: UOp) -> UOp:
    g, r = UOp.range(A.shape[0], 0), UOp.range(A.shape[1], 1, AxisType.REDUCE)
    return B[g].store(A[g, :][r].reduce(r, arg=Ops.MAX)).end(g).sink(arg=info("slices"))


# on every device


@pytest.mark.parametrize("device, clang", DEVICES)
def test_elementwise(device: str, clang: int) -> None:
    a, b = floats(9, 5), floats(9, 5)
    np.testing.assert_array_equal(run(device, clang, add, (9, 5), a, b), a + b)


@pytest.mark.parametrize("kernel", [gemm, gemm_by_reduce])
@pytest.mark.parametrize("device, clang", DEVICES)
def test_product(device: str, clang: int, kernel: Callable[..., UOp]) -> None:
    a, b = floats(6, 7), floats(7, 5)
    np.testing.assert_allclose(
        run(device, clang, kernel, (6, 5), a, b), a @ b, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("device, clang", DEVICES)
def test_registers_of_nested_loops(device: str, clang: int) -> None:
    q, k, v = floats(5, 4), floats(5, 4), floats(5, 4)
    wanted = (q @ k.T) @ v
    got = run(device, clang, attention, (5, 4), q, k, v)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device, clang", DEVICES)
def test_turns_of_a_loop_see_one_another(device: str, clang: int) -> None:
    a = np.arange(1, 12, dtype=np.float32)
    np.testing.assert_array_equal(run(device, clang, running_sum, (11,), a), np.cumsum(a))


@pytest.mark.parametrize("device, clang", DEVICES)
def test_array_of_registers(device: str, clang: int) -> None:
    a = floats(3, 6)
    np.testing.assert_array_equal(run(device, clang, rows_in_registers, (3, 6), a), 2 * a[:, ::-1])


@pytest.mark.parametrize("device, clang", DEVICES)
def test_lanes(device: str, clang: int) -> None:
    a = floats(10, 4)
    np.testing.assert_array_equal(run(device, clang, flip_lanes, (10, 4), a), a[:, ::-1])


@pytest.mark.parametrize("device, clang", DEVICES)
def test_an_invalid_index_reads_zero(device: str, clang: int) -> None:
    a = floats(8)
    wanted = np.concatenate([[0, 0], a[:-2]])
    np.testing.assert_array_equal(run(device, clang, shifted, (8,), a), wanted)


@pytest.mark.parametrize("device, clang", DEVICES)
def test_part_of_the_axes_is_indexed(device: str, clang: int) -> None:
    a = floats(4, 9)
    np.testing.assert_array_equal(run(device, clang, slices, (4,), a), a.max(1))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.bool, dtypes.int8])
@pytest.mark.parametrize("device, clang", DEVICES)
def test_narrow_registers(device: str, clang: int, dtype: DType) -> None:
    def copy(B: UOp, A: UOp) -> UOp:
        i = UOp.range(A.size, 0)
        r = UOp.placeholder((1,), A.dtype.base, 0, addrspace=AddrSpace.REG).after(i)[0].set(A[i])
        return B[i].store(r[0]).end(i).sink(arg=info("copy"))

    with Context(CLANG=clang):
        a = Tensor([0.0, 1, 1, 0, 1], device=device).cast(dtype)
        got = Tensor.empty(5, device=device, dtype=dtype).custom_kernel(a, fxn=copy)[0]
        assert got.tolist() == a.tolist()


@pytest.mark.parametrize("device, clang", BLOCKS)
def test_work_items_share_memory(device: str, clang: int) -> None:
    def reverse(B: UOp, A: UOp) -> UOp:
        g, item = UOp.special(3, "gidx0"), UOp.special(8, "lidx0")
        shared = UOp.placeholder((8,), dtypes.float32, 0, addrspace=AddrSpace.LOCAL)
        filled = shared.after(shared[item].store(A[g, item]).barrier())
        return B[g, item].store(filled[7 - item]).sink(arg=info("reverse_rows"))

    a = floats(3, 8)
    np.testing.assert_array_equal(run(device, clang, reverse, (3, 8), a), a[:, ::-1])


@pytest.mark.parametrize("device, clang", BLOCKS)
def test_work_items_have_registers_of_their_own(device: str, clang: int) -> None:
    def sums(B: UOp, A: UOp) -> UOp:
        item, k = UOp.special(4, "lidx0"), UOp.range(A.shape[1], 0)
        acc = UOp.placeholder((1,), dtypes.float32, 0, addrspace=AddrSpace.REG)
        acc = acc.after(item)[0].set(0.0)
        acc = acc[0].set(acc.after(k)[0] + A[item, k], end=k)
        return B[item].store(acc[0]).sink(arg=info("sums"))

    a = floats(4, 5)
    np.testing.assert_allclose(run(device, clang, sums, (4,), a), a.sum(1), rtol=1e-6)


def test_work_items_are_loops_where_there_are_none() -> None:
    def twice(B: UOp, A: UOp) -> UOp:
        i = UOp.special(3, "gidx0") * 4 + UOp.special(4, "lidx0")
        return B[i].store(A[i] * 2).sink(arg=info("twice"))

    a = floats(12)
    np.testing.assert_array_equal(run("CPU", 0, twice, (12,), a), 2 * a)


# what the result is


def test_all_results_of_one_run() -> None:
    def both(C: UOp, D: UOp, A: UOp, B: UOp) -> UOp:
        i = UOp.range(A.size, 0)
        stores = UOp.group(C[i].store(A[i] + B[i]), D[i].store(A[i] * B[i]))
        return stores.end(i).sink(arg=info("both"))

    a, b = floats(20), floats(20)
    c, d = Tensor.empty(20).custom_kernel(Tensor.empty(20), Tensor(a), Tensor(b), fxn=both)[:2]
    before = GlobalCounters.kernel_count
    Tensor.realize(c, d)
    assert GlobalCounters.kernel_count - before == 1
    np.testing.assert_array_equal(c.numpy(), a + b)
    np.testing.assert_array_equal(d.numpy(), a * b)


def add_one(A: UOp) -> UOp:
    i = UOp.range(A.size, 0)
    return A[i].store(A[i] + 1).end(i).sink(arg=info("add_one"))


def test_memory_is_written_in_place() -> None:
    memory = Tensor(floats(6)).contiguous().realize()
    old = memory.numpy().copy()
    memory.custom_kernel(fxn=add_one)[0].realize()
    np.testing.assert_array_equal(memory.numpy(), old + 1)


def test_the_same_kernel_runs_again() -> None:
    memory = Tensor.zeros(4).contiguous().realize()
    for turn in range(1, 4):
        assert memory.custom_kernel(fxn=add_one)[0].tolist() == [turn] * 4


def test_kernels_follow_one_another() -> None:
    x = Tensor.zeros(4).contiguous()
    for _ in range(3):
        x = x.custom_kernel(fxn=add_one)[0]
    assert (x * 2).tolist() == [6] * 4


def test_who_wants_the_old_value_gets_it() -> None:
    memory = Tensor([1.0, 2, 3]).contiguous().realize()
    doubled = memory * 2
    assert memory.custom_kernel(fxn=add_one)[0].tolist() == [2, 3, 4]
    assert doubled.tolist() == [2, 4, 6]


def test_what_is_computed_from_a_value_is_not_written_over_it() -> None:
    x = Tensor([1.0, 2, 3]).realize()
    y = x + 10
    assert y.custom_kernel(fxn=add_one)[0].tolist() == [12, 13, 14]
    assert y.tolist() == [11, 12, 13]
    assert x.tolist() == [1, 2, 3]


def test_views_are_inputs() -> None:
    a, b = floats(4, 6), floats(6, 4)
    got = Tensor.empty(4, 6).custom_kernel(Tensor(a), Tensor(b).T, fxn=add)[0]
    np.testing.assert_array_equal(got.numpy(), a + b.T)


def test_a_kernel_without_stores_does_nothing() -> None:
    x = Tensor([1.0, 2]).contiguous().realize()
    assert x.custom_kernel(fxn=lambda _: UOp.sink())[0].tolist() == [1, 2]


def test_in_a_jitted_function() -> None:
    @TinyJit
    def step(a: Tensor, b: Tensor) -> Tensor:
        c = Tensor.empty(5, 5).custom_kernel(a, b + 1, fxn=gemm)[0]
        return (c * 2).realize()

    for _ in range(4):
        a, b = floats(5, 5), floats(5, 5)
        got = step(Tensor(a).realize(), Tensor(b).realize())
        np.testing.assert_allclose(got.numpy(), (a @ (b + 1)) * 2, rtol=1e-5, atol=1e-5)


# gradients


def backward(gradient: UOp, call: UOp) -> tuple[UOp | None, ...]:
    _, a, b = call.src
    return (
        None,
        (Tensor(gradient) @ Tensor(b).T).uop,
        Tensor.empty(*b.shape).custom_kernel(Tensor(a).T, Tensor(gradient), fxn=gemm)[0].uop,
    )


def test_gradient_is_what_the_author_says() -> None:
    x, y, weight = floats(3, 4), floats(4, 5), floats(3, 5)
    a, b = Tensor(x, requires_grad=True), Tensor(y, requires_grad=True)
    c = Tensor.empty(3, 5).custom_kernel(a, b, fxn=gemm, grad_fxn=backward)[0]
    (c * Tensor(weight)).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    np.testing.assert_allclose(a.grad.numpy(), weight @ y.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b.grad.numpy(), x.T @ weight, rtol=1e-5, atol=1e-6)


def test_a_kernel_without_a_gradient_says_so() -> None:
    a = Tensor(floats(3), requires_grad=True)
    c = Tensor.empty(3).custom_kernel(a, a.detach(), fxn=add)[0]
    with pytest.raises(GradientError, match="grad_fxn"):
        c.sum().backward()


# mistakes


def test_an_axis_that_nothing_ends() -> None:
    def forgets(A: UOp) -> UOp:
        return A[UOp.range(3, 0)].store(1.0).sink()

    with pytest.raises(ArgumentError, match=r"size 3\) that nothing ends"):
        Tensor.empty(3).custom_kernel(fxn=forgets)


def test_a_value_of_another_dtype() -> None:
    def stores_int(A: UOp) -> UOp:
        i = UOp.range(3, 0)
        return A[i].store(i.cast(dtypes.int32)).end(i).sink()

    with pytest.raises(ArgumentError, match="a int32 is stored to memory of float32"):
        Tensor.empty(3).custom_kernel(fxn=stores_int)


def test_too_few_indices() -> None:
    with pytest.raises(ShapeError, match="takes 2 indices"):
        Tensor.empty(3, 3).custom_kernel(fxn=lambda A: A[0].store(1.0).sink())


def test_no_sink() -> None:
    with pytest.raises(ArgumentError, match="a sink"):
        Tensor.empty(3).custom_kernel(fxn=lambda A: A[0].store(1.0))
    with pytest.raises(ArgumentError, match="a sink"):
        Tensor.empty(3).custom_kernel(fxn=lambda A: None)  # type: ignore[arg-type, return-value]


def test_several_devices() -> None:
    with pytest.raises(DeviceError, match="one device"):
        Tensor.empty(3).custom_kernel(Tensor.empty(3, device="PYTHON"), fxn=add)


def test_a_barrier_needs_work_groups() -> None:
    def waits(B: UOp) -> UOp:
        item = UOp.special(4, "lidx0")
        shared = UOp.placeholder((4,), dtypes.float32, 0, addrspace=AddrSpace.LOCAL)
        filled = shared.after(shared[item].store(1.0).barrier())
        return B[item].store(filled[3 - item]).sink()

    with pytest.raises(DeviceError, match="work-groups"):
        Tensor.empty(4, device="CPU").custom_kernel(fxn=waits)[0].realize()


# more forms


@pytest.mark.parametrize("device, clang", DEVICES)
def test_an_axis_is_used_again(device: str, clang: int) -> None:
    def twice_over(C: UOp, B: UOp, A: UOp) -> UOp:
        """The second loop reads, in reverse, what the first has written."""
        i = UOp.range(A.size, 0)
        B = B[i].set(A[i] + 1, end=i)
        C = C[i].set(B[A.size - 1 - i] * 2, end=i)
        return C.sink(arg=info("twice_over"))

    a = floats(7)
    with Context(CLANG=clang):
        c, b = Tensor.empty(7, device=device).custom_kernel(
            Tensor.empty(7, device=device), Tensor(a, device=device), fxn=twice_over
        )[:2]
        np.testing.assert_array_equal(b.numpy(), a + 1)
        np.testing.assert_array_equal(c.numpy(), (a[::-1] + 1) * 2)


@pytest.mark.parametrize("device, clang", DEVICES)
def test_loops_of_different_sizes(device: str, clang: int) -> None:
    def fills(C: UOp, D: UOp) -> UOp:
        i, j = UOp.range(C.size, 0), UOp.range(D.size, 1)
        first = C[i].store(i.cast(dtypes.float32)).end(i)
        return UOp.sink(first, D[j].store(j.cast(dtypes.float32) * 2).end(j), arg=info("fills"))

    with Context(CLANG=clang):
        c, d = Tensor.empty(3, device=device).custom_kernel(
            Tensor.empty(5, device=device), fxn=fills
        )
        assert c.tolist() == [0, 1, 2]
        assert d.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("device, clang", DEVICES)
def test_values_are_read_before_they_are_overwritten(device: str, clang: int) -> None:
    def swap(A: UOp, B: UOp) -> UOp:
        i = UOp.range(A.size, 0)
        return UOp.group(A[i].store(B[i]), B[i].store(A[i])).end(i).sink(arg=info("swap"))

    with Context(CLANG=clang):
        a = Tensor([1.0, 2, 3], device=device).contiguous().realize()
        b = Tensor([4.0, 5, 6], device=device).contiguous().realize()
        x, y = a.custom_kernel(b, fxn=swap)
        assert (x.tolist(), y.tolist()) == ([4, 5, 6], [1, 2, 3])


@pytest.mark.parametrize("device, clang", DEVICES)
def test_two_stores_to_one_memory(device: str, clang: int) -> None:
    def interleaved(C: UOp, A: UOp) -> UOp:
        i = UOp.range(A.size, 0)
        stores = UOp.group(C[i * 2].store(A[i]), C[i * 2 + 1].store(A[i].neg()))
        return stores.end(i).sink(arg=info("interleaved"))

    a = floats(5)
    wanted = np.stack([a, -a], 1).reshape(-1)
    np.testing.assert_array_equal(run(device, clang, interleaved, (10,), a), wanted)


@pytest.mark.parametrize("kind", [AxisType.GLOBAL, AxisType.LOCAL, AxisType.UPCAST])
@pytest.mark.parametrize("device, clang", DEVICES)
def test_kinds_of_axes(device: str, clang: int, kind: AxisType) -> None:
    def plus(C: UOp, A: UOp, B: UOp) -> UOp:
        i, j = UOp.range(C.shape[0], 0), UOp.range(C.shape[1], 1, kind)
        return C[i, j].store(A[i, j] + B[i, j]).end(i, j).sink(arg=info("plus"))

    a, b = floats(6, 8), floats(6, 8)
    np.testing.assert_array_equal(run(device, clang, plus, (6, 8), a, b), a + b)


def test_a_bound_variable_is_a_number_of_the_launch() -> None:
    def first(n: int) -> Callable[[UOp, UOp], UOp]:
        bound = UOp.variable("n", 1, 8).bind(n)

        def kernel(B: UOp, A: UOp) -> UOp:
            i = UOp.range(bound, 0)
            return B[i].store(A[i]).end(i).sink(arg=info("first"))

        return kernel

    a = Tensor(np.arange(8, dtype=np.float32))
    before = GlobalCounters.compiled_kernels
    for n in (3, 8, 1):
        zeros = Tensor.zeros(8).contiguous().realize()
        got = zeros.custom_kernel(a, fxn=first(n))[0].tolist()
        assert got == [float(i) if i < n else 0.0 for i in range(8)]
    assert GlobalCounters.compiled_kernels - before <= 3


def test_views_of_placeholders() -> None:
    def moved(B: UOp, A: UOp) -> UOp:
        i, j = UOp.range(B.shape[0], 0), UOp.range(B.shape[1], 1)
        A = A.permute(1, 0).flip(0).reshape(*B.shape)
        return B.T[j, i].store(A[i, j]).end(i, j).sink(arg=info("moved"))

    a = floats(4, 6)
    wanted = a.T[::-1].reshape(8, 3)
    np.testing.assert_array_equal(run("CPU", 0, moved, (8, 3), a), wanted)


def test_opts_by_hand() -> None:
    def doubled(B: UOp, A: UOp) -> UOp:
        i = UOp.range(A.size, 0)
        opts = (Opt(OptOps.UPCAST, 0, 4),)
        return B[i].store(A[i] * 2).end(i).sink(arg=info("doubled", opts_to_apply=opts))

    a = floats(32)
    np.testing.assert_array_equal(run("CPU", 0, doubled, (32,), a), a * 2)
    program = get_program(doubled(UOp.placeholder((32,), dtypes.float32, 0),
                                  UOp.placeholder((32,), dtypes.float32, 1)), "CPU")  # fmt: skip
    assert [(opt.axis, opt.arg) for opt in program.applied_opts] == [(0, 4)]
    assert program.name == "doubled"


def test_a_schedule_comes_after_the_kernels_that_it_needs() -> None:
    a = floats(3)
    x = Tensor.empty(3).custom_kernel(Tensor(a), Tensor(a) + 1, fxn=add)[0]
    items = (x * 2).schedule()
    for item in items:
        item.lower()
        item.run()
    assert len(items) == 1
    np.testing.assert_array_equal((x * 2).numpy(), (a + (a + 1)) * 2)
    assert not Tensor.empty(3).custom_kernel(Tensor(a), Tensor(a), fxn=add)[0].schedule()


def test_old_and_new_content_at_once() -> None:
    x = Tensor([1.0, 2, 3]).contiguous().realize()
    assert (x * 10 + x.custom_kernel(fxn=add_one)[0]).tolist() == [12, 23, 34]


def test_in_place_in_a_jitted_function() -> None:
    @TinyJit
    def step(memory: Tensor) -> Tensor:
        return memory.custom_kernel(fxn=add_one)[0].realize()  # type: ignore[no-any-return]

    memory = Tensor.zeros(4).contiguous().realize()
    for turn in range(1, 6):
        assert step(memory).tolist() == [turn] * 4
    assert memory.tolist() == [5] * 4


def test_results_are_tensors_like_others() -> None:
    a = floats(4)
    x = Tensor.empty(4).custom_kernel(Tensor(a), Tensor(a), fxn=add)[0]
    x[1] = 7.0
    x.assign(x + 1)
    wanted = 2 * a
    wanted[1] = 7.0
    np.testing.assert_array_equal(x.numpy(), wanted + 1)
    assert (
        Tensor.empty(0).custom_kernel(Tensor.empty(0), Tensor.empty(0), fxn=add)[0].tolist() == []
    )
    with pytest.raises(ShapeError, match="symbolic"):
        part = Tensor.empty(8)[: UOp.variable("n", 1, 8).bind(3)]
        part.custom_kernel(fxn=add_one)


def test_nodes_of_tensors_take_kernels_too() -> None:
    a = floats(5)
    node = Tensor.empty(5).uop.custom_kernel(Tensor(a).uop, Tensor(a).uop, fxn=add)[0]
    np.testing.assert_array_equal(Tensor(node).numpy(), 2 * a)
