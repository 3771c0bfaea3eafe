"""Lists names of PyTorch and NumPy that Aster lacks, with Aster's equivalents.

Receives the name of a missing attribute; returns the text of the error. Names that Aster has, and
differences in meaning (docs/how-to/coming-from-pytorch.md), do not belong here.
"""

from __future__ import annotations

IN_PLACE = {"add_": "+=", "sub_": "-=", "mul_": "*=", "div_": "/=", "pow_": "**="}

# Methods and attributes of tensors and arrays.
TENSOR = {
    **{name: f"x {sign} y" for name, sign in IN_PLACE.items()},
    "addmm": "x + a @ b",
    "amax": "x.max(axis)",
    "amin": "x.min(axis)",
    "argwhere": "x.nonzero()",
    "array": "Tensor(x)",
    "as_tensor": "Tensor(x)",
    "astype": "x.cast(dtype)",
    "baddbmm": "x + a @ b",
    "bmm": "a @ b",
    "clamp_": "x.assign(x.clamp(...))",
    "concat": "Tensor.cat(a, b, dim=0)",
    "concatenate": "Tensor.cat(a, b, dim=0)",
    "copy": "x.clone()",
    "copy_": "x.assign(y)",
    "count_nonzero": "(x != 0).sum(axis)",
    "cpu": 'x.to("CPU")',
    "cuda": 'x.to("CUDA")',
    "expand_as": "x.expand(y.shape)",
    "fill_": "x.assign(number)",
    "floor_divide": "x // y",
    "fmod": "x - x.idiv(y) * y, or x % y for the sign of y",
    "index_add": 'x.scatter_reduce(dim, index, y, "sum")',
    "index_select": "x[index], x[:, index]",
    "from_numpy": "Tensor(array), or Tensor.from_dlpack(array) for the same memory",
    "inner": "(a * b).sum()",
    "is_cuda": "x.device",
    "matvec": "a @ b",
    "median": "x.sort()[0], and its element in the middle",
    "mm": "a @ b",
    "movedim": "x.permute(...)",
    "moveaxis": "x.permute(...)",
    "mv": "a @ b",
    "narrow": "x.shrink(...), x[:, start:stop]",
    "new_ones": "Tensor.ones(shape, dtype=x.dtype)",
    "new_zeros": "Tensor.zeros(shape, dtype=x.dtype)",
    "norm": "x.square().sum(axis).sqrt()",
    "outer": "a.unsqueeze(1) * b",
    "ravel": "x.flatten()",
    "register_hook": "x.gradient(y), which gives gradients of any value",
    "remainder": "x % y",
    "reshape_as": "x.reshape(y.shape)",
    "retain_grad": "loss.gradient(x), which gives gradients of any value",
    "scatter_add": 'x.scatter_reduce(dim, index, y, "sum")',
    "swapaxes": "x.transpose(a, b)",
    "t": "x.T",
    "tile": "x.repeat(...)",
    "tensor": "Tensor(x)",
    "tensordot": "Tensor.einsum(...)",
    "trace": "x.diagonal().sum()",
    "type": "x.cast(dtype), x.dtype",
    "type_as": "x.cast(y.dtype)",
    "unbind": "x.split(1, dim), or `for row in x`",
    "zero_": "x.assign(0)",
}


def hint(name: str, owner: str, known: dict[str, str]) -> str:
    """Text of the AttributeError for a name that `owner` lacks."""
    text = f"{owner} has no attribute {name!r}"
    return f"{text}; here it is {known[name]}" if name in known else text
