"""Nothing is computed until you ask: laziness, fusion, the schedule, movement, devices.

About two hours. Run it, read it from top to bottom, change it, run it again:

    .venv/bin/python lessons/00_intro.py
    aster lesson run 00        # the same; what it prints is compared with the `# >` lines below

A `# >` line is what the print above it gives. `...` stands for what differs between machines. In
editors that know cells (`# %%`), each part runs by itself.
"""

import numpy as np

from aster_ml import Device, GlobalCounters, Tensor

# %% 1. A tensor is a promise
#
# `a + b` computes nothing. It builds a node that says "the sum of these two", and the Tensor in
# your hand points at that node. What nodes there are is what this framework is about, so look at
# one early: every node prints.

a = Tensor([1.0, 2.0, 3.0])
b = Tensor([10.0, 20.0, 30.0])
total = a + b
print(total)
# > <Tensor [3] float32 on CPU>
print(total.uop.op, [source.op for source in total.uop.src])
# > Ops.ADD [Ops.BUFFER, Ops.BUFFER]

# The numbers appear when somebody wants to see them:

print(total.tolist())
# > [11.0, 22.0, 33.0]

# Why wait? Because whoever sees the whole expression before computing any of it can leave out
# most of the work. That is the next part.

# %% 2. Fusion: many operations, one pass over memory
#
# Memory is slow and arithmetic is quick. A program that runs `x * 2`, stores it, reads it, adds 1,
# stores it, reads it ... spends its time moving numbers. Aster makes ONE loop of this chain, a
# *kernel*, which reads x once and writes the result once. Count the kernels:

x = Tensor.rand(1024, 256).realize()  # realize() computes, now; x has memory after it
GlobalCounters.reset()
y = ((x * 2 + 1).relu() - 0.5).exp().realize()
print(GlobalCounters.kernel_count, "kernel for five operations")
# > 1 kernel for five operations

# A reduction joins too. The products of each row are never in memory, only their sum is:

GlobalCounters.reset()
(x * x + x).sum(axis=1).realize()
print(GlobalCounters.kernel_count, "kernel for a product, a sum, and a reduction")
# > 1 kernel for a product, a sum, and a reduction

# And how much memory moved? The counter adds the bytes of inputs and outputs of each kernel:
# x has 1024 * 256 * 4 bytes, the 1024 sums
# have 4096.

print(GlobalCounters.global_mem, "bytes, of which x has", x.nbytes())
# > 1052672 bytes, of which x has 1048576

# Without fusion the same costs three kernels. The setting FUSE=0 shows what there was to gain:
# each step writes a megabyte that the next one reads again.

# %% 3. The schedule: what would run
#
# `schedule()` gives the kernels that a realize() would launch, in order, without running them.
# A softmax needs two numbers of each row (its maximum and its sum) before it can write anything.

z = Tensor.rand(64, 100).realize()
steps = z.softmax().schedule()
print(len(steps), "kernels;", "each is a graph that ends in", steps[0].ast.op)
# > ... kernels; each is a graph that ends in Ops.SINK

# Run this file with DEBUG=2 and each kernel prints a line: its name, its shape, its time, how fast
# it went. With DEBUG=3 it says why it was scheduled as it was, with DEBUG=4 its source follows.

# %% 4. Nothing to compute: common parts and constants
#
# Nodes are *interned*: the same op on the same sources is the same object. So "the same
# computation" costs nothing to recognise, and nothing is computed twice. Each tensor has a gradient
# of its own, though, so a second one with the same value gets a NAME over the node:

c, d = (x + 1), (x + 1)
print(d.uop.op, d.uop.src[0] is c.uop)
# > Ops.NAME True

# Arithmetic that needs no data is done while the graph is built or scheduled:

GlobalCounters.reset()
(x * 0).realize()
(Tensor(3.0) * 4 + 5).realize()
print(GlobalCounters.kernel_count, "kernels for what is known beforehand")
# > 0 kernels for what is known beforehand

# %% 5. Movement without copies
#
# reshape, permute, flip, expand, slicing: none of these moves a byte. They are *views*: another
# way to compute the place of an element. The kernel that reads the view gets other index
# arithmetic, which is all.

image = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4)).realize()
turned = image.permute(1, 0).flip(0)
GlobalCounters.reset()
turned.realize()
print(GlobalCounters.kernel_count, "kernels for a rotation")
# > 0 kernels for a rotation
print(turned.tolist())
# > [[3.0, 7.0, 11.0], [2.0, 6.0, 10.0], [1.0, 5.0, 9.0], [0.0, 4.0, 8.0]]

# A view sees what is written to the memory below it, as in NumPy and PyTorch:

image[0, 3] = 100.0
print(turned[0, 0].item())
# > 100.0

# When you want the bytes themselves in the new order, ask for it; that is a copy, and a kernel:

GlobalCounters.reset()
turned.contiguous().realize()
print(GlobalCounters.kernel_count, "kernel for a copy in another order")
# > 1 kernel for a copy in another order

# %% 6. Devices
#
# The graph knows no machine. The same node can run on the CPU, on the interpreter that *defines*
# what each op means (slow, exact, written in Python: when two devices disagree, it is right), or on
# NULL, which compiles and runs nothing.

on_cpu = (a * b).sum()
on_python = (a.to("PYTHON") * b.to("PYTHON")).sum()
print(on_cpu.item(), on_python.item(), "CPU" in Device.get_available_devices())
# > 140.0 140.0 True

# %% 7. Put together: one layer of a network
#
# A linear layer with bias and relu is a product, a sum and a maximum. One kernel:

w = Tensor.rand(256, 32).realize()
bias = Tensor.rand(32).realize()
GlobalCounters.reset()
h = (x @ w + bias).relu().realize()
print(h.shape, GlobalCounters.kernel_count, "kernel")
# > (1024, 32) 1 kernel
expected = np.maximum(x.numpy() @ w.numpy() + bias.numpy(), 0)
print(np.allclose(h.numpy(), expected, rtol=1e-4))
# > True

# %% What you know now
#
# A Tensor is a handle on a graph; realize() turns the graph into few kernels; movement is free;
# devices are interchangeable. Exercises: lessons/exercises/00_intro.py, checked by
# `aster lesson check 00`. Next: 01, tensors in earnest.
