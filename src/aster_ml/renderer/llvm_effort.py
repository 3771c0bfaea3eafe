"""How much of LLVM's work a kernel is worth.

Receives the body of a kernel in LLVM IR, how many lines of it are run in all, and how many its
shortest innermost loop has; returns the attributes of its function. What LLVM makes of them is the
business of `runtime/llvm_jit.py`.

Code generation at level 0 takes a quarter of the time of level 1. It keeps in memory what is used
in another block than it was made in (counters, accumulators, what an outer loop has made for an
inner one), moves nothing out of loops and knows no cheap way to divide by a constant or to build
lanes. A kernel without all of that, which loads, computes and stores whole registers, becomes
nearly the same code: 3% slower in the mean of those of two networks, 0.5% of others.
"""

from __future__ import annotations

# One such function alone in a module is compiled at level 0.
PLAIN = "noinline optnone "
# What level 0 is slow with, as the text that it is seen by: accumulators, lanes that are put
# together, masks, scratch, divisions of integers, narrow types, and the bits of floats, of which
# the long formulas of exp, log and sin are made.
UNFIT = (
    "%acc", "insertelement", "extractelement", "shufflevector", ".masked.", "%local", " udiv ",
    " sdiv ", " urem ", " srem ", "!nontemporal", " x half>", " x bfloat>", " x i8>", " x i16>",
    "bitcast", ".sat.",
)  # fmt: skip
# Of lines of an innermost loop: a turn costs some cycles for its counter and what lies in memory.
LEAST_LINES = 40
# Of lines that are run; some 0.1 ms. 5% of it are repaid by the 2 to 6 ms that compiling takes
# less before a kernel has run some thousand times.
MOST_RUN = 1_000_000


def effort(body: str, run: float, shortest: float) -> str:
    """The attributes of a kernel's function.

    `run` is how many lines are run in all, about; `shortest` the lines of its shortest innermost
    loop.
    """
    if run > MOST_RUN or shortest < LEAST_LINES or any([sign in body for sign in UNFIT]):
        return ""
    return PLAIN
