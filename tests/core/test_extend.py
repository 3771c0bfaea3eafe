"""What packages on top of the core build with: each name of `extend`, used as a stranger would."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import aster_ml.extend as extend
from aster_ml import Context, Device, Tensor, TinyJit, dtypes
from aster_ml.helpers import round_up
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.watch import WATCHERS, Watcher
from tests.core.kernel_checks import kernel_of
from tests.lint.sources import PACKAGE, ROOT

C = Target("CPU", "c", arch="export", vector_bits=128, vector_registers=16)


def test_every_name_is_where_type_checkers_look_for_it() -> None:
    tree = ast.parse((PACKAGE / "extend.py").read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If) and isinstance(n.test, ast.Name))
    imports = [n for n in block.body if isinstance(n, ast.ImportFrom)]
    seen = {a.name: str(n.module) for n in imports for a in n.names}
    assert seen == {name: f"aster_ml.{home}" for name, home in extend.HOME_OF.items()}
    assert set(extend.__all__) == set(seen)
    assert len(extend.__all__) == len(seen)


def test_every_name_is_there_and_says_what_it_is() -> None:
    for name in extend.__all__:
        found = getattr(extend, name)
        home = importlib.import_module(f"aster_ml.{extend.HOME_OF[name]}")
        assert found is getattr(home, name), name
        assert not callable(found) or (found.__doc__ or "").strip(), name


def test_a_name_that_is_not_there_is_told() -> None:
    with pytest.raises(AttributeError, match=r"'aster_ml.extend' has no attribute 'nothing'"):
        extend.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_one_name_loads_nothing_else() -> None:
    code = "import sys; from aster_ml.extend import check_tensor; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(done.stdout.split())
    assert "aster_ml.extend" in loaded
    others = ("codegen.passes", "renderer.c", "engine.planning", "gradient", "runtime.cpu.clang")
    assert not loaded & {f"aster_ml.{name}" for name in others}


def test_memory_of_a_value() -> None:
    x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).realize()
    whole = extend.whole_buffer(x.uop)
    assert whole is not None
    assert np.frombuffer(whole.as_memoryview(), np.float32).tolist() == [1, 2, 3, 4, 5, 6]
    assert extend.whole_buffer(x.reshape(6).uop) is whole
    assert extend.whole_buffer(x.T.uop) is None
    assert extend.buffers_of(x.T.uop) == [whole]
    assert extend.buffers_of((x + 1).uop) == []
    assert extend.whole_buffer((x + 1).uop) is None
    assert extend.buffers_of(Tensor(3.0).uop) == []
    assert extend.buffer_of(x.uop.base) is whole


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_what_runs_is_observed_with_its_memory(size: int) -> None:
    x = Tensor(np.arange(size, dtype=np.float32)).realize()
    with extend.Observed() as outer, extend.Observed() as seen:
        y = (x * 3).realize()
        x.assign(x + 1).realize()
    (x * 5).realize()
    assert [len(row.schedule.steps) for row in seen.rows] == [1, 1]
    assert outer.rows == seen.rows
    mine, result = extend.whole_buffer(x.uop), extend.whole_buffer(y.uop)
    assert {id(b) for b in seen.rows[0].buffers} == {id(mine), id(result)}
    ((base, before),) = seen.before.values()
    assert base is mine
    assert np.frombuffer(before, np.float32).tolist() == list(range(size))
    assert x.tolist() == [i + 1 for i in range(size)]


def test_a_schedule_is_planned_for_another_machine() -> None:
    x = Tensor.arange(4096).cast(dtypes.float32).contiguous().realize()
    with extend.Observed() as seen:
        x.sum().realize()
    schedule = seen.rows[0].schedule
    single = extend.plan_for(schedule, C)
    assert single is not schedule
    assert single.n_args == schedule.n_args
    kernels = [step.ast for step in single.steps if step.ast is not None]
    linear, opts = extend.lower(kernels[0], C)
    assert linear.name
    assert all([extend.size_now(size, {}) >= 1 for size in linear.global_size])
    memory = extend.plan_memory(single)
    assert sum(memory.arena_nbytes.values()) % extend.Arena.alignment == 0
    text = extend.CRenderer(C).render(linear)
    assert f"void {linear.name}(" in text
    assert extend.lower(kernels[0], C, opts)[0].uops == linear.uops


def test_kernels_are_written_in_another_form_of_c() -> None:
    class Noted(extend.CWriter):
        def whole_function(self) -> list[str]:
            return ["/* mine */", *super().whole_function()]

    class Renderer(extend.CRenderer):
        writer = Noted

    linear, _ = extend.lower(kernel_of(Tensor.empty(8) + 1), C)
    text = Renderer(C).render_all([linear, replace(linear, name="again")], ["int end;"])
    assert text.count("/* mine */\nvoid ") == 2
    assert text.endswith("int end;")
    assert extend.c_type(dtypes.float32) == "float"
    assert extend.c_type(dtypes.bfloat16) == "uint16_t"


def test_passes_are_listed_in_order_and_recorded() -> None:
    names = [p.name for p in (*extend.schedule_passes(), *extend.kernel_passes())]
    assert len(names) == len(set(names))
    runs: list[extend.PassRun] = []
    fired: list[str] = []

    class Rules(Watcher):
        def rewritten(self, rule: object, before: UOp, after: UOp) -> None:
            fired.append(rule.name)  # type: ignore[attr-defined]

    watcher = Rules()
    WATCHERS.append(watcher)
    extend.record_always(runs)
    try:
        extend.lower(kernel_of(Tensor.empty(5, 7).sum(1) + 0), C)
    finally:
        WATCHERS.remove(watcher)
        extend.record_no_more(runs)
    count = len(runs)
    extend.lower(kernel_of(Tensor.empty(5, 9).sum(1)), C)
    assert len(runs) == count
    seen = list(dict.fromkeys([run.name for run in runs if run.name in names]))
    assert "linearize" in seen
    assert [n for n in names if n in seen] == seen
    assert fired


def test_arena_hands_out_what_is_given_back() -> None:
    arena = extend.Arena()
    nbytes = int(round_up(300, arena.alignment))
    first, second = arena.take(nbytes), arena.take(nbytes)
    assert {first, second} == {0, nbytes}
    arena.give(first, nbytes)
    assert arena.take(nbytes) == first
    assert arena.nbytes == 2 * nbytes


def test_a_graph_is_rewritten_and_simplified() -> None:
    n = UOp.variable("n", 0, 9)
    u = (n * 4 + 4) // 4
    assert extend.render_expr(extend.simplify(u)) == extend.render_expr(n + 1)
    assert extend.graph_rewrite(u, extend.symbolic) is extend.simplify(u)
    i, j = UOp.range(4, 0), UOp.range(5, 1)
    flat = extend.simplify(extend.flat_index((i, j), (4, 5)))
    assert flat is extend.simplify(i * 5 + j)
    back, valid = extend.source_index(Tensor.empty(5, 4).T.uop, (i, j))
    assert back == (j, i)
    assert valid is None


def test_specifications_say_what_a_node_may_be() -> None:
    x = (Tensor.empty(3) + 1).uop
    for u in toposort(x):
        rules = extend.TENSOR_SPEC[u.op]
        assert all([keeps(u) for _, keeps in rules])
    bad = UOp(Ops.ADD, dtypes.float32, (x,))
    assert not all([keeps(bad) for _, keeps in extend.TENSOR_SPEC[Ops.ADD]])
    assert Ops.LOAD not in extend.TENSOR_SPEC
    assert Ops.LOAD in extend.KERNEL_SPEC


def test_recordings_are_kept_by_the_names_of_memory() -> None:
    w = Tensor([2.0, 3.0]).realize()

    def double(x: Tensor) -> Tensor:
        return (x * w).contiguous()

    first: TinyJit[Tensor] = TinyJit(double)
    for i in range(3):
        first(Tensor([float(i), 1.0]).realize())
    known = extend.named_memory({"w": w})
    data = extend.dump_recordings({"double": first}, known)
    key = f"test {extend.source_digest()} {Device[Device.DEFAULT].target.key}"
    with Context(CACHE=1):
        cache = extend.current_cache()
        assert cache is not None
        cache.put(key, data)
        assert cache.get(key) == data
    again: TinyJit[Tensor] = TinyJit(double)
    extend.load_recordings(data, {"double": again}, known)
    assert again(Tensor([5.0, 7.0]).realize()).tolist() == [10.0, 21.0]


def test_a_file_is_told_from_those_of_the_package() -> None:
    file = extend.buffers_of.__code__.co_filename
    assert extend.is_own(file)
    assert extend.is_own(file, "engine")
    assert not extend.is_own(file, "nn")
    assert not extend.is_own(file, "eng")
    assert not extend.is_own(__file__)
