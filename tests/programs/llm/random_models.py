"""Small models with random weights, one for each architecture, written by our own GGUF writer.

`write_model` writes one; `llama_logits` runs a file in llama.cpp (the package xllamacpp).
"""

from __future__ import annotations

import pathlib
from typing import Any

import ml_dtypes
import numpy as np

from aster_ml import Tensor
from aster_ml.apps.llm.architectures import ARCHITECTURES
from aster_ml.formats.ggml.blocks import NAMED
from aster_ml.formats.ggml.quantise import ENCODERS
from aster_ml.formats.gguf.values import Metadata
from aster_ml.nn.state import QuantTensor, ggml_quantize, gguf_save

SIZE, HEADS, HEAD_SIZE, INNER, CONTEXT = 64, 4, 16, 96, 256
EXPERTS, USED = 8, 2
# Every fourth, second and sixth layer is of another kind; llama.cpp wants as many heads of keys as
# of queries of OLMoE.
LAYERS = {"smollm3": 4, "gemma2": 4, "gemma3": 6}
KV_HEADS = {"olmoe": HEADS}
EXPERT_INNER = {"llama": INNER, "olmoe": INNER}


def byte_letters() -> list[str]:
    """The 256 characters by which byte-level BPE shows bytes, by byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def vocabulary() -> dict[str, Any]:
    """A byte-level vocabulary: bytes, some merges, two tokens of control."""
    letters = byte_letters()
    merges = ["t h", "i n", "e r", "a n", "th e", "Ġ the", "Ġ t", "o u", "Ġ a"]
    tokens = [*letters, *[m.replace(" ", "") for m in merges], "<|end|>", "<|start|>"]
    plain = len(tokens) - 2
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([1] * plain + [3, 3], np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": np.uint32(plain + 1),
        "tokenizer.ggml.eos_token_id": np.uint32(plain),
        "tokenizer.ggml.add_bos_token": False,
    }


class Maker:
    """Draws weights by name, for a model of some size."""

    def __init__(self, seed: int, size: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.size, self.inner = size, INNER * size // SIZE
        self.tensors: dict[str, Tensor] = {}

    def matrix(self, name: str, *shape: int, scale: float = 1.0) -> None:
        """A weight that keeps the size of what it is multiplied with."""
        value = self.rng.normal(size=shape) * scale / np.sqrt(shape[-1])
        self.tensors[name + ".weight"] = Tensor(value.astype(np.float32))

    def vector(self, name: str, size: int, kind: str = "weight") -> None:
        """A norm's weight, near 1, or a bias, near 0."""
        value = self.rng.normal(size=size) * 0.2 + (kind == "weight")
        self.tensors[f"{name}.{kind}"] = Tensor(value.astype(np.float32))


def write_model(
    path: pathlib.Path,
    architecture: str,
    seed: int = 0,
    quantise: str = "F32",
    more: dict[str, Any] | None = None,
    factors: bool = False,
    tied: bool = False,
    bias: bool = False,
    words: dict[str, Any] | None = None,
    size: int = SIZE,
) -> None:
    """Writes a random model; `more` are metadata beneath the architecture's name.

    Types that are read and not written have random blocks.
    """
    family, name = ARCHITECTURES[architecture], architecture
    words = words or vocabulary()
    entries = len(words["tokenizer.ggml.tokens"])
    make = Maker(seed, size)
    layers, kv_heads = LAYERS.get(name, 2), KV_HEADS.get(name, 2)
    inner = EXPERT_INNER.get(name, 32)
    values: dict[str, Any] = {
        "block_count": layers, "context_length": CONTEXT, "embedding_length": size,
        "feed_forward_length": make.inner, "attention.head_count": HEADS,
        "attention.head_count_kv": kv_heads, "rope.freq_base": 10_000.0,
        "attention.key_length": HEAD_SIZE, "attention.value_length": HEAD_SIZE,
        "rope.dimension_count": HEAD_SIZE, "vocab_size": entries,
    }  # fmt: skip
    kind = "rms_" if family.norm == "rms" else ""
    values[f"attention.layer_norm_{kind}epsilon"] = 1e-5
    mixture = architecture in ("qwen2moe", "qwen3moe", "olmoe") or (more or {}).get("expert_count")
    if mixture:
        values |= {"expert_count": EXPERTS, "expert_used_count": USED}
        values |= {"expert_feed_forward_length": inner}
    if architecture == "qwen2moe":
        values["expert_shared_feed_forward_length"] = inner
    values |= more or {}
    make.matrix(
        "token_embd", entries, size, scale=size**0.5 * (0.1 if family.scale_embedding else 1)
    )
    make.vector("output_norm", size)
    if not tied and not family.scale_embedding:
        make.matrix("output", entries, size)
    if family.norm == "layer":
        make.vector("output", entries, "bias")
        make.vector("output_norm", size, "bias")
    if factors:
        make.tensors["rope_freqs.weight"] = Tensor(
            np.linspace(1, 8, HEAD_SIZE // 2, dtype=np.float32)
        )
    for i in range(layers):
        write_layer(make, f"blk.{i}.", architecture, bool(mixture), bias)
    metadata = Metadata()
    metadata.update({"general.architecture": name, "general.name": "random", **words})
    metadata.update({f"{name}.{key}": typed(value) for key, value in values.items()})
    tensors: dict[str, Any] = {
        key: quantised(make.rng, t, quantise)
        if quantise != "F32" and t.ndim > 1 and t.shape[-1] % NAMED[quantise].elements == 0
        else t
        for key, t in make.tensors.items()
    }
    gguf_save(tensors, path, metadata)


def typed(value: Any) -> Any:
    """Whole numbers as uint32, others as float32, as llama.cpp wants them."""
    if isinstance(value, bool) or isinstance(value, str):
        return value
    return np.uint32(value) if isinstance(value, int) else np.float32(value)


# Where blocks have scales of float16.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ2_XXS": [0], "IQ2_XS": [0],
    "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ4_NL": [0], "IQ4_XS": [0],
    "TQ1_0": [52], "TQ2_0": [64],
}  # fmt: skip
# IQ1_M has four bits of its scale in every second byte from here on.
IQ1_M_AT = 48


def set_scales(blocks: np.ndarray, name: str, scale: float) -> None:
    """Gives all blocks this scale, or the nearest that there is."""
    if name == "MXFP4":
        blocks[..., 0] = 127 + round(np.log2(scale))
    elif name == "NVFP4":
        blocks[..., :4] = np.array(scale, ml_dtypes.float8_e4m3fn).view(np.uint8)
    elif name == "IQ1_M":
        bits = int(np.float16(scale).view(np.uint16))
        for i in range(4):
            at = IQ1_M_AT + 2 * i + 1
            blocks[..., at] = blocks[..., at] & 15 | (bits >> 4 * i & 15) << 4
    else:
        for at in SCALES[name]:
            blocks[..., at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)


def random_blocks(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> QuantTensor:
    """Blocks of random bytes, whose numbers keep the size of what they are multiplied with."""
    row = NAMED[name]
    whole = (*shape[:-1], shape[-1] // row.elements, row.nbytes)
    blocks = rng.integers(0, 256, whole).astype(np.uint8)
    set_scales(blocks, name, 1.0)
    size = float(QuantTensor(name, Tensor(blocks)).dequantize().square().mean().sqrt().item())
    set_scales(blocks, name, 1 / size / np.sqrt(shape[-1]))
    return QuantTensor(name, Tensor(blocks))


def quantised(rng: np.random.Generator, t: Tensor, name: str) -> QuantTensor:
    """A weight of a type; random blocks where it is read and not written."""
    written = name in ENCODERS or NAMED[name].elements == 1
    return ggml_quantize(t, name) if written else random_blocks(rng, tuple(t.shape), name)


def write_layer(make: Maker, at: str, architecture: str, mixture: bool, bias: bool) -> None:
    """The weights of one layer."""
    heads, shared = HEADS * HEAD_SIZE, KV_HEADS.get(architecture, 2) * HEAD_SIZE
    inner = EXPERT_INNER.get(architecture, 32)
    biased = bias or architecture in ("qwen2", "qwen2moe", "phi2")
    layer_norm = ARCHITECTURES[architecture].norm == "layer"
    if architecture != "olmo2":
        make.vector(at + "attn_norm", make.size)
        if architecture != "phi2":
            make.vector(at + "ffn_norm", make.size)
    if layer_norm:
        make.vector(at + "attn_norm", make.size, "bias")
    if architecture in ("gemma2", "gemma3", "olmo2"):
        make.vector(at + "post_attention_norm", make.size)
        make.vector(at + "post_ffw_norm", make.size)
    if architecture in ("phi3", "phi2"):
        make.matrix(at + "attn_qkv", heads + 2 * shared, make.size)
        if biased:
            make.vector(at + "attn_qkv", heads + 2 * shared, "bias")
    else:
        for part, n in (("q", heads), ("k", shared), ("v", shared)):
            make.matrix(f"{at}attn_{part}", n, make.size)
            if biased:
                make.vector(f"{at}attn_{part}", n, "bias")
    make.matrix(at + "attn_output", make.size, heads)
    if bias or layer_norm:
        make.vector(at + "attn_output", make.size, "bias")
    if architecture in ("qwen3", "qwen3moe", "gemma3"):
        make.vector(at + "attn_q_norm", HEAD_SIZE)
        make.vector(at + "attn_k_norm", HEAD_SIZE)
    if architecture in ("olmoe", "olmo2"):
        make.vector(at + "attn_q_norm", heads)
        make.vector(at + "attn_k_norm", shared)
    if mixture:
        make.matrix(at + "ffn_gate_inp", EXPERTS, make.size, scale=3)
        make.matrix(at + "ffn_gate_exps", EXPERTS, inner, make.size)
        make.matrix(at + "ffn_up_exps", EXPERTS, inner, make.size)
        make.matrix(at + "ffn_down_exps", EXPERTS, make.size, inner)
        if architecture == "qwen2moe":
            make.vector(at + "ffn_gate_inp_shexp", make.size)
            make.matrix(at + "ffn_gate_shexp", inner, make.size)
            make.matrix(at + "ffn_up_shexp", inner, make.size)
            make.matrix(at + "ffn_down_shexp", make.size, inner)
        return
    if architecture not in ("phi2", "phi3"):
        make.matrix(at + "ffn_gate", make.inner, make.size)
    make.matrix(at + "ffn_up", 2 * make.inner if architecture == "phi3" else make.inner, make.size)
    make.matrix(at + "ffn_down", make.size, make.inner)
    if layer_norm:
        make.vector(at + "ffn_up", make.inner, "bias")
        make.vector(at + "ffn_down", make.size, "bias")


def llama_logits(path: pathlib.Path, tokens: list[int], context: int = CONTEXT) -> np.ndarray:
    """Logarithms of the odds of every token after these, as llama.cpp computes them.

    Shapes: tokens, a list of n -> [v].
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = context, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.swa_full = True
    params.fit_params = False
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    question = {
        "prompt": tokens, "n_predict": 1, "n_probs": 1000, "cache_prompt": False,
        "ignore_eos": True,
        # A letter, since an answer that ends inside of a character comes without odds.
        "logit_bias": [[ord("m"), 1000.0]],
    }  # fmt: skip
    answer = server.handle_completions(question)
    rows = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    result = np.full(len(rows), np.nan, np.float32)
    for row in rows:
        result[row["id"]] = row["logprob"]
    return result


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """The logarithm of the odds. Shapes: logits [v] -> [v]."""
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())
