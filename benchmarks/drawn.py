"""What the random cases of `sets` compute, in each library's own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.draws import Array, draw_input, summary
from benchmarks.libraries import Lazy, Library
from benchmarks.row import Case


def case_of(library: Library, function: Callable[..., Any], inputs: list[Any]) -> Case:
    """The repeated call of a function of tensors."""
    call = library.compiled(function)

    def run() -> Any:
        result = call(*inputs)
        library.wait()
        return result

    return Case(run, lambda: summary(library.array(run())))


def is_torch(library: Library) -> bool:
    """PyTorch, compiled or not."""
    return library.name in ("torch", "compile")


# matmul


def small_integers(name: str, shape: tuple[int, ...]) -> Array:
    """For products of int8: all of -8..7."""
    return np.clip(np.rint(draw_input(name, shape) * 4), -8, 7).astype(np.float32)


def multiply(library: Library, dtype: str) -> Callable[[Any, Any], Any]:
    """The product as the library has it; of int8 in int32, as quantised networks want it."""
    m = library.module
    if dtype != "int8":
        return lambda a, b: a @ b
    if isinstance(library, Lazy):
        return lambda a, b: a.matmul(b, dtype=m.dtypes.int32)
    if is_torch(library):
        return lambda a, b: m._int_mm(a, b)
    if library.name == "jax":
        return lambda a, b: m.numpy.matmul(a, b, preferred_element_type="int32")
    return lambda a, b: m.matmul(a, b, dtype="int32")


def build_matmul(
    library: Library, b: int, m: int, n: int, k: int, turned: list[bool], dtype: str
) -> Case:
    """[b, m, k] @ [b, k, n]; an operand that is turned lies in memory as its transpose."""
    draw = small_integers if dtype == "int8" else draw_input
    inputs = []
    for name, rows, columns, turn in (("a", m, k, turned[0]), ("b", k, n, turned[1])):
        shape = (columns, rows) if turn else (rows, columns)
        array = draw(name, shape if b == 1 else (b, *shape))
        tensor = library.tensor(array)
        inputs.append(tensor if dtype == "float32" else library.cast(tensor, dtype))
    product = multiply(library, dtype)

    def upright(x: Any, turn: bool) -> Any:
        if not turn:
            return x
        if isinstance(library, Lazy) or is_torch(library):
            return x.transpose(-1, -2)
        return x.swapaxes(-1, -2)

    return case_of(
        library, lambda x, y: product(upright(x, turned[0]), upright(y, turned[1])), inputs
    )


# convolution


def build_conv(
    library: Library,
    x: list[int],
    w: list[int],
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> Case:
    """A convolution over two axes."""
    m = library.module
    words = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if isinstance(library, Lazy):

        def convolve(a: Any, b: Any) -> Any:
            return a.conv2d(b, **words)
    elif is_torch(library):

        def convolve(a: Any, b: Any) -> Any:
            return m.nn.functional.conv2d(a, b, **words)
    elif library.name == "jax":

        def convolve(a: Any, b: Any) -> Any:
            return m.lax.conv_general_dilated(
                a,
                b,
                (stride, stride),
                [(padding, padding)] * 2,
                rhs_dilation=(dilation, dilation),
                feature_group_count=groups,
            )
    else:
        raise NotImplementedError(f"{library.name} has no such operation")
    inputs = [library.tensor(draw_input(n, shape)) for n, shape in (("x", x), ("w", w))]
    return case_of(library, convolve, inputs)


# reductions and norms


def array_words(m: Any, exp: Any, log: Any) -> dict[str, Callable[..., Any]]:
    """Reductions as NumPy and JAX write them."""

    def softmax(x: Any, axis: Any) -> Any:
        e = exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    def logsumexp(x: Any, axis: Any) -> Any:
        top = x.max(axis, keepdims=True)
        return log(exp(x - top).sum(axis)) + top.reshape(x.sum(axis).shape)

    return {
        "sum": lambda x, axis: x.sum(axis),
        "max": lambda x, axis: x.max(axis),
        "mean": lambda x, axis: x.mean(axis),
        "softmax": softmax,
        "norm": lambda x, axis: (x * x).sum(axis) ** 0.5,
        "logsumexp": logsumexp,
        "standardize": lambda x, axis: (
            (x - x.mean(axis, keepdims=True)) / (x.var(axis, keepdims=True) + 1e-5) ** 0.5
        ),
        "rms": lambda x, axis: x / ((x * x).mean(axis, keepdims=True) + 1e-5) ** 0.5,
    }


def reductions(library: Library) -> dict[str, Callable[..., Any]]:
    """Each kind of `sets.REDUCTIONS` as a function of a tensor and its axes."""
    m = library.module
    if isinstance(library, Lazy):
        return {
            "sum": lambda x, axis: x.sum(axis),
            "max": lambda x, axis: x.max(axis),
            "mean": lambda x, axis: x.mean(axis),
            "softmax": lambda x, axis: x.softmax(axis[0]),
            "norm": lambda x, axis: (x * x).sum(axis).sqrt(),
            "logsumexp": lambda x, axis: x.logsumexp(axis),
            "standardize": lambda x, axis: x.layernorm(axis, eps=1e-5),
            "rms": lambda x, axis: x * ((x * x).mean(axis, keepdim=True) + 1e-5).rsqrt(),
        }
    if is_torch(library):
        return {
            "sum": lambda x, axis: x.sum(axis),
            "max": lambda x, axis: x.amax(axis),
            "mean": lambda x, axis: x.mean(axis),
            "softmax": lambda x, axis: x.softmax(axis[0]),
            "norm": lambda x, axis: m.linalg.vector_norm(x, dim=axis),
            "logsumexp": lambda x, axis: x.logsumexp(axis),
            "standardize": lambda x, axis: (
                (x - x.mean(axis, keepdim=True))
                * (x.var(axis, correction=0, keepdim=True) + 1e-5).rsqrt()
            ),
            "rms": lambda x, axis: x * ((x * x).mean(axis, keepdim=True) + 1e-5).rsqrt(),
        }
    if library.name == "jax":
        words = array_words(m, m.numpy.exp, m.numpy.log)
        words["softmax"] = lambda x, axis: m.nn.softmax(x, axis)
        words["logsumexp"] = lambda x, axis: m.nn.logsumexp(x, axis)
        return words
    return array_words(m, m.exp, m.log)


def build_reduction(library: Library, kind: str, shape: list[int], axes: list[int]) -> Case:
    """One reduction or norm over some axes."""
    f = reductions(library)[kind]
    axis = tuple(axes)
    return case_of(library, lambda x: f(x, axis), [library.tensor(draw_input("x", shape))])


# elementwise


def words_of(library: Library) -> dict[str, Callable[..., Any]]:
    """Each op of `sets.ONE` and `sets.TWO`; division and roots keep off their poles."""
    m = library.module
    has_abs = isinstance(library, Lazy) or is_torch(library)

    def positive(a: Any) -> Any:
        return a.abs() if has_abs else abs(a)

    words: dict[str, Callable[..., Any]] = {
        "neg": lambda a: -a,
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / (positive(b) + 1),
    }
    if has_abs:
        maximum = m.maximum if is_torch(library) else m.Tensor.maximum
        return {
            **words,
            "relu": lambda a: a.relu(),
            "sigmoid": lambda a: a.sigmoid(),
            "tanh": lambda a: a.tanh(),
            "decay": lambda a: (-a.abs()).exp(),
            "root": lambda a: (a.abs() + 1).sqrt(),
            "max": maximum,
        }
    a_np = m.numpy if library.name == "jax" else m
    return {
        **words,
        "relu": lambda a: a_np.maximum(a, 0),
        "sigmoid": (m.nn.sigmoid if library.name == "jax" else lambda a: 1 / (1 + a_np.exp(-a))),
        "tanh": a_np.tanh,
        "decay": lambda a: a_np.exp(-abs(a)),
        "root": lambda a: a_np.sqrt(abs(a) + 1),
        "max": a_np.maximum,
    }


def build_mix(library: Library, shapes: list[list[int]], expression: Any) -> Case:
    """One elementwise expression."""
    words = words_of(library)

    def value(e: Any, inputs: tuple[Any, ...]) -> Any:
        if isinstance(e, int):
            return inputs[e]
        return words[e[0]](*[value(x, inputs) for x in e[1:]])

    inputs = [library.tensor(draw_input(f"x{i}", s)) for i, s in enumerate(shapes)]
    return case_of(library, lambda *args: value(expression, args), inputs)


CASES = {
    "drawn matmul": build_matmul,
    "drawn conv": build_conv,
    "drawn reduction": build_reduction,
    "drawn mix": build_mix,
}
