"""Movement, joining and splitting: each mistake, and what is said of it."""

from __future__ import annotations

import pytest

from aster_ml.errors import ArgumentError, IndexRangeError, ShapeError, UnsupportedError
from tests.core.errors.mistakes import Mistake, check_mistake, matrix

MISTAKES: list[Mistake] = [
    (lambda: matrix().reshape(7), ShapeError, "reshape: [2,3] has 6 elements, [7] has 7"),
    (
        lambda: matrix().reshape(-1, -1),
        ShapeError,
        "reshape: only one size can be -1, given (-1, -1)",
    ),
    (
        lambda: matrix().reshape("a"),
        ArgumentError,
        "reshape: 'a' is a str; a whole number is wanted as a size",
    ),
    (lambda: matrix().reshape(None, 4), ShapeError, "reshape: [2,3] has 6 elements, [2,4] has 8"),
    (lambda: matrix().view(5), ShapeError, "reshape: [2,3] has 6 elements, [5] has 5"),
    (
        lambda: matrix().expand(4, 3),
        ShapeError,
        "expand: axis 0 of [2,3] has size 2, which does not repeat to 4 in [4,3]",
    ),
    (
        lambda: matrix().permute(0),
        ShapeError,
        "permute: (0,) does not name each of the 2 axes of [2,3] once",
    ),
    (
        lambda: matrix().permute(0, 5),
        IndexRangeError,
        "permute: axis 5 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().transpose(0, 3),
        IndexRangeError,
        "transpose: axis 3 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().flip(2),
        IndexRangeError,
        "flip: axis 2 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (lambda: matrix().flip(0, 0), ArgumentError, "flip: axes (0, 0) name one axis twice"),
    (lambda: matrix().flip("a"), ArgumentError, "flip: axis 'a' is a str; an int is wanted"),
    (
        lambda: matrix().shrink(((1, 0), (0, 3))),
        ShapeError,
        "shrink: part 1 to 0 of axis 0, which has size 2 in [2,3]",
    ),
    (
        lambda: matrix().pad((1, 1, 1, 1, 1, 1)),
        ShapeError,
        "pad: 6 numbers for 2 axes of [2,3]; two for each axis are possible",
    ),
    (
        lambda: matrix().pad((1, 1), mode="nope"),
        UnsupportedError,
        "pad: mode 'nope'; there are constant, reflect, replicate, circular",
    ),
    (
        lambda: matrix().pad((4, 4), mode="reflect"),
        ShapeError,
        "pad: mode 'reflect' with 4 and 4 on axis 1 of size 3, which has too few elements",
    ),
    (
        lambda: matrix().pad((4, 4), mode="circular"),
        ShapeError,
        "pad: mode 'circular' with 4 and 4 on axis 1 of size 3; it goes around once at most, at",
    ),
    (
        lambda: matrix().squeeze(0).squeeze(3),
        IndexRangeError,
        "squeeze: axis 3 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().squeeze(5),
        IndexRangeError,
        "squeeze: axis 5 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().unsqueeze(4),
        IndexRangeError,
        "unsqueeze: axis 4 of a value of 3 axes, [2,3]; -3 to 2 would do",
    ),
    (
        lambda: matrix().flatten(2),
        IndexRangeError,
        "flatten: axis 2 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().unflatten(4, (2, 2)),
        IndexRangeError,
        "unflatten: axis 4 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (lambda: matrix().repeat(-1, 2), ShapeError, "repeat: size -1 is negative"),
    (lambda: matrix().repeat_interleave(-1), ShapeError, "repeat_interleave: size -1 is negative"),
    (
        lambda: matrix().repeat_interleave(2, dim=5),
        IndexRangeError,
        "repeat_interleave: axis 5 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (lambda: matrix().split(0), ArgumentError, "split: parts of 0; a positive size is wanted"),
    (
        lambda: matrix().split([1, 2, 3]),
        ShapeError,
        "split: sizes (1,2,3) add up to 6, axis 0 of [2,3] has 2",
    ),
    (
        lambda: matrix().split(2, dim=5),
        IndexRangeError,
        "split: axis 5 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (lambda: matrix().chunk(-2), ArgumentError, "chunk: -2 parts; a positive number is wanted"),
    (
        lambda: matrix().roll(1, 4),
        IndexRangeError,
        "roll: axis 4 of a value of 2 axes, [2,3]; -2 to 1 would do",
    ),
    (
        lambda: matrix().roll((1, 2), 0),
        ArgumentError,
        "roll: 2 shifts for 1 axes; equally many are wanted",
    ),
    (
        lambda: matrix().rearrange("a b"),
        ArgumentError,
        "rearrange: 'a b' wants one arrow, `a b -> b a`",
    ),
    (
        lambda: matrix().rearrange("a b -> (a b"),
        ArgumentError,
        "rearrange: a bracket is not closed in 'a b -> (a b'",
    ),
    (
        lambda: matrix().rearrange("a b c -> a b c"),
        ArgumentError,
        "rearrange: 'a b c -> a b c' names 3 axes, the value has 2: [2,3]",
    ),
    (
        lambda: matrix().rearrange("a (b c) -> a b c"),
        ArgumentError,
        "rearrange: the sizes of b and c in 'a (b c) -> a b c' cannot both be found; give one of",
    ),
    (
        lambda: matrix().pad_to(1, 3),
        ShapeError,
        "pad_to: axis 0 of [2,3] is larger than the 1 wanted; shrink_to makes it smaller",
    ),
    (
        lambda: matrix().shrink_to(4, 3),
        ShapeError,
        "shrink: part 0 to 4 of axis 0, which has size 2 in [2,3]",
    ),
    (lambda: matrix().pad_to(5), ShapeError, "pad_to: 1 sizes for the 2 axes of [2,3]"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[m[2][:50] for m in MISTAKES])
def test_mistake(mistake: Mistake) -> None:
    check_mistake(mistake)
