"""WGSL: hand-built programs compute what NumPy computes, and the text is as WebGPU wants it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.backend import Grid
from aster_ml.codegen.passes import lower
from aster_ml.device import Buffer, Device, missing
from aster_ml.dtype import DType, dtypes
from aster_ml.errors import CompileError, InternalError
from aster_ml.export.web import web_target
from aster_ml.renderer.wgsl.renderer import WgslRenderer
from aster_ml.runtime.webgpu.program import LaunchFacts, shader_variant, shared_nbytes
from aster_ml.target import PLAIN_DTYPES, Target
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from tests.core.kernel_checks import kernel_of
from tests.core.linear_builder import GLOBAL, LOCAL, UPCAST, VECTOR, Builder, at
from tests.core.linear_programs import CASES, check_outputs

ABSENT = missing("WEBGPU")
PLAIN = Target(
    "WEBGPU", "wgsl", kind="gpu", has_local=True, has_barrier=True,
    native_dtypes=PLAIN_DTYPES - {"float64"},
)  # fmt: skip


def computable() -> list[str]:
    """Cases without threads, SIMD lanes and float64."""
    found = []
    for name, make in CASES.items():
        linear = make().linear
        lanes = {r.arg.kind for u in linear.uops for r in u.ranges}
        dts = {u.dtype for u in linear.uops}
        indices = [u for u in linear.uops if u.dtype is dtypes.int64]
        if linear.thread is None and VECTOR not in lanes and dtypes.float64 not in dts:
            found += [name] if not indices else []
    return found


@pytest.mark.webgpu
@pytest.mark.skipif(ABSENT is not None, reason=f"WebGPU: {ABSENT}")
@pytest.mark.parametrize("name", computable())
def test_wgsl_computes(name: str) -> None:
    case = CASES[name]()
    backend = Device["WEBGPU"]
    source = WgslRenderer(backend.target).render(case.linear)
    program = backend.load(case.linear.name, backend.compile(source))
    buffers = []
    for param, data in zip(case.linear.params, case.buffers, strict=True):
        buffers.append(Buffer("WEBGPU", data.size, param.dtype).copyin(data.copy()))
    sizes = tuple(int(n) for n in case.linear.global_size)
    launch = Grid(sizes, case.linear.local_size)
    program(tuple(b.handle for b in buffers), case.variables, launch)
    check_outputs([b.numpy() for b in buffers], case)


@pytest.mark.parametrize("name", ["group_sum", "group_transpose", "symbolic_size"])
def test_golden_wgsl(name: str, golden: Callable[[str, str], None]) -> None:
    source = WgslRenderer(PLAIN).render(CASES[name]().linear)
    golden(f"sources/{name}.wgsl", source)
    assert "fn main(" in source


def written(value: Callable[[UOp], UOp], source: DType) -> str:
    """The source of out[block] = value(in[block])."""
    return WgslRenderer(PLAIN).render(program(value, source))


def program(value: Callable[[UOp], UOp], source: DType) -> Linear:
    """out[block] = value(in[block])."""
    b = Builder("one")
    given = b.param(64, source)
    result = value(UOp.const(source, 0)).dtype
    out = b.param(64, result)
    block = b.axis(4, GLOBAL)
    b.store(at(out, block), b.add(value(b.load(at(given, block)))))
    return b.build()


def test_the_first_line_says_what_a_launch_has_to_know() -> None:
    facts = LaunchFacts.parse(written(lambda x: x.cast(dtypes.uint8), dtypes.int64))
    assert facts == LaunchFacts(((8, 0), (1, 1)), ())
    with pytest.raises(InternalError, match="begins with 'fn main'"):
        LaunchFacts.parse("fn main")


def test_arguments_count_elements_and_cut_variables_in_words() -> None:
    facts = LaunchFacts(((4, 0), (1, 1)), (1, 2))
    words = np.frombuffer(facts.arguments((8, 3), (-1, 1 << 33)), np.uint32)
    assert words.tolist() == [0, 2, 3, 0xFFFFFFFF, 0, 2, 0, 0]
    assert facts.argument_nbytes == words.nbytes
    with pytest.raises(RuntimeError, match="begins at byte 6 of elements of 4 bytes; a copy"):
        facts.arguments((6, 0), (0, 0))


def test_nan_is_told_by_bits_and_infinity_made_at_run_time() -> None:
    source = written(lambda x: x.ne(x), dtypes.float32)
    assert "is_nan(" in source
    assert "!=" not in source.partition("fn main")[2].replace("!= 0u", "")
    source = written(lambda x: (x < float("inf")).where(x, x.const_like(1.0)), dtypes.float32)
    assert "bitcast<f32>(x | args.zero)" in source
    assert "2139095040u" in source


def test_narrow_elements_are_stored_by_atomics_and_words_are_not() -> None:
    narrow = written(lambda x: x.cast(dtypes.int8), dtypes.float32)
    assert "var<storage, read_write> buf1: array<atomic<u32>>;" in narrow
    assert "atomicAnd(&buf1" in narrow
    assert "atomicOr(&buf1" in narrow
    assert "atomic" not in written(lambda x: x + 1, dtypes.int32)


def test_what_wgsl_has_not() -> None:
    with pytest.raises(InternalError, match="WGSL has no float64"):
        written(lambda x: x + 1, dtypes.float64)
    b = Builder("simd")
    out = b.param(4)
    lane = b.axis(4, VECTOR)
    b.store(at(out, UOp.const(dtypes.int32, 0), lane), UOp.const(dtypes.float32, 1.0))
    with pytest.raises(InternalError, match="on a target without SIMD"):
        WgslRenderer(PLAIN).render(b.build())
    b = Builder("deep")
    out = b.param(64)
    axes = [b.axis(2, LOCAL) for _ in range(4)]
    b.store(at(out, b.add(axes[0] + axes[3])), UOp.const(dtypes.float32, 1.0))
    with pytest.raises(InternalError, match="fourth dimension"):
        WgslRenderer(PLAIN).render(b.build())


# neighbours


def copied(dtype: DType, result: DType, size: int, gap: int = 0) -> Linear:
    """out[i] = in[i + gap] in lanes of 16 elements, for work-items in turn."""
    b = Builder("lanes")
    given, out = b.param(size + gap, dtype), b.param(size, result)
    item, lane = b.axis(size // 16, GLOBAL), b.axis(16, UPCAST)
    base = b.add(item * 16)
    b.store(at(out, base, lane), b.add(b.load(at(given, base, lane + gap)).cast(result)))
    return b.build()


def declared(source: str) -> list[str]:
    """The types of a source's buffers."""
    return re.findall(r"^@group.* buf\d: array<(.*)>;", source, re.MULTILINE)


def test_neighbours_are_one_element_of_memory() -> None:
    source = WgslRenderer(PLAIN).render(copied(dtypes.float32, dtypes.int8, 64))
    assert LaunchFacts.parse(source).words == (16, 4)
    aligned = shader_variant(source, False, True)
    assert declared(aligned) == ["vec4<f32>", "u32"]
    plain = shader_variant(source, False, False)
    assert declared(plain) == ["f32", "atomic<u32>"]
    assert "//" not in plain.partition("\n")[2]
    assert plain.count("atomicOr") == 1


@pytest.mark.parametrize("gap", [1, 2, 3])
def test_what_begins_inside_of_an_element_is_loaded_alone(gap: int) -> None:
    # Of 16 lanes those in the middle are whole elements; those at the ends are parts of one.
    source = WgslRenderer(PLAIN).render(copied(dtypes.float32, dtypes.float32, 64, gap))
    assert source.partition("fn main")[2].count("whole_buf0(") == 3
    assert source.partition("fn main")[2].count("one_buf0(") == 4
    assert LaunchFacts.parse(source).words == (16, 16)


def test_stores_that_leave_out_a_part_of_an_element_are_single() -> None:
    b = Builder("some")
    given, out = b.param(64), b.param(64)
    item, lane = b.axis(8, GLOBAL), b.axis(6, UPCAST)
    base = b.add(item * 8)
    b.store(at(out, base, lane), b.load(at(given, base, lane)))
    source = WgslRenderer(PLAIN).render(b.build())
    assert LaunchFacts.parse(source).words == (16, 4)
    assert "put_" not in source


NUMBERS = [dtypes.float32, dtypes.int32, dtypes.uint32, dtypes.int8, dtypes.uint8, dtypes.int16]
NUMBERS += [dtypes.uint16, dtypes.bool, dtypes.float16, dtypes.bfloat16, dtypes.int64]


@pytest.mark.webgpu
@pytest.mark.skipif(ABSENT is not None, reason=f"WebGPU: {ABSENT}")
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("gap", [0, 1, 4])
def test_buffers_may_begin_anywhere(dtype: DType, gap: int) -> None:
    backend = Device["WEBGPU"]
    linear = copied(dtype, dtype, 64, gap)
    source = WgslRenderer(backend.target).render(linear)
    program = backend.load("lanes", backend.compile(source))
    rng = np.random.default_rng(gap)
    bits = rng.integers(0, 2 if dtype is dtypes.bool else 100, (64 + gap + 8) * dtype.itemsize)
    data = bits.astype(np.uint8)
    for first, second in ((0, 0), (1, 3), (4, 0), (0, 2), (4, 8)):
        base = Buffer("WEBGPU", data.size, dtypes.uint8).copyin(data)
        kept = np.full((64 + 16) * dtype.itemsize, 7, np.uint8)
        whole = Buffer("WEBGPU", kept.size, dtypes.uint8).copyin(kept)
        given = base.view(64 + gap, dtype, first * dtype.itemsize).ensure_allocated()
        out = whole.view(64, dtype, second * dtype.itemsize).ensure_allocated()
        program((given.handle, out.handle), (), Grid((4,), (1,)))
        begin = (first + gap) * dtype.itemsize
        wanted = data[begin : begin + 64 * dtype.itemsize]
        kept[second * dtype.itemsize :][: wanted.size] = wanted
        np.testing.assert_array_equal(whole.numpy(), kept)


def test_a_card_that_nobody_knows_gets_tiles_of_sixteen_bytes() -> None:
    # Weights of a convolution lie apart and its rows begin anywhere: both are stored by fours.
    def empty(*shape: int) -> Tensor:
        return Tensor.empty(*shape)

    products = {
        "whole": empty(256, 256) @ empty(256, 256),
        "apart": empty(1, 16, 32, 32).conv2d(empty(32, 16, 3, 3)),
    }
    for name, t in products.items():
        source = WgslRenderer(web_target()).render(lower(kernel_of(t), web_target())[0])
        tiles = re.findall(r"^var<workgroup> local\d: array<(.*), \d+>;", source, re.MULTILINE)
        assert tiles == ["vec4<f32>"] * 2, name
        assert shared_nbytes(source) <= 16384
        # Of 30 results in a row those behind the last are not stored.
        assert LaunchFacts.parse(source).words == ((16, 16, 16) if name == "whole" else ())


@pytest.mark.webgpu
@pytest.mark.skipif(ABSENT is not None, reason=f"WebGPU: {ABSENT}")
@pytest.mark.parametrize("sizes", [(64, 64, 32), (68, 60, 36), (67, 61, 37), (128, 32, 17)])
@pytest.mark.parametrize("across", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_products_on_webgpu(sizes: tuple[int, int, int], across: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(sizes))
    m, n, k = sizes
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    x, y = (
        Tensor(z.T.copy(), device="WEBGPU").T if turned else Tensor(z, device="WEBGPU")
        for z, turned in zip((a, b), across, strict=True)
    )
    np.testing.assert_allclose((x @ y).numpy(), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.webgpu
@pytest.mark.skipif(ABSENT is not None, reason=f"WebGPU: {ABSENT}")
def test_convolutions_on_webgpu() -> None:
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 8, 17, 19), (16, 8, 3, 3)))
    on_cpu = Tensor(x).conv2d(Tensor(w), padding=1, stride=1).numpy()
    found = Tensor(x, device="WEBGPU").conv2d(Tensor(w, device="WEBGPU"), padding=1, stride=1)
    np.testing.assert_allclose(found.numpy(), on_cpu, rtol=1e-4, atol=1e-4)


def test_loops_that_a_driver_would_end_are_refused() -> None:
    x = Tensor.empty(3, 50, 41, device="NULL")
    linear = lower(kernel_of((x + 1).sum((1, 2))), PLAIN)[0]
    turns = linear.turns()
    allowed, refused = (replace(PLAIN, arch="slow", max_turns=n) for n in (turns, turns - 1))
    assert "for (" in WgslRenderer(allowed).render(linear)
    with pytest.raises(CompileError, match=rf"{turns:,} iterations .*\(slow\) ends them .*DEV=CPU"):
        WgslRenderer(refused).render(linear)
