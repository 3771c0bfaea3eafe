"""Gradients of attention of 16 bits on a device with tensor cores, beside PyTorch's and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.passes import lower
from aster_ml.engine.realize import schedule_uops
from aster_ml.target.cuda import cuda_target
from tests.shim import devices, on_cpu

pytestmark = [
    pytest.mark.cc,
    pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++"),
]
CUDA, METAL = devices.SHIMS


def drawn(seed: int, dtype: Any, *shapes: tuple[int, ...]) -> list[Any]:
    """Normal numbers, which a dtype holds."""
    rng = np.random.default_rng(seed)
    made = [Tensor(rng.standard_normal(s).astype(np.float32), device="CPU") for s in shapes]
    return [t.cast(dtype).cast(dtypes.float32).numpy() for t in made]


def mask_of(kind: str, n: int, m: int) -> Any:
    """A mask of bools or floats, or none."""
    rng = np.random.default_rng(n + m)
    if kind == "bool":
        mask = rng.random((n, m)) < 0.5
        mask[:, 0] = True
        return mask
    return rng.standard_normal((n, m)).astype(np.float32) if kind == "float" else None


def gradients(arrays: list[Any], mask: Any, causal: bool, device: str, dtype: Any) -> list[Any]:
    """The result, and gradients of queries, keys and values."""
    q, k, v, g = (Tensor(a, device="CPU").cast(dtype).to(device).realize() for a in arrays)
    given = None if mask is None else Tensor(mask, device=device).realize()
    for t in (q, k, v):
        t.requires_grad_()
    result = q.scaled_dot_product_attention(k, v, given, is_causal=causal)
    found = [result, *result.gradient(q, k, v, gradient=g)]
    Tensor.realize(*found)
    return [t.cast(dtypes.float32).numpy().astype(np.float64) for t in found]


def gradients_of(arrays: list[Any], mask: Any, causal: bool) -> list[Any]:
    """The same in float64."""
    q, k, v, g = (a.astype(np.float64) for a in arrays)
    scale = 1 / np.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2) * scale
    if causal:
        mask = np.tri(scores.shape[-2], scores.shape[-1], dtype=bool)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    shares = powers / powers.sum(-1, keepdims=True)
    result = shares @ v
    rows = (g * result).sum(-1, keepdims=True)
    slopes = shares * (g @ v.swapaxes(-1, -2) - rows) * scale
    return [result, slopes @ k, slopes.swapaxes(-1, -2) @ q, shares.swapaxes(-1, -2) @ g]


def of_torch(arrays: list[Any], mask: Any, causal: bool, dtype: Any) -> list[Any]:
    """The same by PyTorch's flash attention."""
    torch = pytest.importorskip("torch", reason="pip install torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v, g = (torch.tensor(a).to(dtype).requires_grad_() for a in arrays)
    given = None if mask is None else torch.tensor(mask)
    if given is not None and given.dtype != torch.bool:
        given = given.to(dtype)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        result = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=given, is_causal=causal
        )
        found = [result, *torch.autograd.grad(result, [q, k, v], g)]
    return [t.detach().double().numpy() for t in found]


def off(found: list[Any], right: list[Any]) -> float:
    """The root of mean squares of what gradients of queries, keys and values are off, added up."""
    parts = [(a, b) for a, b in zip(found[1:4], right[1:4], strict=True)]
    return float(sum([np.sqrt(((a - b) ** 2).mean() / (b**2).mean()) for a, b in parts]))


@pytest.mark.parametrize(
    ("device", "name", "kind"),
    [
        (CUDA, "float16", "causal"),
        pytest.param(CUDA, "float16", "", marks=pytest.mark.slow),
        pytest.param(CUDA, "bfloat16", "float", marks=pytest.mark.slow),
        pytest.param(METAL, "float16", "bool", marks=pytest.mark.slow),
    ],
)
def test_errors_are_no_larger_than_pytorchs(device: str, name: str, kind: str) -> None:
    torch = pytest.importorskip("torch", reason="pip install torch")
    m = 65 if kind == "causal" else 47
    shapes = (1, 2, 65, 32), (1, 2, m, 32), (1, 2, m, 32), (1, 2, 65, 32)
    arrays = drawn(0, getattr(dtypes, name), *shapes)
    mask, causal = mask_of(kind, 65, m), kind == "causal"
    right = gradients_of(arrays, mask, causal)
    theirs = of_torch(arrays, mask, causal, getattr(torch, name))
    mine = gradients(arrays, mask, causal, device, getattr(dtypes, name))
    assert off(mine, right) <= off(theirs, right)
    for found, wanted in zip(mine, right, strict=True):
        assert np.abs(found - wanted).max() <= 0.1 * np.sqrt((wanted**2).mean())


def kernels(n: int, m: int, d: int, e: int, **kinds: Any) -> list[Any]:
    """The kernels of attention and its gradients, as programs, and their Opts."""
    sizes = ((2, n, d), (2, m, d), (2, m, e), (2, n, e))
    q, k, v, g = (Tensor.empty(*s, dtype=dtypes.float16, device=CUDA) for s in sizes)
    for t in (q, k, v):
        t.requires_grad_()
    result = q.scaled_dot_product_attention(k, v, **kinds)
    found = [(result + 1), *[t + 1 for t in result.gradient(q, k, v, gradient=g)]]
    steps = schedule_uops([t.contiguous().uop for t in found])[0].steps
    return [lower(s.ast, cuda_target("sm_80")) for s in steps if s.ast is not None]


def test_four_kernels_and_no_scores() -> None:
    """Attention, sums along rows of its result times gradient, queries, and keys with values."""
    made = kernels(192, 160, 64, 64, is_causal=True)
    kinds = [opts[0].kind if opts else "" for _, opts in made]
    assert kinds.count("TC chain") == 3
    # Beside these the sums along rows, and what this test adds to each of the results.
    assert len(made) == 3 + 1 + 4
    scores = 2 * 192 * 160
    sizes = [u.arg.size for linear, _ in made for u in linear.params]
    assert max(sizes) == 2 * 192 * 64 < scores
    # Of other widths keys and values have kernels of their own.
    made = kernels(64, 64, 32, 64)
    assert sum([opts[0].kind == "TC chain" for _, opts in made if opts]) == 4


@pytest.mark.slow
def test_gradients_of_gradients() -> None:
    """The rule builds plain graph, of which gradients are those of any other."""
    arrays = drawn(1, dtypes.float16, (1, 16, 16), (1, 18, 16), (1, 18, 16), (1, 16, 16))
    found = []
    for device, dtype in (("CPU", dtypes.float32), (CUDA, dtypes.float16)):
        q, k, v, g = (Tensor(a, device="CPU").cast(dtype).to(device).realize() for a in arrays)
        for t in (q, k, v):
            t.requires_grad_()
        result = q.scaled_dot_product_attention(k, v)
        first = result.gradient(q, k, v, gradient=g)
        loss = sum(
            [t.cast(dtypes.float32).square().sum() for t in first], Tensor(0.0, device=device)
        )
        second = loss.gradient(q, k, v)
        found.append([t.cast(dtypes.float32).numpy() for t in second])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, atol=2e-2 * np.abs(a).max())


def test_a_row_that_sees_nothing_has_no_gradient() -> None:
    arrays = drawn(2, dtypes.float16, (1, 32, 16), (1, 32, 16), (1, 32, 16), (1, 32, 16))
    mask = mask_of("bool", 32, 32)
    mask[5] = False
    _, q, _, _ = gradients(arrays, mask, False, CUDA, dtypes.float16)
    assert not q[0, 5].any()
    assert np.isfinite(q).all()
