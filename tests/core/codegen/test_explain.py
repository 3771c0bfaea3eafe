"""`Tensor.explain()` and DEBUG=3: what was chosen, with the numbers by which it was."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aster_ml import Context, GlobalCounters, Tensor
from aster_ml.codegen.estimate import estimate
from aster_ml.codegen.explain import explain_kernel
from aster_ml.codegen.opts import Opt, OptOps, parse_opts
from aster_ml.codegen.passes import schedule_kernel
from aster_ml.engine.explain import amount
from aster_ml.target import Target
from tests.core.kernel_checks import kernel_of

TARGET = Target("CPU", "llvm", arch="example", vector_bits=256, vector_registers=16, threads=2)


def draw(*shape: int) -> Tensor:
    return Tensor.rand(*shape).realize()


def costs_of(line: str) -> dict[str, float]:
    """The numbers in a line of reasons."""
    inside = re.findall(r"([^(,][^:(]*): ([\d,.e+-]+\d)", line[line.index("(") + 1 :])
    return {name.strip(): float(number.replace(",", "")) for name, number in inside}


def line_with(lines: list[str], start: str) -> str:
    [found] = [line for line in lines if line.startswith(start)]
    return found


def test_explaining_runs_nothing() -> None:
    x, y = draw(16, 32), draw(32, 16)
    before = GlobalCounters.kernel_count
    value = (x @ y).relu()
    text = value.explain()
    assert GlobalCounters.kernel_count == before
    assert text == value.explain()
    assert value.numpy().shape == (16, 16)


def test_work_of_a_product() -> None:
    text = (draw(64, 512) @ draw(512, 256)).explain()
    # 64 * 256 * 512 multiplications and as many additions; each of three buffers once.
    assert "work: 16.8 MFLOP, 721 kB, 23.27 a byte" in text
    assert text.startswith("1 step\n0: kernel r_")
    assert "writes a result, 16,384 x float" in text


def test_what_is_memory_needs_no_step() -> None:
    assert draw(4).explain() == "0 steps"


def test_several_tensors_are_explained_together() -> None:
    x = draw(8, 8)
    text = (x.sum(0)).explain((x @ x).exp())
    assert text.count("writes a result") == 2


def test_chosen_axis_has_the_least_cost() -> None:
    lines = explain_kernel(kernel_of(draw(48, 40) @ draw(40, 64)), TARGET)
    line = line_with(lines, "SIMD axis")
    chosen = line[line.index(": ") + 2 : line.index(" (")]
    costs = costs_of(line)
    assert len(costs) > 1
    assert "none" in costs
    assert costs[chosen] == min(costs.values())


def test_register_tile_costs_less_than_one_result() -> None:
    lines = explain_kernel(kernel_of(draw(48, 40) @ draw(40, 64)), TARGET)
    costs = list(costs_of(line_with(lines, "register tile")).values())
    assert len(costs) == 2
    assert costs[0] < costs[1]


@pytest.mark.parametrize("n,shared", [(24, False), (512, True)])
def test_threads_follow_the_work(n: int, shared: bool) -> None:
    ast = kernel_of(draw(n, n) @ draw(n, n))
    lines = explain_kernel(ast, TARGET)
    line = line_with(lines, "threads")
    costs = costs_of(line)
    assert (costs["its cycles"] >= costs["cycles from which threads pay"]) is shared
    assert ("one" not in line.split("(")[0]) is shared
    assert ("THREAD" in line_with(lines, "schedule")) == ("one" not in line.split("(")[0])


def test_schedule_shown_is_the_one_that_is_used() -> None:
    ast = kernel_of(draw(48, 40) @ draw(40, 64))
    shown = line_with(explain_kernel(ast, TARGET), "schedule: ")
    assert parse_opts(shown.removeprefix("schedule: ")) == tuple(
        schedule_kernel(ast, TARGET).applied
    )
    asked = (Opt(OptOps.UPCAST, 0, 4),)
    assert "schedule: UPCAST(0,4)" in explain_kernel(ast, TARGET, asked)


def test_accesses_say_how_they_meet_the_lanes() -> None:
    opts = (Opt(OptOps.VECTOR, 1, 8),)
    lines = explain_kernel(kernel_of(draw(48, 40) @ draw(40, 64)), TARGET, opts)
    assert "loads from slot 1: one element for all lanes, in 1,920 places" in lines
    assert "loads from slot 2: neighbours, in 320 places" in lines
    assert "stores to slot 0: neighbours, in 384 places" in lines
    turned = kernel_of(draw(48, 64).T.contiguous())
    lines = explain_kernel(turned, TARGET, (Opt(OptOps.VECTOR, 1, 8),))
    assert any("lanes 64 apart" in line for line in lines)


def test_the_estimate_is_of_the_kernel_as_it_is_shared_out() -> None:
    ast = kernel_of(draw(512, 512) @ draw(512, 512))
    kernel = schedule_kernel(ast, TARGET)
    line = line_with(explain_kernel(ast, TARGET), "estimate: ")
    assert line == f"estimate: {estimate(kernel, TARGET).shared(2)}"
    assert line.endswith("bound by arithmetic")


def test_temporaries_have_a_reason() -> None:
    x = draw(256, 256)
    text = ((x.exp() * 2).contiguous().sum(0) + x @ x).explain()
    assert "stored because: asked for by CONTIGUOUS" in text
    with Context(FUSE=0):
        text = (x - x.max(1, keepdim=True)).explain()
    assert "stored because: FUSE=0 stores every reduction" in text


def test_reason_to_store_has_both_costs() -> None:
    x, w = draw(128, 256), draw(256, 512)
    text = (x.sin().exp() @ w).explain()
    found = re.search(
        r"computing it ([\d,]+) times for ([\d,]+) elements would cost ([\d,]+), "
        r"storing it ([\d,]+)",
        text,
    )
    assert found is not None, text
    times, elements, again, storing = (int(n.replace(",", "")) for n in found.groups())
    assert elements == 128 * 256
    assert times > elements
    assert again > storing


def test_debug_shows_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    x = draw(33, 65)
    with Context(DEBUG=3):
        (x * 2 + 1).sum(1).realize()
    printed = capsys.readouterr().out
    for word in ("work: ", "schedule: ", "SIMD axis, cycles: ", "estimate: "):
        assert word in printed


@pytest.mark.parametrize(
    "count,text", [(0.0, "0 B"), (999.0, "999 B"), (1500.0, "1.5 kB"), (2.5e9, "2.5 GB")]
)
def test_amounts(count: float, text: str) -> None:
    assert amount(count, "B") == text


def test_views_and_copies_are_named(tmp_path: Any) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(64)))
    text = (Tensor(path).to("CPU") + 1).explain()
    assert "copy of 64 bytes on CPU" in text
