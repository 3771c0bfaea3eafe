"""Describes families of language models, and reads a model's own numbers from its metadata.

Receives the metadata of a GGUF file; returns a `Config`, from which `model` builds the forward
pass. A family is a row of `ARCHITECTURES`; what the file says itself (sizes, scaling, windows) is
read from the file. Tensors do not belong here, nor does the tokenizer.

Source: the public GGUF specification (ggml, docs/gguf.md) for the keys; the models' papers and
published configurations for what each family computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aster_ml.errors import FormatError
from aster_ml.formats.fileio import show_value

# Sizes that no model has, and that a broken file claims.
MAX_LAYERS, MAX_SIZE, MAX_NUMBER = 1024, 1 << 24, 1e30


@dataclass(frozen=True)
class Family:
    """Differences of an architecture from the plain llama layer; the file's tensors say the rest.

    `halves`: the rotary embedding turns (i, i + n/2) together, otherwise (2i, 2i + 1).
    `windows`: of how many layers in a row the last attends to everything; 0 where all are alike.
    `first_windowed`: every layer has the window that the file names, where `windows` is 0.
    """

    name: str
    models: str
    halves: bool = False
    norm: str = "rms"
    activation: str = "silu"
    scale_embedding: bool = False
    parallel: bool = False
    windows: int = 0
    expert_norm: bool = True
    local_base: float = 0.0
    unrotated: int = 0


ARCHITECTURES: dict[str, Family] = {
    row.name: row
    for row in [
        Family("llama", "Llama 2 and 3, SmolLM2, Mistral, Mixtral, TinyLlama, Yi"),
        Family("smollm3", "SmolLM3", unrotated=4),
        Family("granite", "Granite 3"),
        Family("qwen2", "Qwen2, Qwen2.5", halves=True),
        Family("qwen2moe", "Qwen1.5-MoE, Qwen2-MoE", halves=True, expert_norm=False),
        Family("qwen3", "Qwen3", halves=True),
        Family("qwen3moe", "Qwen3-MoE", halves=True),
        Family("olmo2", "OLMo 2", halves=True),
        Family("olmoe", "OLMoE", halves=True, expert_norm=False),
        Family("gemma", "Gemma", halves=True, activation="gelu", scale_embedding=True),
        Family(
            "gemma2", "Gemma 2", halves=True, activation="gelu", scale_embedding=True, windows=2
        ),
        Family(
            "gemma3", "Gemma 3 (text)", halves=True, activation="gelu", scale_embedding=True,
            windows=6, local_base=10_000.0,
        ),
        Family(
            "phi2", "Phi-1.5, Phi-2", halves=True, norm="layer", activation="gelu", parallel=True
        ),
        Family("phi3", "Phi-3, Phi-3.5, Phi-4", halves=True),
    ]
}  # fmt: skip


@dataclass(frozen=True)
class Rope:
    """A rotary embedding: how many numbers of a head it turns, and how its angles are scaled.

    `kind` is "none", "linear" or "yarn"; the factors of "llama3" and "longrope" are tensors of
    the file.
    """

    size: int
    base: float
    kind: str = "none"
    factor: float = 1.0
    original: int = 0
    attention: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class Config:
    """A model's numbers. `windows[i]` is how far layer i looks back, 0 for everything."""

    family: Family
    layers: int
    size: int
    heads: int
    kv_heads: int
    head_size: int
    context: int
    epsilon: float
    rope: Rope
    local_rope: Rope
    windows: tuple[int, ...]
    score_scale: float
    score_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    experts: int = 0
    experts_used: int = 0
    expert_norm: bool = True
    expert_scale: float = 1.0
    expert_sigmoid: bool = False
    name: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def group(self) -> int:
        """Number of query heads that share a head of keys and values."""
        return self.heads // self.kv_heads


class Keys:
    """Reads the metadata of one architecture, each value with its type and bounds checked."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata, self.architecture = metadata, architecture

    def has(self, key: str) -> bool:
        """Whether the file says anything of this."""
        return f"{self.architecture}.{key}" in self.metadata

    def get(self, key: str, default: Any) -> Any:
        """Value of a key in the file, or the default."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def integer(self, key: str, default: int | None = None, low: int = 1) -> int:
        """A whole number. Raises: FormatError where it is none, absent or out of bounds."""
        value = self.get(key, default)
        full = f"{self.architecture}.{key}"
        if value is None:
            raise FormatError(f"{full} is absent; every model of this architecture has it", "gguf")
        if isinstance(value, Sequence) and not isinstance(value, str):
            if not value or any([x != value[0] for x in value]):
                raise FormatError(
                    f"{full} is {show_value(value)}; layers of different sizes are not known here",
                    "gguf",
                )
            value = value[0]
        if value.__class__ is not int or not low <= value <= MAX_SIZE:
            raise FormatError(
                f"{full} is {show_value(value)}, a whole number from {low} to {MAX_SIZE} is wanted",
                "gguf",
            )
        return int(value)

    def number(self, key: str, default: float) -> float:
        """A finite number. Raises: FormatError where it is none."""
        value = self.get(key, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not abs(value) < MAX_NUMBER:
            raise FormatError(
                f"{self.architecture}.{key} is {show_value(self.get(key, default))}, a finite "
                "number is wanted",
                "gguf",
            )
        return float(value)


def read_config(metadata: Mapping[str, Any], vocabulary: int = 0) -> Config:
    """The numbers of a model.

    Raises: FormatError for an architecture that is not known here, by its name, and for metadata
    that are absent, of another type or do not fit together.
    """
    architecture = metadata.get("general.architecture")
    family = ARCHITECTURES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise FormatError(
            f"the architecture is {show_value(architecture)}, which is not known here; known are "
            f"{', '.join(sorted(ARCHITECTURES))}",
            "gguf",
        )
    keys = Keys(metadata, family.name)
    size, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise FormatError(f"{heads} heads cannot share {kv_heads} heads of keys evenly", "gguf")
    head_size = keys.integer("attention.key_length", max(1, size // heads))
    if keys.integer("attention.value_length", head_size) != head_size:
        raise FormatError("keys and values of different sizes are not known here", "gguf")
    layers = keys.integer("block_count")
    if layers > MAX_LAYERS:
        raise FormatError(f"{layers} layers, at most {MAX_LAYERS} are wanted", "gguf")
    rope = read_rope(keys, head_size)
    local = Rope(rope.size, family.local_base) if family.local_base else rope
    if family.local_base and keys.has("rope.freq_base_swa"):
        local = Rope(rope.size, keys.number("rope.freq_base_swa", family.local_base))
    epsilon = (
        "attention.layer_norm_rms_epsilon"
        if family.norm == "rms"
        else "attention.layer_norm_epsilon"
    )
    experts = keys.integer("expert_count", 0, low=0)
    used = keys.integer("expert_used_count", 0, low=0)
    if not (0 < used <= experts if experts else used == 0):
        raise FormatError(f"{used} of {experts} experts are used", "gguf")
    name = metadata.get("general.name", "")
    return Config(
        family=family,
        layers=layers,
        size=size,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        context=keys.integer("context_length", 2048),
        epsilon=keys.number(epsilon, 1e-5),
        rope=rope,
        local_rope=local,
        windows=read_windows(keys, family, layers),
        score_scale=score_scale(keys, family, size, heads, head_size, layers),
        score_cap=keys.number("attn_logit_softcapping", 50.0 if family.name == "gemma2" else 0.0),
        logit_cap=keys.number("final_logit_softcapping", 30.0 if family.name == "gemma2" else 0.0),
        embedding_scale=math.sqrt(size)
        if family.scale_embedding
        else keys.number("embedding_scale", 1.0),
        residual_scale=keys.number("residual_scale", 1.0),
        logit_scale=keys.number("logit_scale", 1.0),
        experts=experts,
        experts_used=used,
        expert_norm=bool(keys.get("expert_weights_norm", family.expert_norm)),
        expert_scale=keys.number("expert_weights_scale", 1.0) or 1.0,
        expert_sigmoid=keys.get("expert_gating_func", 1) == 2,
        name=name if isinstance(name, str) else "",
    )


def read_windows(keys: Keys, family: Family, layers: int) -> tuple[int, ...]:
    """Reads the attention window of each layer."""
    window = keys.integer("attention.sliding_window", 4096 if family.name == "gemma2" else 0, low=0)
    every = family.windows
    return tuple([0 if every and (i + 1) % every == 0 else window for i in range(layers)])


def score_scale(
    keys: Keys, family: Family, size: int, heads: int, head_size: int, layers: int
) -> float:
    """Reads the factor of attention scores."""
    # The largest Gemma 2 and 3 divide by the size of a head as if there were no more to a head.
    by_size = (family.name, layers) in {("gemma2", 46), ("gemma3", 62)}
    plain = 1 / math.sqrt(size / heads if by_size else head_size)
    return keys.number("attention.scale", 0.0) or plain


def read_rope(keys: Keys, head_size: int) -> Rope:
    """The rotary embedding.

    Raises: FormatError for a kind of scaling that is not known here, and for sizes that are odd or
    larger than a head.
    """
    size = keys.integer("rope.dimension_count", head_size)
    if size > head_size or size % 2:
        raise FormatError(
            f"the rotary embedding turns {size} of {head_size} numbers of a head; an even number "
            "of at most as many is wanted",
            "gguf",
        )
    kind = keys.get("rope.scaling.type", "linear" if keys.has("rope.scale_linear") else "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise FormatError(
            f"the rotary embedding is scaled by {show_value(kind)}, which is not known here; "
            "known are none, linear, yarn, longrope",
            "gguf",
        )
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    base = keys.number("rope.freq_base", 10_000.0)
    if base <= 0 or factor <= 0:
        raise FormatError(f"rotary base {base:g} and factor {factor:g} are not positive", "gguf")
    return Rope(
        size,
        base,
        kind,
        factor,
        keys.integer("rope.scaling.original_context_length", keys.integer("context_length", 2048)),
        keys.number("rope.scaling.attn_factor", 1.0) or 1.0,
        keys.number("rope.scaling.yarn_beta_fast", 32.0),
        keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )
