"""What stands in square brackets, read and written, beside NumPy.

Ints, slices, None, Ellipsis, lists of ints, masks, arrays and tensors are drawn side by side, in a
tuple or in a list, which is a tuple where it has more than numbers. Plain ints select first, as in
PyTorch: NumPy is asked in two steps where it would have another order of axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml import Context, Tensor, nn
from aster_ml.errors import IndexRangeError
from tests.fuzz.budget import check_all, draws

Record = Callable[[str, str], None]
SIZES = (0, 1, 2, 3, 4, 5, 7, 8)


class Drawn:
    """An index: `ours` as it is given here, `first` and `second` for NumPy, one after the other."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        rank = int(rng.integers(1, 5))
        self.shape = tuple(int(rng.choice(SIZES)) for _ in range(rank))
        self.ours: list[Any] = []
        self.first: list[Any] = []
        self.second: list[Any] = []
        # Axes that tensors, lists and masks index broadcast to this shape.
        self.common = [(), (1,), (2,), (3,), (2, 3), (0,), (4, 1)][int(rng.integers(7))]
        axis = 0
        dots = False
        while axis < rank:
            kind = int(rng.integers(9))
            if kind == 0 and len(self.ours) < 6:
                self.take(None, None, None)
            elif kind == 1 and not dots:
                dots = True
                skipped = int(rng.integers(0, rank - axis + 1))
                self.ours.append(Ellipsis)
                self.first += [slice(None)] * skipped
                self.second += [slice(None)] * skipped
                axis += skipped
            elif kind < 4:
                self.take_slice(self.shape[axis])
                axis += 1
            elif kind < 6 and self.shape[axis]:
                i = int(rng.integers(-self.shape[axis], self.shape[axis]))
                self.ours.append(i if rng.random() < 0.8 else np.int64(i))
                self.first.append(i)
                axis += 1
            elif kind == 8 and self.common in ((), (1,)):
                axis += self.take_mask(axis)
            elif self.shape[axis]:
                self.take_ints(self.shape[axis])
                axis += 1
            else:
                self.take_slice(self.shape[axis])
                axis += 1
            if not dots and rng.random() < 0.15:
                break
        if dots:
            # What follows an ellipsis stands for the last axes.
            self.first += [slice(None)] * (rank - axis)

    def take(self, ours: Any, first: Any, second: Any) -> None:
        self.ours.append(ours)
        self.first.append(first)
        self.second.append(slice(None) if second is None else second)

    def take_slice(self, size: int) -> None:
        rng = self.rng
        parts = [
            int(rng.integers(-size - 2, size + 3)) if rng.random() < 0.6 else None for _ in "ab"
        ]
        step = [None, 1, 2, 3, -1, -2][int(rng.integers(6))]
        self.take(slice(*parts, step), slice(*parts, step), None)

    def take_ints(self, size: int) -> None:
        shape = tuple(s if self.rng.random() < 0.8 else 1 for s in self.common)
        array = self.rng.integers(-size, size, shape)
        form = int(self.rng.integers(4)) if array.ndim else 3
        ours: Any = array
        if form == 0 or array.size == 0:
            ours = array.tolist()
        elif form == 1:
            ours = array.astype(np.int32)
        elif form == 2:
            ours = tuple(array.tolist())
        elif form == 3:
            ours = Tensor(array.astype(np.int32))
        self.take(ours, slice(None), array)

    def take_mask(self, axis: int) -> int:
        """A mask of one axis or two that names one place, so that it broadcasts."""
        rank = min(int(self.rng.integers(1, 3)), len(self.shape) - axis)
        mask = np.zeros(self.shape[axis : axis + rank], np.bool_)
        if mask.size:
            mask[tuple(int(self.rng.integers(s)) for s in mask.shape)] = True
        else:
            self.take_slice(self.shape[axis])
            return 1
        ours: Any = [mask, mask.tolist(), Tensor(mask)][int(self.rng.integers(3))]
        self.ours.append(ours)
        self.first += [slice(None)] * rank
        self.second.append(mask)
        return rank

    def given(self) -> Any:
        """The index as it is written: a tuple, a list, or the only item by itself."""
        plain = all([isinstance(i, (int, np.integer, bool)) for i in self.ours])
        if len(self.ours) == 1 and not isinstance(self.ours[0], tuple):
            one = self.ours[0]
            # A list of lists of ints is one index an axis, as it stands.
            if not (isinstance(one, list) and one and isinstance(one[0], list)):
                return one
        nested = isinstance(self.ours[0], (list, np.ndarray)) if self.ours else True
        if plain or nested or self.rng.random() < 0.7:
            return tuple(self.ours)
        return list(self.ours)


def index_line(seed: int) -> str | None:
    """One index, read and written."""
    rng = np.random.default_rng(seed)
    drawn = Drawn(rng)
    data = rng.integers(0, 1000, drawn.shape).astype(np.int32)
    index = drawn.given()
    first, second = tuple(drawn.first), tuple(drawn.second)
    wanted = data[first][second]
    if not isinstance(wanted, np.ndarray):
        wanted = np.asarray(wanted)
    x = Tensor(data)
    if rng.random() < 0.5:
        x = x.contiguous().realize()
    got = x[index]
    said = f"{drawn.shape} by {index!r}"
    if got.shape != wanted.shape or not np.array_equal(got.numpy(), wanted):
        return f"{said} read: {got.shape} {got.tolist()}, not {wanted.shape} {wanted.tolist()}"
    # A value of the part's shape, of its last axes, with sizes of 1, or a number.
    shape = wanted.shape[int(rng.integers(wanted.ndim + 1)) :]
    shape = tuple(1 if rng.random() < 0.2 else s for s in shape)
    value = rng.integers(1000, 2000, shape).astype(np.int32)
    form = int(rng.integers(4))
    if form == 3:
        value = np.asarray(int(value.flat[0]) if value.size else 7)
    # A list without elements has lost its last sizes.
    given: Any = Tensor(value) if form == 0 else value if form == 1 or not value.size else None
    if given is None:
        given = value.tolist()
    right = data.copy()
    view = right[first]
    if view.ndim == 0 and not second:
        right[first] = value
    else:
        view[second] = value
    x[index] = given
    if not np.array_equal(x.numpy(), right):
        return f"{said} = {given!r}: {x.tolist()}, not {right.tolist()}"
    return None


def test_indices(record_property: Record) -> None:
    check_all("indices in brackets", draws(100, 10000), index_line, record_property)


# tensors of indices that are outside


USES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda x, i: x[i],
    "index of the last axis": lambda x, i: x[..., i],
    "two indices": lambda x, i: x.unsqueeze(0).expand(2, *x.shape)[Tensor([0, 1]).unsqueeze(1), i],
    "write": lambda x, i: written(x, i),
    "gather": lambda x, i: x.gather(0, i),
    "scatter": lambda x, i: x.scatter(0, i, 5.0),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i, i.cast(x.dtype), "sum"),
    "embedding": lambda x, i: embedded(x, i),
    "one_hot": lambda x, i: i.one_hot(x.shape[0]),
    "cross_entropy": lambda x, i: x.unsqueeze(0).expand(i.shape[0], -1).cross_entropy(i),
    "nll_loss": lambda x, i: x.unsqueeze(0).expand(i.shape[0], -1).nll_loss(i, ignore_index=-100),
    "sparse_categorical_crossentropy": lambda x, i: (
        x.unsqueeze(0).expand(i.shape[0], -1).sparse_categorical_crossentropy(i, ignore_index=-100)
    ),
}
CLASSES = ("one_hot", "cross_entropy", "nll_loss", "sparse_categorical_crossentropy")
IGNORING = CLASSES[2:]


def written(x: Tensor, i: Tensor) -> Tensor:
    """A copy with a number at indices."""
    y = x.clone().realize()
    y[i] = 5.0
    return y


def embedded(x: Tensor, i: Tensor) -> Tensor:
    """Rows of one number."""
    layer = nn.Embedding(x.shape[0], 1)
    layer.weight = x.unsqueeze(1)
    return layer(i)


def outside_line(seed: int) -> str | None:
    """One use of a tensor of indices with CHECK_INDEX=1: refused where one is outside."""
    rng = np.random.default_rng(seed)
    name = list(USES)[int(rng.integers(len(USES)))]
    size = int(rng.integers(1, 9))
    count = int(rng.integers(1, 6))
    kind = [np.int32, np.int64, np.int8][int(rng.integers(3))]
    low, high = (0, size) if name in CLASSES else (-size, size)
    values = rng.integers(low, high, count)
    bad = bool(rng.random() < 0.5)
    place = int(rng.integers(count))
    if bad:
        values[place] = int(rng.choice([low - 1, high, high + 7, low - 20]))
    elif name in IGNORING and rng.random() < 0.3:
        values[place] = -100
    index = Tensor(values.astype(kind))
    if rng.random() < 0.4:
        index = index + Tensor(np.zeros(count, kind))
    x = Tensor(rng.standard_normal(size).astype(np.float32))
    said = f"{name} of {size} by {values.tolist()} ({np.dtype(kind).name})"
    try:
        with Context(CHECK_INDEX=1):
            got = USES[name](x, index).numpy()
    except IndexRangeError as error:
        text = str(error)
        named = f"{values[place]}, which stands at [" in text and f"{place}]" in text
        wanted = bad and named and f"size {size}" in text
        return None if wanted else f"{said}: {error}"
    if bad:
        return f"{said}: {got.tolist()}"
    plain = USES[name](x, index).numpy()
    return (
        None
        if np.array_equal(got, plain, equal_nan=True)
        else f"{said}: {got.tolist()}, not {plain.tolist()}"
    )


def test_indices_outside(record_property: Record) -> None:
    check_all("indices that are outside", draws(60, 4000), outside_line, record_property)
