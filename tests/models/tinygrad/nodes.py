"""Nodes of sizes and numbers, rules over them, variables."""

from tinygrad import Tensor, Variable, dtypes
from tinygrad.dtype import DTYPES_DICT, DType
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, graph_rewrite, sym_infer
from tinygrad.uop.symbolic import symbolic

x = UOp.const(dtypes.int, 3)
y = UOp.const(dtypes.int, 4)
print((x + y).op, int((x + y).simplify()))
i = UOp.variable("i", 0, 10)
e = (i * 4 + 8) // 4
print(graph_rewrite(e, symbolic).render(), e.vmin, e.vmax)
print(sym_infer(i * 2 + 1, {"i": 3}))
pm = PatternMatcher([(UPat(Ops.ADD, src=(UPat.var("x"), UPat.cvar("c"))), lambda x, c: x * c)])
print(graph_rewrite(UOp.variable("k", 1, 5) + 2, pm).op)
n = Variable("n", 1, 8).bind(3)
print(Tensor.arange(8)[:n].sum().item())
print(isinstance(DTYPES_DICT["float32"], DType), dtypes.float.itemsize)
