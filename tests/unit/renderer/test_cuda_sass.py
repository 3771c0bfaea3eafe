"""What NVRTC and ptxas make of products on tensor cores: instructions, registers, no spills."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from aster_ml import Context, Tensor, dtypes
from aster_ml.codegen.passes import lower
from aster_ml.renderer.cuda import CudaRenderer
from aster_ml.runtime import cuda_compiler
from aster_ml.target.cuda import cuda_target
from tests.unit.kernel_checks import kernel_of
from tools.gpu_compile import compile_kernel

# By dtype: the instruction of each card that has one of its own, and how many words a turn takes.
PRODUCTS = [
    ("sm_80", "float16", "HMMA.16816.F32"),
    ("sm_80", "bfloat16", "HMMA.16816.F32.BF16"),
    ("sm_80", "float32", "HMMA.1688.F32.TF32"),
    ("sm_89", "fp8e4m3", "QMMA.16832.F32.E4M3.E4M3"),
    ("sm_90a", "float16", "HMMA.16816.F32"),
    ("sm_90a", "bfloat16", "HMMA.16816.F32.BF16"),
    ("sm_90a", "fp8e4m3", "HMMA.16816.F32"),
]


def source_of(arch: str, dtype: str) -> str:
    """The default kernel of a product of 8192, both operands with the sum's steps as neighbours."""
    a, b = (Tensor.empty(8192, 8192, dtype=dtype) for _ in range(2))
    with Context(ALLOW_TF32=1):
        linear, _ = lower(kernel_of(a.matmul(b.T, dtype=dtypes.float32)), cuda_target(arch))
    return CudaRenderer(cuda_target(arch)).render(linear)


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "dtype", "instruction"), PRODUCTS)
def test_products_are_made_of_what_the_card_has(arch: str, dtype: str, instruction: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is absent")
    if (lacking := cuda_compiler.missing()) is not None:
        pytest.skip(lacking)
    if cuda_compiler.disassembler() is None:
        pytest.skip("nvdisasm is absent: pip install nvidia-cuda-nvdisasm")
    source = source_of(arch, dtype)
    found = compile_kernel(source, arch)
    assert (found.error, found.spilled, found.stack) == ("", 0, 0)
    assert 0 < found.registers < 255
    text = cuda_compiler.disassemble(cuda_compiler.compile_cubin(source, arch))
    counts = Counter(re.findall(r"\b(?:HMMA|QMMA|LDSM|LDGSTS)[.\w]*", text))
    products = sum([n for name, n in counts.items() if name == instruction])
    assert products in (64, 32)
    # Matrices four at a time, copies of 16 bytes past the first level of cache.
    loads = {name: n for name, n in counts.items() if name.startswith("LDSM")}
    assert set(loads) == {"LDSM.16.M88.4"}
    assert 4 * loads["LDSM.16.M88.4"] >= products / 2
    copies = {name for name in counts if name.startswith("LDGSTS")}
    assert all(["BYPASS" in name and "128" in name for name in copies])
    assert copies
    waits = re.findall(r"DEPBAR\.LE SB0, (0x\w+)", text)
    assert len(set(waits)) == 2
