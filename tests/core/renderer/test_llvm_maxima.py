"""Maxima that become one, tiles of whole lines: what LLVM is given, and that values are right."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.codegen.passes import lower
from aster_ml.renderer.llvm.renderer import LLVMRenderer
from aster_ml.target import Target
from tests.core.kernel_checks import kernel_of

WIDE = Target(
    "CPU",
    "llvm",
    arch="x86_64-any",
    vector_bits=512,
    vector_registers=32,
    masks=True,
    broadcasts=True,
)
NARROW = Target("CPU", "llvm", arch="x86_64-any", vector_bits=256, vector_registers=16)


def text_of(t: Tensor, target: Target) -> str:
    linear, _ = lower(kernel_of(t), target)
    return LLVMRenderer(target).render(linear)


def memory(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32)).realize()


@pytest.mark.parametrize("target", [WIDE, NARROW], ids=["wide", "narrow"])
def test_one_comparison_looks_for_nan_in_two_operands(target: Target) -> None:
    text = text_of(memory(4096).max(), target)
    body = text[text.index("phi <") : text.index("br i1")]
    accumulators = body.count("phi <")
    assert accumulators >= 4
    assert body.count("fcmp uno") == accumulators // 2 + 1


def test_maxima_that_stay_apart_keep_nan_each() -> None:
    text = text_of(memory(40, 64).max(0), WIDE)
    body = text[text.index("phi <") : text.index("br i1")]
    assert body.count("fcmp uno") == body.count("phi <")


@pytest.mark.parametrize("shape", [(5,), (48,), (1000,), (4099,), (37, 300), (3, 70, 11)])
@pytest.mark.parametrize("special", [np.nan, -np.nan, np.inf, -np.inf, 0.0])
def test_a_special_value_anywhere_is_seen(shape: tuple[int, ...], special: float) -> None:
    rng = np.random.default_rng(len(shape))
    base = -1.0 - rng.random(shape, dtype=np.float32)
    places = rng.integers(0, base.size, 12)
    for place in (0, base.size - 1, *places):
        x = base.copy()
        x.reshape(-1)[place] = special
        t = Tensor(x)
        np.testing.assert_array_equal(t.max().numpy(), x.max())
        np.testing.assert_array_equal(t.max(-1).numpy(), x.max(-1))
        np.testing.assert_array_equal(t.max(0).numpy(), x.max(0))


def test_of_zeros_the_positive_one_is_the_larger() -> None:
    x = np.full(1000, -0.0, np.float32)
    assert np.signbit(Tensor(x).max().numpy())
    x[517] = 0.0
    assert not np.signbit(Tensor(x).max().numpy())


def test_a_transposed_tile_loads_each_line_once() -> None:
    text = text_of(memory(512, 512).T, WIDE)
    assert text.count("= load <16 x float>") == 16
    assert "load <4 x float>" not in text


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int16])
@pytest.mark.parametrize("shape", [(64, 48), (33, 100), (100, 17)])
def test_transposes_have_every_element(shape: tuple[int, int], dtype: type) -> None:
    x = np.arange(shape[0] * shape[1]).astype(dtype).reshape(shape)
    np.testing.assert_array_equal(Tensor(x).T.contiguous().numpy(), x.T)


@pytest.mark.parametrize("target", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_rectifier_is_a_choice_that_x86_has_in_one_instruction(target: Target) -> None:
    """0 > x ? 0 : x is MAXPS, which gives its second operand where neither is above the other."""
    text = text_of(memory(4096).relu(), target)
    kind, zero = r"<\d+ x float>", r"splat \(float 0x0+\)"
    compared = re.findall(rf"(%\d+) = fcmp olt {kind} (%\d+), {zero}\n", text)
    chosen = re.findall(rf"select <\d+ x i1> (%\d+), {kind} {zero}, {kind} (%\d+)\n", text)
    assert compared == chosen
    assert len(compared) == text.count("fcmp") > 0
