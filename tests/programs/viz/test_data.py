"""What is recorded of a run: graphs, passes, links, times, memory; and nothing when it is off."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from aster_ml import Context, GlobalCounters, Tensor, TinyJit
from aster_ml.allocator import MEMORY
from aster_ml.config import TRACEMETA
from aster_ml.device import Buffer
from aster_ml.errors import ArgumentError
from aster_ml.runtime.cpu.llvm_jit import assemble
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.passes import ALWAYS, LISTENERS
from aster_ml.uop.pattern import PatternMatcher, Rule, UPat
from aster_ml.uop.print.text import linear_to_text, to_text
from aster_ml.viz.assembly import parts_of, with_locations
from aster_ml.viz.graph_text import graph_lines
from aster_ml.viz.links import HOPS, View, linked
from aster_ml.viz.model import Maker, make_data
from aster_ml.viz.session import recorded, write
from aster_ml.watch import WATCHERS
from tests.programs.viz.runs import record_net, run_script


@pytest.fixture(scope="module")
def net() -> dict[str, Any]:
    return json.loads(json.dumps(record_net()))


def kernel_of_step(data: dict[str, Any], step: int) -> dict[str, Any]:
    """The kernel of a step of the only request."""
    found = data["schedules"][data["realizes"][0]["schedule"]]["steps"][step]["kernel"]
    return data["kernels"][found]


def test_nothing_watches_when_nothing_is_recorded() -> None:
    methods = Buffer.allocate, Buffer._release
    with recorded():
        assert WATCHERS
        assert TRACEMETA
        assert Buffer.allocate is not methods[0]
    assert not WATCHERS
    assert not ALWAYS
    assert not LISTENERS.lists
    assert not TRACEMETA
    assert (Buffer.allocate, Buffer._release) == methods


def test_results_are_the_same() -> None:
    x = Tensor.rand(33, 47).realize()
    plain = (x.softmax(1) @ x.T).numpy()
    with recorded():
        seen = (x.softmax(1) @ x.T).numpy()
    assert (plain == seen).all()


def test_graphs_read_as_they_were() -> None:
    x, w = Tensor.rand(20, 30).realize(), Tensor.rand(30, 40).realize()
    with recorded() as recorder:
        (x @ w).relu().pad(((1, 1), (0, 0))).sum(0).realize()
    maker = Maker(recorder)
    data = maker.data()
    seen = 0
    for record in recorder.kernels.values():
        for part in record.parts:
            assert part.ast is not None
            for made in [part.ast, *[e.made for e in part.entries]]:
                if isinstance(made, UOp):
                    text = "\n".join(graph_lines(data, maker.nodes.number(made)))
                    assert text + "\n" == to_text(made)
                    seen += 1
    assert seen > 8
    lists = [p.linear for r in recorder.kernels.values() for p in r.parts]
    shown = [p["linear"]["lines"] for k in data["kernels"] for p in k["parts"]]
    assert all([isinstance(x, Linear) for x in lists])
    assert ["\n".join(lines) + "\n" for lines in shown] == [linear_to_text(x) for x in lists]


def test_every_rewrite_that_fires_is_there() -> None:
    x = Tensor.rand(6, 10).realize()
    with recorded() as recorder:
        x.pad(((1, 2), (0, 0))).reshape(3, 30).sum(1).realize()
    data = make_data(recorder)
    fired = [f for k in data["kernels"] for p in k["parts"] for e in p["passes"]
             for f in e.get("fired", ())]  # fmt: skip
    assert fired
    for rule, before, after in fired:
        assert before != after
        assert rule in data["rules"]
    assert any(["rewrite" in said for said in data["rules"].values()])


def test_tables_tell_watchers_and_only_them() -> None:
    rule = Rule("one-less", UPat.var("x") + UPat.const(1), lambda x: x)
    table = PatternMatcher([rule])
    u = UOp.index_const(5)
    node = UOp.variable("n", 0, 9) + 1
    assert table.rewrite(node) is not None
    with recorded() as recorder:
        table.rewrite(node)
        assert [f.rule for f in recorder.here.fired] == [rule]
    table.rewrite(node)
    assert rule.fired == 3
    assert len(recorder.here.fired) == 1
    assert u.op is not None


def test_modules_and_lines_of_nodes(net: dict[str, Any]) -> None:
    modules = {f[3] for f in net["frames"]}
    assert {"Net", "Net.first", "Net.second"} <= modules
    names = {c["name"] for c in net["calls"]}
    assert {"linear", "relu", "softmax"} <= names
    paths = [f["path"] for f in net["files"]]
    assert any([p.endswith("runs.py") for p in paths])
    assert "self.second(self.first(x).relu())" in "".join([f["text"] for f in net["files"]])


def test_links_go_both_ways(net: dict[str, Any]) -> None:
    steps = net["schedules"][net["realizes"][0]["schedule"]]["steps"]
    view = View(0, 0)
    kernel = kernel_of_step(net, 0)
    for line, found in enumerate(kernel["asm_lines"]):
        if found:
            came_from = linked(net, view, f"asm:{line}")
            assert f"src:{found - 1}" in came_from
    node = next(iter(net["realizes"][0]["calls"]))
    places = linked(net, view, f"node:{node}")
    assert {p.partition(":")[0] for p in places} >= {"line", "node"}
    for i in range(len(steps)):
        from_step = linked(net, View(0, i), f"step:{i}")
        hops = {p.partition(":")[0] for p in from_step}
        assert hops == set(HOPS), f"step {i}: {hops}"
        # What a step has lit lights the step.
        for place in from_step:
            if place.startswith("node:"):
                assert f"step:{i}" in linked(net, View(0, i), place)


def test_assembly_is_that_of_the_same_source(net: dict[str, Any]) -> None:
    source = "\n".join(kernel_of_step(net, 0)["source"]) + "\n"
    plain = parts_of(assemble(source))[0]
    lines, came_from = parts_of(assemble(with_locations(source)))
    assert lines == plain
    assert sum([n > 0 for n in came_from]) > len(lines) // 2
    assert max(came_from) <= source.count("\n") + 1


def test_times_add_up_to_the_counters() -> None:
    x = Tensor.rand(64, 64).realize()
    with recorded() as recorder:
        GlobalCounters.reset()
        (x @ x).relu().sum().realize()
        total, count = GlobalCounters.time_sum_s, GlobalCounters.kernel_count
    spans = [e for e in make_data(recorder)["events"] if e[0] == "kernel"]
    assert len(spans) == count
    assert sum([e[5] for e in spans]) == pytest.approx(total * 1e6, abs=0.1)


def test_replays_are_seen_kernel_by_kernel() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (x * 2 + 1).sum(0).realize()

    with recorded() as recorder:
        for _ in range(5):
            step(Tensor.rand(16, 16).realize())
    names = [e[1] for e in make_data(recorder)["events"] if e[0] == "kernel"]
    assert max([names.count(n) for n in names]) >= 5


def test_memory_comes_and_goes() -> None:
    Tensor.rand(256, 256).realize()
    gc.collect()
    before = MEMORY.in_use()
    with recorded() as recorder:
        x = (Tensor.rand(256, 256) + 1).realize()
        del x
        assert MEMORY.in_use() <= before, "what is recorded keeps memory alive"
    changes = make_data(recorder)["memory"]
    assert any([nbytes == 256 * 256 * 4 for *_, nbytes in changes])
    for number in {c[2] for c in changes}:
        mine = [c[3] for c in changes if c[2] == number]
        assert sum(mine) == 0 or mine[0] < 0 or len(mine) == 1


def test_kernels_from_before_are_lowered_at_the_end() -> None:
    x = Tensor.rand(7, 11).realize()
    with Context(TRACEMETA=1):
        (x + 3).realize()
    with recorded() as recorder:
        (x + 3).realize()
    data = make_data(recorder)
    assert data["kernels"][0]["parts"][0]["linear"]["lines"]
    assert data["schedules"][0]["steps"][0]["kernel"] == 0


def test_runs_of_kernels_have_parts() -> None:
    q, k, v = [Tensor.rand(1, 4, 256, 32).realize() for _ in range(3)]
    with recorded() as recorder, Context(DEPTH_FIRST=2):
        q.scaled_dot_product_attention(k, v).realize()
    runs = [k for k in make_data(recorder)["kernels"] if k["run"]]
    assert runs
    assert len(runs[0]["parts"]) > 1
    assert {place[0] for place in runs[0]["places"] if place} == set(range(len(runs[0]["parts"])))


def test_a_device_that_compiles_nothing() -> None:
    x = Tensor.rand(4, 5, device="PYTHON").realize()
    with recorded() as recorder:
        (x * 3).realize()
    kernel = make_data(recorder)["kernels"][-1]
    assert kernel["asm"] == []
    assert "interprets" in kernel["no_asm"]


def test_a_script_that_raises_leaves_its_file(tmp_path: Path) -> None:
    text = """
from aster_ml import Tensor
(Tensor.ones(8, 8).contiguous() + 2).realize()
raise ValueError("no more")
"""
    done = run_script(tmp_path, text, VIZ="out.json")
    assert done.returncode == 1
    assert "ValueError: no more" in done.stderr
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["made"]["error"] == "ValueError: no more"
    assert data["kernels"]


def test_a_run_without_kernels_is_said(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import aster_ml\nprint(1 + 1)\n", VIZ="1")
    assert done.returncode == 0
    assert "no kernel has run" in done.stderr
    assert (tmp_path / "viz-script.html").exists()


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import aster_ml\n", VIZ=str(tmp_path / "none" / "x.html"))
    assert done.returncode == 0
    assert "cannot be written" in done.stderr
    with recorded() as recorder:
        Tensor([1.0]).realize()
    with pytest.raises(ArgumentError, match="another file"):
        write(recorder, tmp_path / "none" / "x.json")


def test_a_recorder_that_fails_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor.rand(5, 6).realize()
    with recorded() as recorder:
        monkeypatch.setattr("aster_ml.viz.recorder.expressed_by", lambda planner: 1 // 0)
        with Context(STRICT=0):
            assert (x * 5 - 2).numpy().shape == (5, 6)
        monkeypatch.undo()
    data = make_data(recorder)
    assert data["dropped"]["failures"] == 1
    assert "ZeroDivisionError" in data["failures"][0]
    assert data["kernels"]


def test_processes_that_a_script_starts_are_not_recorded(tmp_path: Path) -> None:
    text = """
import subprocess, sys
import aster_ml
print(subprocess.run([sys.executable, "-c", "import aster_ml; print(aster_ml.config.VIZ)"],
    capture_output=True, text=True).stdout)
"""
    done = run_script(tmp_path, text, VIZ="a.json")
    assert "VIZ='0'" in done.stdout
    assert [p.name for p in tmp_path.glob("*.json")] == ["a.json"]
