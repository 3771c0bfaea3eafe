"""Adapters on disk in PEFT's layout, beside a model, and merged into a file."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from aster_ml import Tensor
from aster_ml.apps.finetune import __main__ as command
from aster_ml.apps.finetune.merge import write_merged
from aster_ml.apps.finetune.train import fresh_adapters
from aster_ml.apps.llm.adapters import (
    CONFIG,
    TENSORS,
    halved,
    load_adapters,
    matrices_of,
    paired,
    save_adapters,
)
from aster_ml.apps.llm.architectures import Config, read_config
from aster_ml.apps.llm.loading import load_language
from aster_ml.apps.llm.model import Chunk
from aster_ml.apps.llm.weights import Adapter
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.nn.state import gguf_load, safe_load, safe_save
from tests.programs.llm.random_models import llama_logits, log_softmax, write_model

TEXT = [5, 9, 200, 17, 3, 80]


def draw(path: pathlib.Path, matrices: str = "", size: float = 0.3) -> dict[str, Adapter]:
    """Random adapters for a file's matrices whose names have this in them."""
    metadata, tensors = gguf_load(path, raw=True)
    names = [n for n in matrices_of(read_config(metadata), tensors) if matrices in n]
    made = fresh_adapters({n: tensors[n].shape for n in names}, 3, 6.0, 0)
    rng = np.random.default_rng(1)
    return {
        name: Adapter(a.down, Tensor(rng.normal(size=a.up.shape).astype(np.float32) * size), 2.0)
        for name, a in made.items()
    }


def config_of(path: pathlib.Path) -> Config:
    """A file's configuration."""
    return read_config(gguf_load(path, raw=True)[0])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small random llama."""
    path = tmp_path_factory.mktemp("adapters") / "x.gguf"
    write_model(path, "llama")
    return path


def odds(path: pathlib.Path, adapter: pathlib.Path | None = None, dtype: str = "f32") -> np.ndarray:
    """The logarithms of the odds after some tokens."""
    model = load_language(path, dtype, memory="f32", adapter=adapter).engine.model
    place = Chunk(model.positions, 0, 0, len(TEXT))
    return log_softmax(model.forward(Tensor([TEXT], dtype="int32"), place).numpy()[0])


def test_the_layout_of_peft(llama: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Names, shapes and settings, as PEFT's documentation has them."""
    adapters = draw(llama, "blk.1.")
    save_adapters(tmp_path, config_of(llama), adapters, "x.gguf")
    values = json.loads((tmp_path / CONFIG).read_text())
    assert {key: values[key] for key in ("peft_type", "task_type", "r", "lora_alpha", "bias")} == {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 3, "lora_alpha": 6.0, "bias": "none",
    }  # fmt: skip
    assert values["layers_to_transform"] == [1]
    assert set(values["target_modules"]) == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    found = safe_load(tmp_path / TENSORS)
    at = "base_model.model.model.layers.1.self_attn.q_proj"
    assert found[f"{at}.lora_A.weight"].shape == (3, 64)
    assert found[f"{at}.lora_B.weight"].shape == (64, 3)
    assert "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight" in found
    assert len(found) == 14
    back = load_adapters(tmp_path, config_of(llama))
    assert back.keys() == adapters.keys()
    for name, (down, up, scale) in adapters.items():
        np.testing.assert_array_equal(back[name].down.numpy(), down.numpy())
        np.testing.assert_array_equal(back[name].up.numpy(), up.numpy())
        assert back[name].scale == scale


def test_rows_of_queries_change_places() -> None:
    """Files of llama turn neighbours, published models halves of a head."""
    rows = np.arange(16, dtype=np.float32).reshape(16, 1)
    want = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert paired(Tensor(rows), 2).numpy()[:, 0].tolist() == want
    np.testing.assert_array_equal(halved(paired(Tensor(rows), 2), 2).numpy(), rows)


# PEFT asks transformers by a name that is going away there.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_peft_reads_it(family: str, tmp_path: pathlib.Path) -> None:
    """The same logits from transformers and PEFT, of the same weights."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.gguf"
    write_model(path, family)
    config, tensors = config_of(path), gguf_load(path)[1]
    save_adapters(tmp_path, config, draw(path), "x.gguf")
    vocabulary = tensors["token_embd.weight"].shape[0]
    kind = {"llama": "Llama", "qwen2": "Qwen2"}[family]
    sizes = getattr(transformers, f"{kind}Config")(
        vocab_size=vocabulary, hidden_size=config.size, intermediate_size=96,
        num_hidden_layers=config.layers, num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads, rms_norm_eps=config.epsilon,
        rope_theta=config.rope.base, tie_word_embeddings=False,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(sizes)
    model.load_state_dict(published(tensors, config, torch))
    model = peft.PeftModel.from_pretrained(model, tmp_path).eval()
    with torch.no_grad():
        logits = model(torch.tensor([TEXT])).logits[0, -1].numpy()
    np.testing.assert_allclose(log_softmax(logits), odds(path, tmp_path), atol=1e-4)


def published(tensors: dict[str, Tensor], config: Config, torch: Any) -> dict[str, Any]:
    """Weights by the names that transformers has for them."""
    outer = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    inner = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads}
    result = {}
    for name, t in tensors.items():
        *at, matrix, kind = name.split(".")
        value = t.numpy()
        if matrix in heads and not config.family.halves:
            value = halved(Tensor(value), heads[matrix]).numpy()
        place = f"model.layers.{at[1]}.{inner[matrix]}" if at else outer[matrix]
        result[f"{place}.{kind}"] = torch.from_numpy(value)
    return result


@pytest.mark.parametrize("start", [True, False, "gaussian", "eva", "orthogonal", "mica"])
def test_beginnings_that_leave_the_weights_alone_are_read(
    start: Any, llama: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    save_adapters(tmp_path, config_of(llama), draw(llama, "blk.0.attn_q"), "x.gguf")
    values = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({**values, "init_lora_weights": start}))
    assert len(load_adapters(tmp_path, config_of(llama))) == 1


@pytest.mark.parametrize("stable", [False, True])
def test_ranks_and_scales_by_pattern(
    stable: bool, llama: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    drawn = draw(llama, "blk.")
    ranks = {name: 3 if "attn_q" in name else 2 for name in drawn}
    adapters = {
        name: Adapter(a.down[: ranks[name]], a.up[:, : ranks[name]], 5.0 if ".1." in name else 2.0)
        for name, a in drawn.items()
    }
    save_adapters(tmp_path, config_of(llama), adapters, "x.gguf")
    back = load_adapters(tmp_path, config_of(llama))
    assert {name: a.down.shape[0] for name, a in back.items()} == ranks
    assert {name: a.scale for name, a in back.items()} == {n: a.scale for n, a in adapters.items()}
    values = json.loads((tmp_path / CONFIG).read_text())
    patterns = {r"^model\.layers\.1\..*": 12, "layers.0.self_attn.q_proj": 9}
    changed = {**values, "lora_alpha": 4, "alpha_pattern": patterns, "use_rslora": stable}
    (tmp_path / CONFIG).write_text(json.dumps(changed))
    for name, adapter in load_adapters(tmp_path, config_of(llama)).items():
        alpha = 12 if ".1." in name else 9 if name == "blk.0.attn_q.weight" else 4
        rank = ranks[name]
        assert adapter.scale == pytest.approx(alpha / (rank**0.5 if stable else rank))


@pytest.mark.parametrize("change, want", [
    ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; LORA"),
    ({"bias": "all"}, "bias is 'all'"),
    ({"use_dora": True}, "use_dora is True"),
    ({"rank_pattern": {"q_proj": 4}}, "the rank is 4"),
    ({"rank_pattern": {"q_proj": 0}}, "rank_pattern.q_proj is 0"),
    ({"rank_pattern": ["q_proj"]}, "rank_pattern is"),
    ({"alpha_pattern": {"(a+)+b": 4}}, "alpha_pattern is '\\(a"),
    ({"use_rslora": "no"}, "use_rslora is 'no'"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'.*PEFT's save_pretrained"),
    ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights is 'pissa_niter_16'"),
    ({"init_lora_weights": "olora"}, "init_lora_weights is 'olora'"),
    ({"init_lora_weights": "corda"}, "init_lora_weights is 'corda'"),
    ({"init_lora_weights": "loftq"}, "init_lora_weights is 'loftq'"),
    ({"init_lora_weights": "lora_ga"}, "init_lora_weights is 'lora_ga'"),
    ({"init_lora_weights": 1}, "init_lora_weights is 1"),
    ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens is"),
    ({"trainable_token_indices": [1]}, "trainable_token_indices is"),
    ({"target_parameters": ["a"]}, "target_parameters is"),
    ({"layer_replication": [[0, 1]]}, "layer_replication is"),
    ({"megatron_config": {"a": 1}}, "megatron_config is"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
    ({"use_something": True}, "'use_something' is True, a field that is not known"),
    ({"r": 0}, "r is 0"),
    ({"r": 4}, "the rank is 4"),
    ({"lora_alpha": "much"}, "lora_alpha is 'much'"),
    (None, "it is no JSON"),
])  # fmt: skip
def test_configurations_that_are_refused(
    change: dict[str, Any] | None, want: str, llama: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    save_adapters(tmp_path, config_of(llama), draw(llama, "blk.0.attn_q"), "x.gguf")
    values = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text("{" if change is None else json.dumps({**values, **change}))
    with pytest.raises(FormatError, match=want):
        load_adapters(tmp_path, config_of(llama))


def test_tensors_that_are_refused(llama: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = config_of(llama)
    with pytest.raises(FormatError, match="json is absent"):
        load_adapters(tmp_path, config)
    save_adapters(tmp_path, config, draw(llama, "blk.0.attn_q"), "x.gguf")
    at = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    down, up = Tensor.ones(3, 64), Tensor.ones(64, 3)
    for tensors, want in (
        ({"lm_head.lora_A.weight": down}, "has no place in this model"),
        ({f"{at}A.weight".replace("layers.0", "layers.9"): down}, "has no place"),
        ({f"{at}A.weight": down}, "one half is absent"),
        ({f"{at}A.weight": down, f"{at}B.weight": Tensor.ones(60, 3)}, "60 rows"),
    ):
        safe_save(tensors, tmp_path / TENSORS)
        with pytest.raises(FormatError, match=want):
            load_adapters(tmp_path, config)
    safe_save({f"{at}A.weight": Tensor.ones(3, 60), f"{at}B.weight": up}, tmp_path / TENSORS)
    with pytest.raises(FormatError, match="in this model"):
        load_language(llama, adapter=tmp_path)


def test_beside_a_model_and_merged(llama: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """An adapter beside the weights, in them, and the model without it."""
    save_adapters(tmp_path, config_of(llama), draw(llama), "x.gguf")
    out = tmp_path / "merged.gguf"
    assert command.main([str(llama), "--merge", str(out), "--adapter", str(tmp_path)]) == 0
    beside, merged, plain = odds(llama, tmp_path), odds(out), odds(llama)
    np.testing.assert_allclose(merged, beside, atol=1e-4)
    assert np.abs(beside - plain).max() > 0.1


def test_a_merged_file_has_the_types_of_its_base(tmp_path: pathlib.Path) -> None:
    path, out = tmp_path / "x.gguf", tmp_path / "out.gguf"
    write_model(path, "llama", quantise="Q4_1")
    adapters = draw(path, "attn_q")
    names, rounded = write_merged(path, adapters, out)
    before, after = gguf_load(path, raw=True), gguf_load(out, raw=True)
    assert {n: t.type for n, t in after[1].items()} == {n: t.type for n, t in before[1].items()}
    assert after[0] == before[0]
    for name, t in before[1].items():
        same = np.array_equal(t.blocks.numpy(), after[1][name].blocks.numpy())
        assert same == (name not in names)
    changed = added = 0.0
    for name in names:
        down, up, scale = adapters[name]
        want = before[1][name].dequantize().numpy() + scale * up.numpy() @ down.numpy()
        got = after[1][name].dequantize().numpy()
        changed += np.square(got - want).sum()
        added += np.square(scale * up.numpy() @ down.numpy()).sum()
        # Blocks of 32 in 16 steps between the smallest and the largest.
        blocks = want.reshape(-1, 32)
        step = (blocks.max(1) - blocks.min(1)) / 15
        assert (np.abs(got.reshape(-1, 32) - blocks) <= 0.51 * step[:, None] + 1e-3).all()
    assert rounded == pytest.approx(np.sqrt(changed / added), rel=1e-3)


@pytest.mark.parametrize(("kind", "is_told"), [("", True), ("Q8_0", False)])
def test_rounding_that_may_undo_what_was_learned_is_told(
    kind: str, is_told: bool, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "x.gguf", tmp_path / "out.gguf"
    write_model(path, "llama", quantise="Q4_1")
    small = {name: Adapter(a.down, a.up * 0.05, a.scale) for name, a in draw(path).items()}
    save_adapters(tmp_path, config_of(path), small, "x.gguf")
    arguments = [str(path), "--merge", str(out), "--adapter", str(tmp_path)]
    assert command.main([*arguments, *(["--type", kind] if kind else [])]) == 0
    assert ("--type Q8_0" in capsys.readouterr().out) == is_told


def test_what_is_not_merged(llama: pathlib.Path, tmp_path: pathlib.Path) -> None:
    adapters = draw(llama, "blk.0.attn_q")
    with pytest.raises(ArgumentError, match="is the model itself"):
        write_merged(llama, adapters, llama)
    with pytest.raises(ArgumentError, match="Q5_K, which is read and not written; --type"):
        write_merged(llama, adapters, tmp_path / "x.gguf", "Q5_K")
    with pytest.raises(FormatError, match="is absent"):
        write_merged(
            llama, {"blk.9.attn_q.weight": adapters["blk.0.attn_q.weight"]}, tmp_path / "y"
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_1"])
def test_llama_cpp_reads_a_merged_file(kind: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("xllamacpp")
    path, out = tmp_path / "x.gguf", tmp_path / "out.gguf"
    write_model(path, "llama", quantise=kind)
    save_adapters(tmp_path, config_of(path), draw(path), "x.gguf")
    write_merged(path, load_adapters(tmp_path, config_of(path)), out)
    got = llama_logits(out, TEXT)
    np.testing.assert_allclose(odds(out), got, atol=2e-5 if kind == "F32" else 0.15)
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(out)
    types = {t.name: t.tensor_type.name for t in reader.tensors}
    assert types["blk.0.attn_q.weight"] == kind
