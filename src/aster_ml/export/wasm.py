"""Writes a plan as WebAssembly: compiles its C by clang, and adds a module that loads it.

Receives a `Plan` for a target of the language "c"; returns texts and bytes by file name. There is
no C library in it: memory is laid out by the loader (`web/wasm.js`), which hands addresses over.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from aster_ml.errors import CompileError, DeviceError
from aster_ml.export import c
from aster_ml.export.module import (
    check_dtypes,
    described,
    module_text,
    page_files,
    script,
    tensor_files,
)
from aster_ml.export.plan import Plan, offsets_of
from aster_ml.export.weights import digest_of

FLAGS = (
    "--target=wasm32", "-O2", "-std=gnu99", "-ffreestanding", "-fno-math-errno", "-msimd128",
    "-mbulk-memory", "-nostdlib", "-Wl,--no-entry", "-Wl,--export=__heap_base",
    "-Wl,-z,stack-size=4194304",
)  # fmt: skip
MATH = "#include <math.h>"
LACKING = (
    "export: --wasm wants clang and its linker, wasm-ld, on PATH: apt-get install clang lld, or "
    "the downloads of https://releases.llvm.org"
)


def wasm_text(plan: Plan) -> str:
    """The C source without a C library: compilers have these functions inside."""
    source = c.Source(plan, inside=False)
    kernels = [line for line in c.kernel_texts(plan.target, plan.kernels) if line != MATH]
    head, *steps = source.steps()
    steps = [f'__attribute__((export_name("steps"))) {head.replace("static ", "", 1)}', *steps]
    names = ("memcpy", "sqrt", "sqrtf", "trunc", "truncf", "floor", "floorf", "fabs", "fabsf")
    return "\n".join(
        [
            "#include <stddef.h>",
            *[f"#define {name} __builtin_{name}" for name in names],
            *kernels,
            *steps,
            "",
        ]
    )


def compile_wasm(text: str) -> bytes:
    """C as a WebAssembly module. Raises: DeviceError without clang; CompileError."""
    compiler = shutil.which("clang")
    if compiler is None or shutil.which("wasm-ld") is None:
        raise DeviceError(LACKING)
    with tempfile.TemporaryDirectory(prefix="aster-", ignore_cleanup_errors=True) as folder:
        result = Path(folder) / "function.wasm"
        command = [compiler, *FLAGS, "-x", "c", "-", "-o", str(result)]
        done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip()
            if "No available targets" in words or "unable to create target" in words:
                raise DeviceError(f"{LACKING}; this clang has no target wasm32")
            raise CompileError(f"{compiler} refused generated C:\n{words}")
        return result.read_bytes()


def wasm_files(plan: Plan) -> dict[str, str | bytes]:
    """All files by name."""
    check_dtypes([*plan.inputs, *plan.outputs])
    text = wasm_text(plan)
    code = compile_wasm(text)
    weights, weight_nbytes = offsets_of(plan.weights, c.ALIGNMENT)
    states, state_nbytes = offsets_of(plan.states, c.ALIGNMENT)
    files = tensor_files(plan.name, [*plan.weights, *plan.states])
    fields = {
        "name": plan.name,
        "inputs": described(plan.inputs),
        "outputs": described(plan.outputs),
        "code": f"{plan.name}.wasm",
        "files": {file: digest_of(data) for file, data in files.items()},
        "weights": [[b.name, at] for b, at in zip(plan.weights, weights, strict=True)],
        "states": [[b.name, at] for b, at in zip(plan.states, states, strict=True)],
        "weightBytes": weight_nbytes,
        "stateBytes": state_nbytes,
        "arenaBytes": plan.arena_nbytes,
    }
    about = f"A function of tensors in WebAssembly: {len(code):,} bytes of code."
    return {
        f"{plan.name}.js": module_text(plan, fields, [script(plan, "wasm.js")]),
        f"{plan.name}.wasm": code,
        f"{plan.name}.c": text,
        **files,
        **page_files(plan, about),
    }
