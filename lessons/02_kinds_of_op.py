"""Three kinds of op are enough: elementwise, reduce, movement. A matrix product is made of them.

About four hours. Run with `aster lesson run 02`.
"""

import numpy as np

from aster_ml import GlobalCounters, Tensor
from aster_ml.uop.graph import toposort, without_names
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import OP_TABLE, Group, Ops

# %% 1. The list is closed
#
# PyTorch has about two thousand operators. Everything that Tensor can do becomes a few dozen ops,
# and those of a tensor's graph are of three kinds, beside the leaves that hold data. `OP_TABLE` is
# the whole list, with one line on what each op means.

ELEMENTWISE = (Group.UNARY, Group.BINARY, Group.TERNARY)
print(OP_TABLE[Ops.PERMUTE].group, "|", OP_TABLE[Ops.ADD].group, "|", OP_TABLE[Ops.REDUCE].group)
# > Group.MOVEMENT | Group.BINARY | Group.REDUCE
movement = [op.name for op, row in OP_TABLE.items() if row.group is Group.MOVEMENT]
print(*movement)
# > RESHAPE EXPAND PERMUTE PAD SHRINK FLIP NAME


def kinds(t: Tensor) -> dict[str, list[str]]:
    """The ops of a tensor's graph, sources first, by kind."""
    found: dict[str, list[str]] = {}
    for node in toposort(t.uop):
        group = OP_TABLE[node.op].group
        kind = "elementwise" if group in ELEMENTWISE else group.name.lower()
        found.setdefault(kind, []).append(node.op.name)
    return found


def kernels(t: Tensor) -> int:
    GlobalCounters.reset()
    t.realize()
    return GlobalCounters.kernel_count


# %% 2. Elementwise: one result for each place
#
# Result [i, j] needs the sources' [i, j] and nothing else. So a chain of them can always be one
# loop. What you know under other names is written with few ops: relu is a comparison and a choice,
# sigmoid a quotient of sums with an EXP2 (computers have powers of 2, and e ** x is one of another
# number).

x = Tensor.rand(4, 3).realize()
print(sorted(set(kinds(x.relu())["elementwise"])), kinds(x * 2 + 1)["elementwise"])
# > ['CMPLT', 'WHERE'] ['MUL', 'ADD']
print(sorted(set(kinds(x.sigmoid())["elementwise"])))
# > ...EXP2...FDIV...

# %% 3. Reduce: fewer results than sources
#
# A reduction folds an axis with ADD, MUL or MAX. A mean is a sum and a product; a minimum is the
# negative of a maximum; `any` is a maximum too.

print(kinds(x.sum(axis=1))["reduce"], x.uop.shape, "->", x.sum(axis=1).shape)
# > ['REDUCE'] (4, 3) -> (4,)
node: UOp = next(u for u in toposort(x.min(axis=1).uop) if u.op is Ops.REDUCE)
print("min is a", node.arg.op.name, "of what is", node.src[0].op.name)
# > min is a MAX of what is NEG

# %% 4. Movement: other places, no arithmetic, no kernel
#
# Alone, none of the six makes a kernel: they say where an element lies.

t = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).realize()
for name, moved in (
    ("reshape", t.reshape(3, 2)),
    ("permute", t.permute(1, 0)),
    ("flip", t.flip(1)),
    ("shrink", t[:, 1:]),
    ("expand", t.reshape(2, 1, 3).expand(2, 4, 3)),
):
    print(f"{name:8} {moved.shape!s:10} kernels: {kernels(moved)}")
# > reshape  (3, 2)     kernels: 0
# > permute  (3, 2)     kernels: 0
# > flip     (2, 3)     kernels: 0
# > shrink   (2, 2)     kernels: 0
# > expand   (2, 4, 3)  kernels: 0

# PAD is the one that makes new values (zeros), so its result is no view of memory that is there;
# asked for alone it is a kernel, inside of a larger expression it is a condition on the index:

print("pad alone:", kernels(t.pad((1, 1))), "kernel; padded and summed:", end=" ")
print(kernels(t.pad((1, 1)).sum(axis=1)), "kernel")
# > pad alone: 1 kernel; padded and summed: 1 kernel

# %% 5. A matrix product from four ops
#
# C[i, j] = sum over k of A[i, k] * B[k, j]. Give both the shape [i, j, k] (RESHAPE puts an axis of
# size 1 where one is missing, EXPAND repeats along it), multiply, sum over k. [i, j, k] is never in
# memory: EXPAND copies nothing, MUL fuses into REDUCE.

a, b = Tensor.rand(40, 30).realize(), Tensor.rand(30, 50).realize()
left = a.reshape(40, 1, 30).expand(40, 50, 30)
right = b.permute(1, 0).reshape(1, 50, 30).expand(40, 50, 30)
product = (left * right).sum(axis=2)

# And `@`? It builds the very same graph. Not a similar one: the same object, once the names of
# tensors are taken off.

print(without_names((a @ b).uop) is without_names(product.uop))
# > True
print(kinds(a @ b)["elementwise"], kinds(a @ b)["reduce"])
# > ['MUL'] ['REDUCE']
print(np.abs(product.numpy() - a.numpy() @ b.numpy()).max() < 1e-4)
# > True

# So nothing in the compiler knows what a matrix product is. It sees a MUL inside of a REDUCE whose
# operands do not depend on all axes, and finds that a register tile would reuse loads. The same
# discovery makes convolutions and attention quick.

GlobalCounters.reset()
(a @ b).realize()
flops, nbytes = GlobalCounters.global_ops, GlobalCounters.global_mem
print(GlobalCounters.kernel_count, "kernel,", flops, "operations,", nbytes, "bytes")
# > 1 kernel, 120000 operations, 18800 bytes

# %% 6. More from the same pieces
#
# A convolution is a product of windows. Windows are movement: the place of element (y, x) of window
# (i, j) is (i + y, j + x), which SHRINK, RESHAPE and PERMUTE can say of a repeated image.

image = Tensor.rand(1, 1, 6, 6).realize()
weight = Tensor.rand(1, 1, 3, 3).realize()
by_hand = Tensor.stack(
    *[image[0, 0, y : y + 4, x : x + 4] * weight[0, 0, y, x] for y in range(3) for x in range(3)]
).sum(axis=0)
print(np.allclose(by_hand.numpy(), image.conv2d(weight)[0, 0].numpy(), rtol=1e-5))
# > True
print(kinds(image.conv2d(weight)).keys() <= {"leaf", "movement", "elementwise", "reduce"})
# > True

# A cumulative sum is a product with a triangle, argmax compares with the maximum and takes the
# first place, gather compares with an arange and sums what is equal. Ops that look like loops are
# index arithmetic with a mask.

v = Tensor([3.0, 1.0, 2.0]).realize()
triangle = Tensor.ones(3, 3).tril()
print((triangle * v).sum(axis=1).tolist(), v.cumsum().tolist())
# > [3.0, 4.0, 6.0] [3.0, 4.0, 6.0]
places = Tensor([2, 0])
picked = ((places.reshape(2, 1) == Tensor.arange(3)) * v).sum(axis=1)
print(picked.tolist(), v[places].tolist())
# > [2.0, 3.0] [2.0, 3.0]

# The compiler knows this last form: a sum over an arange that one place survives becomes a load at
# that place, so v[places] reads two numbers and not all.

# %% What you know now
#
# Leaves, three kinds of op, and a compiler that recognises no names. Exercises: build pieces of a
# network from the six movement ops, MUL, ADD and REDUCE: `aster lesson check 02`.
