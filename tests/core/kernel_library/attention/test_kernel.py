"""Attention in one kernel: which bodies it is made of, what it computes, and what NVRTC says."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor, dtypes
from aster_ml.codegen.opts import OptOps, parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.engine.realize import schedule_uops
from aster_ml.errors import KernelOptError
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.target.cuda import cuda_target
from aster_ml.target.metal import metal_target
from aster_ml.target.tensor_cores import ROWS, chained_dtypes
from aster_ml.uop.ops import AxisType, Ops
from tests.core.kernel_checks import kernel_of
from tests.shim import devices, on_cpu


def compiled(test: Any) -> Any:
    """A test that runs kernels of shims."""
    missing = on_cpu.find_compiler() is None
    skip = pytest.mark.skipif(missing, reason="no C++ compiler on PATH: g++")
    return pytest.mark.cc(skip(test))


CUDA, METAL = devices.SHIMS
# Powers are rounded to the dtype of values before they are multiplied, and so is the result.
BOUNDS = {dtypes.float16: 2e-3, dtypes.bfloat16: 2e-2}


def wanted(q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False) -> Any:
    """Attention in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        mask = np.tri(scores.shape[-2], scores.shape[-1], dtype=bool)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    most = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(most == -np.inf, 0, most))
    total = powers.sum(-1, keepdims=True)
    return powers @ v / np.where(total == 0, 1, total)


def operands(device: str, dtype: Any, *shapes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """Tensors of a device, and their numbers."""
    rng = np.random.default_rng(sum(map(sum, shapes)))
    made = [Tensor(rng.standard_normal(s).astype(np.float32), device="CPU") for s in shapes]
    tensors = [t.cast(dtype).to(device).realize() for t in made]
    return tensors, [t.cast(dtypes.float32).numpy() for t in tensors]


def steps_of(t: Tensor) -> list[Any]:
    """The steps of the schedule that computes a tensor."""
    return schedule_uops([t.contiguous().uop])[0].steps


def drawn_mask(kind: str, n: int, m: int) -> Any:
    """A mask of bools, of which one row lets nothing through, or of floats; else None."""
    rng = np.random.default_rng(n * m)
    if kind == "bool":
        mask = rng.random((n, m)) < 0.5
        mask[0] = False
        return mask
    return rng.standard_normal((n, m)).astype(np.float32) if kind == "float" else None


def error_of(
    heads: int, n: int, m: int, d: int, e: int, kind: str, device: str, dtype: Any
) -> float:
    """How far attention in one kernel is from that in float64; the mask is of this kind."""
    (q, k, v), numbers = operands(device, dtype, (heads, n, d), (heads, m, d), (heads, m, e))
    mask = drawn_mask(kind, n, m)
    given = None if mask is None else Tensor(mask, device=device)
    result = q.scaled_dot_product_attention(k, v, given, is_causal=kind == "causal")
    assert len(steps_of(result)) == 1
    found = result.cast(dtypes.float32).numpy()
    right = wanted(*numbers, mask, kind == "causal")
    return float(np.max(np.abs(found - right), initial=0.0))


@compiled
@pytest.mark.parametrize(
    ("device", "sizes", "kind", "dtype"),
    [
        (CUDA, (2, 64, 64, 64, 64), "", dtypes.float16),
        (CUDA, (1, 130, 130, 32, 64), "causal", dtypes.bfloat16),
        (CUDA, (2, 33, 65, 128, 128), "bool", dtypes.float16),
        (CUDA, (1, 33, 40, 20, 72), "causal", dtypes.float16),
        (CUDA, (1, 20, 50, 200, 250), "", dtypes.float16),
        (CUDA, (1, 16, 1, 8, 8), "", dtypes.float16),
        (METAL, (1, 70, 70, 128, 128), "causal", dtypes.float16),
        (METAL, (3, 50, 77, 64, 64), "float", dtypes.bfloat16),
        (METAL, (2, 16, 7, 16, 16), "float", dtypes.float16),
    ],
)
def test_scores_stay_in_registers(device: str, sizes: Any, kind: str, dtype: Any) -> None:
    assert error_of(*sizes, kind, device, dtype) <= BOUNDS[dtype]


@compiled
@pytest.mark.parametrize("device", [CUDA, METAL])
def test_a_value_that_is_no_number_reaches_rows_that_look_at_its_tile(device: str) -> None:
    """As docs/reference/floats.md says: with a triangle, no row of a block before it; else all."""
    (q, k, v), (_, _, numbers) = operands(device, dtypes.float16, *[(1, 256, 64)] * 3)
    numbers[:, -1] = np.nan
    v = Tensor(numbers, device="CPU").cast(dtypes.float16).to(device).realize()
    for mask, first in ((None, 192), (np.arange(256) < 255, 0)):
        given = None if mask is None else Tensor(np.tile(mask, (256, 1)), device=device)
        result = q.scaled_dot_product_attention(k, v, given, is_causal=mask is None)
        found = np.isnan(result.cast(dtypes.float32).numpy()).any(-1)[0]
        assert np.flatnonzero(found).tolist() == list(range(first, 256))


@compiled
def test_operands_that_are_computed_are_stored_first() -> None:
    """As in a transformer: heads are cut out of a product, in the order in which they lie."""
    (x, w), (a, b) = operands(CUDA, dtypes.float16, (2, 48, 64), (64, 3 * 64))
    q, k, v = [t.reshape(2, 48, 2, 32).transpose(1, 2) for t in (x @ w / 8).chunk(3, dim=-1)]
    result = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2)
    steps = steps_of(result.reshape(2, 48, 64))
    kinds = [s for s in steps if "chain" in str(lower(s.ast, cuda_target("sm_80"))[1])]
    assert len(kinds) == 1
    assert len(steps) <= 4
    made = (a @ b / 8).astype(np.float16).astype(np.float64).reshape(2, 48, 3, 2, 32)
    heads = [made[:, :, i].swapaxes(1, 2) for i in range(3)]
    right = wanted(*heads, causal=True).swapaxes(1, 2).reshape(2, 48, 64)
    found = result.reshape(2, 48, 64).cast(dtypes.float32).numpy()
    np.testing.assert_allclose(found, right, atol=5e-3)


def test_a_block_of_a_transformer_multiplies_on_tensor_cores_alone() -> None:
    """Seven kernels: both norms, attention, and four products of numbers of 16 bits."""

    def number(*shape: int) -> Tensor:
        return Tensor.empty(*shape, dtype=dtypes.float16, device=CUDA)

    x = number(2, 64, 128)
    inner = (x.layernorm() * number(128) + number(128)).linear(number(128, 384), number(384))
    q, k, v = [t.reshape(2, 64, 2, 64).transpose(1, 2) for t in inner.chunk(3, dim=-1)]
    mixed = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2)
    x = x + mixed.reshape(2, 64, 128).linear(number(128, 128), number(128))
    inner = (x.layernorm() * number(128) + number(128)).linear(number(128, 512), number(512))
    result = x + inner.gelu().linear(number(512, 128), number(128))
    target = cuda_target("sm_80")
    applied = [lower(step.ast, target)[1] for step in steps_of(result)]
    cores = [opt.kind for opts in applied for opt in opts if opt.op is OptOps.TC]
    assert len(applied) == 7
    assert cores == ["TC", "TC chain", "TC", "TC", "TC"]


@compiled
def test_groups_of_heads_share_keys_and_an_unlikely_maximum_comes_late() -> None:
    (q, k, v), (a, b, c) = operands(CUDA, dtypes.float16, (4, 16, 16), (2, 80, 16), (2, 80, 16))
    # Rows whose largest score is in the last tile, and far above the others.
    b = b.astype(np.float16)
    b[:, 79] *= 30
    k = Tensor(b, device=CUDA)
    result = q.scaled_dot_product_attention(k, v, enable_gqa=True)
    right = wanted(a, b.repeat(2, 0), c.repeat(2, 0))
    np.testing.assert_allclose(result.cast(dtypes.float32).numpy(), right, atol=4e-3)


@compiled
def test_what_is_done_to_results_is_done_there() -> None:
    (q, k, v), numbers = operands(CUDA, dtypes.float16, (1, 35, 16), (1, 20, 16), (1, 20, 16))
    more = np.arange(35 * 16, dtype=np.float32).reshape(1, 35, 16) / 100
    result = q.scaled_dot_product_attention(k, v)
    both = [result, result.cast(dtypes.float32) * 2 + Tensor(more, device=CUDA).realize()]
    Tensor.realize(*both)
    right = wanted(*numbers)
    np.testing.assert_allclose(both[0].cast(dtypes.float32).numpy(), right, atol=2e-3)
    np.testing.assert_allclose(both[1].numpy(), right * 2 + more, atol=5e-3)


@compiled
def test_what_is_no_number_stays_none() -> None:
    (_, k, v), (a, *_) = operands(CUDA, dtypes.float16, (1, 32, 16), (1, 70, 16), (1, 70, 16))
    a[0, 3, 0] = np.nan
    result = Tensor(a.astype(np.float16), device=CUDA).scaled_dot_product_attention(k, v)
    found = result.cast(dtypes.float32).numpy()[0]
    assert np.isnan(found[3]).all()
    assert np.isfinite(np.delete(found, 3, 0)).all()


@compiled
def test_gradients_are_those_of_stored_scores() -> None:
    """Whoever wants gradients reads the scores again: they are stored then."""
    found = []
    for device in ("CPU", CUDA):
        tensors, _ = operands(device, dtypes.float16, (2, 32, 16), (2, 32, 16), (2, 32, 16))
        for t in tensors:
            t.requires_grad_()
        q, k, v = tensors
        q.scaled_dot_product_attention(k, v, is_causal=True).cast(
            dtypes.float32
        ).square().sum().backward()
        found.append([t.grad.cast(dtypes.float32).numpy() for t in tensors])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-2)


def test_other_attention_is_computed_as_before() -> None:
    def steps(dtype: Any, n: int, d: int, device: str = CUDA) -> int:
        q, k, v = (Tensor.empty(1, n, d, dtype=dtype, device=device) for _ in range(3))
        return len(steps_of(q.scaled_dot_product_attention(k, v)))

    assert steps(dtypes.float16, 32, 64) == 1
    # A dtype that is rounded on the way, few queries, wide heads.
    assert steps(dtypes.float32, 32, 64) > 1
    assert steps(dtypes.float16, 8, 64) > 1
    assert steps(dtypes.float16, 32, 256) == 1
    assert steps(dtypes.float16, 32, 257) > 1
    assert steps(dtypes.float16, 32, 64, "CPU") > 1
    with Context(FUSE=0):
        assert steps(dtypes.float16, 48, 64) > 1


def test_scores_that_somebody_reads_are_stored() -> None:
    q, k, v = (Tensor.empty(1, 32, 16, dtype=dtypes.float16, device=CUDA) for _ in range(3))
    scores = q.dot(k.transpose(-1, -2), dtypes.float32)
    parts = (scores - scores.max(-1, keepdim=True)).exp()
    result = parts.cast(dtypes.float16).dot(v, dtypes.float32) / parts.sum(-1, keepdim=True)
    assert len(steps_of(result)) == 1
    both, _ = schedule_uops([result.contiguous().uop, scores.contiguous().uop])
    assert len(both.steps) > 2


def test_results_that_lie_as_operands_do() -> None:
    names = {row.name for row in ROWS if row.chains}
    assert {"cuda_m16n8k16_float16", "cuda_m16n8k8_bfloat16", "metal_m8n8k8_float16"} <= names
    assert "cuda_m16n8k8_float32" not in names
    assert chained_dtypes(cuda_target("sm_80").tensor_cores) == {"float16", "bfloat16"}
    assert chained_dtypes(metal_target().tensor_cores) == {"float16", "bfloat16"}
    assert not chained_dtypes(frozenset())


def attention_kernel(n: int, m: int, d: int) -> Any:
    """The kernel of attention of one head."""
    shapes = ((1, n, d), (1, m, d), (1, m, d))
    q, k, v = (Tensor.empty(s, dtype=dtypes.float16, device=CUDA) for s in shapes)
    return kernel_of(q.scaled_dot_product_attention(k, v))


def test_the_interpreter_runs_it() -> None:
    linear, applied = lower(attention_kernel(18, 20, 16), cuda_target("sm_80"))
    assert [opt.op for opt in applied] == [OptOps.TC]
    assert {Ops.MMA, Ops.SHUFFLE, Ops.BARRIER} <= {u.op for u in linear.uops}
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 16)).astype(np.float16) for n in (18, 20, 20))
    out = np.full(18 * 16, np.nan, np.float16)
    Interpreter(linear).run([out, q.reshape(-1), k.reshape(-1), v.reshape(-1)], ())
    np.testing.assert_allclose(out.reshape(18, 16), wanted(q, k, v), atol=2e-3)


def test_it_can_be_asked_for_by_name_and_is_refused_elsewhere() -> None:
    ast, target = attention_kernel(32, 32, 16), cuda_target("sm_80")
    linear, applied = lower(ast, target)
    text = " ".join(map(repr, applied))
    assert re.fullmatch(r"TC\(r\d+,3,chain\)", text)
    assert lower(ast, target, parse_opts(text))[0] == linear
    with pytest.raises(KernelOptError, match="after TC chain only PIPELINE copies"):
        lower(ast, target, parse_opts(f"{text} LOCAL(r1,8)"))
    with pytest.raises(KernelOptError, match="2 stages are more than the 1 tiles of the loop"):
        lower(ast, target, parse_opts(f"{text} PIPELINE(r3,2,copies)"))
    with pytest.raises(KernelOptError, match="attention is wanted"):
        q = Tensor.empty(32, 16, dtype=dtypes.float16)
        lower(kernel_of(q.matmul(q.T, dtype=dtypes.float32)), target, parse_opts("TC(r2,3,chain)"))


@pytest.mark.parametrize("d", [16, 48, 64, 128])
def test_operands_come_as_matrices_that_are_copied_ahead(d: int) -> None:
    linear, _ = lower(attention_kernel(160, 160, d), cuda_target("sm_80"))
    matrices = [u for u in linear.uops if u.op is Ops.LDMATRIX]
    # Queries and keys as they lie; values, of which each product has its own, turned around.
    turned = [u.arg.transposed for u in matrices]
    assert turned.count(False) == 2
    assert turned.count(True) == d // 8 // math.gcd(d // 8, 4)
    # Sizes that are powers of two lie in an XOR layout, others are padded.
    shared = [u.arg for u in linear.uops if u.op is Ops.DEFINE_LOCAL and not u.arg.private]
    assert all([(m.xor is not None) == (d & (d - 1) == 0) for m in shared])
    start = next(i for i, u in enumerate(linear.uops) if u.op is Ops.WAIT)
    turn = [u.op for u in linear.uops[start:]]
    assert turn[:2] == [Ops.WAIT, Ops.BARRIER]
    # One barrier a turn: what is read and what is filled are two stages.
    assert turn.count(Ops.BARRIER) == 1
    assert turn.count(Ops.COMMIT) == 1
    loads = [u for u in linear.uops if u.op is Ops.LOAD and u.src[0].src[0] in linear.params[1:]]
    assert all([any([r.arg.kind is AxisType.VECTOR for r in u.ranges]) for u in loads])


def test_the_interpreter_runs_stages() -> None:
    linear, applied = lower(attention_kernel(17, 70, 16), cuda_target("sm_80"))
    assert [opt.op for opt in applied] == [OptOps.TC, OptOps.PIPELINE]
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((n, 16)).astype(np.float16) for n in (17, 70, 70))
    out = np.full(17 * 16, np.nan, np.float16)
    Interpreter(linear).run([out, q.reshape(-1), k.reshape(-1), v.reshape(-1)], ())
    np.testing.assert_allclose(out.reshape(17, 16), wanted(q, k, v), atol=2e-3)
    hasty = replace(linear, uops=tuple([u for u in linear.uops if u.op is not Ops.WAIT]))
    Interpreter(hasty).run([out, q.reshape(-1), k.reshape(-1), v.reshape(-1)], ())
    assert not np.allclose(out.reshape(17, 16), wanted(q, k, v), atol=2e-3)


@compiled
def test_keys_and_values_may_lie_across() -> None:
    """Heads whose places are no neighbours: they are loaded one by one, and wait in registers."""
    (q, k, v), numbers = operands(CUDA, dtypes.float16, (1, 33, 32), (1, 32, 90), (1, 32, 90))
    result = q.scaled_dot_product_attention(k.transpose(1, 2), v.transpose(1, 2))
    numbers[1:] = [x.swapaxes(1, 2) for x in numbers[1:]]
    found = result.cast(dtypes.float32).numpy()
    np.testing.assert_allclose(found, wanted(*numbers), atol=2e-3)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("n", "d", "kind", "most"),
    [(512, 64, "", 184), (512, 128, "", 255), (50, 128, "", 224), (200, 128, "causal", 224)],
)
def test_no_register_is_spilled(arch: str, n: int, d: int, kind: str, most: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install 'aster-ml[cuda]'")
    from aster_ml.runtime.cuda.compiler import ALIGNED
    from tools.gpu_compile import compile_kernel

    q, k, v = (Tensor.empty(1, n, d, dtype=dtypes.float16, device=CUDA) for _ in range(3))
    ast = kernel_of(q.scaled_dot_product_attention(k, v, is_causal=kind == "causal"))
    linear, _ = lower(ast, cuda_target(arch))
    # As the runtime compiles it: buffers begin at multiples of 16 bytes.
    report = compile_kernel(ALIGNED + CudaRenderer(cuda_target(arch)).render(linear), arch)
    assert (report.error, report.spilled, report.stack) == ("", 0, 0)
    assert report.registers <= most


def test_results_that_are_neighbours_are_stored_at_once() -> None:
    """Of a row a work-item has pairs, which are one store of 32 bits each."""
    target = cuda_target("sm_80")
    source = CudaRenderer(target).render(lower(attention_kernel(64, 64, 32), target)[0])
    kernel = source[source.index("__global__") :]
    assert kernel.count("aster_store_any<4>(buf0") == 8
    assert "buf0[" not in kernel
