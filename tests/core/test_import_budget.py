"""How many modules an import and a first result load: counts, which may fall and not rise."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.lint.sources import ROOT
from tests.lint.test_layers import read_table
from tests.lint.test_rings import ring_of, ring_rows

FIRST_RESULT = "from aster_ml import Tensor; assert (Tensor([1, 2, 3]) + 1).tolist() == [2, 3, 4]"
# What runs -> the most modules of ours that it may load.
BUDGETS = {
    "import aster_ml": 113,
    "from aster_ml import Tensor": 113,
    FIRST_RESULT: 178,
}
# Loaded by neither: what only some programs need.
NOT_LOADED = ("jit", "gradient", "downloads", "compat", "viz", "nn", "complex", "array_api")


def loaded(code: str) -> list[str]:
    """The modules of ours that a fresh process has loaded, without the name of the package."""
    code = f"import sys\n{code}\nprint(*[m for m in sys.modules if m.startswith('aster_ml')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return [name.removeprefix("aster_ml.") for name in done.stdout.split()]


@pytest.mark.parametrize("code", BUDGETS)
def test_modules_that_are_loaded(code: str) -> None:
    # The second time the kernel comes from the disk.
    loaded(code)
    found = loaded(code)
    assert len(found) <= BUDGETS[code], f"{len(found)} modules: {sorted(found)}"
    rings = ring_rows(read_table())
    assert {ring_of(name, rings) for name in found} == {"core", "top"}
    assert not {name.partition(".")[0] for name in found} & {*NOT_LOADED}


def test_a_kernel_from_the_disk_needs_no_passes() -> None:
    loaded(FIRST_RESULT)
    found = set(loaded(FIRST_RESULT))
    assert not found & {"codegen.passes", "renderer.base", "engine.search.beam", "uop.spec.verify"}


def test_a_kernel_of_a_cpu_needs_nothing_of_work_groups() -> None:
    found = loaded(f"import os; os.environ['CACHE'] = '0'\n{FIRST_RESULT}")
    assert "codegen.passes" in found
    groups = {m for m in found if m.startswith(("codegen.work_groups.", "codegen.policy.gpu."))}
    # Indices of all devices are lowered in one place, which knows swizzled ones.
    assert groups <= {"codegen.work_groups.swizzle"}


def test_names_that_are_imported_later_are_there() -> None:
    code = "import aster_ml; [getattr(aster_ml, name) for name in aster_ml.__all__]"
    assert {"jit.tiny_jit", "downloads", "trace"} <= set(loaded(code))
    code = "from aster_ml import *; assert TinyJit.__module__ == 'aster_ml.jit.tiny_jit'"
    assert "jit.tiny_jit" in loaded(code)
    code = "import aster_ml\ntry: aster_ml.nothing\nexcept AttributeError as e: print(e)"
    assert "'nothing'" in loaded(code)
