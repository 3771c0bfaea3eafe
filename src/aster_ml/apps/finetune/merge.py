"""Adapters made part of a model: a GGUF file with the types of its base.

Receives the file of the base and adapters by its names; writes a file. What has no adapter is
copied as it is. Merged matrices are rounded to their type again, so logits differ by its rounding;
how that compares with what the adapters add is told, for types of four bits can lose all of it.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from aster_ml import Tensor
from aster_ml.apps.llm.weights import Adapter
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.formats.fileio import show_value
from aster_ml.formats.ggml.blocks import NAMED
from aster_ml.formats.ggml.quantise import ENCODERS
from aster_ml.formats.quantised import QuantTensor
from aster_ml.nn.state import ggml_quantize, gguf_load, gguf_save

SPLIT = ("split.count", "split.no", "split.tensors.count")


def type_for(name: str, base: str, wanted: str) -> str:
    """The type of a merged matrix. Raises: ArgumentError for one that is read and not written."""
    kind = wanted or base
    if kind not in ENCODERS and (kind not in NAMED or NAMED[kind].elements != 1):
        raise ArgumentError(
            f"{name} is {kind}, which is read and not written; --type names another: "
            f"{', '.join(ENCODERS)}, F16, BF16 or F32"
        )
    return kind


class Merged(NamedTuple):
    """The names of the merged matrices, and by how much they were rounded.

    `rounded` is the length of what rounding changed in all of them, in lengths of what the adapters
    added.
    """

    names: list[str]
    rounded: float


def merged(base: QuantTensor, adapter: Adapter, kind: str) -> tuple[QuantTensor, float, float]:
    """The matrix and what its adapter adds, in a type; squares of what rounding changed and of that
    which was added.
    """
    down, up, scale = adapter.down.detach().float(), adapter.up.detach().float(), adapter.scale
    added = ((up @ down) * scale).contiguous()
    value = (base.to(None).dequantize().float() + added).contiguous()
    result = ggml_quantize(value, kind).to(None).realize()
    change = (result.dequantize().float() - value).square().sum()
    return result, change.item(), added.square().sum().item()


def write_merged(
    model: pathlib.Path, adapters: Mapping[str, Adapter], out: pathlib.Path, kind: str = ""
) -> Merged:
    """Writes the model with its adapters; returns what was merged.

    Raises: ArgumentError where a type is not written, or the file would be the model itself;
    FormatError for an adapter of no matrix in the file.
    """
    if out.exists() and out.samefile(model):
        raise ArgumentError(f"{out} is the model itself; another name is wanted")
    metadata, tensors = gguf_load(model, raw=True)
    for key in SPLIT:
        metadata.pop(key, None)
    types = {}
    for name in adapters:
        if name not in tensors:
            raise FormatError(f"an adapter is for {show_value(name)}, which is absent", str(model))
        types[name] = type_for(name, tensors[name].type, kind)
    found: dict[str, Tensor | QuantTensor] = dict(tensors)
    changed = added = 0.0
    for name, adapter in adapters.items():
        found[name], change, more = merged(tensors[name], adapter, types[name])
        changed, added = changed + change, added + more
    gguf_save(found, out, metadata)
    return Merged(list(types), math.sqrt(changed / added) if added else 0.0)
