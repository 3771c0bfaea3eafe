"""Linear programs built by hand for the tests of renderers and of the interpreter, and ways to run
them: as LLVM IR and as C in this process.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np

from aster_ml.dtype import DType, dtypes
from aster_ml.renderer.c import CRenderer
from aster_ml.renderer.llvm.renderer import LLVMRenderer
from aster_ml.runtime.cpu import clang, llvm_jit
from aster_ml.target import Target
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops, ParamArg, RangeArg, ReduceArg, ScratchArg, VarArg

LOOP, REDUCE, THREAD = AxisType.LOOP, AxisType.REDUCE, AxisType.THREAD
UPCAST, UNROLL, VECTOR = AxisType.UPCAST, AxisType.UNROLL, AxisType.VECTOR
GLOBAL, LOCAL = AxisType.GLOBAL, AxisType.LOCAL
CPU = Target("CPU", "llvm", vector_bits=256, vector_registers=16)
C_TARGET = Target("CPU", "c", vector_bits=256, vector_registers=16)


class Builder:
    """Collects nodes in order; `add` lists a value after everything that it needs."""

    def __init__(self, name: str = "kernel") -> None:
        self.name = name
        self.uops: list[UOp] = []
        self.listed: set[UOp] = set()
        self.params: list[UOp] = []
        self.variables: list[UOp] = []
        self.written: set[int] = set()
        self.ids = itertools.count()
        self.thread: UOp | None = None
        self.sizes: dict[AxisType, list[Any]] = {GLOBAL: [], LOCAL: []}

    def param(self, size: int, dtype: DType = dtypes.float32) -> UOp:
        """The next buffer."""
        u = UOp(Ops.PARAM, dtype, (), ParamArg(len(self.params), size))
        self.params.append(u)
        return self.add(u)

    def variable(self, name: str, low: int, high: int, dtype: DType = dtypes.int32) -> UOp:
        """The next variable."""
        u = UOp(Ops.DEFINE_VAR, dtype, (), VarArg(name, low, high))
        self.variables.append(u)
        return self.add(u)

    def axis(self, size: Any, kind: AxisType, dtype: DType = dtypes.int32) -> UOp:
        """A range of any kind; listed unless it is a lane."""
        bound = size if isinstance(size, UOp) else UOp.const(dtype, size)
        u = UOp(Ops.RANGE, dtype, (bound,), RangeArg(next(self.ids), kind))
        if kind in self.sizes:
            self.sizes[kind].append(size)
        if kind is THREAD:
            self.thread = u
        return u if kind.is_lane else self.add(u)

    def end(self, *ranges: UOp) -> None:
        """Closes loops, innermost first."""
        for r in ranges:
            self.uops.append(UOp(Ops.END, dtypes.void, (r,)))

    def add(self, u: UOp) -> UOp:
        """Lists `u` and what it needs, in order."""
        pending = [u]
        while pending:
            x = pending[-1]
            waiting = [s for s in self.sources(x) if s not in self.listed]
            if x in self.listed:
                pending.pop()
            elif waiting:
                pending.extend(reversed(waiting))
            else:
                pending.pop()
                self.listed.add(x)
                if x.op not in (Ops.CONST, Ops.INDEX, Ops.AFTER) and not (
                    x.op is Ops.RANGE and x.arg.kind.is_lane
                ):
                    self.uops.append(x)
        return u

    @staticmethod
    def sources(u: UOp) -> tuple[UOp, ...]:
        """The sources that have to be listed; the offset of an INDEX is read where it is used."""
        return u.src[:2] if u.op is Ops.INDEX else u.src

    def reg(self, start: UOp, *lanes: UOp) -> UOp:
        """An accumulator."""
        arg = ScratchArg(next(self.ids))
        return self.add(UOp(Ops.DEFINE_REG, start.dtype, (start, *lanes), arg))

    def local(self, size: int, dtype: DType = dtypes.float32) -> UOp:
        """Scratch memory."""
        return self.add(UOp(Ops.DEFINE_LOCAL, dtype, (), ScratchArg(next(self.ids), size)))

    def accumulate(self, reg: UOp, value: UOp, *unrolled: UOp, op: Ops = Ops.ADD) -> UOp:
        """Folds a value into an accumulator."""
        return self.add(UOp(Ops.ACCUMULATE, reg.dtype, (reg, value, *unrolled), op))

    def reduce(self, value: UOp, *lanes: UOp, op: Ops = Ops.ADD) -> UOp:
        """Folds the instances of a value."""
        return self.add(UOp(Ops.REDUCE, value.dtype, (value, *lanes), ReduceArg(op)))

    def load(self, at: UOp, gate: UOp | None = None) -> UOp:
        """A listed LOAD."""
        return self.add(at.load(gate))

    def store(self, at: UOp, value: UOp, gate: UOp | None = None) -> UOp:
        """A listed STORE."""
        place = at.src[0]
        while place.op is Ops.AFTER:
            place = place.src[0]
        if place.op is Ops.PARAM:
            self.written.add(place.arg.slot)
        return self.add(at.store(value, gate))

    def build(self) -> Linear:
        """The program."""
        sizes = [tuple((*self.sizes[k], 1, 1, 1)[:3]) for k in (GLOBAL, LOCAL)]
        return Linear(
            self.name,
            tuple(self.uops),
            tuple(self.params),
            tuple(self.variables),
            frozenset(self.written),
            self.thread,
            sizes[0],
            sizes[1],
        )


def at(buffer: UOp, base: UOp | int, offset: UOp | int = 0) -> UOp:
    """The INDEX of an element."""
    base, offset = (UOp.const(dtypes.int32, x) if isinstance(x, int) else x for x in (base, offset))
    return UOp(Ops.INDEX, buffer.dtype, (buffer, base, offset))


def call_address(
    address: int,
    arrays: list[np.ndarray],
    variables: tuple[int, ...] = (),
    lo: int = 0,
    hi: int = 1,
) -> None:
    """Calls a kernel of the CPU's convention."""
    slots = [a.ctypes.data for a in arrays] + [v % (1 << 64) for v in variables]
    args = (ctypes.c_uint64 * max(len(slots), 1))(*slots)
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
    kernel(ctypes.addressof(args), lo, hi)


def run_llvm(
    linear: Linear,
    arrays: list[np.ndarray],
    variables: tuple[int, ...] = (),
    lo: int = 0,
    hi: int = 1,
    target: Target = CPU,
) -> None:
    """Renders, compiles and runs as LLVM IR."""
    loaded = llvm_jit.load_object(
        llvm_jit.compile_ir(LLVMRenderer(target).render(linear)), linear.name
    )
    call_address(loaded.address(linear.name), arrays, variables, lo, hi)


def run_c(
    linear: Linear,
    arrays: list[np.ndarray],
    variables: tuple[int, ...] = (),
    lo: int = 0,
    hi: int = 1,
) -> None:
    """Renders, compiles and runs as C."""
    library = clang.load_library(clang.compile_c(CRenderer(C_TARGET).render(linear)), linear.name)
    call_address(library.address(linear.name), arrays, variables, lo, hi)
