"""Checks messages of an ONNX file by themselves: versions, types of values, attributes.

Receives messages of the package `onnx`; returns what is wrong with one as text, or None. They agree
with `onnx.checker` but for what other readers take too: a value may be without a shape, and an
operator may be deprecated. Names, order and operators of a graph are checked in `model`.

Source: ONNX's Open Neural Network Exchange Intermediate Representation specification.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

# The field that has the value of an attribute of each type, by AttributeProto.AttributeType.
FIELDS = {
    1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors",
    10: "graphs", 11: "sparse_tensor", 12: "sparse_tensors", 13: "tp", 14: "type_protos",
}  # fmt: skip
# Programs that write zeros as nothing leave these out.
MAY_BE_ABSENT = frozenset({1, 2, 3})
SINGLE = ("f", "i", "s", "t", "g", "tp", "sparse_tensor")
# Versions of operators are below this; the package has no room for others.
MOST_VERSION = 1 << 31
# Operators that onnxruntime had in the standard domain before ONNX did.
EARLIER = frozenset({"LayerNormalization"})
# In which field a tensor has elements of a type, by TensorProto.DataType.
DATA = {
    **dict.fromkeys((1, 14), "float_data"), **dict.fromkeys((11, 15), "double_data"),
    7: "int64_data", 8: "string_data", **dict.fromkeys((12, 13), "uint64_data"),
}  # fmt: skip
DATA_FIELDS = (
    "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data",
)  # fmt: skip
RAW, TEXT_TYPE = "raw_data", 8


def wrong_head(proto: Any, latest: int) -> str | None:
    """Names what is wrong with a model's versions; `latest` is that of the package."""
    ir, domains = proto.ir_version, [item.domain for item in proto.opset_import]
    if not 1 <= ir <= latest:
        return f"ir_version is {ir}; 1 to {latest} are known"
    if ir < 3:
        return "opset_import in a model of ir_version below 3" if domains else None
    if not domains:
        return "opset_import is missing, the versions of its operators"
    known: dict[str, int] = {}
    for item in proto.opset_import:
        if known.setdefault(item.domain, item.version) != item.version:
            return f"opset_import has two versions of the domain {item.domain!r}"
        if not 1 <= item.version < MOST_VERSION:
            return f"version {item.version} of the domain {item.domain!r}"
    return None


def wrong_value(value: Any) -> str | None:
    """Names what is wrong with the declaration of a value."""
    which = value.type.WhichOneof("value")
    if not value.name:
        return "it has no name"
    if which is None:
        return "it has no type"
    if which == "opaque_type":
        return "it is of an opaque type"
    inner = getattr(value.type, which)
    wanted = ("key_type", "value_type") if which == "map_type" else ("elem_type",)
    lacking = [name for name in wanted if not inner.HasField(name)]
    return f"it has no {lacking[0]}" if lacking else None


def wrong_attributes(attributes: Any, schema: Any) -> str | None:
    """Names what is wrong with the attributes of a node, by its operator's schema."""
    names = Counter([item.name for item in attributes])
    for item in attributes:
        if not item.name:
            return "an attribute without a name"
        if names[item.name] > 1:
            return f"its attribute {item.name} is there twice"
        said = wrong_attribute(item)
        if said is not None:
            return f"its attribute {item.name} {said}"
        known = schema.attributes.get(item.name) if schema is not None else None
        if known is not None and int(known.type.value) != item.type:
            return (
                f"its attribute {item.name} is of type {item.type}, "
                f"and {known.type.name} ({int(known.type.value)}) is wanted"
            )
    return None


def wrong_attribute(item: Any) -> str | None:
    """Names what is wrong with an attribute by itself."""
    there = [name for name in SINGLE if item.HasField(name)]
    there += [name for name in FIELDS.values() if name not in SINGLE and len(getattr(item, name))]
    if item.ref_attr_name:
        return "has a value and names another attribute" if there else None
    wanted = FIELDS.get(item.type)
    if wanted is None:
        return f"is of type {item.type}, which is unknown"
    empty = wanted not in SINGLE or item.type in MAY_BE_ABSENT
    if there != [wanted] and not (empty and not there):
        return f"is of type {item.type}, and has {', '.join(there) or 'nothing'} for {wanted}"
    return None


def wrong_data(tensor: Any) -> str | None:
    """Names what is wrong with the place of a tensor's elements."""
    there = [name for name in DATA_FIELDS if len(getattr(tensor, name))]
    there += [RAW] if tensor.HasField(RAW) else []
    if tensor.data_location == 1:
        return f"data elsewhere, and {', '.join(there)} too" if there else None
    if 0 in tensor.dims:
        # No elements; an empty field of bytes is none either.
        filled = [name for name in there if name != RAW or tensor.raw_data]
        return f"no elements, and {', '.join(filled)} has some" if filled else None
    wanted = DATA.get(tensor.data_type, "int32_data")
    allowed = [wanted] if tensor.data_type == TEXT_TYPE else [wanted, RAW]
    if len(there) != 1 or there[0] not in allowed:
        return (
            f"elements of type {tensor.data_type} are in {' or '.join(allowed)}; "
            f"{', '.join(there) or 'no field'} has some"
        )
    return None
