"""Defines ops of hand-written kernels that Aster expresses otherwise.

A node of the dialect is a `UOp` whose op is in `Dialect` instead of `Ops`; both kinds mix in one
graph. A plug-in (`plugins.ask("translate")`) first translates such a graph to Aster's kernel form,
so passes, renderers and runtimes never see these ops. They are attributes of `Ops`, but not
members. Translations:

| dialect | meaning | becomes |
|---|---|---|
| DEFINE_GLOBAL | argument number `arg` of the kernel; its dtype is a pointer | PARAM |
| SPECIAL | number of a block (`gidx*`) or work-item (`lidx*`) | RANGE of kind GLOBAL or LOCAL |
| VECTORIZE | one vector out of scalars | its lanes, each a value of its own |
| VCONST | a vector of different constants (`arg`) | its lanes |
| GEP | lanes `arg` of src[0] | those lanes |
| UNROLL | the lanes of src[0] as axes, `arg` = ((axis, size), ...) | RANGEs of kind UPCAST |
| CONTRACT | the axes `arg` of src[0] as lanes | one copy of src[0] for each lane |
| GROUP | all of its sources | each of them in its place |
| NOOP | nothing | nothing |
| INVALID | an index that touches no memory | a gate of the LOAD or STORE |
| IF, ENDIF | the nodes between them run where src[0] holds | gates of the STOREs |
| UNIQUE | a number unlike any other (`arg`) | nothing: a BUFFER has one |
| REDUCE_AXIS | src[0] folded over axes, `arg` = (op, axes) | REDUCE of the tensor stage |

Common ops have a looser form here: an INDEX may stand for its LOAD, may have fewer indices than
axes (the other axes are kept), and indices of any integer dtype; DEFINE_LOCAL has a name or number
as argument and a pointer as dtype; END may close an AFTER, a GROUP or another END; AFTER may name a
RANGE, so that the value is read again in each iteration.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class DialectOps(IntEnum):
    """Ops of hand-written kernels; numbered apart from `Ops`."""

    DEFINE_GLOBAL = 1001
    SPECIAL = 1002
    VECTORIZE = 1003
    VCONST = 1004
    GEP = 1005
    UNROLL = 1006
    CONTRACT = 1007
    GROUP = 1008
    NOOP = 1009
    INVALID = 1010
    IF = 1011
    ENDIF = 1012
    UNIQUE = 1013
    REDUCE_AXIS = 1014

    def __repr__(self) -> str:
        return f"Ops.{self.name}"

    __str__ = __repr__


# `UOp.op` is typed as `Ops`, which is right after translation; hence Any.
Dialect: Any = DialectOps
