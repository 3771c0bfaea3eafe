"""Lists the rows of the kernel library, and imports the parts of each when one is first asked for.

A row is a folder beside this file. The compiler asks its modules, and names no row:

    pattern    keep(order, chained) -> Kept: which values of a body one kernel computes together.
               Asked once a body, in `schedule/plan`, where a device chains products.
    chain      find_chain(kernel, core) -> Match | None: condition and builder of the kernel on a
               tensor core; WANTED: what it has to be. Asked in `work_groups/chained_products`.
    gradient   RULES: by the name in a RuleArg, the gradient of a source. Asked in `gradient`.

The oracle of a row is the plain formula in `formulas`, which is computed where no row matches. So
without its folder, and its name here, every program computes the same values, in more kernels.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from aster_ml.uop.node import UOp

# What the gradient of a node, the node and the number of a source give: a `gradient.Rule`.
Rule: TypeAlias = Callable[[Any, UOp, int], Any]
ROWS: tuple[str, ...] = ("attention",)


class Kept(NamedTuple):
    """Nodes that stay inside of a kernel, and nodes that get memory of their own.

    `together` has stored nodes by those in whose kernel they are made, too.
    """

    inside: frozenset[UOp] = frozenset()
    stored: frozenset[UOp] = frozenset()
    together: tuple[tuple[UOp, UOp], ...] = ()


@functools.cache
def parts_of(name: str) -> tuple[ModuleType, ...]:
    """The modules of that name of all rows."""
    return tuple([importlib.import_module(f"{__package__}.{row}.{name}") for row in ROWS])


def keep(order: list[UOp], chained: dict[str, frozenset[str]]) -> Kept:
    """Collects what rows keep inside of kernels of a body, whose nodes are given sources first.

    `chained` has by device the dtypes whose products its tensor cores chain. Of rows that match the
    same nodes the first one has them.
    """
    kept = Kept()
    for row in parts_of("pattern"):
        found: Kept = row.keep(order, chained)
        mine, theirs = kept.inside | found.inside, kept.stored | found.stored
        if mine.isdisjoint(theirs) and kept.inside.isdisjoint(found.inside):
            kept = Kept(mine, theirs, (*kept.together, *found.together))
    return kept


def gradient_rule(name: str) -> Rule | None:
    """The rule of that name; None where no row has it."""
    rules = (row.RULES.get(name) for row in parts_of("gradient"))
    return next((rule for rule in rules if rule is not None), None)
