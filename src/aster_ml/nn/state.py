"""Collects and loads the state of models: tensors by name, and the file formats that hold them.

`get_state_dict` walks attributes, lists and dicts and names each tensor by the way to it, as in
`layers.0.weight`. The formats themselves are in `aster_ml.formats`.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from aster_ml import Tensor, TinyJit
from aster_ml.errors import ArgumentError, AsterError, ShapeError
from aster_ml.extend import check_tensor
from aster_ml.formats.archives import tar_extract, zip_extract
from aster_ml.formats.checkpoints import torch_load
from aster_ml.formats.fileio import TensorIO, accept_filename
from aster_ml.formats.ggml.quantise import ggml_quantize
from aster_ml.formats.gguf.reader import ggml_data_to_tensor, gguf_load
from aster_ml.formats.gguf.writer import gguf_save
from aster_ml.formats.quantised import QuantTensor
from aster_ml.formats.safetensors import UnknownTensor, safe_load, safe_load_metadata, safe_save
from aster_ml.helpers import kind_of

__all__ = [
    "QuantTensor",
    "TensorIO",
    "accept_filename",
    "get_parameters",
    "get_state_dict",
    "ggml_data_to_tensor",
    "ggml_quantize",
    "gguf_load",
    "gguf_save",
    "load_state_dict",
    "safe_load",
    "safe_load_metadata",
    "safe_save",
    "tar_extract",
    "torch_load",
    "zip_extract",
]


# What holds no state of a model. A jitted function among them keeps buffers of its own.
LEAVES = (
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    TinyJit,
)


def parts_of(obj: Any) -> Iterator[tuple[str, Any]]:
    """The named parts of an object: fields, elements, entries or attributes."""
    if hasattr(obj, "_asdict"):
        yield from obj._asdict().items()
    elif isinstance(obj, dict):
        yield from ((str(key), value) for key, value in obj.items())
    elif isinstance(obj, (list, tuple)):
        yield from ((str(i), value) for i, value in enumerate(obj))
    else:
        for cls in type(obj).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(obj, name):
                    yield name, getattr(obj, name)
        yield from getattr(obj, "__dict__", {}).items()


def get_state_dict(obj: Any, prefix: str = "", tensor_type: Any = Tensor) -> dict[str, Tensor]:
    """The tensors of an object by the way to them, in the order of its attributes.

    `prefix` goes before every name as it is. A tensor that two ways lead to has both names.
    """
    if isinstance(obj, tensor_type):
        return {prefix.strip("."): obj}
    if isinstance(obj, LEAVES):
        return {}
    found: dict[str, Tensor] = {}
    # The objects on the way to where we are, each with the parts that are left of it. One that
    # comes again below itself is walked already, so nothing is lost in passing it by.
    way = [(obj, prefix, parts_of(obj))]
    on_way = {id(obj)}
    while way:
        owner, prefix, parts = way[-1]
        for key, part in parts:
            name = f"{prefix}{key}."
            if isinstance(part, tensor_type):
                found[name.strip(".")] = part
            elif id(part) not in on_way and not isinstance(part, LEAVES):
                on_way.add(id(part))
                way.append((part, name, parts_of(part)))
                break
        else:
            way.pop()
            on_way.discard(id(owner))
    return found


def get_parameters(obj: Any) -> list[Tensor]:
    """All tensors of an object, those that take no gradient among them."""
    return list(get_state_dict(obj).values())


# Values that are read in one go, and their bytes: each schedule asks who else is alive.
READ_TOGETHER, READ_BYTES = 64, 64 << 20


def load_state_dict(
    model: Any,
    state_dict: dict[str, Tensor],
    strict: bool = True,
    verbose: bool = True,
    consume: bool = False,
    realize: bool = True,
) -> list[Tensor]:
    """Give the model's tensors the values of a state dict, on the devices they are on.

    A tensor takes the dtype of its value, and memory of its own: a later write to the one is not
    seen by the other. With `strict` every tensor of the model must have a value; values that the
    model has no tensor for are named in a warning. `verbose` shows progress, `consume` empties the
    state dict on the way, whose memory then is the model's, `realize` reads the values now. Returns
    the model's tensors that were loaded. Nothing is loaded when something does not fit.

    Raises: KeyError that names what is missing; ShapeError with both shapes of each that differs.
    """
    if not isinstance(state_dict, dict):
        raise ArgumentError(
            f"load_state_dict: the state dict is {kind_of(state_dict)}; a dict of tensors "
            "by name is wanted"
        )
    for key in state_dict:
        if not isinstance(key, str):
            raise ArgumentError(
                f"load_state_dict: the state dict has the key {key!r:.80}, {kind_of(key)}; "
                "names are wanted, as get_state_dict gives them"
            )
    model_state = get_state_dict(model)
    missing = [name for name in model_state if name not in state_dict]
    unexpected = [name for name in state_dict if name not in model_state]
    if strict and missing:
        raise MissingKeyError(
            f"load_state_dict: the state dict lacks {name_some(missing)}"
            + (f"; it has, and the model has not, {name_some(unexpected)}" if unexpected else "")
            + "; strict=False leaves such tensors as they are"
        )
    if strict and unexpected:
        warnings.warn(
            f"load_state_dict: the model has no tensor for {name_some(unexpected)}", stacklevel=2
        )
    names = [name for name in model_state if name in state_dict]
    check_shapes(model_state, state_dict, names)
    total = sum(int(state_dict[name].nbytes()) for name in names)
    loaded: list[Tensor] = []
    waiting: list[Tensor] = []
    waits = 0
    with tqdm(total=total, desc="loading", disable=not verbose, unit="B", unit_scale=True) as bar:
        for name in names:
            t, value = model_state[name], state_dict[name]
            bar.set_postfix_str(name, refresh=False)
            if value.shape != t.shape:
                value = value.reshape(t.shape)
            both = isinstance(t.device, tuple) and isinstance(value.device, tuple)
            there = value if both else value.shard_like(t)
            if consume:
                del state_dict[name]
            elif there.device == value.device:
                there = there._derive_memory()
            t.replace(there)
            loaded.append(t)
            waiting.append(t)
            waits += int(t.nbytes())
            if len(waiting) == READ_TOGETHER or waits >= READ_BYTES or name == names[-1]:
                if realize:
                    Tensor.realize(*waiting)
                bar.update(waits)
                waiting, waits = [], 0
        bar.set_postfix_str(f"{len(loaded)} tensors")
    return loaded


def check_shapes(
    model_state: dict[str, Tensor], state_dict: dict[str, Tensor], names: list[str]
) -> None:
    """Raises ShapeError with all values that have another shape than the model's tensors."""
    wrong = []
    for name in names:
        value = state_dict[name]
        if not isinstance(value, UnknownTensor):
            check_tensor(value, f"load_state_dict: {name}")
        want, given = model_state[name].shape, state_dict[name].shape
        if want != given and {want, given} != {(), (1,)}:
            wrong.append(
                f"Shape mismatch in layer `{name}`: Expected shape {want}, but found {given} in "
                "state dict"
            )
    if wrong:
        listed = ". ".join(wrong[:10])
        more = f". And {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise ShapeError(
            f"{listed}{more}. Give load_state_dict the values of a model of the same sizes"
        )


class MissingKeyError(AsterError, KeyError):
    """A KeyError whose text prints as written, without the quotes that KeyError adds."""

    def __str__(self) -> str:
        return str(self.args[0])


def name_some(names: list[str]) -> str:
    """The names, or the first ten and how many more there are."""
    shown = ", ".join(names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"
