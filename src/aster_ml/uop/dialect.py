"""Defines ops of hand-written kernels that Aster expresses otherwise.

A node of the dialect is a `UOp` whose op stands in `Dialect` instead of `Ops`; both kinds mix in
one graph. A plug-in (`plugins.ask("translate")`) turns such a graph into Aster's kernel form before
anything else looks at it, so no pass, renderer or runtime knows these ops. `Ops` has them as
attributes that are no members. What each becomes:

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
| IF, ENDIF | what stands between them runs where src[0] holds | gates of the STOREs |
| UNIQUE | a number unlike any other (`arg`) | nothing: a BUFFER has one |
| REDUCE_AXIS | src[0] folded over axes, `arg` = (op, axes) | REDUCE of the tensor stage |

Beside these, ops that both have take a looser form: INDEX stands for the LOAD of what it indexes,
may name fewer axes than there are (the rest are kept), and its index may be of any integer dtype;
DEFINE_LOCAL has a name or number as argument and a pointer as dtype; END may close an AFTER, a
GROUP or another END; AFTER may name a RANGE, which says that the value is read anew in each turn.
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


# A node's op is declared to be of `Ops`, which is what it is from translation on.
Dialect: Any = DialectOps
