"""Results that leave by boxes: which are, where they lie, and what holds the program together."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.errors import DeviceError, InternalError, KernelOptError
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.target.cuda import cuda_target
from aster_ml.target.tensor_cores import ROWS
from aster_ml.target.tensor_maps import tensor_maps
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from aster_ml.uop.spec.linear import verify_linear
from tests.core.kernel_checks import kernel_of
from tests.shim import on_cpu

CARD = cuda_target("sm_90a")
NUMBERS = {row.name.removeprefix("cuda_wgmma_"): i for i, row in enumerate(ROWS)}
KINDS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
needs_cc = pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler: g++")

TILE = "TC(r2,{n}) LOCAL(r0,2) STAGE(r2,4,local) "
AHEAD = TILE + "PIPELINE(r2,2,copies) STAGE(0,{over},out)"
PRODUCER = TILE + "PIPELINE(r2,2,producer) BLOCKS(0,1,loop) STAGE(0,0,out)"


def program(opts: str, ast: UOp, tile: str = "m64n64k16_float16", over: int = 0) -> Linear:
    """The program of a kernel for Hopper, whose results leave by boxes."""
    linear, _ = lower(ast, CARD, parse_opts(opts.format(n=NUMBERS[tile], over=over)))
    verify_linear(linear)
    assert linear_from_text(linear_to_text(linear)) == linear
    assert any(u.op is Ops.TMA_STORE for u in linear.uops)
    return linear


def draw(*shape: int, kind: Any = np.float16) -> np.ndarray[Any, Any]:
    """Small integers, of which products and sums are exact."""
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(kind)


def run_on_cpu(linear: Linear, arrays: list[np.ndarray[Any, Any]]) -> None:
    """Runs the CUDA C++ of a program on the CPU."""
    on_cpu.run(CudaRenderer(CARD).render(linear), linear, [a.reshape(-1) for a in arrays])


def product(n: int, k: int, m: int, result: str = "float16") -> UOp:
    """A product of halves with results of a dtype."""
    x, y = Tensor.empty(n, k, dtype="half"), Tensor.empty(k, m, dtype="half")
    return kernel_of(x.matmul(y, dtype=dtypes.float32).cast(result))


@pytest.mark.cc
@needs_cc
@pytest.mark.parametrize(
    ("opts", "over", "result"),
    [
        (AHEAD, 0, "float16"), (AHEAD, 1, "float32"), (PRODUCER, 0, "bfloat16"),
        (PRODUCER, 0, "float32"),
    ],
)  # fmt: skip
def test_results_are_those_of_numpy(opts: str, over: int, result: str) -> None:
    a, b = draw(128, 128), draw(128, 192)
    out = np.full((128, 192), 77, KINDS[result])
    linear = program(opts, product(128, 128, 192, result), over=over)
    run_on_cpu(linear, [out, a, b])
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(out.astype(np.float32), wanted)
    matrices = any(u.op is Ops.STMATRIX for u in linear.uops)
    assert matrices == (result != "float32")


@pytest.mark.cc
@needs_cc
@pytest.mark.parametrize("result", ["float16", "float32"])
def test_ends_of_a_tensor_are_clipped_and_nothing_behind_is_written(result: str) -> None:
    n, k, m = 120, 136, 120
    mask = "SPLIT(r0,128,mask) SPLIT(r1,128,mask) SPLIT(r2,192,mask) "
    memory = np.full(n * m + 64, 77, KINDS[result])
    a, b = draw(n, k), draw(k, m)
    linear = program(mask + PRODUCER, product(n, k, m, result))
    run_on_cpu(linear, [memory, a, b])
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(memory[: n * m].astype(np.float32), wanted.reshape(-1))
    assert (memory[n * m :] == 77).all()


@pytest.mark.cc
@needs_cc
@pytest.mark.parametrize("result", ["float16", "float32"])
def test_rows_of_results_may_be_neighbours(result: str) -> None:
    x, y = Tensor.empty(128, 128, dtype="half"), Tensor.empty(128, 64, dtype="half")
    ast = kernel_of(x.matmul(y, dtype=dtypes.float32).cast(result).T.contiguous())
    number = NUMBERS["m64n64k16_float16"]
    opts = f"TC(r2,{number}) STAGE(r2,4,local) PIPELINE(r2,2,copies) STAGE(0,1,out)"
    linear, _ = lower(ast, CARD, parse_opts(opts))
    a, b = draw(128, 128), draw(128, 64)
    out = np.full((64, 128), 77, KINDS[result])
    run_on_cpu(linear, [out, a, b])
    wanted = (a.astype(np.float32) @ b.astype(np.float32)).T
    np.testing.assert_array_equal(out.astype(np.float32), wanted)


@pytest.mark.cc
@needs_cc
def test_what_follows_a_product_is_computed_before() -> None:
    x, y = Tensor.empty(2, 128, 128, dtype="half"), Tensor.empty(2, 128, 64, dtype="half")
    bias, rest = Tensor.empty(64), Tensor.empty(2, 128, 64, dtype="half")
    ast = kernel_of(((x.matmul(y, dtype=dtypes.float32) + bias).relu() + rest.float()).half())
    a, b, c, d = draw(2, 128, 128), draw(2, 128, 64), draw(64, kind=np.float32), draw(2, 128, 64)
    number = NUMBERS["m64n64k16_float16"]
    axis = max(ast.src[0].src[1:], key=lambda r: r.src[0].arg).arg.id
    opts = f"TC(r{{k}},{number}) LOCAL(r{axis},2) STAGE(r{{k}},4,local) PIPELINE(r{{k}},2,copies)"
    depth = next(u.src[1].arg.id for u in ast.toposort() if u.op is Ops.REDUCE)
    linear, _ = lower(ast, CARD, parse_opts(opts.format(k=depth) + " STAGE(0,1,out)"))
    boxes = [u for u in linear.uops if u.op is Ops.TMA_STORE]
    assert [len(u.arg.sizes) for u in boxes] == [3]
    out = np.full((2, 128, 64), 77, np.float16)
    product_of = a.astype(np.float32) @ b.astype(np.float32)
    assert [p.arg.size for p in linear.params] == [x.size for x in (out, a, b, c, d)]
    run_on_cpu(linear, [out, a, b, c, d])
    wanted = np.maximum(product_of + c, 0) + d.astype(np.float32)
    np.testing.assert_array_equal(out.astype(np.float32), wanted)


@pytest.mark.cc
@needs_cc
@pytest.mark.parametrize("start", [1, 4, 7])
def test_results_may_begin_at_any_element(start: int) -> None:
    a, b = draw(128, 128), draw(128, 64)
    memory = np.full(128 * 64 + 16, 77, np.float16)
    linear = program(AHEAD, product(128, 128, 64), over=1)
    run_on_cpu(linear, [memory[start : start + 128 * 64], a, b])
    wanted = (a.astype(np.float32) @ b.astype(np.float32)).reshape(-1)
    np.testing.assert_array_equal(memory[start : start + 128 * 64].astype(np.float32), wanted)
    assert (np.delete(memory, range(start, start + 128 * 64)) == 77).all()


def interpreted(linear: Linear, kind: str) -> tuple[Any, Any]:
    """What the interpreter makes of a product of halves, and what is right."""
    n, k, m = SHAPE
    a, b = draw(n, k), draw(k, m)
    out = np.full((n, m), 77, KINDS[kind])
    Interpreter(linear).run([out.reshape(-1), a.reshape(-1), b.reshape(-1)])
    return out.astype(np.float32), a.astype(np.float32) @ b.astype(np.float32)


# Of one group of work-items, which the interpreter takes half as long for; two tiles.
SHAPE = (64, 128, 128)
GROUP_OF = {opts: opts.replace("LOCAL(r0,2) ", "") for opts in (AHEAD, PRODUCER)}
ONE = GROUP_OF[PRODUCER]


@pytest.mark.parametrize(
    ("opts", "over", "kind"), [(GROUP_OF[AHEAD], 1, "float32"), (ONE, 0, "float16")]
)
def test_the_interpreter_runs_it(opts: str, over: int, kind: str) -> None:
    found, wanted = interpreted(program(opts, product(*SHAPE, kind), over=over), kind)
    np.testing.assert_array_equal(found, wanted)


def barrier_before(linear: Linear, op: Ops) -> int:
    """Where the last barrier before the first node of an op stands."""
    at = next(i for i, u in enumerate(linear.uops) if u.op is op)
    return max(i for i, u in enumerate(linear.uops[:at]) if u.op is Ops.BARRIER)


def first(linear: Linear, op: Ops) -> int:
    """Where the first node of an op stands."""
    return next(i for i, u in enumerate(linear.uops) if u.op is op)


LEFT_OUT: dict[str, tuple[str, str, Callable[[Linear], int]]] = {
    "the fence": (ONE, "float16", lambda p: first(p, Ops.FENCE)),
    "the barrier before boxes": (ONE, "float16", lambda p: barrier_before(p, Ops.TMA_STORE)),
    "the wait of the next tile": (ONE, "float16", lambda p: first(p, Ops.TMA_STORE_WAIT)),
    # Of float32: to store matrices the work-items wait for one another here.
    "the barrier behind that wait": (ONE, "float32", lambda p: first(p, Ops.TMA_STORE_WAIT) + 1),
    "the last wait": (ONE, "float16", lambda p: len(p.uops) - 1),
    "the barrier behind operands": (
        GROUP_OF[AHEAD], "float32", lambda p: barrier_before(p, Ops.FENCE),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT_OUT)
def test_the_interpreter_shows_what_is_left_out(what: str) -> None:
    opts, kind, place = LEFT_OUT[what]
    linear = program(opts, product(*SHAPE, kind), over=int("copies" in opts))
    i = place(linear)
    assert linear.uops[i].op in (Ops.FENCE, Ops.BARRIER, Ops.TMA_STORE_WAIT)
    less = replace(linear, uops=linear.uops[:i] + linear.uops[i + 1 :])
    if what == "the last wait":
        with pytest.raises(InternalError, match="a box is stored that no TMA_STORE_WAIT waits for"):
            interpreted(less, kind)
        return
    found, wanted = interpreted(less, kind)
    assert not np.array_equal(found, wanted)


LINES = {
    "the fence": (PRODUCER, r"aster_fence\(\);", "without a fence", ""),
    "the fence of all but one": (
        PRODUCER, r"(?=aster_fence\(\);)", "without a fence", "if (threadIdx.x == 0) ",
    ),
    "the barrier before boxes": (
        PRODUCER, r"aster_sync<256>\(\);(?=\s+if \(threadIdx.x == 0\) aster_store_box)",
        "without a fence", "",
    ),
    "the wait of the next tile": (
        PRODUCER, r"if \(threadIdx.x == 0\) aster_drain\(\);(?=\s+aster_sync)",
        "changed before it was read", "",
    ),
    "the barrier behind that wait": (
        PRODUCER, r"(?<=aster_drain\(\);)\s+aster_sync<256>\(\);",
        "changed before|fence|wrong", "",
    ),
    "the last wait": (
        PRODUCER, r"if \(threadIdx.x == 0\) aster_drain\(\);(?=\n\}\n)", "nobody waits for", "",
    ),
    "the barrier behind operands": (
        AHEAD, r"__syncthreads\(\);(?=\s+aster_store<)",
        "operands of a product that changed", "",
    ),
}  # fmt: skip


@pytest.mark.cc
@needs_cc
@pytest.mark.parametrize("what", LINES)
def test_the_stand_in_shows_what_is_left_out(what: str) -> None:
    opts, line, said, instead = LINES[what]
    ahead = opts is AHEAD
    linear = program(
        opts, product(128, 128, 192, "float32" if ahead else "float16"), over=int(ahead)
    )
    source, count = re.subn(line, instead, CudaRenderer(CARD).render(linear))
    assert count == 1
    a, b = draw(128, 128), draw(128, 192)
    out = np.full((128, 192), 77, np.float32 if ahead else np.float16)
    try:
        on_cpu.run(source, linear, [x.reshape(-1) for x in (out, a, b)])
    except DeviceError as error:
        text = str(error)
    else:
        wanted = a.astype(np.float32) @ b.astype(np.float32)
        text = "all is well" if np.array_equal(out, wanted) else "wrong results"
    assert re.search(said, text), text


def test_tensors_of_results_are_in_the_source() -> None:
    source = CudaRenderer(CARD).render(program(PRODUCER, product(128, 128, 192)))
    tensor = next(x for x in tensor_maps(source) if x.slot == 0)
    assert (tensor.sizes, tensor.strides, tensor.box) == ((192, 128), (1, 192), (64, 128))


@pytest.mark.parametrize(
    ("m", "said"), [(67, "multiples of 16 bytes"), (68, "multiples of 16 bytes")]
)
def test_strides_that_boxes_have_no_room_for_are_refused(m: int, said: str) -> None:
    # The second operand lies along the sum, so that only results have such strides.
    x, y = Tensor.empty(128, 128, dtype="half"), Tensor.empty(m, 128, dtype="half")
    ast = kernel_of(x.matmul(y.T, dtype=dtypes.float32).half())
    opts = f"SPLIT(r1,128,mask) {AHEAD}".format(n=NUMBERS["m64n64k16_float16"], over=1)
    with pytest.raises(KernelOptError, match=said):
        lower(ast, CARD, parse_opts(opts))


def test_a_producer_wants_the_memory_of_operands() -> None:
    with pytest.raises(KernelOptError, match="fills the memory of operands"):
        program(PRODUCER.replace("STAGE(0,0,out)", "STAGE(0,1,out)"), product(128, 128, 192))


def test_other_products_have_no_boxes() -> None:
    ast = product(64, 64, 64)
    with pytest.raises(KernelOptError, match="STAGE out wants a product"):
        lower(ast, CARD, parse_opts("LOCAL(r0,8) LOCAL(r1,8) STAGE(0,0,out)"))


@pytest.mark.cc
@needs_cc
def test_blocks_of_a_cluster_that_have_no_tile_store_nothing() -> None:
    a, b = draw(128, 128), draw(128, 192)
    out = np.full((128, 192), 77, np.float16)
    # Three tiles, in pairs.
    opts = PRODUCER.replace("BLOCKS(0,1,loop)", "BLOCKS(r1,2,cluster)")
    linear = program(opts, product(128, 128, 192))
    assert any(len(u.src) == 5 for u in linear.uops if u.op is Ops.TMA_STORE)
    run_on_cpu(linear, [out, a, b])
    np.testing.assert_array_equal(out.astype(np.float32), a.astype(np.float32) @ b)
