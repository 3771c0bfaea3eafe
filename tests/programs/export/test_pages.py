"""Functions exported for browsers: modules in Node and Chromium, a page to draw digits on."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, dtypes, nn
from aster_ml.apps.demo import DigitReader, normalize
from aster_ml.errors import AsterError, DeviceError, DTypeError
from aster_ml.export import module
from aster_ml.export.web import check_shared, escaped
from aster_ml.export.write import export
from tests.programs.export.pages import browser, call_module, listen, served

# A fixture.
assert browser
has_clang = shutil.which("clang") is not None and shutil.which("wasm-ld") is not None
wasm = pytest.mark.skipif(not has_clang, reason="no clang with wasm-ld on PATH")
node = pytest.mark.skipif(shutil.which("node") is None, reason="no node on PATH")
WEIGHT = Tensor([1.5, 2.5])


def many(x: Tensor, n: Tensor) -> dict[str, Any]:
    """Results of all kinds."""
    y = (x @ x.transpose(0, 1)).contiguous()
    return {
        "y": y, "again": [y, y.T], "part": x[1:, ::2], "same": n, "weight": WEIGHT, "int": n * 2,
        "one": Tensor.full((2, 3), 4.0), "flags": n > 2, "bytes": n.cast(dtypes.uint8) + 250,
        "soft": x.softmax(-1), "brain": x.bfloat16().bitcast(dtypes.uint16),
        "long": (n.cast(dtypes.int64) << 33) + 1, "half": x.half().float(),
    }  # fmt: skip


def many_inputs() -> list[Tensor]:
    """What it is called with."""
    return [
        Tensor.arange(15).reshape(3, 5).float() / 7,
        Tensor([1, 2, 3], dtype=dtypes.int32),
    ]


def check_many(found: dict[str, list[Any]], limit: float) -> None:
    """Compares outputs of the module with those of Aster."""
    wanted = many(*many_inputs())
    flat = {"again_0": wanted["again"][0], "again_1": wanted["again"][1]}
    flat |= {k if k not in ("int", "long") else f"{k}_": t for k, t in wanted.items()}
    del flat["again"]
    assert found.keys() == flat.keys()
    for name, t in flat.items():
        got = np.array([float(x) for x in found[name]])
        want = t.numpy().reshape(-1).astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=limit, atol=limit, err_msg=name)


def in_node(folder: Path, name: str, rows: list[dict[str, Any]]) -> list[Any]:
    """The outputs of a module in Node, for each of some inputs, by one model."""
    script = f"""
      const {{ load }} = await import("./{name}.js");
      const model = await load(), plain = x => typeof x === "bigint" ? x.toString() : Number(x);
      for (const given of {json.dumps(rows)}) {{
        const found = await model.run(given);
        console.log(JSON.stringify(Object.fromEntries(
          Object.entries(found).map(([k, v]) => [k, Array.from(v, plain)]))));
      }}"""
    (folder / "run.mjs").write_text(script)
    done = subprocess.run(
        ["node", "run.mjs"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def plain(tensors: list[Tensor]) -> dict[str, list[Any]]:
    """Inputs for JavaScript."""
    return {name: t.numpy().reshape(-1).tolist() for name, t in zip("xn", tensors)}


@wasm
@node
def test_webassembly_in_node_gives_results_of_all_kinds(tmp_path: Path) -> None:
    folder = export(many, many_inputs(), tmp_path / "out", "wasm")
    (found,) = in_node(folder, "many", [plain(many_inputs())])
    check_many(found, 1e-6)


@wasm
@node
def test_webassembly_keeps_its_state(tmp_path: Path) -> None:
    count = Tensor([10.0, 20.0]).contiguous().realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        count.assign(count + x)
        return count * 2

    folder = export(step, Tensor([1.0, 2.0]), tmp_path / "out", "wasm")
    found = in_node(folder, "step", [{"x": [1, 2]}] * 3)
    assert [row["result"] for row in found] == [[22, 44], [24, 48], [26, 52]]


@wasm
@node
def test_bad_inputs_of_a_module_are_refused_in_words(tmp_path: Path) -> None:
    folder = export(nn.Linear(3, 2), Tensor.rand(4, 3), tmp_path / "out", "wasm", name="layer")
    with pytest.raises(AssertionError, match="input x wants a Float32Array of 12 elements"):
        in_node(folder, "layer", [{"x": [1, 2]}])
    other = export(nn.Linear(3, 2), Tensor.rand(4, 3), tmp_path / "other", "wasm", name="layer")
    shutil.copy(other / "layer.safetensors", folder)
    with pytest.raises(AssertionError, match="is of another export than this module"):
        in_node(folder, "layer", [{"x": [0] * 12}])


def test_webassembly_without_clang_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="apt-get install clang lld"):
        export(lambda x: x + 1, Tensor.rand(2), tmp_path / "out", "wasm")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["web", "wasm"])
def test_dtypes_without_an_array_are_refused(tmp_path: Path, form: str) -> None:
    with pytest.raises(DTypeError, match=r"fp8e4m3\[2\] has a dtype that a page has no array of"):
        export(lambda x: x.cast(dtypes.fp8e4m3), Tensor.rand(2), tmp_path / "out", form)


def test_float64_is_refused_for_webgpu(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match="float64"):
        export(lambda x: x.double().exp().float(), Tensor.rand(2), tmp_path / "out", "web")
    assert not (tmp_path / "out").exists()


def test_a_page_is_a_module_with_shaders_and_all_that_a_launch_needs(tmp_path: Path) -> None:
    layer = nn.Linear(30, 20)
    folder = export(
        lambda x: layer(x).relu().sum(1), Tensor.rand(7, 30), tmp_path / "out", "web", name="net"
    )
    names = {path.name for path in folder.iterdir()}
    assert names == {"net.js", "net.safetensors", "index.html", "page.js"}
    text = (folder / "net.js").read_text()
    assert "var<storage, read_write>" in text
    assert '{"name": "x", "dtype": "float32", "shape": [7, 30], "nbytes": 840}' in text
    assert "{{" not in text.replace("{{ ", "")
    assert "<title>net</title>" in (folder / "index.html").read_text()
    assert 'from "./net.js"' in (folder / "page.js").read_text()


def test_large_weights_are_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_NBYTES", 1000)
    a, b = nn.Linear(20, 20), nn.Linear(20, 10)
    folder = export(lambda x: b(a(x)), Tensor.rand(2, 20), tmp_path / "out", "web", name="net")
    names = sorted([path.name for path in folder.glob("*.safetensors")])
    assert names == ["net-1-of-2.safetensors", "net-2-of-2.safetensors"]


def test_bindings_of_one_buffer() -> None:
    apart = [(0, 0, 256), (0, 256, 256), (1, 0, 16)]
    assert check_shared("k", apart, [1, 0, 0])
    assert not check_shared("k", apart, [1, 1, 0])
    assert not check_shared("k", apart, [0, 0, 1])
    with pytest.raises(AsterError, match="overlapping bytes of one buffer"):
        check_shared("k", [(0, 0, 256), (0, 128, 256)], [1, 0])
    assert escaped("a`b${c}\\") == "a\\`b\\${c}\\\\"


@pytest.mark.slow
@pytest.mark.viz
def test_functions_that_round_are_right_where_sums_are_put_together(
    tmp_path: Path, browser: Any
) -> None:
    """The compilers of browsers may: x + (c - (x + c)) would be 0."""
    x = np.linspace(-4, 4, 33).astype(np.float32)

    def f(x: Tensor) -> list[Tensor]:
        return [x.tanh(), x.sin(), x.round(), (x.abs() + 0.1).log(), x.exp()]

    folder = export(f, Tensor(x), tmp_path / "out", "web")
    with served(folder) as address:
        found, said = call_module(browser, address, "f", {"x": x.tolist()})
    assert said == []
    for got, want in zip(found.values(), f(Tensor(x)), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.viz
def test_webgpu_gives_results_of_all_kinds(tmp_path: Path, browser: Any) -> None:
    folder = export(many, many_inputs(), tmp_path / "out", "web")
    with served(folder) as address:
        found, said = call_module(browser, address, "many", plain(many_inputs()))
    assert said == []
    check_many(found, 1e-5)


def digits_page(folder: Path, form: str) -> DigitReader:
    """Exports the network of the demo, as it is before training."""
    Tensor.manual_seed(3)
    model = DigitReader()
    model.norm1.running_mean.assign(Tensor.rand(16)).realize()

    def digits(image: Tensor) -> Tensor:
        return model(normalize(image).reshape(1, 1, 28, 28)).softmax().reshape(10)

    export(digits, Tensor.zeros(28, 28, dtype=dtypes.uint8), folder, form)
    return model


@pytest.mark.slow
@pytest.mark.viz
@pytest.mark.parametrize("planes", [False, True])
def test_pictures_are_read_from_files(tmp_path: Path, browser: Any, planes: bool) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is absent")
    pixels = np.random.default_rng(1).integers(0, 256, (9, 12, 3)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "some.png")
    (tmp_path / "no.png").write_text("no picture")
    wanted = pixels.transpose(2, 0, 1) if planes else pixels
    example = Tensor.zeros(1, *wanted.shape, dtype="uint8").contiguous()
    export(lambda x: x.cast("int32") + 1, example, tmp_path / "out", "web", name="bright")
    page = browser.new_page()
    said = listen(page)
    with served(tmp_path / "out") as address:
        page.goto(f"{address}/index.html")
        page.wait_for_function("window.latest", timeout=60_000)
        page.locator("input[type=file]").set_input_files(str(tmp_path / "some.png"))
        page.wait_for_function("window.latest.result[0] > 1", timeout=60_000)
        found = page.evaluate("Array.from(window.latest.result)")
        page.locator("input[type=file]").set_input_files(str(tmp_path / "no.png"))
        page.wait_for_function("document.getElementById('said').textContent", timeout=60_000)
        words = page.inner_text("#said")
    page.close()
    assert found == (wanted.astype(np.int32) + 1).reshape(-1).tolist()
    assert words.startswith("no.png is no picture that this browser reads: ")
    assert said == []


TOKENS, PLACES, WIDE = 50, 6, 8


class Cached:
    """A layer of attention over the tokens so far, which it keeps."""

    def __init__(self) -> None:
        self.tokens, self.places = (
            Tensor(np.random.default_rng(n).standard_normal((n, WIDE)).astype(np.float32))
            for n in (TOKENS, PLACES)
        )
        self.seen = Tensor.zeros(PLACES, WIDE).contiguous().realize()

    def step(self, token: Tensor, at: Tensor) -> dict[str, Tensor]:
        """[1], [1] -> the next token, and what speaks for each."""
        x = self.tokens[token].reshape(WIDE) + self.places[at].reshape(WIDE)
        numbers = Tensor.arange(PLACES).reshape(PLACES, 1)
        self.seen.assign((numbers == at).where(x.reshape(1, WIDE), self.seen))
        scores = (numbers <= at).where((self.seen * x).sum(1, keepdim=True), -float("inf"))
        logits = (scores.softmax(0) * self.seen).sum(0) @ self.tokens.T
        return {"next": logits.argmax().reshape(1).cast("int32"), "logits": logits}


@pytest.mark.slow
@pytest.mark.viz
def test_a_language_model_generates_in_a_page(tmp_path: Path, browser: Any) -> None:
    def number(n: int) -> Tensor:
        return Tensor([n], dtype="int32")

    export(Cached().step, [number(0), number(0)], tmp_path, "web")
    model, token, wanted, speaking = Cached(), 3, [], []
    for at in range(PLACES):
        found = model.step(number(token), number(at))
        token = int(found["next"].numpy()[0])
        wanted.append(token)
        speaking.append(found["logits"].numpy())
    script = """async steps => {
      const { load } = await import("./step.js");
      const model = await load(), tokens = [], speaking = [];
      for (let at = 0, token = 3; at < steps; at++) {
        const found = await model.run({ token: [token], at: [at] });
        tokens.push(token = found.next[0]);
        speaking.push(Array.from(found.logits));
      }
      return [tokens, speaking];
    }"""
    page = browser.new_page()
    said = listen(page)
    with served(tmp_path) as address:
        page.goto(f"{address}/index.html")
        tokens, logits = page.evaluate(script, PLACES)
    page.close()
    assert tokens == wanted
    np.testing.assert_allclose(logits, speaking, rtol=1e-4, atol=1e-4)
    assert said == []


@pytest.mark.slow
@pytest.mark.viz
@pytest.mark.parametrize("form", ["web", pytest.param("wasm", marks=wasm)])
def test_digits_are_drawn_with_the_mouse(tmp_path: Path, browser: Any, form: str) -> None:
    model = digits_page(tmp_path / "out", form)
    page = browser.new_page()
    said = listen(page)
    with served(tmp_path / "out") as address:
        page.goto(f"{address}/index.html")
        page.wait_for_function("window.latest", timeout=60_000)
        assert page.inner_text("#said") == ""
        box = page.locator("canvas").bounding_box()
        page.mouse.move(box["x"] + 60, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + 210, box["y"] + 60, steps=4)
        page.mouse.move(box["x"] + 120, box["y"] + 230, steps=6)
        page.mouse.up()
        script = """async () => {
          const canvas = document.querySelector("canvas");
          const all = canvas.getContext("2d").getImageData(0, 0, 28, 28).data;
          const image = Uint8Array.from({ length: 784 }, (_, i) => all[4 * i]);
          const found = await window.model.run({ image });
          return [Array.from(image), Array.from(found.result)];
        }"""
        image, found = page.evaluate(script)
        shown = page.locator(".bar").count()
    page.close()
    pixels = np.array(image, np.uint8).reshape(1, 1, 28, 28)
    assert (pixels > 128).sum() > 30
    wanted = model(normalize(Tensor(pixels))).softmax().numpy()[0]
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert shown == 10
    assert said == []


@pytest.mark.slow
@pytest.mark.viz
def test_a_browser_without_webgpu_is_told_so_in_words(tmp_path: Path, browser: Any) -> None:
    export(lambda x: x + 1, Tensor.rand(4), tmp_path / "out", "web", name="f")
    for script, says in (
        ("Object.defineProperty(Navigator.prototype, 'gpu', { value: undefined })",
         "This browser has no WebGPU"),
        ("navigator.gpu.requestAdapter = async () => null", "found no graphics processor"),
        ("navigator.gpu.requestAdapter = async () => ({ limits: {}, requestDevice: async () => {"
         " throw new Error('no device today'); } })", "no device today"),
    ):  # fmt: skip
        page = browser.new_page()
        said = listen(page)
        page.add_init_script(script)
        with served(tmp_path / "out") as address:
            page.goto(f"{address}/index.html")
            page.wait_for_function(
                f"document.getElementById('said').textContent.includes({says!r})", timeout=20_000
            )
        assert page.locator("#run").is_disabled()
        page.close()
        assert said == []
