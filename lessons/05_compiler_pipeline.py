"""The compiler from inside: kernels of layers, the graph at each stage, a rule of your own.

About seven hours, with docs/explanation/overview.md beside it. Run with `aster lesson run 05`.
"""

import sys
from pathlib import Path

import numpy as np

from aster_ml import Context, GlobalCounters, Tensor, dtypes, nn
from aster_ml.codegen import passes
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import parse_opts
from aster_ml.renderer.c import CRenderer
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.passes import Pass, recorded
from aster_ml.uop.pattern import PatternMatcher, Rule, UPat, fired_counts
from aster_ml.uop.print.text import to_text
from aster_ml.uop.rewrite import graph_rewrite

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tests/ of this clone
from tests.core.rules.instances import fired_instances

# %% 1. How many kernels is a layer?
#
# Guess first. Inputs have memory here, so that only the layer counts.


def kernels(result: Tensor) -> int:
    GlobalCounters.reset()
    result.realize()
    return GlobalCounters.kernel_count


x = Tensor.rand(8, 16, 32).realize()
image = Tensor.rand(2, 4, 16, 16).realize()
linear, norm, conv = nn.Linear(32, 64), nn.LayerNorm(32), nn.Conv2d(4, 8, 3)
Tensor.realize(*nn.state.get_parameters([linear, norm, conv]))
print("linear and relu:", kernels(linear(x).relu()))
# > linear and relu: 1
print("softmax:        ", kernels(x.softmax()))
# > softmax:         1
print("layer norm:     ", kernels(norm(x)))
# > layer norm:      1
print("convolution:    ", kernels(conv(image).relu()))
# > convolution:     ...
print("attention:      ", kernels(x.scaled_dot_product_attention(x, x)))
# > attention:       ...

# A softmax reads its row three times and is one kernel all the same: a loop over rows in which
# three loops stand one after the other. An attention needs all scores of a row before it may
# divide, so scores get memory, or a part of them does.

# %% 2. Hop by hop
#
# What happens between `realize()` and a result are six hops (docs/explanation/overview.md). Walk
# along with one expression. First the tensors' graph, as you built it:

a = Tensor.rand(8, 16).realize()
w = Tensor.rand(16, 32).realize()
y = (a @ w).relu()
print([u.op.name for u in toposort(y.uop)][:6])
# > ['BUFFER', 'RESHAPE', 'RESHAPE', 'EXPAND', 'BUFFER', 'RESHAPE']

# Then the kernel: movement is gone, it has become index arithmetic in loops (RANGE). `schedule()`
# gives it without running it.

(step,) = y.schedule()
kernel = step.ast
loops = [u for u in toposort(kernel) if u.op is Ops.RANGE]
print(len(toposort(kernel)), "nodes,", len(loops), "loops of", [u.src[0].arg for u in loops])
# > ... nodes, 3 loops of [8, 32, 16]
print(to_text(kernel).splitlines()[-3])
# > %25 = STORE void (%7, %24)

# Every stage is text that parses back to the same object: print(to_text(kernel)) and read it once.

# %% 3. A machine is data
#
# The kernel becomes a program for a *Target*: a frozen description of a machine, which need not be
# there. Here one with registers of 256 bits. `lower` chooses a schedule (Opts) and runs the passes.

target = Target("CPU", "c", arch="lesson", vector_bits=256, vector_registers=16)
program, opts = passes.lower(kernel, target)
print(*opts)
# > VECTOR(r1,8) UPCAST(r0,4) UPCAST(r1,2)

# Axis r1 (32 columns) has 8 in each SIMD register; a tile of 4 rows by 2 registers is computed at a
# time, so each loaded number serves several results. The same kernel for a machine without SIMD:

scalar = Target("CPU", "c", arch="lesson")
print(*passes.lower(kernel, scalar)[1])
# > ...

# And the source:

source = CRenderer(target).render(program)
print(*(line.strip() for line in source.splitlines() if "for (" in line), sep="\n")
# > for (int64_t r0 = 0; r0 < 2; r0++) {
# > for (int64_t r1 = 0; r1 < 2; r1++) {
# > for (int64_t r2 = 0; r2 < 16; r2++) {

# %% 4. The passes, recorded
#
# Each pass is a row of a table with a name and a reason. Listen to them:

with recorded() as steps:
    passes.lower(kernel, target)
before, changed = kernel, []
for name, made, _ in steps:
    if made is not before:
        changed.append(name)
    before = made
print(len(steps), "passes ran;", "the last is", changed[-1])
# > ... passes ran; the last is linearize

# %% 5. Rules
#
# Algebra on indices is done by rules: a name, a pattern, a replacement, a guard. The table counts
# how often each has fired in this process.

fired = {name: count for name, count in fired_counts().items() if count}
print(len(fired), "rules have fired so far, of", len(fired_counts()))
# > ... rules have fired so far, of ...

# %% 6. A wrong rule, and how it is found out
#
# `x - x` is 0, says school. Write it for floats, and let the tests of rules try it: they draw
# random nodes that fit the pattern and compare the meaning before and after, with NaN and
# infinities.


def zero_like(u: UOp) -> UOp:
    return UOp.const(u.dtype, 0)


wrong = Rule(
    "x-minus-x",
    UPat(Ops.SUB, dtypes.floats, src=(UPat.var("x"), UPat.var("x"))),
    lambda u: zero_like(u),
)
try:
    fired_instances(wrong, 60)
except AssertionError as error:
    print(str(error).split(",")[0])
# > x-minus-x: ... is nan

# Infinity minus infinity is NaN. For whole numbers the rule is right, and it stands in the table.

# %% 7. A right rule of your own
#
# `(x & y) | x` is x: what AND takes away, OR brings back. The compiler does not know it:

bits = Tensor(np.arange(64, dtype=np.int32)).realize()
mask = Tensor(np.arange(64, dtype=np.int32)[::-1].copy()).realize()


def both() -> Tensor:
    return (bits & mask) | bits


def body_of(kernel: UOp) -> list[str]:
    """The loops and statements of the kernel in C."""
    text = CRenderer(scalar).render(passes.lower(kernel, scalar)[0])
    return text[text.index("for (") :].splitlines()


(step,) = both().schedule()
print("|" in "".join(body_of(step.ast)))
# > True

absorb = Rule(
    "absorb",
    UPat(
        Ops.OR,
        dtypes.ints,
        src=(UPat(Ops.AND, src=(UPat.var("x"), UPat.var("y")), any_order=True), UPat.var("x")),
        any_order=True,
    ),
    lambda x: x,
)
print("proven on", fired_instances(absorb, 60), "instances, each with several values")
# > proven on 60 instances, each with several values

# And by brute force, which for 8 bits is a proof: all 65,536 pairs.

p, q = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
print("for all bytes:", bool((((p & q) | p) == p).all()))
# > for all bytes: True

# %% 8. Put into the compiler, and seen to fire
#
# A rule needs a driver that applies it and a place in the order of things. `graph_rewrite` is the
# driver; the place is a pass: a row with a name and a reason, in a table.

mine = PatternMatcher([absorb])


def absorb_masks(kernel: Kernel, target: Target) -> None:
    """(x & y) | x becomes x."""
    kernel.sink = graph_rewrite(kernel.sink, mine)


row = Pass("absorb masks", absorb_masks, why="before Opts: what is not there needs no schedule")
passes.BEFORE_OPTS = (*passes.BEFORE_OPTS, row)
count = absorb.fired
print("|" in "".join(body_of(step.ast)), "and it fired", absorb.fired - count, "time")
# > False and it fired 1 time

# Now in earnest: a realize() compiles with it (CACHE=0, since a kernel on disk is never compiled
# anew), and the numbers are right.

with Context(CACHE=0):
    print((both().numpy() == bits.numpy()).all(), absorb.fired - count > 1)
# > True True
passes.BEFORE_OPTS = passes.BEFORE_OPTS[:-1]

# To keep such a rule, it goes into a table of src/aster_ml/uop/rules with `rewrite:` and `why:` in
# its docstring, and tests/core/rules tries it from then on. docs/tutorial has the way of a whole
# new op.

# %% 9. Schedules of your own
#
# Opts are what a search tries. Give some by hand: the program is another, the numbers the same.


def loops_of(opts: str) -> int:
    program, _ = passes.lower(kernel, target, parse_opts(opts))
    return sum("for (" in line for line in CRenderer(target).render(program).splitlines())


print(loops_of("VECTOR(1,8)"), loops_of("VECTOR(1,8) UPCAST(1,4)"))
# > 3 2

# Four registers of 8 are all 32 columns: their loop is gone. (By hand, an axis may be named by its
# place too: 1 is the second one.)

# %% What you know now
#
# You have followed an expression to its machine code, read its passes, refuted a wrong rule, proven
# a right one, and seen it fire. Exercises: `aster lesson check 05`.
