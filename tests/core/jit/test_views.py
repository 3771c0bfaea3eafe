"""Jitted functions of views: written through, shown by others besides, of values without memory.

Each function is called with tensors and with NumPy arrays, whose views are what is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, Variable
from tests.core.jit_helpers import vector

Array = np.ndarray[Any, Any]


def both(*numbers: int) -> tuple[Tensor, Array]:
    """The same memory on either side."""
    array = np.array(numbers, np.int32)
    return Tensor(array.copy()).realize(), array


def check_calls(call: Callable[[], Tensor], theirs: Callable[[], Array], calls: int = 6) -> None:
    """Calls either side again and again."""
    for number in range(calls):
        want = theirs().copy()
        assert call().tolist() == want.tolist(), number


def test_an_argument_is_written_while_the_function_reads_a_view_of_it() -> None:
    """It also reads what was written through the argument."""
    base, array = both(1, 2, 3, 4)
    shown, theirs = base.flip(0), array[::-1]

    def function(x: Any, y: Any) -> Any:
        x += 1
        return y + x

    jitted = TinyJit(lambda x: function(x, shown))
    check_calls(lambda: jitted(base), lambda: function(array, theirs))
    assert (base.tolist(), shown.tolist()) == (array.tolist(), theirs.tolist())
    # Other memory is another recording, and the first is right again afterwards.
    other, copied = both(5, 6, 7, 8)
    check_calls(lambda: jitted(other), lambda: function(copied, theirs))
    check_calls(lambda: jitted(base), lambda: function(array, theirs))


def test_an_argument_that_the_function_also_writes() -> None:
    w = vector(1)

    def function(x: Tensor) -> Tensor:
        y = x * 2
        w.assign(w + 1)
        return y

    jitted = TinyJit(function)
    for i in range(4):
        assert jitted(vector(i)).tolist() == [2 * i]
    for i in range(4):
        assert jitted(w).tolist() == [2 * (5 + i)]
        assert w.tolist() == [6 + i]
        assert jitted(w.reshape(1, 1)).tolist() == [[2 * (6 + i)]]
        assert w.tolist() == [7 + i]
        w.assign(vector(6 + i)).realize()
    assert jitted(vector(3)).tolist() == [6]


def test_a_row_of_memory_that_the_function_writes() -> None:
    base, array = Tensor(np.zeros((3, 2), np.int32)).realize(), np.zeros((3, 2), np.int32)

    @TinyJit
    def jitted(row: Tensor) -> Tensor:
        base.assign(base + 1)
        return row * 10

    for i in (0, 1, 2, 0, 1, 2, 2, 0):
        array += 1
        assert jitted(base[i]).tolist() == (array[i] * 10).tolist()
        assert base.tolist() == array.tolist()


@pytest.mark.parametrize("is_whole_read", [False, True])
def test_a_write_through_windows(is_whole_read: bool) -> None:
    """They are shown by movement that pads, so what they show is computed."""
    base, array = both(1, 2, 3, 4, 5)
    windows, theirs = base.unfold(0, 2, 3), np.lib.stride_tricks.as_strided(array, (2, 2), (12, 4))

    def function(x: Tensor) -> Tensor:
        x += x
        return x.flip(0) * 3

    def wanted() -> Array:
        np.add(theirs, theirs, theirs)
        return theirs[::-1] * 3

    jitted = TinyJit(function)
    for number in range(6):
        want = wanted()
        assert jitted(windows).tolist() == want.tolist(), number
        if is_whole_read or number == 5:
            assert (base.tolist(), windows.tolist()) == (array.tolist(), theirs.tolist())
        if number == 3:
            base += 1
            array += 1


def test_windows_as_argument_and_the_whole_from_around() -> None:
    base, array = both(1, 2, 3, 4)
    windows, theirs = base.unfold(0, 3, 3), array[None, :3]

    def function(x: Tensor) -> list[Tensor]:
        base.assign(base * 2)
        return [x, x + 1]

    jitted = TinyJit(function)
    for _ in range(6):
        array *= 2
        got = jitted(windows)
        assert got[0] is windows
        assert [t.tolist() for t in got] == [theirs.tolist(), (theirs + 1).tolist()]


@pytest.mark.parametrize("is_written", [False, True])
def test_a_view_of_a_value_without_memory(is_written: bool) -> None:
    def function(x: Tensor) -> Tensor:
        if is_written:
            x += 10
        return x * 2

    jitted = TinyJit(function)
    for i in range(6):
        whole = Tensor(np.arange(6, dtype=np.int32)) * (i + 1)
        view = whole[2:4]
        want = np.arange(6) * (i + 1)
        want[2:4] += 10 * is_written
        assert jitted(view).tolist() == (want[2:4] * 2).tolist()
        assert (whole.tolist(), view.tolist()) == (want.tolist(), want[2:4].tolist())


@pytest.mark.parametrize("whole", ["number", "computed", "filled", "realized"])
def test_a_view_of_symbolic_size(whole: str) -> None:
    make = {
        "number": lambda: Tensor.ones(5, 3),
        "computed": lambda: Tensor.arange(15).reshape(5, 3) * 2,
        "filled": lambda: Tensor.ones(5, 3).contiguous(),
        "realized": lambda: (Tensor.arange(15).reshape(5, 3) * 2).realize(),
    }[whole]
    jitted = TinyJit(lambda x: x.sum(0))
    for size in (2, 4, 1, 5, 3):
        base = make()
        got = jitted(base[: Variable("rows", 1, 5).bind(size)])
        assert got.tolist() == base.numpy()[:size].sum(0).tolist()


def test_functions_that_only_show() -> None:
    x, y = vector(1, 2, 3), vector(4, 5, 6)
    for function in (lambda t: t, lambda t: t[1:].reshape(2, 1), lambda t: {"a": (y, t.flip(0))}):
        jitted = TinyJit(function)
        for t in (x, x, x, y, x):
            got, want = jitted(t), function(t)
            if isinstance(want, dict):
                got, want = got["a"][1], want["a"][1]
            assert got.tolist() == want.tolist()
            got += 1
            assert want.tolist() == got.tolist()


def test_a_view_of_what_was_computed_from_other_memory_before() -> None:
    """The whole of two views, which nobody has, reads what memory held before a write."""
    w = vector(1, 2, 3)
    whole = w * 2
    one, other = whole[1:], whole[:2]
    del whole
    one.realize()
    w += 100
    w.realize()
    other += 1
    assert (one.tolist(), other.tolist()) == ([5, 6], [3, 5])


def test_steps_that_run_over_the_end_are_read_before_they_are_written() -> None:
    base, array = both(1, 2, 3, 4)
    base[::3] = base.flip(0)[::3]
    array[::3] = array[::-1][::3].copy()
    assert base.tolist() == array.tolist()
