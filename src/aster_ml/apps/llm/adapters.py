"""Adapters in the layout of PEFT: a folder of `adapter_config.json` and safetensors.

Receives adapters by the names of a GGUF file's matrices, or a folder; writes or returns them.
Files of the family llama have the rows of queries and keys in another order than the models that
PEFT knows, so these rows change places on the way. How an adapter is multiplied is in `weights`,
how it learns in `apps.finetune`.

Source: PEFT 0.21 (checkpoint format, fields of LoraConfig); Hu et al., LoRA (2021); Kalajdzievski,
rsLoRA (2023) for `use_rslora`; llama.cpp's convert_hf_to_gguf for which rows change places.
"""

from __future__ import annotations

import json
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from aster_ml import Tensor
from aster_ml.apps.llm.architectures import MAX_NUMBER, MAX_SIZE, Config
from aster_ml.apps.llm.weights import Adapter
from aster_ml.downloads import write_atomically
from aster_ml.errors import FormatError
from aster_ml.formats.fileio import show_value
from aster_ml.nn.state import safe_load, safe_save

T = TypeVar("T")
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
ROOT = "base_model.model."
PREFIX = f"{ROOT}model.layers."
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
# Beginnings of learning that leave the weights below as they are: what is learned is for them.
PLAIN_STARTS = (True, False, "gaussian", "eva", "orthogonal", "mica")
# Fields of a configuration by which an adapter is no sum of weights and scale * up @ down.
OTHER_KINDS = (
    "alora_invocation_tokens", "arrow_config", "fan_in_fan_out", "kasa_config", "layer_replication",
    "lora_bias", "megatron_config", "modules_to_save", "monteclora_config", "target_parameters",
    "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora",
)  # fmt: skip
# Fields that say how it was learned or where; what was learned is in the tensors.
OF_LEARNING = (
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
    "exclude_modules", "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config",
    "lora_dropout", "lora_ga_config", "megatron_core", "peft_version", "qalora_group_size",
    "revision", "runtime_config", "target_modules", "task_type", "velora_config",
)  # fmt: skip
READ = (
    "alpha_pattern", "bias", "init_lora_weights", "lora_alpha", "peft_type", "r", "rank_pattern",
    "use_rslora",
)  # fmt: skip
# Patterns of names that are read: names, ends of names, and these with a number or any text in
# them. Others could take very long to be looked for.
NAME_PATTERN = re.compile(r"\^?(?:[A-Za-z0-9_]|\\?\.|\.\*|\\d\+|\[0-9\]\+)+\$?")
MOST_WILD, MAX_PATTERN = 3, 200


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
    """Writes adapters; `base` says which model they are for."""
    modules = modules_of(config)
    first = next(iter(adapters.values()))
    rank, alpha = int(first.down.shape[0]), first.scale * int(first.down.shape[0])
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    tensors: dict[str, Tensor] = {}
    for name, (down, up, _) in adapters.items():
        layer, matrix = split_name(name)
        heads = heads_of(config, matrix)
        at = f"{PREFIX}{layer}.{modules[matrix]}"
        own = int(down.shape[0])
        if own != rank:
            ranks[at.removeprefix(ROOT)] = own
        if adapters[name].scale * own != alpha:
            alphas[at.removeprefix(ROOT)] = adapters[name].scale * own
        tensors[f"{at}.lora_A.weight"] = down.float()
        tensors[f"{at}.lora_B.weight"] = (halved(up, heads) if heads else up).float().contiguous()
    found = [split_name(name) for name in adapters]
    layers = sorted({layer for layer, _ in found})
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
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


class Scales:
    """The ranks of adapters and what their products are multiplied with, by the module's name."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self.is_stable = self.checked_flag(values, "use_rslora")
        self.rank = self.checked_rank("r", values.get("r", 8))
        self.alpha = self.checked_alpha("lora_alpha", values.get("lora_alpha", 8))
        self.ranks = self.patterns(values, "rank_pattern", self.checked_rank)
        self.alphas = self.patterns(values, "alpha_pattern", self.checked_alpha)

    def refuse(self, key: str, value: Any, wanted: str) -> NoReturn:
        """Raises FormatError."""
        raise FormatError(f"{key} is {show_value(value)}; {wanted}", self.where)

    def checked_flag(self, values: Mapping[str, Any], key: str) -> bool:
        """A field that is true or false."""
        value = values.get(key, False)
        if value.__class__ is not bool and value is not None:
            self.refuse(key, value, "true or false is wanted")
        return bool(value)

    def checked_rank(self, key: str, value: Any) -> int:
        """A rank."""
        if value.__class__ is not int or not 1 <= value <= MAX_SIZE:
            self.refuse(key, value, "a whole number is wanted")
        return int(value)

    def checked_alpha(self, key: str, value: Any) -> float:
        """Checks alpha, with which a product is multiplied before it is divided by its rank."""
        if value.__class__ not in (int, float) or not abs(value) < MAX_NUMBER:
            self.refuse(key, value, "a finite number is wanted")
        return float(value)

    def patterns(
        self, values: Mapping[str, Any], key: str, check: Callable[[str, Any], T]
    ) -> list[tuple[re.Pattern[str], T]]:
        """Patterns of module names and the number for each; the first that fits counts."""
        table = values.get(key) or {}
        if not isinstance(table, dict):
            self.refuse(key, table, "an object of names and numbers is wanted")
        found = []
        for name, value in table.items():
            plain = NAME_PATTERN.fullmatch(name) and len(name) <= MAX_PATTERN
            if not plain or name.count(".*") + name.count("+") > MOST_WILD:
                self.refuse(key, name, "names of modules are wanted, with at most three .* in them")
            found.append((re.compile(rf"(.*\.)?({name})$"), check(f"{key}.{name}", value)))
        return found

    def of(self, module: str) -> tuple[int, float]:
        """The rank of a module's adapter, and what its product is multiplied with."""
        rank = next((r for p, r in self.ranks if p.match(module)), self.rank)
        alpha = next((a for p, a in self.alphas if p.match(module)), self.alpha)
        return rank, alpha / (math.sqrt(rank) if self.is_stable else rank)


def read_scale(path: pathlib.Path) -> Scales:
    """Ranks and scales of an `adapter_config.json`.

    Raises: FormatError for what is no configuration, for adapters of other kinds than LoRA, for
    those of other weights than the plain ones, and for fields that are not known.
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
    if values.get("bias", "none") not in ("none", None):
        raise FormatError(f"bias is {show_value(values['bias'])}; 'none' is wanted", where)
    start = values.get("init_lora_weights", True)
    if not any(start is known or start == known != 1 for known in PLAIN_STARTS):
        raise FormatError(
            f"init_lora_weights is {show_value(start)}: such an adapter is for weights that were "
            "changed before it learned, not for those of the model; PEFT's save_pretrained with "
            "path_initial_model_for_weight_conversion writes one for the plain weights",
            where,
        )
    for key in OTHER_KINDS:
        if values.get(key):
            raise FormatError(f"{key} is {show_value(values[key])}, which is not known here", where)
    for key, value in values.items():
        if value and key not in (*READ, *OTHER_KINDS, *OF_LEARNING):
            raise FormatError(
                f"{show_value(key)} is {show_value(value)}, a field that is not known here", where
            )
    return Scales(values, where)


def load_adapters(folder: str | pathlib.Path, config: Config) -> dict[str, Adapter]:
    """The adapters of a folder in PEFT's layout, by the names of a GGUF file's matrices.

    Raises: FormatError where the folder has none, for kinds that are not known here, and for what
    the model of this configuration has no place for. OSError where a file cannot be read.
    """
    folder = pathlib.Path(folder)
    for name in (CONFIG, TENSORS):
        if not (folder / name).is_file():
            raise FormatError(f"{name} is absent; a folder of PEFT's layout has it", str(folder))
    scales = read_scale(folder / CONFIG)
    where = str(folder / TENSORS)
    names = {module: name for name, module in modules_of(config).items()}
    found: dict[str, dict[str, Tensor]] = {}
    factors: dict[str, float] = {}
    for entry, t in safe_load(folder / TENSORS).items():
        match = ENTRY.fullmatch(entry)
        if match is None or match[2] not in names or int(match[1]) >= config.layers:
            raise FormatError(f"{show_value(entry)} has no place in this model", where)
        rank, scale = scales.of(f"model.layers.{match[1]}.{match[2]}")
        if t.ndim != 2 or t.shape[match[3] == "B"] != rank:
            raise FormatError(
                f"{show_value(entry)} has shape {list(t.shape)}, the rank is {rank}", where
            )
        name = f"blk.{match[1]}.{names[match[2]]}.weight"
        factors[name] = scale
        found.setdefault(name, {})[match[3]] = t
    made = {
        name: make_adapter(config, name, pair, factors[name], where) for name, pair in found.items()
    }
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
