"""Commands without the packages of extras: help always, and the extra by name where it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aster_ml import cli
from aster_ml.apps import packages
from aster_ml.apps.packages import EXTRAS, extra_lines, packages_of
from tests.core.runtime_kernels import python_environment

# Packages whose modules have other names.
MODULES = {
    "pillow": "PIL", "cuda-bindings": "cuda", "nvidia-cuda-nvrtc": "nvidia",
    "nvidia-cuda-runtime": "nvidia",
}  # fmt: skip
BLOCKER = """
import importlib.machinery, os, sys
BLOCKED = set(os.environ["BLOCKED"].split(","))
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            return None
        return importlib.machinery.PathFinder.find_spec(name, path, target)
    invalidate_caches = importlib.machinery.PathFinder.invalidate_caches
plain = importlib.machinery.PathFinder
sys.meta_path[:] = [Finder if finder is plain else finder for finder in sys.meta_path]
"""


def modules_of(extra: str) -> set[str]:
    """The modules that come with an extra."""
    return {MODULES.get(name, name.replace("-", "_")) for name in packages_of(extra)}


def without(
    tmp_path: Path, blocked: set[str], *command: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What `aster` does in an environment that lacks these modules, as do its own processes."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    given = python_environment(**environment)
    path = os.pathsep.join([str(tmp_path), given["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, "-m", "aster_ml", *command],
        capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path,
        env={**given, "PYTHONPATH": path, "BLOCKED": ",".join(sorted(blocked))},
    )  # fmt: skip


ALL = {module for extra in EXTRAS for module in modules_of(extra)}
COMMANDS = ["doctor", "viz", "reproduce", "version", *cli.APPS]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_takes_no_extra(tmp_path: Path, command: str) -> None:
    done = without(tmp_path, ALL, command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: aster {command}" in done.stdout


@pytest.mark.parametrize("name", [*[a.module for a in cli.APPS.values()], "apps.finetune.example"])
def test_help_takes_no_docstrings(name: str) -> None:
    """With -OO Python has none."""
    command = [sys.executable, "-OO", "-m", f"aster_ml.{name}", "--help"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=python_environment()
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: " in done.stdout


# The extra, a command that uses it, and settings.
USES: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "llm": ("llm", ["llm", "model.gguf", "-p", "hello"], {}),
    "embed": ("llm", ["embed", "folder", "text"], {}),
    "serve": ("serve", ["llm", "model.gguf", "--serve", "--port", "18765"], {}),
    "demo": ("demo", ["demo"], {}),
    "run": ("onnx", ["run", "model.onnx"], {}),
    "export": ("onnx", ["export", "model.onnx", "--c", "out"], {}),
    "opencl": ("opencl", ["doctor"], {"DEV": "OPENCL"}),
    "webgpu": ("webgpu", ["doctor"], {"DEV": "WEBGPU"}),
}


@pytest.mark.parametrize("use", USES)
def test_an_absent_extra_is_named_where_it_is_used(tmp_path: Path, use: str) -> None:
    extra, command, environment = USES[use]
    (tmp_path / "model.onnx").write_bytes(b"")
    done = without(tmp_path, modules_of(extra), *command, **environment)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    said = done.stderr + done.stdout
    assert f"pip install 'aster-ml[{extra}]'" in said
    assert any([name in said for name in packages_of(extra)] + ["Pillow" in said])


def test_the_list_says_what_is_there_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"jinja2": "3.1", "tokenizers": "0.20", "uvicorn": "0.30"}
    monkeypatch.setattr(packages, "version_of", there.get)
    lines = {line.split()[0]: line for line in extra_lines()}
    assert lines.keys() == EXTRAS.keys()
    assert lines["llm"].split()[1] == "there"
    assert "jinja2 3.1, tokenizers 0.20" in lines["llm"]
    assert "pip install" not in lines["llm"]
    assert " in part " in lines["serve"]
    assert "llguidance, starlette are absent; pip install 'aster-ml[serve]'" in lines["serve"]
    assert lines["opencl"].split()[1] == "absent"
    assert "pyopencl is absent; pip install 'aster-ml[opencl]'" in lines["opencl"]
