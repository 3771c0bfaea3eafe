"""Adapters in the layout of PEFT: a folder of `adapter_config.json` and safetensors.

Receives adapters by the names of a GGUF file's matrices, or a folder; writes or returns them.
Files of the family llama have the rows of queries and keys in another order than the models that
PEFT knows, so these rows change places on the way. How an adapter is multiplied is in `weights`,
how it learns in `apps.finetune`.

Source: PEFT's documentation (checkpoint format, LoraConfig); Hu et al., LoRA (2021); Kalajdzievski,
rsLoRA (2023) for `use_rslora`; llama.cpp's convert_hf_to_gguf for which rows change places.
"""

from __future__ import annotations

import json
import math
import pathlib
import re
from collections.abc import Iterable, Mapping

from aster_ml import Tensor
from aster_ml.apps.llm.architectures import MAX_NUMBER, MAX_SIZE, Config
from aster_ml.apps.llm.weights import Adapter
from aster_ml.downloads import write_atomically
from aster_ml.errors import FormatError
from aster_ml.nn.fileio import show_value
from aster_ml.nn.state import safe_load, safe_save

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model.model.layers."
# By the name in a GGUF file, the module of the published model.
MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
JOINT = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
PHI2 = {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
OWN_MODULES = {"phi2": PHI2, "phi3": {**MODULES, **JOINT}}
LAYER_NAME = re.compile(r"blk\.([0-9]+)\.([a-z_]+)\.weight")
ENTRY = re.compile(re.escape(PREFIX) + r"([0-9]+)\.([a-z_.0-9]+)\.lora_([AB])\.weight")
MAX_CONFIG_BYTES = 1 << 20


def modules_of(config: Config) -> dict[str, str]:
    """The matrices of a layer that can have adapters, by the file's names: the model's names."""
    return OWN_MODULES.get(config.family.name, MODULES)


def heads_of(config: Config, name: str) -> int:
    """Of how many heads a matrix has the rows in pairs, (0, h/2), (1, h/2 + 1)...; 0 if in none."""
    if config.family.halves:
        return 0
    return {"attn_q": config.heads, "attn_k": config.kv_heads}.get(name, 0)


def paired(up: Tensor, heads: int) -> Tensor:
    """Rows of halves of a head as those of pairs. Shapes: up [m, r] -> [m, r]."""
    m, r = up.shape
    return up.reshape(heads, 2, m // heads // 2, r).transpose(1, 2).reshape(m, r)


def halved(up: Tensor, heads: int) -> Tensor:
    """Rows of pairs as those of halves of a head. Shapes: up [m, r] -> [m, r]."""
    m, r = up.shape
    return up.reshape(heads, m // heads // 2, 2, r).transpose(1, 2).reshape(m, r)


def split_name(name: str) -> tuple[int, str]:
    """The layer and the matrix of a name in a GGUF file."""
    match = LAYER_NAME.fullmatch(name)
    if match is None:
        raise FormatError(f"{show_value(name)} is no matrix of a layer")
    return int(match[1]), match[2]


def save_adapters(
    folder: pathlib.Path, config: Config, adapters: Mapping[str, Adapter], base: str
) -> None:
    """Writes adapters of one rank and scale; `base` says which model they are for."""
    modules = modules_of(config)
    tensors: dict[str, Tensor] = {}
    for name, (down, up, _) in adapters.items():
        layer, matrix = split_name(name)
        heads = heads_of(config, matrix)
        at = f"{PREFIX}{layer}.{modules[matrix]}"
        tensors[f"{at}.lora_A.weight"] = down.float()
        tensors[f"{at}.lora_B.weight"] = (halved(up, heads) if heads else up).float().contiguous()
    found = [split_name(name) for name in adapters]
    first = next(iter(adapters.values()))
    rank = int(first.down.shape[0])
    layers = sorted({layer for layer, _ in found})
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": first.scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": False,
        "modules_to_save": None,
        "target_modules": sorted({modules[matrix].rpartition(".")[2] for _, matrix in found}),
        "layers_to_transform": None if layers == list(range(config.layers)) else layers,
        "layers_pattern": None,
    }
    folder.mkdir(parents=True, exist_ok=True)
    Tensor.realize(*tensors.values())
    safe_save(tensors, folder / TENSORS, {"format": "pt"})
    text = json.dumps(values, indent=2).encode()
    write_atomically(folder / CONFIG, lambda file: file.write(text))


def read_scale(path: pathlib.Path) -> tuple[int, float]:
    """The rank, and what products are multiplied with, from an `adapter_config.json`.

    Raises: FormatError for what is no configuration, and for adapters of other kinds than LoRA.
    """
    where = str(path)
    with path.open("rb") as file:
        raw = file.read(MAX_CONFIG_BYTES + 1)
    try:
        values = json.loads(raw[:MAX_CONFIG_BYTES].decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"it is no JSON: {error}", where) from error
    if not isinstance(values, dict) or values.get("peft_type") != "LORA":
        kind = values.get("peft_type") if isinstance(values, dict) else values
        raise FormatError(f"peft_type is {show_value(kind)}; LORA is known here", where)
    for key, plain in (("bias", "none"), ("fan_in_fan_out", False)):
        if values.get(key, plain) != plain:
            raise FormatError(f"{key} is {show_value(values[key])}; {plain!r} is wanted", where)
    others = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias")
    for key in others:
        if values.get(key):
            raise FormatError(f"{key} is {show_value(values[key])}, which is not known here", where)
    rank, alpha = values.get("r"), values.get("lora_alpha", 8)
    if rank.__class__ is not int or not 1 <= rank <= MAX_SIZE:
        raise FormatError(f"r is {show_value(rank)}; a whole number is wanted", where)
    if alpha.__class__ not in (int, float) or not abs(alpha) < MAX_NUMBER:
        raise FormatError(f"lora_alpha is {show_value(alpha)}; a finite number is wanted", where)
    return rank, alpha / (math.sqrt(rank) if values.get("use_rslora") else rank)


def load_adapters(folder: str | pathlib.Path, config: Config) -> dict[str, Adapter]:
    """The adapters of a folder in PEFT's layout, by the names of a GGUF file's matrices.

    Raises: FormatError where the folder has none, for kinds that are not known here, and for what
    the model of this configuration has no place for. OSError where a file cannot be read.
    """
    folder = pathlib.Path(folder)
    for name in (CONFIG, TENSORS):
        if not (folder / name).is_file():
            raise FormatError(f"{name} is absent; a folder of PEFT's layout has it", str(folder))
    rank, scale = read_scale(folder / CONFIG)
    where = str(folder / TENSORS)
    names = {module: name for name, module in modules_of(config).items()}
    found: dict[str, dict[str, Tensor]] = {}
    for entry, t in safe_load(folder / TENSORS).items():
        match = ENTRY.fullmatch(entry)
        if match is None or match[2] not in names or int(match[1]) >= config.layers:
            raise FormatError(f"{show_value(entry)} has no place in this model", where)
        if t.ndim != 2 or t.shape[match[3] == "B"] != rank:
            raise FormatError(
                f"{show_value(entry)} has shape {list(t.shape)}, the rank is {rank}", where
            )
        found.setdefault(f"blk.{match[1]}.{names[match[2]]}.weight", {})[match[3]] = t
    made = {name: make_adapter(config, name, pair, scale, where) for name, pair in found.items()}
    if made:
        Tensor.realize(*[t for adapter in made.values() for t in (adapter.down, adapter.up)])
    return made


def make_adapter(
    config: Config, name: str, pair: Mapping[str, Tensor], scale: float, where: str
) -> Adapter:
    """An adapter, from the two tensors of a file; nothing is read yet."""
    if set(pair) != {"A", "B"}:
        raise FormatError(f"of the adapter of {show_value(name)} one half is absent", where)
    down, up = [pair[side].to(None).float() for side in "AB"]
    heads = heads_of(config, split_name(name)[1])
    if heads and up.shape[0] % (2 * heads):
        raise FormatError(
            f"{up.shape[0]} rows for {show_value(name)} are not of {heads} heads", where
        )
    if heads:
        up = paired(up, heads)
    return Adapter(down.contiguous(), up.contiguous(), scale)


def matrices_of(config: Config, tensors: Iterable[str]) -> list[str]:
    """The matrices of a file that can have adapters."""
    known = modules_of(config)
    found = []
    for name in tensors:
        match = LAYER_NAME.fullmatch(name)
        if match is not None and match[2] in known and int(match[1]) < config.layers:
            found.append(name)
    return found
