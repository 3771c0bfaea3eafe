"""What NVRTC and ptxas make of products on tensor cores: instructions, registers, no spills."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from aster_ml import Context, Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.runtime.cuda import compiler as cuda_compiler
from aster_ml.target.cuda import cuda_target
from aster_ml.target.tensor_cores import ROWS
from tests.core.kernel_checks import kernel_of
from tests.shim import devices
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


def skip_without_tools() -> None:
    """Skips a test where NVIDIA's compilers are not there."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is absent")
    if (lacking := cuda_compiler.missing()) is not None:
        pytest.skip(lacking)
    if cuda_compiler.disassembler() is None:
        pytest.skip("nvdisasm is absent: pip install nvidia-cuda-nvdisasm")


def assembled(source: str, arch: str) -> tuple[int, str]:
    """Registers of a kernel that has to compile without spills, and its instructions."""
    found = compile_kernel(source, arch)
    assert (found.error, found.spilled, found.stack) == ("", 0, 0)
    return found.registers, cuda_compiler.disassemble(cuda_compiler.compile_cubin(source, arch))


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "dtype", "instruction"), PRODUCTS)
def test_products_are_made_of_what_the_card_has(arch: str, dtype: str, instruction: str) -> None:
    skip_without_tools()
    source = source_of(arch, dtype)
    registers, text = assembled(source, arch)
    assert 0 < registers < 255
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


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False)])
def test_products_without_tensor_cores_are_multiplications(
    arch: str, turned: tuple[bool, bool]
) -> None:
    """Nearly nothing else is in the loop, and two blocks have registers at once."""
    skip_without_tools()
    a, b = (x.T if t else x for t in turned for x in [Tensor.empty(4096, 4096)])
    linear, _ = lower(kernel_of(a @ b), cuda_target(arch))
    source = f"#define ASTER_ALIGNED 1\n{CudaRenderer(cuda_target(arch)).render(linear)}"
    registers, text = assembled(source, arch)
    assert registers <= 128
    counts = Counter(loop_of(text))
    assert counts["FFMA"] == 512
    assert counts["LDS.128"] == 32
    assert counts["BAR.SYNC.DEFER_BLOCKING"] == 1
    assert counts["FFMA"] >= 0.86 * counts.total()
    # Of the rest most are the reads of operands.
    assert counts["FFMA"] + counts["LDS.128"] >= 0.92 * counts.total()


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_sums_ask_for_much_at_once(arch: str) -> None:
    """Of a loop over rows many turns are begun before any is waited for."""
    skip_without_tools()
    linear, _ = lower(kernel_of(Tensor.empty(4096, 4096).sum(0)), cuda_target(arch))
    source = f"#define ASTER_ALIGNED 1\n{CudaRenderer(cuda_target(arch)).render(linear)}"
    _, text = assembled(source, arch)
    assert Counter(loop_of(text))["LDG.E.128.CONSTANT"] >= 16


def loop_of(text: str) -> list[str]:
    """The names of the instructions of the one loop."""
    lines = text.splitlines()
    labels = {line.strip(" :"): i for i, line in enumerate(lines) if line.startswith(".L_x")}
    jumps = [
        (i, found[1]) for i, x in enumerate(lines) if (found := re.search(r"BRA .*(\.L_x_\d+)", x))
    ]
    [(start, stop)] = [(labels[to], i) for i, to in jumps if i - labels[to] > 100]
    code = [re.sub(r"/\*.*?\*/", "", x).strip() for x in lines[start : stop + 1]]
    return [re.sub(r"^@\S+ ", "", x).split()[0] for x in code if x.endswith(";")]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("d", "keys"), [(64, 64), (96, 64), (128, 32)])
def test_attention_reads_matrices_that_are_copied_ahead(arch: str, d: int, keys: int) -> None:
    skip_without_tools()
    q, k, v = (
        Tensor.empty(1, 1024, d, dtype=dtypes.float16, device=devices.SHIMS[0]) for _ in range(3)
    )
    linear, _ = lower(kernel_of(q.scaled_dot_product_attention(k, v)), cuda_target(arch))
    _, text = assembled(CudaRenderer(cuda_target(arch)).render(linear), arch)
    counts = Counter(re.findall(r"\b(?:HMMA|LDSM|LDGSTS|LDS|MUFU\.RCP)[.\w]*", text))
    # A tile of keys times 16 queries of a warp, and powers of it times values.
    assert counts["HMMA.16816.F32"] == 2 * (keys // 8) * (d // 16)
    # Four matrices at a time: of queries once, of keys, and of values that are turned around.
    assert counts["LDSM.16.M88.4"] == d // 16 + keys // 16 * d // 16
    assert counts["LDSM.16.MT88.4"] == keys // 16 * d // 16
    # Two stages in the text, of two tiles each, that 128 threads copy.
    copies = sum([n for name, n in counts.items() if name.startswith("LDGSTS.E.BYPASS")])
    assert copies == 2 * 2 * keys * d * 2 // (128 * 16)
    assert not re.findall(r"\bLDS(?:\.\w+)* R\d", text)
    # A reciprocal of each row, where results are as many as a head is wide: few of any path.
    assert 2 <= counts["MUFU.RCP"] <= 6


# Of a product of 8192 of bfloat16: columns of a tile, dtype of results, stages, what copies ahead.
LEAVING = [
    (256, "bfloat16", 3, "producer"), (256, "bfloat16", 4, "copies"),
    (256, "float32", 4, "copies"), (128, "float32", 4, "producer"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "result", "stages", "how"), LEAVING)
def test_results_leave_by_boxes(columns: int, result: str, stages: int, how: str) -> None:
    skip_without_tools()
    a, b = (Tensor.empty(8192, 8192, dtype="bfloat16") for _ in range(2))
    names = [row.name for row in ROWS]
    number = names.index(f"cuda_wgmma_m64n{columns}k16_bfloat16")
    opts = f"TC(r2,{number}) LOCAL(r0,2) STAGE(r2,4,local) PIPELINE(r2,{stages},{how}) "
    if how == "producer":
        opts += "BLOCKS(r0,16,order) BLOCKS(0,132,loop) STAGE(0,0,out)"
    else:
        opts += "STAGE(0,1,out)"
    ast = kernel_of(a.matmul(b, dtype=dtypes.float32).cast(result))
    card = cuda_target("sm_90a")
    source = CudaRenderer(card).render(lower(ast, card, parse_opts(opts))[0])
    # No product waits for another.
    assert compile_kernel(source, "sm_90a").warned == ""
    _, text = assembled(source, "sm_90a")
    counts = Counter(re.findall(r"\b(?:HGMMA|UTMASTG|UTMALDG|STSM|STS|STG|FENCE)[.\w]*", text))
    itemsize = 2 if result == "bfloat16" else 4
    assert counts["UTMASTG.2D"] == columns * itemsize // 128
    # Of 128 rows each of 256 threads has a half of its columns' pairs: 4 words at a time, or pairs.
    if itemsize == 2:
        assert counts["STSM.16.M88.4"] == columns // 16
    else:
        assert counts["STS.64"] == columns // 4
    assert counts["FENCE.VIEW.ASYNC.S"] > 0
    assert not any(name.startswith("STG") for name in counts)
    assert counts[f"HGMMA.64x{columns}x16.F32.BF16"] == 4
