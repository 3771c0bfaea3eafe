"""Kernels by hand: elements, and a product with a reduced axis."""

from tinygrad import Tensor
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp


def scale_add(C, A, B):
    i = UOp.range(C.size, 0)
    return C[i].store(A[i] * 2 + B[i]).end(i).sink(arg=KernelInfo(name="scale_add"))


a, b = Tensor.arange(6).float().contiguous().realize(), Tensor.ones(6).contiguous().realize()
c = Tensor.empty(6)
c = c.custom_kernel(a, b, fxn=scale_add)[0]
print(c.tolist())


def matmul(C, A, B):
    i, j, k = (
        UOp.range(C.shape[0], 0),
        UOp.range(C.shape[1], 1),
        UOp.range(A.shape[1], 2, axis_type=AxisType.REDUCE),
    )
    s = (A[i, k] * B[k, j]).reduce(k, arg=Ops.ADD)
    return C[i, j].store(s).end(i, j).sink(arg=KernelInfo(name="mm"))


A, B = (
    Tensor.arange(12).reshape(3, 4).float().contiguous().realize(),
    Tensor.arange(8).reshape(4, 2).float().contiguous().realize(),
)
print(Tensor.empty(3, 2).custom_kernel(A, B, fxn=matmul)[0].tolist(), (A @ B).tolist())
