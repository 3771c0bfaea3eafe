"""Names the element type in which an operator of ONNX is written for values of a dtype.

ONNX allows each operator some element types, and runtimes have kernels for fewer. Values of another
type are carried by a wider one, in which the result has the same low bits (integers) or is rounded
once more (narrow floats). Which nodes there are does not belong here.

Source: type constraints of the schemas in the package `onnx`, opset 18; kernels of onnxruntime 1.32
on the CPU.
"""

from __future__ import annotations

from aster_ml.dtype import DType, dtypes

SIXTEEN = frozenset({dtypes.int16, dtypes.uint16})
NARROW = SIXTEEN | {dtypes.int8, dtypes.uint8}
# Those that come last have no wider signed type: their bits are carried.
UNSIGNED = frozenset(dtypes.uints)
LARGE = frozenset({dtypes.uint32, dtypes.uint64})
CARRIER: dict[DType, DType] = {
    dtypes.bool: dtypes.int32, **dict.fromkeys(NARROW, dtypes.int32),
    dtypes.uint32: dtypes.int64, dtypes.uint64: dtypes.int64, dtypes.bfloat16: dtypes.float32,
}  # fmt: skip
# Integers and booleans that an operator lacks, in the schema or in runtimes.
LACKING: dict[str, frozenset[DType]] = {
    "Neg": UNSIGNED, "Pow": NARROW | LARGE, "Max": SIXTEEN, "Pad": SIXTEEN,
    "Where": SIXTEEN | {dtypes.bool, dtypes.uint64},
    "ReduceSum": NARROW | LARGE, "ReduceProd": NARROW | LARGE, "ReduceMax": NARROW | LARGE,
}  # fmt: skip
# Operators that move elements as they are.
MOVING = frozenset({"Transpose", "Reshape", "Slice", "Squeeze", "GatherND", "ScatterElements"})


def carrier(kind: str, dtype: DType) -> DType:
    """The dtype in which the operator `kind` is written for inputs of `dtype`."""
    if dtype is dtypes.bfloat16:
        return dtype if kind in MOVING else CARRIER[dtype]
    return CARRIER[dtype] if dtype in LACKING.get(kind, ()) else dtype
