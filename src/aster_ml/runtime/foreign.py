"""Resolves lazy state of foreign arrays (masks, conjugation, ...), or rejects it by name.

Receives an array of another package; returns an array whose memory holds the numbers. Lazy marks
(negated, conjugated, all zeros) are computed; arrays without plain memory (sparse, nested,
quantised, meta) and with missing elements (masks, nulls) are rejected, with advice. `dlpack` reads
capsules.

Source: PyTorch's documentation (Tensor Attributes, negative and conjugate views); NumPy's array
interface, version 3; Arrow's null_count.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from aster_ml.errors import ArgumentError, DTypeError
from aster_ml.helpers import kind_of
from aster_ml.runtime import dlpack

# Element types of PyTorch that a capsule, or NumPy, can express.
NUMBERS_OF_TORCH = frozenset({
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
    "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
})  # fmt: skip


def unmasked(array: Any) -> np.ndarray[Any, Any]:
    """A masked array without masked elements, as an array.

    Raises: ArgumentError where elements are masked, since a tensor has no missing elements.
    """
    if np.ma.is_masked(array):
        missing = int(np.ma.getmaskarray(array).sum())
        raise ArgumentError(
            f"Tensor: {missing} of {array.size} elements of the NumPy array are masked, and a "
            "tensor has none that are missing; array.filled(value) puts a value there"
        )
    plain: np.ndarray[Any, Any] = np.asarray(array.data)
    return plain


def resolved(source: Any) -> Any:
    """An array of another package without lazy marks that a capsule cannot express.

    Raises: ArgumentError or DTypeError for an array without plain numbers.
    """
    if isinstance(source, np.ndarray):
        return unmasked(source) if isinstance(source, np.ma.MaskedArray) else source
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        return resolved_of_torch(source, torch)
    missing = missing_in(source)
    if missing:
        raise ArgumentError(
            f"Tensor: {missing} elements of {kind_of(source)} are missing, and a tensor has a "
            "number everywhere; fill them first (fill_null, fillna)"
        )
    return source


def resolved_of_torch(source: Any, torch: Any) -> Any:
    """A PyTorch tensor without lazy marks."""

    def refuse(what: str, advice: str) -> None:
        raise ArgumentError(f"Tensor: a tensor of PyTorch that is {what}; {advice}")

    kind = type(source)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        refuse(f"a {kind.__name__}", "its numbers are not its own memory, so give a plain tensor")
    with torch._C.DisableTorchFunctionSubclass():
        if torch._C._functorch.is_functorch_wrapped_tensor(source):
            refuse("inside of a transform (vmap, grad)", "take its numbers outside of it")
        if source.is_nested:
            refuse("nested", "to_padded_tensor(value) makes a plain one")
        if source.layout is not torch.strided:
            refuse(f"of layout {source.layout}", "x.to_dense() makes a plain one")
        if source.is_meta:
            refuse("on the device meta", "it has no numbers")
        if source.is_quantized:
            refuse(
                f"quantised ({source.dtype})", "x.dequantize() or x.int_repr() makes a plain one"
            )
        name = str(source.dtype).removeprefix("torch.")
        if name not in NUMBERS_OF_TORCH:
            raise DTypeError(
                f"Tensor: elements of PyTorch's type {name} are none of Aster's; "
                "x.to(torch.float32) makes a plain one"
            )
        if source._is_zerotensor():
            return torch.zeros(source.shape, dtype=source.dtype, device=source.device)
        plain = source if kind is torch.Tensor else source.as_subclass(torch.Tensor)
        return plain.resolve_conj().resolve_neg()


def missing_in(source: Any) -> int:
    """Counts the missing elements of a column or a table."""
    if not hasattr(source, "null_count") and hasattr(source, "itercolumns"):
        return sum([missing_of(column) for column in source.itercolumns()])
    return missing_of(source)


def missing_of(source: Any) -> int:
    """Counts the missing elements of a column, or of a table that counts them itself."""
    # A column of lists of equal length: its inner elements.
    while getattr(getattr(source, "dtype", None), "inner", None) and hasattr(source, "explode"):
        source = source.explode()
    count = getattr(source, "null_count", None)
    if count is not None:
        count = count() if callable(count) else count
        # polars returns a table with one row for a table.
        return int(count) if isinstance(count, int) else int(sum(count.row(0)))
    interface = getattr(source, "__array_interface__", None)
    if isinstance(interface, dict) and interface.get("mask") is not None:
        return int(np.size(np.asarray(source)))
    if not hasattr(source, "isna"):
        return 0
    types: Any = getattr(source, "dtypes", getattr(source, "dtype", None))
    types = list(types) if hasattr(types, "__iter__") else [types]
    # A NaN of NumPy is a number; pandas' NA is a missing element.
    if not any([type(getattr(t, "na_value", None)).__name__ == "NAType" for t in types]):
        return 0
    return int(np.asarray(source.isna()).sum())


def array_of(data: Any) -> np.ndarray[Any, Any]:
    """The numbers of an array of another package, also of one that requires a gradient.

    Raises: ArgumentError or DTypeError for an array without plain numbers.
    """
    plain = resolved(data)
    if isinstance(plain, np.ndarray):
        return plain
    if getattr(plain, "requires_grad", False):
        plain = plain.detach()
    reason: Exception | None = None
    if hasattr(plain, "__dlpack__"):
        try:
            return dlpack.array_from(plain)
        except Exception as error:
            # Some arrays have no capsule, but convert to NumPy.
            reason = error
    if hasattr(plain, "__array__") or hasattr(plain, "__array_interface__"):
        try:
            found = np.asanyarray(plain)
        except Exception as error:
            reason = error
        else:
            return unmasked(found) if isinstance(found, np.ma.MaskedArray) else found
    raise DTypeError(f"Tensor: {kind_of(data)} gives no array of numbers: {reason}") from reason
