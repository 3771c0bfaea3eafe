"""Attention whose operands boxes of tensors bring: CUDA C++ for Hopper, run on the CPU."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.config import Context
from aster_ml.errors import DeviceError, KernelOptError
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.runtime.cuda import compiler as cuda_compiler
from aster_ml.target.cuda import cuda_target
from aster_ml.target.tensor_cores import ROWS
from aster_ml.uop.linear import Linear
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from aster_ml.uop.spec.linear import verify_linear
from tests.core.kernel_checks import kernel_of
from tests.core.kernel_library.attention.test_kernel import BOUNDS, compiled, drawn_mask, wanted
from tests.shim import devices, on_cpu

CARD = cuda_target("sm_90a")
NUMPY = {dtypes.float16: np.float16, dtypes.bfloat16: ml_dtypes.bfloat16}
NUMBERS = {row.name.removeprefix("cuda_wgmma_"): i for i, row in enumerate(ROWS)}
needs_nvrtc = pytest.mark.skipif(
    cuda_compiler.missing() is not None, reason="NVRTC: pip install 'aster-ml[cuda]'"
)


def numbers(dtype: Any, *shapes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """Random operands."""
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [rng.standard_normal(s).astype(NUMPY[dtype]) for s in shapes]


def tensor(x: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of the shape and dtype of an array, of a device that multiplies on tensor cores."""
    dtype = {np.dtype(v): k for k, v in NUMPY.items()}.get(x.dtype, str(x.dtype))
    return Tensor.empty(*x.shape, dtype=dtype, device=devices.SHIMS[0])


def program(result: Tensor, stages: str = "", opts: str = "") -> Linear:
    """The program of attention for Hopper; by the default Opts, but for `stages`, or by `opts`."""
    ast = kernel_of(result)
    with Context(BOXES=2):
        linear, found = lower(ast, CARD, parse_opts(opts) if opts else None)
        if stages:
            text = " ".join(map(repr, found))
            text = re.sub(r"PIPELINE\((\w+),[^)]*\)", rf"PIPELINE(\1,{stages})", text)
            linear, _ = lower(ast, CARD, parse_opts(text))
    verify_linear(linear)
    assert linear_from_text(linear_to_text(linear)) == linear
    return linear


def is_boxed(linear: Linear) -> bool:
    """Whether boxes bring its operands."""
    return any(u.op is Ops.TMA_LOAD for u in linear.uops)


def run(linear: Linear, out: np.ndarray[Any, Any], *arrays: np.ndarray[Any, Any]) -> None:
    """Runs a program on the CPU; a mask, the last array, is where its argument is."""
    source, given = CudaRenderer(CARD).render(linear), [out, *arrays]
    kinds = [u.dtype for u in linear.params]
    masks = [i for i, dtype in enumerate(kinds) if i and dtype not in NUMPY]
    if masks:
        given.insert(masks[0], given.pop())
    on_cpu.run(source, linear, [a.reshape(-1) for a in given])


def error_of_boxes(
    heads: int, n: int, m: int, d: int, e: int, kind: str, dtype: Any, stages: str = ""
) -> float:
    """How far attention by boxes is from that in float64; the mask is of this kind."""
    arrays = numbers(dtype, (heads, n, d), (heads, m, d), (heads, m, e))
    mask = drawn_mask(kind, n, m)
    given = None if mask is None else tensor(mask)
    result = tensor(arrays[0]).scaled_dot_product_attention(
        tensor(arrays[1]), tensor(arrays[2]), given, is_causal=kind == "causal"
    )
    linear = program(result, stages)
    assert is_boxed(linear)
    out = np.full((heads, n, e), np.nan, NUMPY[dtype])
    run(linear, out, *arrays, *([] if mask is None else [mask]))
    right = wanted(*arrays, mask, kind == "causal")
    return float(np.max(np.abs(out.astype(np.float64) - right), initial=0.0))


@compiled
@pytest.mark.parametrize(
    ("sizes", "kind", "dtype"),
    [
        ((2, 64, 128, 64, 64), "", dtypes.float16),
        ((1, 200, 330, 128, 128), "causal", dtypes.bfloat16),
        ((2, 33, 257, 64, 128), "bool", dtypes.float16),
        ((1, 130, 150, 96, 32), "float", dtypes.bfloat16),
        ((1, 16, 65, 16, 16), "float", dtypes.float16),
    ],
)
def test_boxes_bring_operands(sizes: Any, kind: str, dtype: Any) -> None:
    assert error_of_boxes(*sizes, kind, dtype) <= BOUNDS[dtype]


@compiled
def test_groups_of_heads_share_keys_and_lie_as_a_product_leaves_them() -> None:
    """Heads are cut out of one tensor of [batch, positions, heads, width]; two share keys."""
    arrays = numbers(dtypes.float16, (2, 70, 4, 32), (2, 140, 2, 32), (2, 140, 2, 32))
    q, k, v = [tensor(x).transpose(1, 2) for x in arrays]
    result = q.scaled_dot_product_attention(k, v, enable_gqa=True).transpose(1, 2)
    linear = program(result)
    assert is_boxed(linear)
    out = np.full((2, 70, 4, 32), np.nan, np.float16)
    run(linear, out, *arrays)
    a, b, c = [x.swapaxes(1, 2).astype(np.float64) for x in arrays]
    right = wanted(a, b.repeat(2, 1), c.repeat(2, 1)).swapaxes(1, 2)
    np.testing.assert_allclose(out.astype(np.float64), right, atol=2e-3)


@compiled
def test_an_unlikely_maximum_comes_late_and_what_is_no_number_stays_none() -> None:
    arrays = numbers(dtypes.float16, (1, 64, 64), (1, 300, 64), (1, 300, 64))
    arrays[1][:, 299] *= 30
    arrays[0][0, 3, 0] = np.nan
    linear = program(tensor(arrays[0]).scaled_dot_product_attention(*map(tensor, arrays[1:])))
    out = np.zeros((1, 64, 64), np.float16)
    run(linear, out, *arrays)
    assert np.isnan(out[0, 3]).all()
    others = np.delete(out[0], 3, 0).astype(np.float64)
    right = wanted(np.delete(arrays[0], 3, 1), *arrays[1:])[0]
    np.testing.assert_allclose(others, right, atol=4e-3)


@compiled
@pytest.mark.parametrize("how", ["copies", "producer"])
def test_stages_are_filled_by_a_group_of_its_own_or_by_all(how: str) -> None:
    assert error_of_boxes(1, 100, 400, 64, 64, "causal", dtypes.float16, f"2,{how}") <= 2e-3


# What is left out of the source, and what shows then; numbers that are wrong show as well.
LEFT_OUT = {
    "the wait for queries": r"aster_barrier_wait\(&full\[2\], 0 & 1\);",
    "the wait for keys and values": r"aster_barrier_wait\(&full\[t\d+\], [^;]*;",
    "the wait for a stage that is free": r"aster_barrier_wait\(&empty\[[^;]*;",
    "that a stage is free": r"if [^;]* aster_barrier_arrive\(&empty\[[^;]*;",
    "what is expected": r"aster_barrier_expect\(&full\[t\d+\], [^;]*;",
    "the fence before scores": r"aster_wgmma_begin\(\);(?=\s+aster_wgmma_\w+_kk)",
    "the fence before results": r"aster_wgmma_begin\(\);(?=\s+aster_wgmma_\w+_rn)",
    "the wait for scores": r"aster_wgmma_wait<0>\(\);(?=\s+aster_settled\(acc0_0)",
    "the wait for results": r"aster_wgmma_wait<0>\(\);(?!.*aster_wgmma_wait)",
}


@compiled
@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_shows(name: str) -> None:
    arrays = numbers(dtypes.float16, (1, 64, 128), (1, 640, 128), (1, 640, 128))
    result = tensor(arrays[0]).scaled_dot_product_attention(*map(tensor, arrays[1:]))
    linear = program(result, "2,producer")
    source = CudaRenderer(CARD).render(linear)
    head, start, body = source.partition('extern "C"')
    changed, count = re.subn(LEFT_OUT[name], "", body, flags=re.DOTALL)
    assert count == 1
    out = np.full((1, 64, 128), np.nan, np.float16)
    try:
        on_cpu.run(head + start + changed, linear, [a.reshape(-1) for a in (out, *arrays)])
    except DeviceError:
        return
    right = wanted(*arrays)
    assert not np.allclose(out.astype(np.float64), right, atol=1e-2)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (((64, 64), (64, 64), (64, 64)), "more than 64 keys are wanted"),
        (((64, 32), (200, 32), (200, 32)), ""),
        (((64, 128), (200, 128), (200, 128)), "128 columns at a time are wanted"),
    ],
)
def test_what_no_box_brings_is_refused(shapes: Any, said: str) -> None:
    q, k, v = [Tensor.empty(1, *s, dtype="half", device=devices.SHIMS[0]) for s in shapes]
    number = NUMBERS["m64n64k16_float16_own"]
    result = q.scaled_dot_product_attention(k, v)
    if said:
        with pytest.raises(KernelOptError, match=said):
            program(result, opts=f"TC(r3,{number},chain) PIPELINE(r3,2,producer)")
    with pytest.raises(KernelOptError, match=r"wants PIPELINE copies or PIPELINE producer|wanted"):
        program(result, opts=f"TC(r3,{number},chain)")
    with pytest.raises(KernelOptError, match=r"takes operand A from an accumulator"):
        program(result, opts=f"TC(r3,{number})")


def test_other_attention_is_by_registers() -> None:
    """Few keys, and heads whose neighbours lie apart; and all of it without the setting."""

    def chosen_opts(*shape: int, turned: bool = False, boxes: int = 2) -> str:
        q, k, v = [Tensor.empty(*shape, dtype="half", device=devices.SHIMS[0]) for _ in range(3)]
        v = v.reshape(shape[0], shape[2], shape[1]).transpose(1, 2) if turned else v
        with Context(BOXES=boxes):
            return " ".join(
                map(repr, lower(kernel_of(q.scaled_dot_product_attention(k, v)), CARD)[1])
            )

    assert "producer" in chosen_opts(1, 256, 64)
    assert "producer" not in chosen_opts(1, 256, 64, boxes=1)
    assert "producer" not in chosen_opts(1, 64, 64)
    assert "producer" not in chosen_opts(1, 256, 64, turned=True)


@needs_nvrtc
@pytest.mark.parametrize(("d", "kind"), [(64, ""), (128, "causal"), (128, "bool")])
def test_it_compiles_for_hopper(d: int, kind: str) -> None:
    """No spill, no product that waits for another, powers in registers as operand A."""
    from tools.gpu_compile import compile_kernel

    q, k, v = [Tensor.empty(2, 8, 2048, d, dtype="half", device=devices.SHIMS[0]) for _ in range(3)]
    mask = Tensor.empty(2048, 2048, dtype="bool", device=devices.SHIMS[0])
    linear = program(
        q.scaled_dot_product_attention(
            k, v, mask if kind == "bool" else None, is_causal=kind == "causal"
        )
    )
    assert linear.local_size[0] == 384
    assert [u.arg.registers for u in linear.uops if u.op is Ops.WARP_ROLE] == [40, 232]
    source = CudaRenderer(CARD).render(linear)
    report = compile_kernel(source, "sm_90a")
    assert (report.error, report.spilled, report.stack, report.warned) == ("", 0, 0, "")
    if cuda_compiler.disassembler() is None:
        return
    sass = cuda_compiler.disassemble(cuda_compiler.compile_cubin(source, "sm_90a"))
    # Of 128 keys: places along a head, sixteen at a time, and keys, of which powers are registers.
    products = re.findall(r"HGMMA\.64x(\d+)x16\.F32 (R\d+), (R\d+|gdesc)", sass)
    own = [n for n, _, a in products if a != "gdesc"]
    # Where powers wait for the next tile, the first scores and the last results stand apart.
    copies = 2 if d == 64 else 1
    assert (len(products) - len(own), own) == (copies * d // 16, [str(d)] * 8 * copies)
    counts = Counter(re.findall(r"\b(?:UTMALDG|USETMAXREG|MUFU\.EX2|FSETP)[.\w]*", sass))
    assert {name.split(".")[0] for name in counts} >= {"UTMALDG", "USETMAXREG"}
    # A power is one instruction, of each score and of the two maxima that a thread had.
    assert counts["MUFU.EX2"] == copies * (128 // 2 + 2)
    # One product goes on while powers of the other's sums are computed.
    last = re.split(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1 ;", sass)
    assert len(last) == copies
    if copies == 2:
        between = last[1].split("WARPGROUP.DEPBAR")[0]
        assert between.count("MUFU.EX2") >= 60
