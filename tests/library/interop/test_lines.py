"""Ordinary lines: what people type with a tensor at hand, each with what it gives.

A line that should raise says what would do. Lines with packages that take long to import are
`slow`; `make interop` runs them all and counts.
"""

from __future__ import annotations

import copy
import importlib
import io
import itertools
import json
import math
import pickle
import random
import re
import statistics
import struct
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, dtypes, nn
from aster_ml.complex import ComplexTensor
from aster_ml.errors import DTypeError, JitError, ShapeError

# Packages that take long to import.
HEAVY = {
    "jaxtyping", "joblib", "matplotlib", "pandas", "polars", "scipy", "sklearn", "tensorboard",
    "tokenizers", "xarray",
}  # fmt: skip


class Line(NamedTuple):
    """`run` is given the packages; what it gives equals `gives`, or is an error of that text."""

    name: str
    run: Callable[..., Any]
    gives: Any
    packages: tuple[str, ...] = ()
    error: type[Exception] | None = None


def matrix() -> Tensor:
    return Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()


def vector() -> Tensor:
    return Tensor([1.0, 2.0, 3.0]).realize()


def number() -> Tensor:
    return Tensor([3.5]).sum()


def ints() -> Tensor:
    return Tensor([0, 1, 1])


def plain(value: Any) -> Any:
    """Lists and numbers of whatever came out."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def fill(target: Any) -> Any:
    target += vector()
    return type(target).__name__, target.tolist()


def saved(save: Callable[[Any, Any], None], load: Callable[[Any], Any], value: Any) -> Any:
    file = io.BytesIO()
    save(file, value)
    file.seek(0)
    return load(file)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@TinyJit
def double(x: Tensor) -> Tensor:
    return (x * 2).realize()


def scalar_logged(tensorboard: Any, torch: Any, value: Any) -> str:
    from torch.utils.tensorboard.summary import scalar

    return str(scalar("loss", value).value[0].tag)


def checked(jaxtyping: Any, beartype: Any) -> Any:
    @jaxtyping.jaxtyped(typechecker=beartype.beartype)
    def f(x: jaxtyping.Float32[Tensor, "n n"]) -> Any:  # noqa: F722
        return x.shape

    return f(matrix())


def regression(sklearn: Any) -> Any:
    from sklearn.linear_model import LinearRegression

    x = Tensor([[0.0], [1.0], [2.0], [3.0]])
    return np.round(LinearRegression().fit(x, x.flatten() * 2 + 1).predict(x), 3)


def plotted(matplotlib: Any) -> Any:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    line = axes.plot(vector(), vector() * 2)[0]
    axes.imshow(matrix())
    axes.hist(vector())
    pyplot.close(figure)
    return line.get_ydata()


def autograd(torch: Any) -> Any:
    w = torch.ones(2, requires_grad=True)
    return Tensor(w), Tensor(w).requires_grad


def shared(torch: Any) -> Any:
    t = vector()
    torch.from_dlpack(t)[0] = 9
    return t


def without_torch_gradient(torch: Any) -> Any:
    w = torch.ones(2, requires_grad=True)
    return Tensor.from_dlpack(w.detach())


PYTHON = [
    Line("float(t)", lambda: float(number()), 3.5),
    Line("int(t)", lambda: int(number()), 3),
    Line("complex(t)", lambda: complex(number()), 3.5 + 0j),
    Line("f'{t:.3f}'", lambda: f"{number():.3f}", "3.500"),
    Line("'%.2f' % t", lambda: f"{number():.2f}", "3.50"),
    Line("round(float(t), 1)", lambda: round(float(number()), 1), 3.5),
    Line("round(t), round(t, 1)",
         lambda: (round(number()), (round(vector() * 1.26, 1) * 10).round()),
         (4.0, [13, 25, 38])),
    Line("divmod(t, 2)", lambda: divmod(vector(), 2), ([0, 1, 1], [1, 0, 1])),
    Line("divmod(7, t)", lambda: divmod(7, vector()), ([7, 3, 2], [0, 1, 1])),
    Line("+t", lambda: +vector(), [1, 2, 3]),
    Line("t * 1j", lambda: (vector() * 1j).tolist(), [1j, 2j, 3j]),
    Line("1j + t", lambda: (1j + vector()).tolist(), [1 + 1j, 2 + 1j, 3 + 1j]),
    Line("t * complex array", lambda: (vector() * np.array([1j, 1, 1j])).tolist(), [1j, 2, 3j]),
    Line("complex array * t", lambda: (np.array([1j, 1, 1j]) * vector()).tolist(), [1j, 2, 3j]),
    Line("Tensor(complex array)", lambda: Tensor(np.array([1j])), "ComplexTensor", (), DTypeError),
    Line("np.exp(z)", lambda: np.round(np.exp(ComplexTensor([np.pi * 1j])).numpy().real), [-1]),
    Line("np.from_dlpack(z)", lambda: np.from_dlpack(ComplexTensor([1j])).tolist(), [1j]),
    Line("np.fft.fft(z)", lambda: np.fft.fft(ComplexTensor([1, 1j])).tolist(), [1 + 1j, 1 - 1j]),
    Line("pickle z", lambda: pickle.loads(pickle.dumps(ComplexTensor([2j]))).tolist(), [2j]),
    Line("f'{z:.1f}'", lambda: f"{ComplexTensor(1 + 2j):.1f}", "1.0+2.0j"),
    Line("math.sqrt(t)", lambda: math.sqrt(Tensor(16.0)), 4.0),
    Line("range(t)", lambda: list(range(Tensor(3))), [0, 1, 2]),
    Line("list[t]", lambda: "abc"[Tensor(1)], "b"),
    Line("hex(t)", lambda: hex(Tensor(255)), "0xff"),
    Line("len(t)", lambda: len(vector()), 3),
    Line("for row in t", lambda: [row.tolist() for row in matrix()], [[1, 2], [3, 4]]),
    Line("zip(t, t)", lambda: [(a + b).item() for a, b in zip(ints(), ints())], [0, 2, 2]),
    Line("a, b, c = t", lambda: (lambda a, b, c: (a * b * c).item())(*vector()), 6.0),
    Line("sum([t, t])", lambda: sum([vector(), vector()]), [2, 4, 6]),
    Line("3.0 in t", lambda: (3.0 in vector(), 5.0 in vector()), (True, False)),
    Line("t in [t]", lambda: (lambda t: t in [t])(vector()), True),
    Line("t in {t}", lambda: (lambda t: t in {t})(vector()), True),
    Line("{t: 1}[t]", lambda: (lambda t: {t: 1}[t])(vector()), 1),
    Line("statistics.mean", lambda: statistics.mean(map(float, vector())), 2.0),
    Line("random.choice", lambda: random.Random(0).choice(Tensor([7, 7])).item(), 7),
    Line("itertools.accumulate", lambda: list(itertools.accumulate(ints()))[-1].item(), 2),
    Line("struct.pack", lambda: struct.pack("f", Tensor(1.0)), struct.pack("f", 1.0)),
    Line("bytes(t)", lambda: bytes(Tensor([1, 2], dtype="uint8")), b"\x01\x02"),
    Line("array.array('f', t)", lambda: array("f", vector()).tolist(), [1, 2, 3]),
    Line("Tensor(array.array)", lambda: Tensor(array("d", [1, 2])).dtype.name, "float64"),
    Line("Tensor(range(3))", lambda: Tensor(range(3)), [0, 1, 2]),
    Line("json.dumps(float(t))", lambda: json.dumps({"loss": float(number())}), '{"loss": 3.5}'),
    Line("json.dumps(t.tolist())", lambda: json.dumps(ints().tolist()), "[0, 1, 1]"),
    Line("json default=float", lambda: json.dumps(number(), default=float), "3.5"),
    Line("print(t)", lambda: str(vector()), "<Tensor [3] float32 on CPU: [1., 2., 3.]>"),
    Line("print(t), a matrix", lambda: str(matrix()),
         "<Tensor [2,2] float32 on CPU:\n [[1., 2.],\n  [3., 4.]]>"),
    Line("print(t), not computed", lambda: str(vector() + 1), "<Tensor [3] float32 on CPU>"),
    Line("t in a notebook", lambda: matrix()._repr_html_().count("<td>"), 4),
    Line("copy.deepcopy(t)", lambda: copy.deepcopy(vector()), [1, 2, 3]),
    Line("copy.copy(t)", lambda: copy.copy(vector()), [1, 2, 3]),
    Line("pickle a tensor", lambda: pickled(vector()), [1, 2, 3]),
    Line("pickle a dtype", lambda: pickled(vector().dtype) is dtypes.float32, True),
    Line("pickle a layer", lambda: pickled(nn.Linear(2, 1)).weight.shape, (1, 2)),
    Line("t.item()", lambda: number().item(), 3.5),
    Line("t == None", lambda: (vector() == None) is False, True),  # noqa: E711
    Line("max(t.tolist())", lambda: max(vector().tolist()), 3.0),
]  # fmt: skip
DTYPES = [
    Line("t.dtype == 'float32'", lambda: vector().dtype == "float32", True),
    Line("t.dtype == 'int'", lambda: vector().dtype == "int", False),
    Line("t.dtype == 'nonsense'", lambda: vector().dtype == "nonsense", False),
    Line("t.dtype != 'float32'", lambda: vector().dtype != "float32", False),
    Line("t.dtype == np.float32", lambda: vector().dtype == np.float32, True),
    Line("np.float32 == t.dtype", lambda: np.dtype(np.float32) == vector().dtype, True),
    Line("np.dtype(t.dtype)", lambda: np.dtype(vector().dtype).name, "float32"),
    Line("dtype=np.float16", lambda: Tensor([1], dtype=np.float16).dtype.name, "float16"),
    Line("dtype=float", lambda: Tensor([1], dtype=float).dtype.name, "float64"),
    Line("t.cast(np.dtype('i8'))", lambda: vector().cast(np.dtype("i8")).dtype.name, "int64"),
    Line("np.zeros(2, t.dtype)", lambda: np.zeros(2, vector().dtype).dtype.name, "float32"),
    Line("dtype=torch.float16", lambda torch: Tensor([1], dtype=torch.float16).dtype.name,
         "float16", ("torch",)),
    Line("t.dtype == torch.float32", lambda torch: vector().dtype == torch.float32, True,
         ("torch",)),
]  # fmt: skip
NUMPY = [
    Line("np.asarray(t)", lambda: np.asarray(vector()), [1, 2, 3]),
    Line("np.array(t)", lambda: np.array(vector()).flags.writeable, True),
    Line("np.sum(t)", lambda: np.sum(vector()), 6.0),
    Line("np.mean(t, axis=0)", lambda: np.mean(matrix(), axis=0), [2, 3]),
    Line("np.max(t)", lambda: np.max(vector()), 3.0),
    Line("np.argmax(t)", lambda: np.argmax(vector()), 2),
    Line("np.sin(t)", lambda: np.sin(vector() * 0), [0, 0, 0]),
    Line("np.exp(t) is a Tensor", lambda: type(np.exp(vector())).__name__, "Tensor"),
    Line("np.add(t, 1)", lambda: np.add(vector(), 1), [2, 3, 4]),
    Line("np.add.reduce(t)", lambda: np.add.reduce(vector()), 6.0),
    Line("np.hypot(t, t)", lambda: np.hypot(Tensor([3.0]), Tensor([4.0])), [5.0]),
    Line("array + t", lambda: np.ones(3, np.float32) + vector(), [2, 3, 4]),
    Line("array += t", lambda: fill(np.ones(3)), ("ndarray", [2, 3, 4])),
    Line("array @ t", lambda: np.eye(2, dtype=np.float32) @ matrix(), [[1, 2], [3, 4]]),
    Line("np.float32(2) * t", lambda: np.float32(2) * vector(), [2, 4, 6]),
    Line("np.concatenate", lambda: np.concatenate([vector(), vector()]).shape, (6,)),
    Line("np.stack", lambda: np.stack([vector(), vector()]).shape, (2, 3)),
    Line("np.where(t > 1, t, 0)", lambda: np.where(vector() > 1, vector(), 0), [0, 2, 3]),
    Line("np.allclose", lambda: np.allclose(vector(), [1, 2, 3]), True),
    Line("np.testing", lambda: np.testing.assert_allclose(vector(), [1, 2, 3]), None),
    Line("np.linalg.norm(t)", lambda: np.linalg.norm(Tensor([3.0, 4.0])), 5.0),
    Line("np.save, np.load", lambda: saved(np.save, np.load, vector()), [1, 2, 3]),
    Line("np.bincount(t)", lambda: np.bincount(ints()), [1, 2]),
    Line("np.shape(t)", lambda: np.shape(matrix()), (2, 2)),
    Line("array[t]", lambda: np.arange(5)[Tensor([1, 3])], [1, 3]),
    Line("np.asarray(t, copy=False)", lambda: np.asarray(vector(), copy=False), [1, 2, 3]),
    Line("np.from_dlpack(t)", lambda: np.from_dlpack(vector()), [1, 2, 3]),
    Line("Tensor(np.float64(2))", lambda: Tensor(np.float64(2)).dtype.name, "float64"),
]  # fmt: skip
PACKAGES = [
    Line("torch.from_dlpack(t)", shared, [9, 2, 3], ("torch",)),
    Line("torch.tensor(z)", lambda torch: torch.tensor(ComplexTensor([1j])), [1j], ("torch",)),
    Line("torch.from_dlpack(z)", lambda torch: torch.from_dlpack(ComplexTensor([1j])), [1j],
         ("torch",)),
    Line("t * torch complex", lambda torch: (vector()[:1] * torch.tensor([2j])).tolist(), [2j],
         ("torch",)),
    Line("ComplexTensor(torch conj)",
         lambda torch: ComplexTensor(torch.tensor([1j]).conj()).tolist(), [-1j], ("torch",)),
    Line("torch.tensor(t)", lambda torch: torch.tensor(vector()), [1, 2, 3], ("torch",)),
    Line("torch.tensor(t), one", lambda torch: torch.tensor(number()), 3.5, ("torch",)),
    Line("torch.as_tensor(t)", lambda torch: torch.as_tensor(matrix()), [[1, 2], [3, 4]],
         ("torch",)),
    Line("torch.ones(3) + t", lambda torch: torch.ones(3) + vector(), [2, 3, 4], ("torch",)),
    Line("t + torch.ones(3)", lambda torch: vector() + torch.ones(3), [2, 3, 4], ("torch",)),
    Line("t[torch index]", lambda torch: vector()[torch.tensor([2, 0])], [3, 1], ("torch",)),
    Line("t[torch mask]", lambda torch: vector()[torch.tensor([True, False, True])], [1, 3],
         ("torch",)),
    Line("Tensor(torch bfloat16)", lambda torch: Tensor(torch.ones(2).bfloat16()).dtype.name,
         "bfloat16", ("torch",)),
    Line("Tensor(torch requires_grad)", autograd, [[1, 1], None], ("torch",)),
    Line("Tensor(torch strided)", lambda torch: Tensor(torch.ones(2, 3)[:, ::2]).shape, (2, 2),
         ("torch",)),
    Line("Tensor.from_dlpack(torch)", without_torch_gradient, [1, 1], ("torch",)),
    Line("torch.save(t)", lambda torch: saved(
        lambda f, t: torch.save(t, f), lambda f: torch.load(f, weights_only=False), vector()),
         [1, 2, 3], ("torch",)),
    Line("safetensors.numpy", lambda _: __import__("safetensors.numpy").numpy.load(
        __import__("safetensors.numpy").numpy.save({"a": np.asarray(vector())}))["a"], [1, 2, 3],
         ("safetensors",)),
    Line("einops.rearrange", lambda e: e.rearrange(matrix(), "a b -> (b a)"), [1, 3, 2, 4],
         ("einops",)),
    Line("einops.reduce", lambda e: e.reduce(matrix(), "a b -> b", "mean"), [2, 3], ("einops",)),
    Line("einops.repeat", lambda e: e.repeat(vector(), "a -> b a", b=2).shape, (2, 3),
         ("einops",)),
    Line("einops.einsum", lambda e: e.einsum(matrix(), vector()[:2], "a b, b -> a"), [5, 11],
         ("einops",)),
    Line("einops.pack", lambda e: e.pack([vector(), matrix().flatten()], "*")[0].shape, (7,),
         ("einops",)),
    Line("pandas.Series(t)", lambda p: p.Series(vector()).sum(), 6.0, ("pandas",)),
    Line("pandas.DataFrame(t)", lambda p: p.DataFrame(matrix()).shape, (2, 2), ("pandas",)),
    Line("polars.Series(t)", lambda p: p.Series(vector()).to_list(), [1, 2, 3], ("polars",)),
    Line("polars.DataFrame", lambda p: p.DataFrame({"a": vector()}).shape, (3, 1), ("polars",)),
    Line("xarray.DataArray(t)", lambda x: x.DataArray(matrix()).mean().item(), 2.5, ("xarray",)),
    Line("PIL.Image.fromarray", lambda _: __import__("PIL.Image").Image.fromarray(
        np.asarray(Tensor.zeros(4, 5, dtype="uint8"))).size, (5, 4), ("PIL",)),
    Line("sklearn fit", regression, [1, 3, 5, 7], ("sklearn",)),
    Line("sklearn split", lambda s: len(__import__("sklearn.model_selection").model_selection
         .train_test_split(Tensor.arange(10), test_size=0.3)[1]), 3, ("sklearn",)),
    Line("scipy.stats", lambda s: float(__import__("scipy.stats").stats.describe(vector()).mean),
         2.0, ("scipy",)),
    Line("matplotlib", plotted, [2, 4, 6], ("matplotlib",)),
    Line("tqdm(t)", lambda q: [float(x) for x in q.tqdm(vector(), disable=True)], [1, 2, 3],
         ("tqdm",)),
    Line("jaxtyping", checked, (2, 2), ("jaxtyping", "beartype")),
    Line("joblib.hash", lambda j: j.hash(vector()) == j.hash(vector()), True, ("joblib",)),
    Line("tensorboard, float(t)", lambda b, torch: scalar_logged(b, torch, float(number())),
         "loss", ("tensorboard", "torch")),
]  # fmt: skip
# A hundred and more with those that should raise, and what they say.
RAISING = [
    Line("bool(t)", lambda: bool(vector()), r"`\.item\(\)` gives the value", (), TypeError),
    Line("if t > 1", lambda: 1 if vector() > 1 else 0, r"`\.any\(\)`", (), TypeError),
    Line("max(t)", lambda: max(vector()), "truth of a Tensor", (), TypeError),
    Line("sorted(t)", lambda: sorted(vector()), "truth of a Tensor", (), TypeError),
    Line("float(vector)", lambda: float(vector()), "3 elements; one is wanted", (), ShapeError),
    Line("int(vector)", lambda: int(vector()), "`.tolist\\(\\)` gives all", (), ShapeError),
    Line("len(number)", lambda: len(number()), r"float\(t\)", (), TypeError),
    Line("list[float]", lambda: "abc"[Tensor(1.0)], "one of ints is wanted", (), TypeError),
    Line("dtype=complex", lambda: Tensor([1], dtype="complex64"), "there are", (), Exception),
    Line("Tensor of strings", lambda: Tensor(["a"]), "numbers are wanted", (), DTypeError),
    Line("json.dumps(t)", lambda: json.dumps(vector()), "Tensor is not JSON", (), TypeError),
    Line("tensorboard, t", lambda b, torch: scalar_logged(b, torch, number()),
         "numpy array or torch tensor are expected", ("tensorboard", "torch"),
         NotImplementedError),
    Line("torch.from_dlpack, gradient", lambda torch: torch.from_dlpack(
        Tensor([1.0], requires_grad=True)), r"t\.detach\(\)", ("torch",), BufferError),
    Line("pickle an unused TinyJit", lambda: pickled(double), "call it three times", (), JitError),
    Line("Tensor of a sparse matrix", lambda s: Tensor(
        __import__("scipy.sparse").sparse.eye_array(2)), r"x\.toarray\(\)", ("scipy",), DTypeError),
    Line("sin of text", lambda: vector() + "a", "a number or a Tensor is wanted", (), DTypeError),
]  # fmt: skip
LINES = [*PYTHON, *DTYPES, *NUMPY, *PACKAGES, *RAISING]


def holds(line: Line) -> bool:
    """Whether a line gives what it should, or raises it."""
    packages = [importlib.import_module(name) for name in line.packages]
    try:
        return bool(plain(line.run(*packages)) == plain(line.gives))
    except Exception as error:
        return (
            line.error is not None
            and isinstance(error, line.error)
            and bool(re.search(line.gives, str(error)))
        )


def case(line: Line) -> Any:
    marks = [pytest.mark.slow] if HEAVY.intersection(line.packages) else []
    marks += [pytest.mark.torch] if "torch" in line.packages else []
    return pytest.param(line, id=line.name, marks=marks)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("line", [case(line) for line in LINES])
def test_line(line: Line) -> None:
    packages = [pytest.importorskip(name, reason=f"{name} is absent") for name in line.packages]
    if line.error is not None:
        with pytest.raises(line.error, match=line.gives):
            line.run(*packages)
        return
    assert plain(line.run(*packages)) == plain(line.gives)


def test_there_are_enough_and_each_has_a_name() -> None:
    assert len(LINES) >= 101
    assert len({line.name for line in LINES}) == len(LINES)
