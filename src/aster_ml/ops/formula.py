"""Formulas that split, reorder and merge axes, such as `"b (h w) c -> b c h w"`.

Receives anything with `shape`, `reshape` and `permute`; returns the same. Formulas that also sum
(einsum) do not belong here.
"""

from __future__ import annotations

from typing import Any

from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.helpers import prod
from aster_ml.uop.infer import show_shape

# The dots outside of brackets are as many axes as they stand for; inside, a part of one.
DOTS = ["..."]


def parse_formula(side: str, formula: str) -> list[list[str]]:
    """One side of a formula as groups of names; `1` is a group without names."""
    groups: list[list[str]] = []
    inside: list[str] | None = None
    side = side.replace("…", "...")
    for token in side.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            if inside is not None:
                raise ArgumentError(f"rearrange: brackets inside brackets in {formula!r}")
            inside = []
        elif token == ")":
            if inside is None:
                raise ArgumentError(f"rearrange: a bracket closes that none opened in {formula!r}")
            groups.append(inside)
            inside = None
        else:
            if token != "1" and token != "..." and not token.isidentifier():
                raise ArgumentError(f"rearrange: {token!r} is no name in {formula!r}")
            names = [] if token == "1" else [token]
            if inside is None:
                groups.append(DOTS if token == "..." else names)
            else:
                inside.extend(names)
    if inside is not None:
        raise ArgumentError(f"rearrange: a bracket is not closed in {formula!r}")
    return groups


def rearrange(value: Any, formula: str, sizes: dict[str, int]) -> Any:
    """The value rearranged; see `MovementMixin.rearrange`."""
    if formula.count("->") != 1:
        raise ArgumentError(f"rearrange: {formula!r} wants one arrow, `a b -> b a`")
    left, right = [parse_formula(side, formula) for side in formula.split("->")]
    rank = value.ndim
    if sum([name == "..." for group in left for name in group]) > 1:
        raise ArgumentError(f"rearrange: more than one ellipsis on a side of {formula!r}")
    if any(["..." in group and group is not DOTS for group in left]):
        raise ArgumentError(
            f"rearrange: an ellipsis in brackets on the left of {formula!r}; it stands for whole "
            "axes there, and in brackets on the right alone"
        )
    bad = [f"{n}={v!r}" for n, v in sizes.items() if isinstance(v, bool) or v.__class__ is float]
    bad += [f"{n}={v!r}" for n, v in sizes.items() if isinstance(v, int) and v < 1]
    if bad:
        raise ArgumentError(f"rearrange: {', '.join(bad)}; sizes are whole numbers from 1 on")
    if DOTS in left:
        # The dots stand for as many axes as are left over; each gets a name of its own.
        extra = rank - (len(left) - 1)
        dots = [f"...{i}" for i in range(extra)]
        at = left.index(DOTS)
        left = left[:at] + [[name] for name in dots] + left[at + 1 :]
        right = expand_dots(right, dots)
    if len(left) != rank:
        raise ArgumentError(
            f"rearrange: {formula!r} names {len(left)} axes, the value has {rank}: "
            f"{show_shape(value.shape)}"
        )
    names = [name for group in left for name in group]
    target = [name for group in right for name in group]
    if sorted(names) != sorted(target) or len(set(names)) != len(names):
        raise ArgumentError(f"rearrange: both sides of {formula!r} name the same axes once each")
    unknown = sizes.keys() - set(names)
    if unknown:
        raise ArgumentError(f"rearrange: {', '.join(sorted(unknown))} is no axis of {formula!r}")
    found: dict[str, Any] = {}
    for axis, (group, size) in enumerate(zip(left, value.shape, strict=True)):
        found.update(group_sizes(group, size, sizes, axis, formula))
    split = value.reshape(tuple([found[name] for name in names]))
    moved = split.permute(tuple([names.index(name) for name in target]))
    return moved.reshape(tuple([prod([found[name] for name in group]) for group in right]))


def expand_dots(groups: list[list[str]], dots: list[str]) -> list[list[str]]:
    """The dots replaced: outside brackets an axis each, inside as part of the group."""
    result: list[list[str]] = []
    for group in groups:
        if group is DOTS:
            result += [[name] for name in dots]
        else:
            result.append([n for name in group for n in (dots if name == "..." else [name])])
    return result


def group_sizes(
    group: list[str], size: Any, sizes: dict[str, int], axis: int, formula: str
) -> dict[str, Any]:
    """The size of each name of a group that makes up one axis."""
    free = [name for name in group if name not in sizes]
    known = prod([sizes[name] for name in group if name in sizes])
    if len(free) > 1:
        raise ArgumentError(
            f"rearrange: the sizes of {' and '.join(free)} in {formula!r} cannot "
            "both be found; give one of them"
        )
    rest = size // known if free else known
    if not rest * (known if free else 1) == size:
        raise ShapeError(
            f"rearrange: axis {axis} has size {show_shape((size,))[1:-1]}, which is "
            f"not made up of ({' '.join(group)}) in {formula!r} with these sizes"
        )
    return {name: rest if name in free else sizes[name] for name in group}
