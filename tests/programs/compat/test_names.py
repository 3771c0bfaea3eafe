"""Names under the paths that programs of tinygrad import them from."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import aster_ml
from aster_ml.compat import names
from aster_ml.uop.dialect import DialectOps
from aster_ml.uop.ops import Ops

TABLES = Path(__file__).parents[1] / "reference"
# What of the table is not there, and why.
NOT_THERE = {
    "nn.onnx.OnnxValue": "values of a graph are Tensors and arrays",
    "uop.ops.RewriteTrace": "VIZ=1 records rewrites, in a form of its own",
}
HELPERS_NOT_THERE = {
    "HTTPRequestHandler": "a part of the visualiser",
    "TCPServerWithReuse": "a part of the visualiser",
    "capstone_flatdump": "DEBUG=7 prints instructions",
}


def rows(name: str) -> list[list[str]]:
    """The lines of a table, as words."""
    text = (TABLES / name).read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def resolve(module: str, name: str) -> object:
    """What `from module import name` gives."""
    own = "aster_ml" + module.removeprefix("tinygrad")
    found = importlib.import_module(own)
    return (
        getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{own}.{name}")
    )


def test_names_that_programs_import() -> None:
    for module, name in rows("imported_names.txt"):
        place = f"{module}.{name}".removeprefix("tinygrad.")
        if place in NOT_THERE:
            with pytest.raises(ImportError):
                resolve(module, name)
        else:
            assert resolve(module, name) is not None, place


def test_the_table_is_whole() -> None:
    assert len(rows("imported_names.txt")) == 123
    assert set(NOT_THERE) <= {
        f"{m}.{n}".removeprefix("tinygrad.") for m, n in rows("imported_names.txt")
    }


def shape(signature: inspect.Signature) -> list[str]:
    """Names of parameters; of those that take any number of values only that they do."""
    marks = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    return [marks.get(p.kind.name, p.name) for p in signature.parameters.values()]


def test_parameters_of_helpers() -> None:
    for name, *wanted in rows("helpers.txt"):
        check_parameters(name, wanted)


def check_parameters(name: str, wanted: list[str]) -> None:
    """A helper takes these parameters; more that have defaults behind all others do no harm."""
    helpers = importlib.import_module("aster_ml.helpers")
    if name in HELPERS_NOT_THERE:
        assert not hasattr(helpers, name)
        return
    signature = inspect.signature(getattr(helpers, name))
    more = [*signature.parameters.values()][len(wanted) :]
    if more and all(p.default is not p.empty for p in more):
        signature = signature.replace(parameters=[*signature.parameters.values()][: len(wanted)])
    found = shape(signature)
    stars = [word.rstrip("abcdefghijklmnopqrstuvwxyz_") or word for word in wanted]
    # More that may be given by name does no harm.
    assert [word for word in found if word != "**" or "**" in stars] == stars, name


def test_a_companion_has_what_it_names() -> None:
    for module in names.COMPANIONS:
        companion = names.companion_of(module)
        own = importlib.import_module(f"aster_ml.{module}")
        assert len(set(companion.__all__)) == len(companion.__all__)
        for name in companion.__all__:
            passed = getattr(own, name)
            # What the module has itself is the same thing, or it would hide the other.
            assert passed is getattr(companion, name), f"{module}.{name}"


def test_a_name_that_is_nowhere() -> None:
    helpers = importlib.import_module("aster_ml.helpers")
    with pytest.raises(
        AttributeError, match=r"module 'aster_ml\.helpers' has no attribute 'no_such_name'"
    ):
        _ = helpers.no_such_name
    code = "from aster_ml.helpers import no_such_name"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ImportError: cannot import name 'no_such_name'" in done.stderr


def test_importing_aster_imports_no_companion() -> None:
    code = (
        "import aster_ml, sys; print([m for m in sys.modules if m.startswith('aster_ml.compat')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(eval(done.stdout))
    companions = {f"aster_ml.{name}" for name in names.COMPANIONS.values()}
    assert not loaded & companions
    assert "tqdm" not in done.stdout


def test_importing_all_names() -> None:
    space: dict[str, object] = {}
    exec("from aster_ml.helpers import *", space)
    assert space["getenv"] is importlib.import_module("aster_ml.config").getenv
    assert space["prod"] is importlib.import_module("aster_ml.helpers").prod
    assert "_ensure_downloads_dir" not in space


def test_ops_of_the_dialect_are_ops() -> None:
    assert Ops.DEFINE_GLOBAL is DialectOps.DEFINE_GLOBAL
    assert len(Ops) == len(Ops.__members__)
    assert not {op.name for op in DialectOps} & set(Ops.__members__)


def test_what_a_backend_and_a_node_have_besides() -> None:
    device = aster_ml.Device["CPU"]
    assert device.renderer.device == "CPU"
    assert device.renderer.language == device.target.language
    assert device.graph is not None
    assert aster_ml.Device["PYTHON"].graph is None
    x = aster_ml.Tensor([1.0, 2.0]) + 1
    assert not x.uop.is_realized
    x.realize()
    assert x.uop.is_realized
    assert x.uop.buffer.size == 2
    assert x.uop.base.realized is x.uop.buffer


def test_ops_by_the_path_of_their_folder() -> None:
    folder = importlib.import_module("aster_ml.uop")
    assert folder.Ops is Ops
    assert folder.GroupOp is importlib.import_module("aster_ml.uop.ops").GroupOp
