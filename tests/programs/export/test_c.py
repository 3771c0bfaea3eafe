"""Functions exported as C: the same numbers, files that others read, errors that help.

What is compiled needs a C compiler on PATH.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from aster_ml import Tensor, TinyJit, Variable, dtypes, nn
from aster_ml.errors import ArgumentError, AsterError, JitError
from aster_ml.export.__main__ import main
from aster_ml.export.source import source_of
from aster_ml.export.trace import joined
from aster_ml.export.write import export
from aster_ml.nn.onnx import to_onnx
from tests.programs.export.compiled import Library

compiled = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on PATH")
DIGITS = """
from aster_ml import Tensor
from aster_ml.apps.demo import DigitReader, normalize

Tensor.manual_seed(3)
model = DigitReader()
model.norm1.running_mean.assign(Tensor.rand(16)).realize()

def digits(image):
    return model(normalize(image).reshape(1, 1, 28, 28)).softmax().reshape(10)

def digits_inputs():
    return Tensor.zeros(28, 28, dtype="uint8")

def number(image):
    return image.float().sum().item()

def looks(image):
    return image + int(image.float().sum().item())

def noisy(image):
    return image.float() + Tensor.rand(28, 28)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file with functions."""
    path = tmp_path / "file.py"
    path.write_text(DIGITS, encoding="utf-8")
    return path


@pytest.mark.parametrize("isa", ["baseline", "plain"])
@pytest.mark.cc
@compiled
def test_digits_give_the_same_numbers(source: Path, tmp_path: Path, isa: str, capsys: Any) -> None:
    out = tmp_path / "out"
    assert main([f"{source}:digits", "--c", str(out), "--isa", isa]) == 0
    assert "digits.safetensors" in capsys.readouterr().out
    standard = ("-std=c99", "-pedantic") if isa == "plain" else ()
    flags = (*standard, "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared")
    library = Library(out, "digits", flags)
    scope: dict[str, Any] = {}
    exec(DIGITS, scope)
    for seed in range(3):
        image = np.random.default_rng(seed).integers(0, 256, (28, 28)).astype(np.uint8)
        wanted = scope["digits"](Tensor(image)).numpy()
        np.testing.assert_allclose(library([image], [wanted])[0], wanted, atol=1e-5)
    library.close()


def many(x: Tensor, n: Tensor) -> dict[str, Any]:
    """Results of all kinds: computed, an input, a weight, a number, several of one memory."""
    y = (x @ x.transpose(0, 1)).contiguous()
    return {
        "y": y, "again": [y, y.T], "part": x[1:, ::2], "same": n, "weight": WEIGHT, "int": n * 2,
        "one": Tensor.full((2, 3), 4.0), "flags": n > 2, "half": x.half(), "brain": x.bfloat16(),
        "long": n.cast(dtypes.int64) << 33, "double": x.double() / 3,
    }  # fmt: skip


WEIGHT = Tensor([1.5, 2.5])


@pytest.mark.cc
@compiled
@pytest.mark.parametrize("inside", [False, True])
def test_results_of_all_kinds(tmp_path: Path, inside: bool) -> None:
    x = Tensor.arange(15).reshape(3, 5).float() / 7
    n = Tensor([1, 2, 3], dtype=dtypes.int32)
    folder = export(many, [x, n], tmp_path / "out", inside=inside)
    header = (folder / "many.h").read_text()
    for words in ("x: 3 x 5, float32, 60 bytes", "const int32_t *n", "half: 3 x 5, float16, as bi"):
        assert words in header
    library = Library(folder, "many")
    assert library.said == ""
    found = many(x, n)
    tensors = [found["y"], *found["again"], *list(found.values())[2:]]
    wanted = [t.numpy() if t.dtype is not dtypes.bfloat16 else bits(t) for t in tensors]
    for got, want in zip(library([x.numpy(), n.numpy()], wanted), wanted, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-6)


def bits(t: Tensor) -> Any:
    """A bfloat16 as what it is in memory."""
    return t.contiguous().bitcast(dtypes.uint16).numpy()


@pytest.mark.cc
@compiled
@pytest.mark.parametrize("isa", ["baseline", "plain"])
def test_halves_are_rounded_as_numpy_does(tmp_path: Path, isa: str) -> None:
    draw = np.random.default_rng(1)
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    bits = draw.integers(0, 1 << 32, 4096, dtype=np.uint32)
    near = every[:: 1 << 5].astype(np.float32).view(np.uint32) + draw.integers(-2, 3, 2048)
    wide = np.concatenate([bits, near.astype(np.uint32), near.astype(np.uint32) | 0x1000])
    floats = wide.view(np.float32)
    ties = every[:0x7C00].astype(np.float64)
    ties = np.concatenate([(ties[1:] + ties[:-1]) / 2 * (1 + d) for d in (0, 2**-40, -(2**-40))])

    def f(halves: Tensor, floats: Tensor, doubles: Tensor) -> list[Tensor]:
        return [halves.float(), floats.half(), doubles.half()]

    folder = export(f, [Tensor(every), Tensor(floats), Tensor(-ties)], tmp_path / "out", isa=isa)
    with np.errstate(all="ignore"):
        wanted = [every.astype(np.float32), floats.astype(np.float16), (-ties).astype(np.float16)]
    found = Library(folder, "f")([every, floats, -ties], wanted)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.cc
@compiled
def test_a_state_begins_as_it_is_and_stays_in_the_model(tmp_path: Path) -> None:
    count = Tensor([10.0, 20.0]).contiguous().realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        count.assign(count + x)
        return count * 2

    folder = export(step, Tensor([1.0, 2.0]), tmp_path / "out")
    np.testing.assert_array_equal(count.numpy(), [10, 20])
    assert "one thread at a time" in (folder / "step.h").read_text()
    library = Library(folder, "step")
    x = np.array([1, 2], np.float32)
    other = library.open(library.weights)
    for i in range(1, 4):
        np.testing.assert_array_equal(library([x], [x])[0], [20 + 2 * i, 40 + 4 * i])
    np.testing.assert_array_equal(library([x], [x], other)[0], [22, 44])


@pytest.mark.cc
@compiled
def test_inputs_that_nothing_reads_and_results_without_elements(tmp_path: Path) -> None:
    def f(x: Tensor, unused: Tensor, empty: Tensor) -> list[Tensor]:
        return [x * 2, x[0:0], empty + 1]

    given = [np.arange(3, dtype=np.float32), np.ones(2, np.int32), np.ones((0, 4), np.float32)]
    folder = export(f, given, tmp_path / "out")
    wanted = [given[0] * 2, given[0][0:0], given[2]]
    found = Library(folder, "f")(given, wanted)
    np.testing.assert_array_equal(found[0], wanted[0])
    assert [x.shape for x in found[1:]] == [(0,), (0, 4)]


@pytest.mark.cc
@compiled
def test_a_model_of_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the package onnx is absent")
    layers = nn.Linear(6, 8), nn.Linear(8, 3)
    path = tmp_path / "net.onnx"

    def net(x: Tensor) -> Tensor:
        return layers[1](layers[0](x).relu()).softmax()

    to_onnx(net, {"x": Tensor.rand(2, 6)}, path)
    assert main([str(path), "--c", str(tmp_path / "out"), "--name", "other", "--inside"]) == 0
    x = np.random.default_rng(0).random((2, 6), np.float32)
    wanted = net(Tensor(x)).numpy()
    found = Library(tmp_path / "out", "other")([x], [wanted])
    np.testing.assert_allclose(found[0], wanted, atol=1e-6)


def test_sizes_that_are_not_given_are_named(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="the package onnx is absent")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3])]
    given = helper.make_tensor_value_info("x", kind, ["batch", 1, "height", None])
    given.type.tensor_type.shape.dim[3].Clear()
    made = helper.make_tensor_value_info("y", kind, [None] * 4)
    graph = helper.make_graph(nodes, "g", [given], [made])
    opset = [helper.make_opsetid("", 18)]
    path = tmp_path / "pool.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    with pytest.raises(ArgumentError, match=r"batch, height, x.3 have 1 .*--size batch=N"):
        source_of(str(path), {})
    with pytest.raises(ArgumentError, match=r"no axis 'hight' without a size; there are ba"):
        source_of(str(path), {"hight": 8})
    found = source_of(str(path), {"height": 8, "x.3": 5})
    assert [tensor.shape for tensor in found.inputs.values()] == [(1, 1, 8, 5)]


@pytest.mark.cc
@compiled
def test_kernels_that_run_part_by_part_are_whole_ones(tmp_path: Path) -> None:
    q, k, v = (Tensor.randn(1, 4, 256, 32).realize() for _ in range(3))
    wanted = q.scaled_dot_product_attention(k, v).numpy()
    folder = export(
        Tensor.scaled_dot_product_attention, [q, k, v], tmp_path / "out", name="attention"
    )
    found = Library(folder, "attention")([q.numpy(), k.numpy(), v.numpy()], [wanted])
    np.testing.assert_allclose(found[0], wanted, atol=1e-5)


@pytest.mark.cc
@compiled
def test_threads_share_a_model(tmp_path: Path) -> None:
    layer = nn.Linear(64, 64)
    folder = export(
        lambda x: layer(layer(x).relu()).softmax(), Tensor.rand(32, 64), tmp_path / "out"
    )
    library = Library(folder, "function")
    draw = np.random.default_rng(0)
    cases = [draw.random((32, 64), np.float32) for _ in range(4)]
    wanted = [library([x], [x])[0] for x in cases]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(50):
            if not np.array_equal(library([cases[i]], [cases[i]])[0], wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.cc
@compiled
def test_weights_are_read_by_others_and_other_files_are_refused(tmp_path: Path) -> None:
    layer = nn.Linear(4, 3)
    folder = export(layer, Tensor.rand(2, 4), tmp_path / "out", name="layer")
    path = folder / "layer.safetensors"
    found = safetensors.numpy.load_file(path)
    wanted = sorted([layer.weight.numpy().tobytes(), layer.bias.numpy().tobytes()])
    assert sorted([x.tobytes() for x in found.values()]) == wanted
    library = Library(folder, "layer")
    assert library.model
    good = path.read_bytes()
    for bad in (good[:-1], good + b"x", good[:9] + b"?" + good[10:], b"", good[:20]):
        path.write_bytes(bad)
        assert library.open(path) is None
    assert library.open(folder / "absent") is None
    other = export(layer, Tensor.rand(5, 4), tmp_path / "other", name="layer")
    assert library.open(other / "layer.safetensors"), "the same weights of another shape"
    layer.bias.assign(layer.bias + 1).realize()
    changed = export(layer, Tensor.rand(2, 4), tmp_path / "changed", name="layer")
    assert library.open(changed / "layer.safetensors") is None


def test_of_memory_that_several_share_what_is_read_is_cut_out() -> None:
    assert joined([(8, 9), (0, 4), (2, 6), (6, 7)]) == [(0, 6), (6, 7), (8, 9)]


def test_sizes_of_variables_are_fixed(tmp_path: Path) -> None:
    n = Variable("n", 1, 10).bind(4)
    x = Tensor.rand(10)[:n]
    with pytest.raises(AsterError, match="sizes are fixed in what is exported"):
        export(lambda x: x + 1, x, tmp_path / "out", name="f")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["FILE:nothing", "--c", "OUT"], "has no function nothing; it has digits"),
        (["FILE", "--c", "OUT"], "path/to/file.py:function"),
        (["absent.py:f", "--c", "OUT"], "absent.py: there is no such file"),
        (["absent.module:f", "--c", "OUT"], "there is no module absent.module"),
        (["FILE:number", "--c", "OUT"], "write a function number_inputs() (or inputs()) beside it"),
        (["absent.onnx", "--c", "OUT"], "absent.onnx"),
        (["FILE:digits", "--c", "FOLDER"], "has 1 file; name a folder that is empty or not there"),
        (["FILE:digits", "--c", "FILE"], "is there and no folder"),
    ],
)
def test_bad_words_say_what_would_do(
    source: Path, tmp_path: Path, words: list[str], says: str, capsys: Any
) -> None:
    # Beside the program there may be its bytecode.
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    names = {"FILE": str(source), "OUT": str(tmp_path / "out"), "FOLDER": str(full)}
    given = [w if w not in names else names[w] for w in words]
    given[0] = given[0].replace("FILE", str(source))
    assert main(given) == 1
    assert says in capsys.readouterr().err
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"file.py", "full"}


def test_functions_that_are_no_recording_are_refused(source: Path, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(DIGITS, scope)
    image = Tensor.zeros(28, 28, dtype="uint8")
    out = tmp_path / "out"
    with pytest.raises(AsterError, match="returns float"):
        export(scope["number"], image, out)
    with pytest.raises(JitError):
        export(scope["looks"], image, out)
    with pytest.raises(AsterError, match="draws random numbers"):
        export(scope["noisy"], image, out)
    with pytest.raises(AsterError, match="writes to its input x"):
        export(lambda x: x.assign(x + 1), image.float(), out, name="f")
    with pytest.raises(AsterError, match="input x is int"):
        export(lambda x: x + 1, 3, out)
    with pytest.raises(AsterError, match="isa 'mmx'; there are baseline"):
        export(lambda x: x + 1, image, out, isa="mmx")
    with pytest.raises(AsterError, match="form 'rust'; there are c"):
        export(lambda x: x + 1, image, out, "rust")
    with pytest.raises(AsterError, match="returns no tensor"):
        export(lambda x: None, image, out)
    assert not out.exists()


class Layers:
    """A network of two layers and a number."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.scale = Tensor([0.5]).realize()

    def __call__(self, x: Tensor) -> Tensor:
        """[n, 4] -> [n, 2]."""
        return self.second(self.first(x).relu()) * self.scale


def test_weights_keep_the_names_of_their_network(tmp_path: Path) -> None:
    net, other = Layers(), nn.Linear(2, 3)
    x = Tensor.rand(3, 4)
    forms = {
        "object": net, "method": net.__call__, "closure": lambda x: net(x) + 1, "jit": TinyJit(net),
    }  # fmt: skip
    for name, function in forms.items():
        folder = export(function, [x], tmp_path / name, name="layers")
        found = safetensors.numpy.load_file(folder / "layers.safetensors")
        state = nn.state.get_state_dict(net)
        assert found.keys() == state.keys()
        for key, t in state.items():
            np.testing.assert_array_equal(found[key], t.numpy())
    # Several networks have their variables in front; what has no name has a number.
    free = Tensor.rand(3).realize()
    held = [free]

    def both(x: Tensor) -> Tensor:
        return other(net(x)) * held[0]

    folder = export(both, [x], tmp_path / "both")
    found = safetensors.numpy.load_file(folder / "both.safetensors")
    assert {"net.first.weight", "other.bias", "held.0"} < found.keys()
    again = nn.state.load_state_dict
    fresh = Layers()
    again(
        fresh, {k[4:]: Tensor(v) for k, v in found.items() if k.startswith("net.")}, verbose=False
    )
    np.testing.assert_array_equal(fresh(x).numpy(), net(x).numpy())
