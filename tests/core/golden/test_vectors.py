"""Aster against the golden vectors: results and gradients of the reference, case by case."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.errors import NumberRangeWarning
from tests.core.golden import catalogue, differs, vectors
from tests.core.golden.vectors import Case, Value

# Units in the last place (see `vectors.difference`): 84 of float32 are 1e-5 relative.
UNITS = {"float32": 84, "float64": 84, "float16": 4, "bfloat16": 8}


def computed(cases: list[Case]) -> dict[str, list[Value] | Exception]:
    """Aster's values, all cases in one call of realize."""
    planned: list[tuple[Case, list[tuple[str, Any]]]] = []
    found: dict[str, list[Value] | Exception] = {}
    for case in cases:
        try:
            planned.append((case, vectors.plan(case, Tensor, dtypes)))
        except Exception as error:
            found[case.name] = error
    Tensor.realize(*[t for _, labelled in planned for _, t in labelled])
    for case, labelled in planned:
        found[case.name] = [vectors.read(label, t) for label, t in labelled]
    return found


def line_of(got: list[Value] | Exception, want: list[Value]) -> str:
    """How the values of a case differ, "" where they do not."""
    if isinstance(got, Exception):
        return f"{type(got).__name__}: {got}"
    if [v.label for v in got] != [v.label for v in want]:
        return f"values {[v.label for v in got]}, not {[v.label for v in want]}"
    for mine, theirs in zip(got, want):
        line = vectors.difference(mine, theirs, UNITS.get(theirs.dtype, 0))
        if line:
            return f"{mine.label}: {line}"
    return ""


def right_line(case: Case, got: list[Value] | Exception, want: list[Value]) -> str:
    """The same against the right values of a case that the reference gets wrong."""
    known = differs.right_values(case)
    if known is None or isinstance(got, Exception):
        return line_of(got, want)
    if not line_of(got, want):
        return f"differs.py says that the reference is wrong ({known[0]}), and it is not"
    arrays = [
        np.asarray(vectors.seen(leaf, i)) for leaf, i in zip(vectors.leaves(case), case.inputs)
    ]
    if case.grads:
        arrays.append(vectors.weights(case, 0, got[0].array.shape))
    right = [
        Value(v.label, v.dtype, np.asarray(a).astype(v.array.dtype))
        for v, a in zip(got, known[1](*arrays), strict=True)
    ]
    return line_of(got, right)


@pytest.mark.parametrize("group", catalogue.GROUPS)
def test_group(group: str) -> None:
    cases = catalogue.find(group)
    want = vectors.unpack(vectors.FOLDER / f"{group}.npz")
    assert list(want) == [c.name for c in cases], "run tools/make_golden_vectors.py"
    with warnings.catch_warnings():
        # Lists whose numbers do not fit are among the cases.
        warnings.simplefilter("ignore", NumberRangeWarning)
        got = computed(cases)
    lines = [(c.name, right_line(c, got[c.name], want[c.name])) for c in cases]
    wrong = [f"{name}: {line}" for name, line in lines if line]
    assert not wrong, f"{len(wrong)} of {len(want)} differ:\n" + "\n".join(wrong[:60])


def test_every_correction_has_its_case() -> None:
    names = {c.name for cases in catalogue.GROUPS.values() for c in cases}
    assert set(differs.ROWS) <= names
    assert len(names) >= 2000


def test_the_files_are_small() -> None:
    sizes = [path.stat().st_size for path in vectors.FOLDER.iterdir()]
    assert sum(sizes) < 8 << 20


def test_inputs_come_from_the_name() -> None:
    # SHA-256 of "x:0", as anyone computes it, read as 32-bit numbers.
    assert vectors.drawn("x", 3).tolist() == [3801324219, 1729395221, 2895064201]
    assert vectors.numbers("x", (2,), "int32", -3, 4).tolist() == [
        -3 + 3801324219 % 7,
        -3 + 1729395221 % 7,
    ]
    assert vectors.numbers("x", (), "float64", 0, 1) == (3801324219 % (1 << 20)) / (1 << 20)


def test_a_difference_is_seen() -> None:
    def value(*numbers: float, dtype: str = "float32") -> Value:
        return Value("out 0", dtype, np.array(numbers, dtype=dtype))

    one = value(1.0, 2.0)
    assert vectors.difference(one, one, 0) == ""
    assert "1 of 2 differ" in vectors.difference(value(1.0, 2.0001), one, 84)
    assert vectors.difference(value(1.0, 2.00001), one, 84) == ""
    assert "1 of 1" in vectors.difference(value(float("nan")), value(1.0), 84)
    assert "1 of 1" in vectors.difference(value(1.0), value(float("inf")), 84)
    assert "dtype" in vectors.difference(value(1.0, dtype="float64"), value(1.0), 84)
    assert "shape" in vectors.difference(one, value(1.0), 84)
