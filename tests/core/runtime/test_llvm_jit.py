"""IR text to machine code in the process."""

from __future__ import annotations

import ctypes
import gc
import math
import subprocess
import sys

import numpy as np
import pytest

from aster_ml.config import Context
from aster_ml.errors import ArgumentError, CompileError
from aster_ml.runtime.cpu import llvm_jit
from aster_ml.runtime.cpu.llvm_jit import (
    MAX_TOGETHER,
    Host,
    assemble,
    compile_ir,
    load_object,
    load_objects,
)
from tests.core.runtime_kernels import AXPY, kernel, run_python

INTEL = "x86_64-unknown-linux-gnu"


def unary(name: str, argument: type, result: type, ir: str):  # type: ignore[no-untyped-def]
    """A function of one argument, with what keeps it loaded."""
    loaded = load_object(compile_ir(ir), name)
    return ctypes.CFUNCTYPE(result, argument)(loaded.address(name)), loaded


def test_import_does_not_load_llvm() -> None:
    code = "import sys, aster_ml.runtime.cpu.device; print('llvmlite' in sys.modules)"
    assert run_python(code) == "False\n"


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
@pytest.mark.parametrize("codegen_level", [0, 1, 2, 3])
def test_all_levels_compute_the_same(opt_level: int, codegen_level: int) -> None:
    loaded = load_object(compile_ir(AXPY, opt_level, codegen_level), "axpy")
    x, y = np.arange(37, dtype=np.float32), np.ones(37, dtype=np.float32)
    slots = (ctypes.c_int64 * 3)(x.ctypes.data, y.ctypes.data, 3)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    function(loaded.address("axpy"))(ctypes.addressof(slots), 5, 30)
    wanted = np.where((np.arange(37) >= 5) & (np.arange(37) < 30), 3 * x + 1, 1)
    assert y.tolist() == wanted.tolist()


def test_passes_run_only_when_asked() -> None:
    ir = """
    define i64 @f(i64 %n) {
      %slot = alloca i64
      store volatile i64 %n, ptr %slot
      %a = add i64 20, 22
      %dead = mul i64 %a, %n
      ret i64 %a
    }"""
    for level, is_there in ((0, True), (2, False)):
        with llvm_jit.built_module(ir, level, 1) as module:
            assert ("mul" in str(module)) == is_there


def test_allowed_contraction_becomes_one_instruction() -> None:
    if not llvm_jit.host().has("fma"):
        pytest.skip("this processor has no fused multiply and add")
    strict = AXPY.replace(" contract", "")
    assert "vfmadd" in assemble(AXPY)
    assert "vfmadd" not in assemble(strict)


def test_host_features_are_used() -> None:
    text = assemble(AXPY, opt_level=2)
    bits, registers = llvm_jit.host().vector
    if llvm_jit.host().machine == "x86_64":
        assert registers in (16, 32)
        assert ("ymm" in text or "zmm" in text) == (bits > 128)
    assert "axpy" in text


def test_symbols_of_the_c_library_resolve() -> None:
    cosine, keep = unary(
        "f", ctypes.c_double, ctypes.c_double,
        "declare double @cos(double)\ndefine double @f(double %x) {\n"
        "  %y = call double @cos(double %x)\n  ret double %y\n}",
    )  # fmt: skip
    assert cosine(0.75) == math.cos(0.75)
    rest, keep_too = unary(
        "g", ctypes.c_float, ctypes.c_float,
        "define float @g(float %x) {\n  %y = frem float %x, 1.5\n  ret float %y\n}",
    )  # fmt: skip
    assert rest(4.0) == 1.0
    assert keep.address("f") != keep_too.address("g")


def test_memory_intrinsics_resolve() -> None:
    ir = """
    declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
    declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
    define void @f(ptr %slots) {
      %n = load i64, ptr %slots
      %p1 = getelementptr i64, ptr %slots, i64 1
      %a = load ptr, ptr %p1
      %p2 = getelementptr i64, ptr %slots, i64 2
      %b = load ptr, ptr %p2
      call void @llvm.memset.p0.i64(ptr %a, i8 7, i64 %n, i1 false)
      call void @llvm.memcpy.p0.p0.i64(ptr %b, ptr %a, i64 %n, i1 false)
      ret void
    }"""
    loaded = load_object(compile_ir(ir), "f")
    a, b = np.zeros(1000, np.uint8), np.zeros(1000, np.uint8)
    slots = (ctypes.c_int64 * 3)(1000, a.ctypes.data, b.ctypes.data)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(loaded.address("f"))(ctypes.addressof(slots))
    assert set(a) == set(b) == {7}


def test_constants_in_memory_are_found() -> None:
    values = ", ".join(f"i64 {value * value}" for value in range(100))
    table = f"@table = internal constant [100 x i64] [{values}]\n"
    square, keep = unary(
        "f", ctypes.c_int64, ctypes.c_int64,
        table + "define i64 @f(i64 %i) {\n  %p = getelementptr i64, ptr @table, i64 %i\n"
        "  %v = load i64, ptr %p\n  ret i64 %v\n}",
    )  # fmt: skip
    assert [square(i) for i in range(100)] == [i * i for i in range(100)]
    assert keep.address("f")


def test_several_functions_of_one_object() -> None:
    ir = "\n".join(f"define i64 @f{i}() {{\n  ret i64 {i}\n}}" for i in range(5))
    loaded = load_object(compile_ir(ir), *[f"f{i}" for i in range(5)])
    calls = [ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.address(f"f{i}")) for i in range(5)]
    assert [call() for call in calls] == list(range(5))


def test_the_same_name_loads_any_number_of_times() -> None:
    loaded = []
    for value in range(50):
        binary = compile_ir(f"define i64 @f() {{\n  ret i64 {value}\n}}")
        loaded.append(load_object(binary, "f"))
    del loaded[::2]
    gc.collect()
    rest = [ctypes.CFUNCTYPE(ctypes.c_int64)(item.address("f"))() for item in loaded]
    assert rest == list(range(1, 50, 2))


def test_objects_loaded_together_share_libraries() -> None:
    # Each name twice: these cannot share one.
    count = 2 * MAX_TOGETHER
    names = [f"f{i // 2}" for i in range(count)]
    objects = [
        ([name], compile_ir(f"define i64 @{name}() {{\n  ret i64 {i}\n}}"))
        for i, name in enumerate(names)
    ]
    loaded = load_objects(objects)
    assert len({id(item) for item in loaded}) == 2
    del loaded[: count // 2]
    gc.collect()
    calls = [
        ctypes.CFUNCTYPE(ctypes.c_int64)(item.address(name))
        for item, name in zip(loaded, names[count // 2 :], strict=True)
    ]
    assert [call() for call in calls] == list(range(count // 2, count))
    assert load_objects([]) == []


def test_an_object_that_cannot_be_linked_is_named_among_several() -> None:
    lacking = compile_ir(
        "declare i64 @nowhere_at_all()\ndefine i64 @g() {\n"
        "  %v = call i64 @nowhere_at_all()\n  ret i64 %v\n}"
    )
    fine = compile_ir("define i64 @f() {\n  ret i64 1\n}")
    with pytest.raises(CompileError, match=r"could not be linked: .* g "):
        load_objects([(["f"], fine), (["g"], lacking)])


@pytest.mark.parametrize(
    "ir, message",
    [
        ("define void @f() { ret i32 0 }", "value doesn't match function result type"),
        ("not ir at all", "expected top-level entity"),
        (
            "define i64 @f(i64 %a) {\n  %b = add i64 %a, %c\n  %c = add i64 1, %b\n  ret i64 %c\n}",
            "does not dominate all uses",
        ),
    ],
)
def test_bad_ir_is_refused_before_code_generation(ir: str, message: str) -> None:
    with pytest.raises(CompileError, match=f"LLVM refused generated IR: (?s:.)*{message}"):
        compile_ir(ir)


def test_what_does_not_link(capfd: pytest.CaptureFixture[str]) -> None:
    binary = compile_ir("define void @f() {\n  ret void\n}")
    with pytest.raises(CompileError, match=r"could not be linked: Symbols not found: \[ g \]"):
        load_object(binary, "g")
    with pytest.raises(CompileError, match="could not be linked"):
        load_object(binary[: len(binary) // 2], "f")
    absent = compile_ir("declare void @absent()\ndefine void @f() {\n  call void @absent()\n"
                        "  ret void\n}")  # fmt: skip
    with pytest.raises(CompileError, match="could not be linked"):
        load_object(absent, "f")
    assert load_object(binary, "f").address("f")
    capfd.readouterr()  # LLVM also tells the terminal


def test_isa_leaves_instructions_out() -> None:
    with Context(ISA="avx2"):
        host = llvm_jit.host()
        later = ("+avx512", "+avx10", "+amx", "+avxvnni", "+gfni")
        assert not [name for name in host.features.split(",") if name.startswith(later)]
        assert host.vector[0] <= 256
        assert not host.simd_features
        key = llvm_jit.host_key()
        double = "%y = fadd <16 x float> %x, %x\n  ret <16 x float> %y"
        text = assemble(f"define <16 x float> @f(<16 x float> %x) {{\n  {double}\n}}")
        assert "zmm" not in text
    assert (llvm_jit.host_key() != key) == llvm_jit.host().has("avx512f")
    has_vnni = llvm_jit.host().has("avxvnni")
    with Context(ISA="avxvnni"):
        assert llvm_jit.host().vector[0] <= 256
        assert ("vnni" in llvm_jit.host().simd_features) == has_vnni
    with (
        Context(ISA="avx3"),
        pytest.raises(ArgumentError, match="setting ISA is one of avxvnni, avx2, or empty, given"),
    ):
        llvm_jit.host()


def test_host_describes_itself_in_one_word() -> None:
    host = llvm_jit.host()
    assert host.cpu in host.key
    assert host.key.split() == [host.key]
    other = host._replace(features=host.features + ",+nonesuch")
    assert other.key != host.key
    assert host._replace(llvm_version="1.0").key != host.key


@pytest.mark.parametrize(
    "triple, features, wanted",
    [
        (INTEL, "+avx2,-avx512f", (256, 16)),
        (INTEL, "+avx2,+avx512f,+avx512vl", (512, 32)),
        (INTEL, "+avx2,+avx512f,-avx512vl", (256, 16)),
        (INTEL, "-avx2", (128, 16)),
        ("aarch64-unknown-linux-gnu", "+neon", (128, 32)),
        ("arm64-apple-darwin23", "+neon", (128, 32)),
        ("riscv64-unknown-linux-gnu", "", (0, 0)),
    ],
)
def test_vector_registers(triple: str, features: str, wanted: tuple[int, int]) -> None:
    assert Host(triple, "cpu", features, "20").vector == wanted


def test_registers_that_are_moved_in_halves() -> None:
    wide = "+avx512f,+avx512vl"
    assert Host(INTEL, "znver4", wide, "20").move_bits == 256
    assert Host(INTEL, "znver4", "+avx2,-avx512f", "20").move_bits == 0
    assert Host(INTEL, "znver5", wide, "20").move_bits == 0


def test_symbol_address() -> None:
    assert llvm_jit.symbol_address("malloc" if sys.platform != "win32" else "SwitchToThread") > 0
    assert llvm_jit.symbol_address("no_such_function_anywhere") == 0


def test_kernels_of_the_tests_compile() -> None:
    for name in ("axpy", "row_sum", "count", "shift"):
        assert kernel(name).address


FAR_APART = '''
import ctypes, mmap
from aster_ml.runtime.cpu.llvm_jit import compile_ir, load_object
table = ", ".join(f"i32 {i * i}" for i in range(4096))
binary = compile_ir(f"""
@table = internal constant [4096 x i32] [{table}]
define i32 @square(i64 %i) {{
  %at = getelementptr i32, ptr @table, i64 %i
  %x = load i32, ptr %at
  ret i32 %x
}}
""")
page = mmap.PAGESIZE
pieces = [mmap.mmap(-1, page) for _ in range(400)]
del pieces[::2]
fill = [mmap.mmap(-1, 5 * page) for _ in range(6000)]
far = mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
kept = [load_object(binary, "square") for _ in range(20)]
for loaded in kept:
    square = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(loaded.address("square"))
    assert [square(i) for i in (0, 3, 4095)] == [0, 9, 4095**2]
print("near enough")
'''


@pytest.mark.skipif(sys.platform != "linux", reason="memory is laid out as Linux does it")
def test_tables_stay_near_their_code_in_a_process_with_much_memory() -> None:
    """With room for code alone high up, and gigabytes below it."""
    run = subprocess.run([sys.executable, "-c", FAR_APART], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "near enough\n"), run.stderr
