"""What is built once: nodes, schedules, kernels; over steps, instances, layers and processes."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aster_ml
from aster_ml import GlobalCounters, Tensor, TinyJit, Variable, config, nn
from aster_ml.config import Context
from aster_ml.engine import sources
from aster_ml.engine.caches import CACHES
from aster_ml.runtime import object_cache
from aster_ml.uop.graph import without_names

# Settings that watch or switch caches themselves; compiled results do not depend on them.
WATCHING = frozenset({"CACHE", "CACHEDIR", "DEBUG", "DEBUG_FILTER"})
# Another value for every setting that is in the key of a stage.
OTHER_VALUES = {
    "NOOPT": 1,
    "SPEC": 1,
    "STRICT": 0,
    "CLANG": 1,
    "THREADS": 1,
    "SPLIT_REDUCE": 0,
    "FUSE": 0,
    "DEPTH_FIRST": 0,
    "TRACEMETA": 1,
    "DETERMINISTIC": 1,
    "BEAM": 1,
    "ISA": "" if config.ISA.value else "avx2",
    "MAX_KERNEL_NODES": 20,
    "ALLOW_TF32": 1,
    "BOXES": 0,
    "EXACT": 1,
}


def counted(function: Callable[[], Any]) -> tuple[int, int, int]:
    """Schedules planned, schedules found and kernels compiled while the function runs."""
    c = GlobalCounters
    before = (c.schedule_misses, c.schedule_hits, c.compiled_kernels)
    function()
    after = (c.schedule_misses, c.schedule_hits, c.compiled_kernels)
    return tuple(b - a for a, b in zip(before, after))  # type: ignore[return-value]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in memory."""
    return Tensor(np.random.RandomState(seed).randn(*shape).astype(np.float32)).realize()


class Net:
    """Two blocks of equal shape and a head, with everything a layer may hold."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, 5)

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.second(self.first(x).relu()).relu()))


BUILDS: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("elementwise", lambda x: (x * 2 + 1).exp().relu() - x),
    ("reduction", lambda x: x.sum(1, keepdim=True) / x.max()),
    ("movement", lambda x: x.reshape(3, 8).permute(1, 0).pad((1, 2)).flip(0)[1:, ::2]),
    ("product", lambda x: x @ x.T + x.sum(1)),
    ("softmax", lambda x: x.softmax().log_softmax(0)),
    ("index", lambda x: x[Tensor.arange(2)].gather(1, Tensor.arange(2).reshape(2, 1))),
    ("sort", lambda x: x.sort(1)[0]),
    ("cast", lambda x: x.half().int().float()),
]


@pytest.mark.parametrize("build", [b for _, b in BUILDS], ids=[n for n, _ in BUILDS])
def test_equal_graphs_are_one_object(build: Callable[[Tensor], Tensor]) -> None:
    x = normal(4, 6)
    first, again = build(x), build(x)
    assert without_names(first.uop) is without_names(again.uop)
    assert without_names(first.uop) is not without_names(build(normal(4, 6)).uop)


def test_gradients_of_equal_graphs_are_one_object() -> None:
    x, w = normal(4, 6), normal(6, 3)
    found = [(x @ w).relu().sum().gradient(x, w) for _ in range(2)]
    assert all(without_names(a.uop) is without_names(b.uop) for a, b in zip(*found))


def test_constants_that_compare_equal_are_not_mixed_up() -> None:
    x = normal(3)
    nodes = [(x * c).uop for c in (0.0, -0.0, 1.0, float("nan"), float("inf"))]
    assert len(set(nodes)) == 5
    assert without_names((x * float("nan")).uop) is without_names(nodes[3])
    whole = Tensor([1, 2], dtype="int32")
    assert (whole + 1).uop is (whole + True).uop
    assert (whole + 1).uop is not (whole + 1.0).uop
    mask = Tensor([True, False])
    signs = [np.signbit(mask.where(c, 1.0).numpy()).tolist() for c in (0.0, -0.0)]
    assert signs == [[False, False], [True, False]]


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "Muon"])
def test_steps_of_training_are_scheduled_once(kind: str) -> None:
    net = Net()
    net.first.bias = net.second.bias = net.head.bias = None
    net.norm = nn.LayerNorm(24, elementwise_affine=False)
    optimiser = getattr(nn.optim, kind)(nn.state.get_parameters(net), lr=0.01)

    def step(seed: int) -> None:
        optimiser.zero_grad()
        loss = net(normal(8, 24, seed=seed)).square().mean()
        loss.backward()
        loss.realize(*optimiser.schedule_step())

    with Tensor.train():
        for seed in range(3):
            step(seed)
        for seed in range(3, 6):
            planned, found, compiled = counted(lambda seed=seed: step(seed))
            assert (planned, compiled) == (0, 0)
            assert found >= 1


def test_a_second_instance_costs_no_schedule_and_no_kernel() -> None:
    x = normal(8, 24)
    first, second = Net(), Net()
    Tensor.realize(*nn.state.get_parameters([first, second]))
    first(x).realize()
    result = second(x)
    assert counted(lambda: result.realize())[::2] == (0, 0)
    assert not np.allclose(result.numpy(), first(x).numpy())


def test_a_jitted_function_of_a_second_instance_compiles_nothing() -> None:
    x = normal(8, 24)

    def run(net: Net) -> None:
        jitted = TinyJit(lambda x: net(x).relu().realize())
        for _ in range(3):
            jitted(x)

    run(Net())
    second = Net()
    Tensor.realize(*nn.state.get_parameters(second))
    assert counted(lambda: run(second))[2] == 0


def test_layers_of_equal_shape_share_kernels() -> None:
    layers = [nn.Linear(20, 20) for _ in range(6)]
    weights = nn.state.get_parameters(layers)
    Tensor.realize(*weights)
    x = normal(7, 20)
    for layer in layers:
        x = layer(x).relu()
    kernels = [step.ast for step in x.schedule()]
    assert len(kernels) == 6
    assert len({id(kernel) for kernel in kernels}) == 1


def test_equal_kernels_of_different_graphs_are_one_object() -> None:
    a, b = normal(5, 6), normal(30)
    (flat,), (square,) = ((b + 1).schedule(), (a + 1).schedule())
    assert flat.ast is not square.ast  # axes merge when kernels are compiled, not before
    again = (normal(5, 6, seed=3) + 1).schedule()
    assert again[0].ast is square.ast
    assert counted(lambda: (normal(5, 6, seed=4) + 1).realize())[0] <= 1


def test_other_values_of_a_variable_are_the_same_schedule() -> None:
    x = normal(10)
    n = Variable("n", 1, 10)
    want = np.cumsum(x.numpy())

    def total(k: int) -> float:
        return float(x[: n.bind(k)].sum().item())

    assert np.isclose(total(3), want[2])
    for k in (1, 7, 10):
        assert counted(lambda k=k: total(k))[::2] == (0, 0)
        assert np.isclose(total(k), want[k - 1], rtol=1e-5)


def program(x: Tensor, w: Tensor) -> Tensor:
    """Enough of everything for each setting to matter: a product, a shared value, a long sum."""
    y = (x @ w).relu()
    return (y - y.mean(1, keepdim=True)).softmax().sum() + x.reshape(-1).sum()


def test_every_setting_of_a_stage_is_varied_here() -> None:
    inside = {s.name for s in config.SETTINGS.values() if s.affects}
    assert inside <= set(OTHER_VALUES), f"give another value for {inside - set(OTHER_VALUES)}"


@pytest.mark.parametrize("name", sorted({s.name for s in config.SETTINGS.values() if s.affects}))
def test_no_stale_hit_when_a_setting_changes(name: str) -> None:
    setting = config.SETTINGS[name]
    other = OTHER_VALUES[name]
    assert setting.value != other
    x, w = normal(64, 96), normal(96, 32)
    want = program(x, w).numpy()
    assert counted(lambda: program(x, w).realize())[::2] == (0, 0)
    schedules, kernels = set(CACHES.schedules.entries), set(CACHES.kernels.entries)
    with Context(**{name: other}):
        planned, _, _ = counted(lambda: program(x, w).realize())
        np.testing.assert_allclose(program(x, w).numpy(), want, rtol=2e-5)
    if "schedule" in setting.affects:
        assert planned > 0
        assert set(CACHES.schedules.entries) != schedules
    if "codegen" in setting.affects:
        fresh = set(CACHES.kernels.entries) - kernels
        assert fresh, "kernels that were compiled under the old value have been used"
    # Back under the old value its own results are found again.
    assert counted(lambda: program(x, w).realize())[::2] == (0, 0)


def test_other_settings_do_not_cost_a_hit() -> None:
    x, w = normal(64, 96), normal(96, 32)
    program(x, w).realize()
    for name in ("JIT", "GRAPH_LIMIT", "GRAPH_GUARD", "DEBUG_FILTER"):
        value = "jit" if name == "DEBUG_FILTER" else 0 if name == "JIT" else 10**6
        with Context(**{name: value}):
            assert counted(lambda: program(x, w).realize())[::2] == (0, 0), name


STAGES = {"schedule": "schedule", "codegen": "codegen", "renderer": "codegen", "uop": "codegen"}


def settings_read(path: Path) -> set[str]:
    """The settings that a source file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "aster_ml.config"
        for alias in node.names
        if alias.name in config.SETTINGS
    }


@pytest.mark.parametrize("folder", STAGES)
def test_a_setting_that_a_stage_reads_is_in_its_key(folder: str) -> None:
    root = Path(aster_ml.__file__).parent / folder
    read = {name for path in root.glob("*.py") for name in settings_read(path)} - WATCHING
    missing = [n for n in sorted(read) if STAGES[folder] not in config.SETTINGS[n].affects]
    assert not missing, f"{folder} reads {missing}, which its cache key leaves out"


SCRIPT = """
import numpy as np
from aster_ml import GlobalCounters, Tensor, TinyJit, nn
from aster_ml.engine.caches import CACHES
from aster_ml.engine import sources
from aster_ml.runtime import object_cache

Tensor.manual_seed(3)
net = [nn.Conv2d(1, 4, 3), nn.BatchNorm(4), Tensor.relu, lambda t: t.flatten(1), nn.Linear(144, 5)]
optimiser = nn.optim.Adam(nn.state.get_parameters(net), lr=0.01)

@TinyJit
@Tensor.train()
def step(x, y):
    optimiser.zero_grad()
    loss = x.sequential(net).sparse_categorical_crossentropy(y).backward()
    return loss.realize(*optimiser.schedule_step())

x = Tensor(np.random.RandomState(0).rand(6, 1, 8, 8).astype("float32")).realize()
y = Tensor([0, 1, 2, 3, 4, 0]).realize()
losses = [step(x, y).item() for _ in range(4)]
x.softmax().sort(2)[0].realize()
print(GlobalCounters.compiled_kernels, GlobalCounters.kernel_count, len(CACHES.kernels.entries))
print(losses)
print(sorted(body.key for body, *_ in CACHES.schedules.entries))
print(sorted(kernel.key for kernel, *_ in CACHES.kernels.entries))
"""


def run_script(folder: Path, seed: str, **settings: str) -> list[str]:
    """The lines that the script prints in a process of its own, with this order of hashes."""
    source = str(Path(aster_ml.__file__).parents[1])
    environment = {**os.environ, "CACHEDIR": str(folder), "PYTHONHASHSEED": seed, **settings}
    environment["PYTHONPATH"] = source
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    first, second = run_script(tmp_path, "1"), run_script(tmp_path, "2")
    compiled, launched, kernels = map(int, first[0].split())
    assert compiled == kernels
    assert 10 < compiled <= launched
    assert list(map(int, second[0].split())) == [0, launched, kernels]
    assert second[1:] == first[1:], "losses and the keys of schedules and kernels are the same"
    # Under another setting of the stage nothing of it is used, and both lie side by side.
    plain = run_script(tmp_path, "1", NOOPT="1")
    assert int(plain[0].split()[0]) == int(plain[0].split()[2])
    assert run_script(tmp_path, "3")[0].split()[0] == "0"


def test_a_changed_compiler_compiles_anew(tmp_path: Path) -> None:
    """Of a copy of the package, each file whose change may change kernels is changed in turn.

    When it was written and how long it is stay the same, as an upgrade may leave them.
    """
    package = tmp_path / "aster_ml"
    shutil.copytree(Path(aster_ml.__file__).parent, package)
    script = (
        "import os, sys; from pathlib import Path\n"
        "from aster_ml.engine.sources import source_digest\n"
        "print(source_digest())\n"
        "for name in sys.argv[1:]:\n"
        "    path = Path(name); text = path.read_text(); was = path.stat()\n"
        "    path.write_text(text.replace('e', 'E', 1))\n"
        "    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))\n"
        "    assert path.stat().st_size == was.st_size\n"
        "    source_digest.cache_clear(); print(source_digest())\n"
    )
    names = [
        "uop/node.py",
        "codegen/passes.py",
        "renderer/llvm/renderer.py",
        "runtime/cpu/device.py",
        "dtype.py",
    ]
    done = subprocess.run(
        [sys.executable, "-c", script, *[str(package / name) for name in names]],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    digests = done.stdout.split()
    assert len(set(digests)) == 1 + len(names), digests


def test_sources_that_are_as_they_were_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within two seconds of a change they are: the clock of files has ticks."""
    path = tmp_path / "some.py"
    path.write_text("a = 1")
    paths = [str(path)]
    assert sources.state_of(paths) is None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 10)
    state = sources.state_of(paths)
    assert state is not None
    was = path.stat()
    time.sleep(0.05)
    path.write_text("a = 2")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert sources.state_of(paths) not in (None, state)
    with Context(CACHE=1, CACHEDIR=str(tmp_path / "cache")):
        reads = []
        real = sources.content_digest
        monkeypatch.setattr(
            sources, "content_digest", lambda *args: (reads.append(1), real(*args))[1]
        )
        found = set()
        for _ in range(3):
            sources.source_digest.cache_clear()
            found.add(sources.source_digest())
    assert len(found) == len(reads) == 1


@pytest.mark.parametrize("kept", [b"", b"\xff" * 24, b"x" * 24, b"0" * 23, b"0" * 25])
def test_a_kept_digest_of_another_form_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bytes
) -> None:
    path = tmp_path / "some.py"
    path.write_text("a = 1")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 10)
    with Context(CACHE=1, CACHEDIR=str(tmp_path / "cache")):
        state = sources.state_of([str(path)])
        assert state is not None
        object_cache.put(state, kept)
        wanted = sources.content_digest(str(tmp_path), [str(path)])
        assert sources.digest_of_files(str(tmp_path), [str(path)]) == wanted
        assert object_cache.get(state) == wanted.encode()


def test_code_is_found_however_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "package"
    (package / "__pycache__").mkdir(parents=True)
    (package / "inner").mkdir()
    for name in ("a.py", "inner/b.py", "__pycache__/a.cpython-312.pyc", "data.js"):
        (package / name).write_text("")
    found = sources.code_files(str(package))
    assert found == [str(package / "a.py"), str(package / "inner" / "b.py")]
    for name in ("a.py", "inner/b.py"):
        (package / name).rename(package / f"{name}c")
    assert sources.code_files(str(package)) == [f"{path}c" for path in found]
    archive = tmp_path / "program.pyz"
    archive.write_bytes(b"PK")
    assert sources.code_files(str(archive / "package")) == [str(archive)]
    assert sources.code_files(str(tmp_path / "nowhere" / "package")) == []
    monkeypatch.setattr(sources.sys, "frozen", True, raising=False)
    assert sources.code_files(str(tmp_path / "nowhere" / "package")) == [sys.executable]


def test_code_that_cannot_be_read_has_another_digest_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "code_files", lambda root: ["/nowhere/at/all.py"])
    digest = sources.source_digest.__wrapped__
    assert digest() != digest()
    monkeypatch.setattr(sources, "code_files", lambda root: [])
    assert digest() != digest()
