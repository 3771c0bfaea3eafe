"""The page in headless Chromium: stepping, links, accesses, canvases, keys, hostile names."""

from __future__ import annotations

import itertools
import json
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.runtime.interpreter.run import Interpreter
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.viz.compare import compared
from aster_ml.viz.graph_text import graph_lines, steps_of
from aster_ml.viz.links import View, linked
from aster_ml.viz.model import Maker
from aster_ml.viz.page import data_of, page_of
from aster_ml.viz.serve import make_server
from aster_ml.viz.session import recorded
from tests.programs.viz.conftest import Opened
from tests.programs.viz.runs import run_script

pytestmark = pytest.mark.viz
Open = Callable[..., Any]
TABS = ("columns", "steps", "graph", "why", "access", "timeline", "memory", "compare")
SIZES = ((1400, 850), (900, 700), (390, 800))


def test_arrows_step_through_every_text(net: dict[str, Any], opened: Open) -> None:
    p = opened(net)
    steps = net["schedules"][net["realizes"][0]["schedule"]]["steps"]
    part = net["kernels"][steps[0]["kernel"]]["parts"][0]
    wanted = steps_of(net, part["ast"], part["passes"])
    assert len(wanted) > 4
    p.page.keyboard.press("2")
    for k, (name, lines) in enumerate(wanted):
        assert p.page.text_content("#step-name") == name
        assert p.page.text_content("#after") == "\n".join(lines), f"step {k}, {name}"
        p.page.keyboard.press("ArrowRight")
    for name, lines in reversed(wanted):
        assert p.page.text_content("#step-name") == name
        assert p.page.text_content("#after") == "\n".join(lines)
        p.page.keyboard.press("ArrowLeft")


def test_steps_of_one_rule_and_changes_of_one_node(opened: Open) -> None:
    x = Tensor.rand(6, 10).realize()
    with recorded() as recorder:
        x.pad(((1, 2), (0, 0))).reshape(3, 30).sum(1).realize()
    maker = Maker(recorder)
    data = json.loads(json.dumps(maker.data()))
    rules = [f[0] for e in data["kernels"][0]["parts"][0]["passes"] for f in e.get("fired", ())]
    p = opened(data)
    p.page.keyboard.press("2")
    for rule in dict.fromkeys(rules):
        p.page.select_option("[aria-label='Steps of a rule']", rule)
        assert p.texts(".step-item") == [rule] * rules.count(rule)
        said = data["rules"][rule].get("rewrite", "")
        assert said in p.page.text_content(".step-about")
    p.page.select_option("[aria-label='Steps of a rule']", "")
    names = p.texts(".step-item")
    last = p.page.locator("#after .row").last
    last.click()
    p.page.keyboard.press("n")
    assert "step 0 of" not in p.page.text_content("#step-count")
    assert len(names) > len(rules)


def test_a_click_lights_what_belongs_together(net: dict[str, Any], opened: Open) -> None:
    p = opened(net)
    steps = net["schedules"][net["realizes"][0]["schedule"]]["steps"]
    checked = set()
    for step in range(len(steps)):
        p.page.click(f".step-row[data-step='{step}']")
        for hop in ("line", "node", "ast", "lin", "src", "asm"):
            there = sorted(p.ids(f".lines[data-hop='{hop}'] .line[data-id]"))
            for place in there[:: max(1, len(there) // 3)]:
                p.page.keyboard.press("Escape")
                p.page.evaluate("id => light(id)", place)
                now = p.page.evaluate("app.step")
                wanted = linked(net, View(0, now), place)
                assert set(p.page.evaluate("[...app.lit]")) == wanted, place
                known = p.ids(".columns .line[data-id]")
                assert p.ids(".columns .line.lit") == wanted & known, place
                checked.add(hop)
                if now != step:
                    p.page.click(f".step-row[data-step='{step}']")
    assert len(checked) == 6


def test_a_real_click_and_a_key_do_the_same(net: dict[str, Any], opened: Open) -> None:
    p = opened(net)
    line = p.page.locator(".lines[data-hop='ast'] .line[data-id]").nth(3)
    place = line.get_attribute("data-id")
    line.click()
    assert p.ids(".columns .line.lit") >= {place}
    first = p.ids(".columns .line.lit")
    p.page.keyboard.press("Escape")
    assert not p.ids(".columns .line.lit")
    line.focus()
    p.page.keyboard.press("Enter")
    assert p.ids(".columns .line.lit") == first


class Noted:
    """An array that notes which elements are read or written."""

    def __init__(self, values: Any, log: set[int]) -> None:
        self.values, self.log = values, log

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Noted(self.values[at], self.log)
        self.log.add(at)
        return self.values[at]

    def __setitem__(self, at: int, value: Any) -> None:
        self.log.add(at)
        self.values[at] = value


class NotingInterpreter(Interpreter):
    """Notes for each access, by its place and the turn of its loops, what it touched."""

    def __init__(self, linear: Linear, log: set[int]) -> None:
        self.log = log
        self.touched: dict[tuple[int, tuple[int, ...]], set[int]] = {}
        self.open_now: list[UOp] = []
        self.place = -1
        super().__init__(linear)

    def compile_node(self, u: UOp, open_loops: list[int]) -> None:
        self.place += 1
        if u.op is Ops.END:
            self.open_now = [r for r in self.open_now if r is not u.src[0]]
        count = len(self.steps)
        super().compile_node(u, open_loops)
        if u.op is Ops.RANGE and not u.arg.kind.is_lane:
            self.open_now = [*self.open_now, u]
        if u.op in (Ops.LOAD, Ops.STORE) and len(self.steps) > count:
            self.steps[-1] = self.noting(self.steps[-1], self.place, self.open_now)

    def noting(self, step: Any, place: int, loops: list[UOp]) -> Any:
        """The step, with what it touches noted."""

        def run(item: Any) -> None:
            self.log.clear()
            step(item)
            turn = tuple([item.values[self.numbers[r]][0] for r in loops])
            self.touched[place, turn] = set(self.log)

        return run


@pytest.mark.parametrize("kind", ["matmul", "padded", "sum", "transposed"])
def test_a_dragged_loop_shows_what_the_interpreter_touches(kind: str, opened: Open) -> None:
    a, b = Tensor.rand(6, 10).realize(), Tensor.rand(10, 7).realize()
    make = {
        "matmul": lambda: a @ b,
        "padded": lambda: a.pad(((1, 2), (3, 0))) + 1,
        "sum": lambda: b.sum(0),
        "transposed": lambda: a.T.contiguous() * 2,
    }[kind]
    with recorded() as recorder:
        make().realize()
    maker = Maker(recorder)
    data = json.loads(json.dumps(maker.data()))
    linear = next(iter(recorder.kernels.values())).parts[0].linear
    assert linear is not None
    log: set[int] = set()
    run = NotingInterpreter(linear, log)
    run.run([Noted(np.zeros(u.arg.size, dtype=np.float32), log) for u in linear.params])
    p = opened(data)
    p.page.keyboard.press("5")
    accesses = data["kernels"][0]["parts"][0]["accesses"]
    rows = [(i, r) for i, r in enumerate(accesses["rows"]) if r["slot"] >= 0]
    assert rows
    for i, row in rows:
        p.page.click(f".access-row[data-row='{i}']")
        loops = [x for x in accesses["loops"] if x["node"] in row["loops"]]
        turns = itertools.product(*[{0, x["size"] // 2, x["size"] - 1} for x in loops])
        for turn in turns:
            for loop, value in zip(loops, turn, strict=True):
                slider = p.page.locator(f"input[data-loop='{loop['node']}']")
                slider.focus()
                slider.press("Home")
                slider.fill(str(value))
            cells = p.page.eval_on_selector_all(
                ".cell.touched[data-element]", "all => all.map(e => Number(e.dataset.element))"
            )
            assert set(cells) == run.touched[row["place"], turn], f"{row['op']} at {turn}"
        p.page.click("text=Try every turn")
        verdict = p.page.text_content("#all-turns")
        assert "all inside" in verdict
        assert "NOT" not in verdict


EVENTS = [
    ["schedule", "schedule", "", "MainThread", 0, 100, -1, []],
    ["lower", "a", "", "MainThread", 100, 200, -1, []],
    ["compile", "a", "", "aster-compiler-0", 150, 300, -1, []],
    ["wait", "wait for compilers", "", "MainThread", 300, 200, -1, []],
    ["kernel", "a", "CPU", "MainThread", 520, 80, -1, []],
    ["copy", "copy 8 bytes", "CPU", "MainThread", 610, 40, -1, []],
]


def test_pixels_of_the_timeline(net: dict[str, Any], opened: Open) -> None:
    net = {**net, "events": EVENTS}
    p = opened(net)
    p.page.keyboard.press("6")
    p.page.wait_for_timeout(200)
    events = net["events"]
    names = p.page.evaluate("timelineRows().map(r => r[0])")
    first = min([e[4] for e in events])
    last = max([e[4] + e[5] for e in events])
    box = p.page.locator("#timeline").bounding_box()
    left = min(150, 0.3 * box["width"])
    points, wanted = [], []
    for e in events:
        around = [f for f in events if f is not e and f[2:4] == e[2:4] and f[4] <= e[4]]
        if e[5] < 0.01 * (last - first) or any([f[4] + f[5] > e[4] for f in around]):
            continue
        row = names.index(f"{e[2]} · {e[3]}" if e[2] else e[3])
        middle = e[4] + 0.9 * e[5]
        points.append(
            [left + (middle - first) / (last - first) * (box["width"] - left), 26 + row * 34 + 7]
        )
        wanted.append((e[0], e[1]))
    assert len(wanted) == len(EVENTS)
    pixels = p.page.evaluate(
        """points => {
            const canvas = document.querySelector("#timeline canvas");
            const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return points.map(([x, y]) => {
                const at = 4 * (Math.floor(y) * canvas.width + Math.floor(x));
                return [...all.data.slice(at, at + 3)];
            });
        }""",
        points,
    )
    for (kind, name), pixel in zip(wanted, pixels, strict=True):
        color = p.page.evaluate("name => color(name)", f"--{'bar' if kind == 'kernel' else kind}")
        assert pixel == [int(color[i : i + 2], 16) for i in (1, 3, 5)], f"{kind} {name}"


def test_the_trace_has_every_event(net: dict[str, Any], opened: Open) -> None:
    p = opened(net)
    trace = p.page.evaluate("chromeTrace()")
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [(e["cat"], e["name"], e["ts"], e["dur"]) for e in spans] == [
        (e[0], e[1], e[4], e[5]) for e in net["events"]
    ]
    threads = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert {e["tid"] for e in spans} == set(threads)
    counters = [e["args"]["bytes"] for e in trace["traceEvents"] if e["ph"] == "C"]
    assert len(counters) == len(net["memory"])
    with p.page.expect_download() as saved:
        p.page.keyboard.press("6")
        p.page.click("text=Save for Perfetto")
    assert saved.value.suggested_filename == "trace.json"
    assert json.loads(Path(saved.value.path()).read_text()) == trace


HOSTILE = "</script><script>document.title='gone'</script><img src=x onerror=alert(1)>"


def test_names_and_sources_are_texts(tmp_path: Path, opened: Open) -> None:
    text = f"""
from aster_ml import Tensor, Variable
class Net:
    def __call__(self, x):  # {HOSTILE}
        return x * 2
Net.__name__ = Net.__qualname__ = {HOSTILE!r}
Net.__call__.__code__ = Net.__call__.__code__.replace(co_qualname={HOSTILE!r})
n = Variable("<b>n</b>", 1, 8).bind(3)
(Net()(Tensor.ones(8, 4).contiguous().realize()[:n])).realize()
raise ValueError({HOSTILE!r})
"""
    done = run_script(tmp_path, text, VIZ="out.html")
    assert "ValueError" in done.stderr
    page = (tmp_path / "out.html").read_text()
    assert HOSTILE not in page
    assert page.count("<script") == 4
    data = data_of(page)
    assert HOSTILE in data["made"]["error"]
    p = opened(data)
    for key in "12345678":
        p.page.keyboard.press(key)
        p.page.wait_for_timeout(50)
    p.page.keyboard.press("1")
    assert p.page.title() == "Aster: script.py"
    assert HOSTILE in p.page.text_content("#about")
    assert any([HOSTILE in t for t in p.texts(".lines[data-hop='line'] .line")])
    assert p.page.locator("img").count() == 0
    assert p.page.locator("b").count() == p.page.locator("#runs b").count()


def test_everything_has_a_name_and_a_key(net: dict[str, Any], opened: Open) -> None:
    p = opened(net)
    nameless = """() => [...document.querySelectorAll(
        'button, input, select, canvas, [role=tab], [role=listbox], [role=region], a')]
        .filter(e => e.offsetParent !== null || e.tagName === 'CANVAS')
        .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() ||
            (e.labels && e.labels.length))).map(e => e.outerHTML)"""
    unreachable = """() => [...document.querySelectorAll('[role=option], [role=tab], tr[tabindex]')]
        .filter(e => e.tabIndex < 0 && !e.closest('[role=listbox], [role=tablist]')).length"""
    for i, tab in enumerate(TABS):
        p.page.keyboard.press(str(i + 1))
        assert p.page.get_attribute(f"#tab-{tab}", "aria-selected") == "true"
        assert p.page.evaluate(nameless) == [], tab
        assert p.page.evaluate(unreachable) == 0, tab
        roles = p.page.evaluate(
            "[...document.querySelectorAll('[role=listbox]')].every(b => "
            "[...b.children].every(c => c.getAttribute('role') === 'option'))"
        )
        assert roles, tab


def test_a_walk_with_keys_alone(net: dict[str, Any], opened: Open) -> None:
    p = opened(net)
    keys = p.page.keyboard
    count = len(net["schedules"][net["realizes"][0]["schedule"]]["steps"])
    for step in range(count):
        assert p.page.evaluate("app.step") == step
        keys.press("j")
    keys.press("k")
    assert p.page.evaluate("app.step") == max(0, count - 2)
    keys.press("/")
    keys.type("REDUCE")
    assert p.page.text_content("#search-count").endswith("found")
    found = p.page.locator("#panel .line.found").count()
    assert found == sum(["reduce" in t.lower() for t in p.texts("#panel .line")])
    keys.press("Escape")
    assert p.page.text_content("#search-count") == ""
    p.page.focus("#tab-columns")
    keys.press("ArrowRight")
    assert p.page.evaluate("app.tab") == "steps"
    p.page.focus(".step-item[tabindex='0']")
    keys.press("ArrowDown")
    keys.press("Enter")
    assert p.page.text_content("#step-count").startswith("step 1 of")
    keys.press("?")
    assert p.page.locator("dialog[open]").count() == 1
    keys.press("Escape")
    assert p.page.locator("dialog[open]").count() == 0
    keys.press("3")
    p.page.focus("#graph canvas")
    keys.press("ArrowDown")
    keys.press("ArrowUp")
    assert p.page.evaluate("graph.chosen") >= 0
    keys.press("6")
    p.page.focus("#timeline canvas")
    keys.press("ArrowRight")
    assert p.page.evaluate("timeline.chosen") == 0
    assert net["events"][0][1] in p.page.text_content("#event-card")


@pytest.mark.parametrize("size", SIZES)
def test_every_view_fits_its_window(
    size: tuple[int, int], net: dict[str, Any], opened: Open
) -> None:
    p = opened(net, size=size)
    for theme in ("light", "dark"):
        p.page.evaluate("name => { document.documentElement.dataset.theme = name }", theme)
        for i, tab in enumerate(TABS):
            p.page.keyboard.press(str(i + 1))
            wide = p.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            tall = p.page.evaluate("document.documentElement.scrollHeight - innerHeight")
            assert (wide, tall) == (0, 0), f"{tab} at {size}"
            panel = p.page.locator("#panel").bounding_box()
            assert panel["height"] > 0.4 * size[1], tab
    assert len(p.page.screenshot()) > 10_000


def test_paper_has_the_panel_alone(net: dict[str, Any], opened: Open) -> None:
    p = opened(net)
    p.page.emulate_media(media="print")
    for selector in (".bar", "#tabs", "#runs", "#status"):
        assert not p.page.is_visible(selector)
    column = p.page.locator(".lines[data-hop='src']")
    assert column.evaluate("e => e.scrollHeight <= e.clientHeight + 1")


def test_two_runs_side_by_side(net: dict[str, Any], opened: Open) -> None:
    other = json.loads(json.dumps(net))
    other["kernels"][1]["parts"][0]["opts"] = []
    other["kernels"][1]["source"] = [*other["kernels"][1]["source"], "; another line"]
    p = opened(other, net)
    states = p.page.eval_on_selector_all(
        "tbody tr", "all => all.map(r => r.children[0].textContent)"
    )
    rows = compared(net, other)
    assert states == [r["state"] for r in rows]
    assert states[0] == "changed"
    assert p.page.eval_on_selector("tbody tr", "r => r.children[2].textContent") == "Opts, source"
    assert p.texts("#text-after .row.new") == ["; another line\n"]
    assert p.texts("#text-before .row.gone") == []


def test_another_file_can_be_chosen(net: dict[str, Any], tmp_path: Path, opened: Open) -> None:
    p = opened(net)
    p.page.keyboard.press("8")
    path = tmp_path / "other.html"
    path.write_text(page_of(net))
    p.page.set_input_files("#other-file", path)
    p.page.wait_for_selector("#compare-count")
    assert p.page.text_content("#compare-count").startswith("0 of ")
    path.write_text("{}")
    p.page.set_input_files("#other-file", path)
    p.wait_until("document.getElementById('status').textContent.includes('cannot')")


def test_a_run_without_kernels(opened: Open) -> None:
    with recorded() as recorder:
        assert recorder.events == []
    p = opened(json.loads(json.dumps(Maker(recorder).data())))
    assert "no kernel" in p.page.text_content("#status")
    for key in "12345678":
        p.page.keyboard.press(key)
        assert p.page.locator(".empty").count() > 0


def big_data(net: dict[str, Any], layers: int, each: int) -> dict[str, Any]:
    """A run whose tensor graph has so many nodes: chains in layers, each of a module of its own."""
    data = json.loads(json.dumps(net))
    nodes = data["nodes"]
    add = nodes["ops"].index("ADD")
    first = len(nodes["op"])
    last = first
    for n in (nodes["op"], nodes["dtype"], nodes["arg"]):
        n.append(0)
    nodes["src"].append([])
    calls = {}
    for layer in range(layers):
        data["frames"].append([0, layer + 1, "f", f"Big.layers[{layer}].part"])
        data["calls"].append({"name": "step", "stack": [len(data["frames"]) - 1]})
        for i in range(each):
            nodes["op"].append(add)
            nodes["dtype"].append(0)
            nodes["arg"].append(0)
            nodes["src"].append([last, max(first, last - i % 7)])
            last = len(nodes["op"]) - 1
            calls[str(last)] = len(data["calls"]) - 1
    nodes["args"][0] = ""
    data["realizes"][0]["calls"] = calls
    data["schedules"][data["realizes"][0]["schedule"]]["body"] = last
    return data


def test_large_graphs_are_folded_and_found(net: dict[str, Any], opened: Open) -> None:
    p = opened(big_data(net, 24, 210))
    p.page.keyboard.press("3")
    assert "5,041 nodes" in p.page.text_content(".tools")
    assert p.page.evaluate("graph.items.length") <= 60
    names = p.page.evaluate("graph.items.map(i => i.groupId || '')")
    assert sum([".layers[" in n for n in names]) == 24
    p.page.evaluate(
        "chooseItem(graph.items.findIndex(i => (i.groupId || '').includes('[7]')), true)"
    )
    before = p.page.evaluate("graph.items.length")
    p.page.click("#unfold")
    assert p.page.evaluate("graph.items.length") >= before
    p.page.keyboard.press("/")
    p.page.keyboard.type("layers[11]")
    assert p.page.text_content("#search-count") == "210 found"
    p.page.keyboard.press("Enter")
    assert "[11]" in p.page.evaluate("graph.items[graph.chosen].groupId")


def test_fifty_thousand_nodes(net: dict[str, Any], opened: Open) -> None:
    p = opened(big_data(net, 50, 1000))
    p.page.keyboard.press("3")
    assert p.page.evaluate("graph.items.length") <= 60
    p.page.click("#open-all")
    p.wait_until("graph.items.length > 50000")
    p.page.click("#graph canvas", position={"x": 200, "y": 200})
    p.page.keyboard.press("+")
    p.page.click("#fold-all")
    p.wait_until("graph.items.length < 60")


def test_layout_by_the_library(net: dict[str, Any], opened: Open) -> None:
    p = opened(net)
    p.page.keyboard.press("3")
    p.page.wait_for_selector("body[data-layout]", timeout=60_000)
    boxes = p.page.evaluate("graph.boxes.length")
    assert boxes == p.page.evaluate("graph.open.size")
    overlap = p.page.evaluate(
        "graph.items.some((a, i) => graph.items.some((b, j) => i < j && a.x < b.x + b.width && "
        "b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height))"
    )
    assert not overlap


def test_a_live_page_asks_its_own_server_alone(net: dict[str, Any], browser: Any) -> None:
    now = {"data": net}
    server = make_server(0, lambda: now["data"])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        page = browser.new_page()
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda m: said.append(m.text))
        page.on("request", lambda r: asked.append(r.url))
        page.goto(f"{address}/")
        page.wait_for_selector("body[data-ready]")
        more = json.loads(json.dumps(net))
        more["events"].append(["copy", "copy 7 bytes", "CPU", "MainThread", 1, 2, -1, []])
        now["data"] = more
        Opened(page).wait_until(f"app.data.events.length === {len(more['events'])}")
        page.close()
        assert all([url.startswith((address, "data:", "blob:")) for url in asked])
        assert said == []
        with urllib.request.urlopen(f"{address}/data") as answer:
            assert json.load(answer) == more
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_graphs_of_the_page_read_as_python_writes_them(net: dict[str, Any], opened: Open) -> None:
    p = opened(net)
    for kernel in net["kernels"]:
        root = kernel["parts"][0]["ast"]
        lines = p.page.evaluate("root => graphLines(root).map(l => l[1])", root)
        assert lines == graph_lines(net, root)
