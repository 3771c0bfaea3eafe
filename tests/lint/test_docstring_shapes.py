"""Reads every `Shapes:` line, draws sizes and asks shape inference whether the line is true.

The language of the lines is in `tests/lint/shapes.py`. Lines of Tensor methods are tried on Tensor,
lines of the classes of `nn` on an instance; what cannot be parsed, or called, fails.
"""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.lint.shapes import Draw, ShapesError, draw, matches, parse_line, shapes_text
from tests.lint.sources import package_modules, place

DRAWS = 8
Make = Callable[[tuple[int, ...], str], Any]


class Case(NamedTuple):
    """A `Shapes:` line and what it speaks of."""

    owner: Any
    name: str
    text: str


def documented_lines() -> Iterator[tuple[str, str]]:
    """Place and text of every `Shapes:` section in the sources."""
    for module in package_modules():
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                text = shapes_text(ast.get_docstring(node))
                if text is not None:
                    yield f"{place(module.path, node)}: {node.name}", text


def method_cases(owner: Any) -> list[Case]:
    """The members of a class, its own and inherited ones, that have a `Shapes:` line."""
    cases = []
    for name in dir(owner):
        member = inspect.getattr_static(owner, name)
        member = getattr(member, "__func__", member)
        text = shapes_text(getattr(member, "__doc__", None))
        if text is not None and not name.startswith("_"):
            cases.append(Case(owner, name, text))
    return cases


def fill_parameters(function: Any, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The drawn values as positional and keyword arguments of `function`."""
    parameters = inspect.signature(function).parameters
    unknown = given.keys() - parameters.keys()
    if unknown:
        raise ShapesError(f"{', '.join(sorted(unknown))} is no parameter of {function}")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty
        if parameter.kind is parameter.VAR_POSITIONAL:
            value = given.get(name, ())
            args += value if isinstance(value, (tuple, list)) else [value]
        elif name in given and parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[name] = given[name]
        elif name in given:
            # Positional as long as nothing was left out, so that *args can follow.
            if kwargs or len(args) < list(parameters).index(name):
                kwargs[name] = given[name]
            else:
                args.append(given[name])
        elif required and parameter.kind is not parameter.VAR_KEYWORD:
            raise ShapesError(f"parameter {name} has no value in the line")
    return args, kwargs


def shapes_of(result: Any) -> list[tuple[int, ...]]:
    """The shape, or shapes, of what a call returned."""
    values = result if isinstance(result, (tuple, list)) else [result]
    return [tuple(value.shape) for value in values]


def make_arguments(drawn: Draw, make: Make) -> dict[str, Any]:
    """The drawn arguments, shapes made into tensors."""
    given: dict[str, Any] = {}
    for value, drawn_value in drawn.arguments:
        if not value.kind:
            given[value.name] = drawn_value
        elif value.is_pair:
            given[value.name] = tuple(make(tuple(drawn_value), value.kind) for _ in range(2))
        else:
            given[value.name] = make(tuple(drawn_value), value.kind)
    return given


def check_case(case: Case, make: Make, draws: int = DRAWS) -> int:
    """Tries a line on `draws` choices of sizes a form; returns how many calls were compared."""
    line = parse_line(case.text)
    rng = random.Random(case.name)
    count = 0
    for form in line.forms:
        for _ in range(draws):
            drawn = draw(line, form, rng)
            given = make_arguments(drawn, make)
            shown = ", ".join(
                f"{value.name} {drawn_value}" for value, drawn_value in drawn.arguments
            )
            receiver = given.pop("self", case.owner)
            member = getattr(receiver, case.name)
            if callable(member):
                args, kwargs = fill_parameters(member, given)
                member = member(*args, **kwargs)
            got = shapes_of(member)
            want = ", ".join(result.text for result in form.results)
            said = f"{case.name} says {want}, and for {shown} gives {got}"
            assert len(got) == len(form.results), said
            for result, shape in zip(form.results, got):
                assert matches(result, drawn.sizes, shape), said
            count += 1
    return count


def make_tensor(shape: tuple[int, ...], kind: str) -> Any:
    """An unrealized Tensor of zeros: index arguments stay in range."""
    from aster_ml import Tensor, dtypes

    return Tensor.zeros(*shape, dtype=getattr(dtypes, kind))


def tensor_cases() -> list[Case]:
    """The Tensor methods with a line."""
    from aster_ml import Tensor

    return method_cases(Tensor)


def module_cases() -> list[Case]:
    """The classes of `nn` with a line whose constructor needs only sizes that the line names."""
    from aster_ml import nn

    cases = []
    for name, member in sorted(vars(nn).items()):
        text = shapes_text(member.__doc__) if inspect.isclass(member) else None
        if text is not None:
            needed = {
                parameter.name
                for parameter in inspect.signature(member).parameters.values()
                if parameter.default is parameter.empty
            }
            if needed <= parse_line(text).forms[0].names():
                cases.append(Case(member, name, text))
    return cases


def check_module(case: Case, make: Make, draws: int = DRAWS) -> int:
    """Builds the layer for drawn sizes, calls it, and compares; returns how many calls it made."""
    line = parse_line(case.text)
    rng = random.Random(case.name)
    own = inspect.signature(case.owner).parameters
    for _ in range(draws):
        drawn = draw(line, line.forms[0], rng)
        sizes = {name: size for name, size in drawn.sizes.items() if name in own}
        layer = case.owner(**sizes)
        given = make_arguments(drawn, make)
        args, kwargs = fill_parameters(layer, given)
        got = shapes_of(layer(*args, **kwargs))
        for result, shape in zip(line.forms[0].results, got, strict=True):
            said = f"{case.name}({sizes}) says {result.text}, and gives {shape}"
            assert matches(result, drawn.sizes, shape), said
    return draws


def test_every_line_parses() -> None:
    wrong = []
    for where, text in documented_lines():
        try:
            parse_line(text)
        except ShapesError as error:
            wrong.append(f"{where}: {error}")
    assert not wrong, "see tests/lint/shapes.py for the language:\n" + "\n".join(wrong)


def test_lines_of_tensor_methods_are_true() -> None:
    wrong = []
    cases = tensor_cases()
    for case in cases:
        try:
            assert check_case(case, make_tensor) > 0
        except Exception as error:
            wrong.append(f"{case.name}: {type(error).__name__}: {error}")
    assert len(cases) >= 20, f"only {len(cases)} Tensor methods have a Shapes: line"
    assert not wrong, f"{len(wrong)} lines are not true:\n" + "\n".join(wrong)


def test_lines_of_layers_are_true() -> None:
    wrong = []
    cases = module_cases()
    for case in cases:
        try:
            assert check_module(case, make_tensor) > 0
        except Exception as error:
            wrong.append(f"{case.name}: {type(error).__name__}: {error}")
    assert cases, "no layer of nn has a Shapes: line that can be tried"
    assert not wrong, f"{len(wrong)} lines are not true:\n" + "\n".join(wrong)


class ZerosArray:
    """Stands in for Tensor where the checks themselves are tested: NumPy does the shapes."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.array = np.zeros(shape)
        self.shape = shape

    def matmul(self, other: ZerosArray) -> ZerosArray:
        return ZerosArray((self.array @ other.array).shape)

    def reshape(self, *shape: int) -> ZerosArray:
        return ZerosArray(self.array.reshape(shape).shape)

    def halves(self, axis: int) -> list[ZerosArray]:
        return [ZerosArray(part.shape) for part in np.split(self.array, 2, axis)]

    def transposed(self, formula: str) -> ZerosArray:
        assert "->" in formula
        return self.T

    @staticmethod
    def dot_pair(pair: tuple[ZerosArray, ZerosArray]) -> ZerosArray:
        return ZerosArray(np.dot(pair[0].array, pair[1].array).shape)

    @property
    def T(self) -> ZerosArray:
        return ZerosArray(self.array.T.shape)


def make_zeros(shape: tuple[int, ...], kind: str) -> Any:
    """The stand-in's way to make an argument."""
    return ZerosArray(shape)


@pytest.mark.parametrize(
    "name, text",
    [
        ("matmul", "self [*b, n, k], other [*b, k, m] -> [*b, n, m]; b broadcasts."),
        ("matmul", "self [k], other [k, m] -> [m]; self [n, k], other [k] -> [n]."),
        ("reshape", "self [*b, n], shape=(n, *b) -> [n, *b]."),
        ("reshape", "self [*b, n], shape=(prod(b), n) -> [t, n]; t = prod(b)."),
        ("halves", "self [2 * n, m], axis=0 -> a pair of [n, m]."),
        ("halves", "self [n, m], axis=1 -> [n, k], [n, k]; m % 2 == 0; k = m // 2"),
        ("T", "self [n, m] -> [m, n]."),
        ("dot_pair", "pair a pair of [n] -> []."),
        ("T", "self [n, m] -> [m, anything]."),
        ("T", "self [n, *b] -> [*rest, n]."),
        ("transposed", "self [n, m], formula='n m -> m n; same' -> [m, n]."),
    ],
)
def test_true_lines_pass(name: str, text: str) -> None:
    assert check_case(Case(ZerosArray, name, text), make_zeros, 30) >= 30


@pytest.mark.parametrize(
    "name, text",
    [
        ("matmul", "self [*b, n, k], other [*b, k, m] -> [*b, m, n]; b broadcasts."),
        ("reshape", "self [*b, n], shape=(n, *b) -> [*b, n]."),
        ("halves", "self [2 * n, m], axis=0 -> [n, m]."),
        ("T", "self [n, m] -> [n, *rest]."),
        ("T", "self [n, m] -> [m, n, *rest, n]."),
    ],
)
def test_false_lines_fail(name: str, text: str) -> None:
    with pytest.raises(AssertionError, match="says"):
        check_case(Case(ZerosArray, name, text), make_zeros, 30)


@pytest.mark.parametrize(
    "text, message",
    [
        ("the shape of self.", "no `... -> ...`|expression"),
        ("self [n] -> same.", "a result is"),
        ("self -> [n].", "neither"),
        ("self [n] -> [n] -> [n].", "one arrow"),
        ("self [n] -> [n]; if all goes well.", "no expression"),
        ("self strange [n] -> [n].", "none of"),
        ("self [open(n)] -> [n].", "unknown function"),
        ("self [n.real] -> [n].", "no place"),
    ],
)
def test_other_lines_do_not_parse(text: str, message: str) -> None:
    with pytest.raises(ShapesError, match=message):
        parse_line(text)


def test_lines_that_cannot_be_called_fail() -> None:
    with pytest.raises(ShapesError, match="axis has no value"):
        check_case(Case(ZerosArray, "halves", "self [2] -> [1], [1]"), make_zeros)
    with pytest.raises(ShapesError, match="is no parameter"):
        check_case(Case(ZerosArray, "matmul", "self [2], weight [2] -> []"), make_zeros)
    with pytest.raises(ShapesError, match="nothing gives"):
        check_case(Case(ZerosArray, "T", "self [n] -> [n]; n < k"), make_zeros)
    with pytest.raises(ShapesError, match="no sizes were found"):
        check_case(Case(ZerosArray, "T", "self [n] -> [n]; n < 0"), make_zeros)


def test_section_is_read_to_its_end() -> None:
    docstring = "Meaning.\n\n    Shapes: self [n]\n        -> [n].\n    Dtype: that of self.\n"
    assert shapes_text(docstring) == "self [n] -> [n]."
    assert shapes_text("Meaning.") is None
