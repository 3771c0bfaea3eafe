"""The package as users have it: from a zip, as compiled files, in odd folders, with odd settings.

Each test runs a whole program in a process of its own: kernels that are compiled, kept and found
again, a recording, a gradient, the page of a run, a text of a failure, results of `diskcache`.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import aster_ml

SOURCE = Path(aster_ml.__file__).parent
PROGRAM = """
import sys, warnings
warnings.simplefilter("error", ResourceWarning)
import numpy as np
import aster_ml
from aster_ml import Context, GlobalCounters, Tensor, TinyJit
from aster_ml.compat.disk_cache import diskcache_get, diskcache_put
from aster_ml.engine import fallback
from aster_ml.viz.session import recorded

x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4) / 7, requires_grad=True)
loss = (x @ x.T).softmax().square().sum()
loss.backward()
assert x.grad.shape == (3, 4)
assert np.isfinite(x.grad.numpy()).all()

@TinyJit
def step(a):
    return (a * 2 + 1).sum().realize()

found = [step(x.detach() + i).item() for i in range(4)]
assert np.allclose(found, [((x.numpy() + i) * 2 + 1).sum() for i in range(4)])
compiled = GlobalCounters.compiled_kernels
kept = diskcache_get("t", "k")
diskcache_put("t", "k", 5)
failure = fallback.write("kernel-0.txt", fallback.HEAD)
with recorded(sys.argv[1]):
    (x + 5).realize()
with open(sys.argv[1], encoding="utf-8") as page:
    print(compiled, kept, failure is not None, len(page.read()) > 100_000)
"""


def run(
    *options: str, folder: Path, paths: list[Path], text: str = PROGRAM, **environment: str
) -> list[str]:
    """The words that the program prints in a Python with options and an environment of its own."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH")}
    given = {
        "CACHEDIR": str(folder / "cache"), "HOME": str(folder), "STRICT": "1", "THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, paths)), **environment,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, *options, "-c", text, str(folder / "page.html")],
        capture_output=True, timeout=280, check=False, cwd=folder,
        env=kept | {k: v for k, v in given.items() if v},
    )  # fmt: skip
    errors = done.stderr.decode(errors="replace")
    assert done.returncode == 0, errors
    assert errors == ""
    return done.stdout.decode().split()


def zipped(target: Path, main: str = "") -> Path:
    """The package as a zip; with the text of a `__main__`, as a program."""
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(SOURCE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(SOURCE.parent))
        if main:
            archive.writestr("__main__.py", main)
    return target


def compiled_alone(target: Path) -> Path:
    """The package as compiled files, without sources."""
    shutil.copytree(SOURCE, target / "aster_ml", ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(target, quiet=1, legacy=True)
    for path in target.rglob("*.py"):
        path.unlink()
    shutil.rmtree(target / "aster_ml" / "__pycache__", ignore_errors=True)
    return target


def check_twice(folder: Path, paths: list[Path], *options: str, **environment: str) -> None:
    """The program works, and a second process finds what the first has kept."""
    first = run(*options, folder=folder, paths=paths, **environment)
    assert int(first[0]) > 0
    assert first[1:] == ["None", "True", "True"]
    assert run(*options, folder=folder, paths=paths, **environment) == ["0", "5", "True", "True"]


def test_from_a_zip(tmp_path: Path) -> None:
    check_twice(tmp_path, [zipped(tmp_path / "aster.zip")])


def test_from_compiled_files_alone(tmp_path: Path) -> None:
    check_twice(tmp_path, [compiled_alone(tmp_path / "site")])


@pytest.mark.slow
def test_another_zip_compiles_anew(tmp_path: Path) -> None:
    first = run(folder=tmp_path, paths=[zipped(tmp_path / "aster.zip")])
    with zipfile.ZipFile(tmp_path / "aster.zip", "a") as archive:
        archive.writestr("aster_ml/more.py", "pass")
    again = run(folder=tmp_path, paths=[tmp_path / "aster.zip"])
    assert again[0] == first[0] != "0"


MAIN = "import sys\nfrom aster_ml.cli import main\nsys.exit(main())\n"


@pytest.mark.parametrize("options", [[], ["-I"], ["-E", "-s", "-O"]], ids=" ".join)
def test_a_program_in_one_file_starts_its_commands(tmp_path: Path, options: list[str]) -> None:
    program = zipped(tmp_path / "aster.pyz", MAIN)
    # Of the same name as a module of Python: what lies in the working folder is not imported.
    for name in ("argparse", "queue", "aster_ml"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the working folder')")
    for command in (["run", "--help"], ["viz", "--help"]):
        done = subprocess.run(
            [sys.executable, *options, str(program), *command],
            capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert f"usage: aster {command[0]}" in done.stdout


@pytest.mark.slow
def test_schedules_are_searched_for_from_a_zip(tmp_path: Path) -> None:
    text = """
from aster_ml import Context, Tensor
x = Tensor.rand(40, 50).realize()
with Context(BEAM=1, BEAM_SECONDS=2):
    (x.exp().sum(0) + 0.0625).realize()
print(1)
"""
    assert run(folder=tmp_path, paths=[zipped(tmp_path / "a.zip")], text=text) == ["1"]
    assert list((tmp_path / "cache" / "schedules").glob("*.txt"))


@pytest.mark.parametrize("option", ["-OO", pytest.param("-B", marks=pytest.mark.slow)])
def test_with_an_option_of_python(tmp_path: Path, option: str) -> None:
    check_twice(tmp_path, [SOURCE.parent], option)


@pytest.mark.parametrize("option", ["-I", "-S"])
def test_apart_from_the_environment(tmp_path: Path, option: str) -> None:
    """The program itself says where packages are."""
    places = [str(SOURCE.parent), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    text = f"import sys\nsys.path[:0] = {places!r}\n{PROGRAM}"
    words = run(option, folder=tmp_path, paths=[], text=text)
    assert words[1:] == ["None", "True", "True"]


LINES = """
import warnings
from aster_ml import Context, Tensor
from aster_ml.engine.guard import GraphWarning
from aster_ml.nn import Linear
from aster_ml.trace import user_line
from aster_ml.viz.callers import call_stack

class Model:
    def __init__(self):
        self.layer = Linear(3, 3)
        self.layer.weight.requires_grad_(False)

def run():
    Tensor.probe = lambda self: [(f.file, f.line) for f in call_stack()]
    return Tensor([1.0]).probe()

assert user_line()[0] == "<string>", user_line()
with warnings.catch_warnings(record=True) as caught, Context(GRAPH_LIMIT=50, GRAPH_GUARD=1):
    warnings.simplefilter("always")
    x = Tensor([1.0, 2.0])
    for i in range(200):
        x = x * 2 + i
said = [w.message.args[0] for w in caught if w.category is GraphWarning]
assert said
assert all(text.startswith("<string>:") for text in said), said
assert run()[0][0] == "<string>", run()
print(1)
"""


@pytest.mark.skipif(os.name != "posix", reason="links as POSIX has them")
@pytest.mark.parametrize("form", ["link", "zip", "compiled elsewhere"])
def test_lines_of_the_program_are_found(tmp_path: Path, form: str) -> None:
    """Where code was compiled from is not where its file is now."""
    if form == "link":
        place = tmp_path / "site"
        place.symlink_to(SOURCE.parent)
    elif form == "zip":
        place = zipped(tmp_path / "aster.zip")
    else:
        compiled_alone(tmp_path / "before")
        place = (tmp_path / "before").rename(tmp_path / "site")
    assert run(folder=tmp_path, paths=[place], text=LINES) == ["1"]


ODD = "ä folder, 日本 'quoted' \" $HOME %s"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.skipif(sys.platform == "win32", reason="names and locales as POSIX has them")
@pytest.mark.parametrize(
    "form, environment",
    [
        ("zip", ASCII),
        pytest.param("folder", ASCII, marks=pytest.mark.slow),
        pytest.param("folder", {}, marks=pytest.mark.slow),
    ],
    ids=["ascii zip", "ascii folder", "folder"],
)  # fmt: skip
def test_in_a_folder_of_an_odd_name(tmp_path: Path, form: str, environment: dict[str, str]) -> None:
    folder = tmp_path / ODD
    folder.mkdir()
    if form == "zip":
        place = zipped(folder / "aster.zip")
    else:
        place = folder / "site"
        shutil.copytree(SOURCE, place / "aster_ml", ignore=shutil.ignore_patterns("__pycache__"))
    check_twice(folder, [place], **environment)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names of bytes that are no text")
def test_in_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    check_twice(folder, [zipped(folder / "aster.zip")])


def tree(folder: Path) -> set[str]:
    """What lies in a folder, without what Python itself leaves there."""
    names = {str(p.relative_to(folder)) for p in folder.rglob("*")}
    return {name for name in names if "__pycache__" not in name}


def test_nothing_is_written_beside_the_package(tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(SOURCE, site / "aster_ml", ignore=shutil.ignore_patterns("__pycache__"))
    before = tree(site)
    for path in [site, *site.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    check_twice(tmp_path, [site])
    assert tree(site) == before


@pytest.mark.parametrize("kind", ["a file", "below a file", "no home", "CACHE=0"])
def test_without_a_folder_that_can_be_written(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("no folder")
    environment = {
        "a file": {"CACHEDIR": str(tmp_path / "file")},
        "below a file": {"CACHEDIR": "", "XDG_CACHE_HOME": str(tmp_path / "file")},
        "no home": {"CACHEDIR": "", "HOME": str(tmp_path / "file")},
        "CACHE=0": {"CACHE": "0"},
    }[kind]
    environment["TMPDIR"] = str(tmp_path)
    words = run("-Wignore::RuntimeWarning", folder=tmp_path, paths=[SOURCE.parent], **environment)
    assert int(words[0]) > 0
    assert words[1] == "None"
    assert words[3] == "True"


@pytest.mark.skipif(os.name != "posix", reason="limits as POSIX has them")
def test_on_a_disk_that_is_full(tmp_path: Path) -> None:
    """No file may grow past some bytes: the program is right, and warns."""
    text = f"""
import resource, warnings
{PROGRAM.partition("kept = ")[0]}
print(compiled)
"""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))\n"
    words = run(
        "-Wignore::RuntimeWarning", folder=tmp_path, paths=[SOURCE.parent], text=limited + text
    )
    assert int(words[0]) > 0
