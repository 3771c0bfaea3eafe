"""The forward pass: every architecture against llama.cpp, and one way of running against another.

Small random models stand for the real ones. What llama.cpp says of them is kept in `odds.json`
(`--update-golden` asks it anew); that it says so is tested where it is installed.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, Variable
from aster_ml.apps.llm.architectures import ARCHITECTURES, read_config
from aster_ml.apps.llm.model import Chunk, Model, Rows
from aster_ml.apps.llm.weights import INT8, load_weights
from aster_ml.engine.realized import find_realized
from aster_ml.errors import FormatError
from aster_ml.formats.ggml.blocks import NAMED
from aster_ml.formats.interleaved import INTERLEAVED
from aster_ml.nn.state import gguf_load
from tests.programs.llm.random_models import CONTEXT, llama_logits, log_softmax, write_model

YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
CASES: dict[str, dict[str, Any]] = {
    **{name: {} for name in ARCHITECTURES if name not in ("granite", "gemma2", "gemma3", "phi2")},
    "llama biases tied": {"bias": True, "tied": True},
    "llama factors": {"factors": True},
    "llama linear": {"more": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}},
    "llama yarn": {"more": {**YARN, "rope.scaling.original_context_length": 64}},
    "llama experts": {"more": {"expert_count": 8}},
    "granite": {
        "more": {
            "embedding_scale": 3.0, "residual_scale": 0.5, "attention.scale": 0.2,
            "logit_scale": 2.0,
        }
    },
    "gemma2": {"more": {"attention.sliding_window": 8}},
    "gemma3": {"more": {"attention.sliding_window": 8}},
    "phi2": {"more": {"rope.dimension_count": 8}},
}  # fmt: skip
# Weights of every type: rows of the last ones are whole blocks of 256.
TYPES = [name for name, row in NAMED.items() if row.elements > 1 or name in ("F16", "BF16")]
TYPED: dict[str, dict[str, Any]] = {
    f"llama {name}": {"quantise": name, "size": 256 if NAMED[name].elements > 32 else 64}
    for name in TYPES
}
PACKED = [f"llama {name}" for name in TYPES if NAMED[name].elements > 1]
# Experts, some of whose matrices have a number of rows that no sixteen divide.
MIXTURES = ("llama experts Q4_0", "llama experts Q4_K")
TYPED |= {
    name: {**TYPED[f"llama {name.split()[-1]}"], "more": {"expert_count": 8}} for name in MIXTURES
}
# Drawn in each run; all of them are in `make test-slow`.
FEW = ("llama Q4_1", "llama Q6_K", "llama IQ4_XS", "llama NVFP4", "llama experts Q4_0")
TOKENS = [int(x) for x in np.random.default_rng(0).integers(0, 260, 40)]
ODDS = pathlib.Path(__file__).parent / "odds.json"
SHOWN = 8
# How far off rounding of what meets weights of a type takes llama.cpp.
ROUNDED = {"F16": 0.01, "BF16": 0.05}


def tolerance(name: str) -> float:
    """llama.cpp looks gelu up in a table of float16, and rounds what meets typed weights."""
    if name in TYPED:
        return ROUNDED.get(name.split()[-1], 0.15)
    return 3e-3 if ARCHITECTURES[name.split()[0]].activation == "gelu" else 2e-5


def make(
    path: pathlib.Path, name: str, slots: int = 1, context: int = CONTEXT, **options: Any
) -> Model:
    """A model of one of the cases."""
    write_model(path, name.split()[0], **{**CASES.get(name, TYPED.get(name, {})), **options})
    metadata, tensors = gguf_load(path, raw=True)
    weights = load_weights(tensors, "f32")
    return Model(read_config(metadata), weights, context, slots, "f32")


def answer(model: Model, tokens: list[int]) -> np.ndarray:
    """The logarithms of the odds after these tokens, computed at once."""
    place = Chunk(model.positions, 0, 0, len(tokens))
    return log_softmax(model.forward(Tensor([tokens], dtype="int32"), place).numpy()[0])


@pytest.mark.parametrize("name", CASES)
def test_the_odds_that_llama_cpp_gave(name: str, tmp_path: pathlib.Path) -> None:
    got = answer(make(tmp_path / "x.gguf", name), TOKENS)
    want = json.loads(ODDS.read_text())[name]
    np.testing.assert_allclose(got[:SHOWN], want, rtol=0, atol=tolerance(name))


@pytest.mark.slow
def test_llama_cpp_gives_these_odds(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("xllamacpp")
    found: dict[str, list[float]] = {}
    for i, name in enumerate(CASES):
        path = tmp_path / f"{i}.gguf"
        got = answer(make(path, name), TOKENS)
        want = llama_logits(path, TOKENS)
        assert np.abs(got - want).max() < tolerance(name), name
        found[name] = [round(float(x), 6) for x in want[:SHOWN]]
    if request.config.getoption("--update-golden"):
        lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()]
        ODDS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    kept = json.loads(ODDS.read_text())
    for name, values in found.items():
        np.testing.assert_allclose(kept[name], values, rtol=0, atol=tolerance(name))


def test_in_parts_in_rows_and_at_once(tmp_path: pathlib.Path) -> None:
    """Symbolic chunks and rows at their own positions give what one call for all tokens gives."""
    more = {"attention.sliding_window": 8}
    model = make(tmp_path / "x.gguf", "llama", slots=2, more=more)
    slot, start = Variable("slot", 0, 1), Variable("start", 0, CONTEXT - 1)
    count, end = Variable("count", 1, 16), Variable("end", 1, CONTEXT)
    rows = [Variable(f"row{i}", 0, CONTEXT - 1) for i in range(2)]
    chunk = TinyJit(
        lambda t, s, p, n: model.forward(t[:, :n], Chunk(model.positions, s, p, n)).realize()
    )
    step = TinyJit(lambda t, at, e, *p: model.forward(t, Rows(model.positions, p, at, e)).realize())
    lengths = [5, 21]
    want = [[answer(model, TOKENS[: n + i]) for i in (0, 3)] for n in lengths]
    for i, n in enumerate(lengths):
        for a in range(0, n, 16):
            part = TOKENS[a : min(a + 16, n)]
            padded = Tensor([part + [0] * (16 - len(part))], dtype="int32").realize()
            got = chunk(padded, slot.bind(i), start.bind(a), count.bind(len(part))).numpy()[0]
        np.testing.assert_allclose(log_softmax(got), want[i][0], atol=1e-4)
    for i in range(3):
        at = [n + i for n in lengths]
        tokens = Tensor([[TOKENS[n]] for n in at], dtype="int32").realize()
        bound = [v.bind(n) for v, n in zip(rows, at)]
        got = step(
            tokens, Tensor(at, dtype="int32").realize(), end.bind(max(at) + 1), *bound
        ).numpy()
    for j in range(2):
        np.testing.assert_allclose(log_softmax(got[j]), want[j][1], atol=1e-4)


def test_a_window_of_every_layer(tmp_path: pathlib.Path) -> None:
    """Two layers that look back 8 tokens cannot see what is 16 tokens back."""
    more = {"attention.sliding_window": 8}
    model = make(tmp_path / "x.gguf", "llama", more=more)
    assert model.config.windows == (8, 8)
    other = [7, 9, 11, *TOKENS[3:]]
    assert np.abs(answer(model, TOKENS[:17]) - answer(model, other[:17])).max() > 1e-3
    np.testing.assert_allclose(answer(model, TOKENS[:18]), answer(model, other[:18]), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"general.architecture": "mamba"}, "mamba.*not known here.*llama"),
        ({"general.architecture": 3}, "3.*not known"),
        ({"llama.block_count": 0}, "block_count is 0"),
        ({"llama.block_count": "two"}, "block_count is 'two'"),
        ({"llama.embedding_length": 1 << 60}, "embedding_length"),
        ({"llama.attention.head_count": 3}, "3 heads cannot share 2"),
        ({"llama.attention.head_count": []}, "different sizes"),
        ({"llama.rope.scaling.type": "su"}, "scaled by 'su'"),
        ({"llama.rope.freq_base": float("nan")}, "freq_base is nan"),
        ({"llama.rope.dimension_count": 15}, "turns 15 of 16"),
        ({"llama.expert_used_count": 2}, "2 of 0 experts"),
        ({"llama.block_count": 3}, r"'blk.2.attn_q.weight' is absent"),
        ({"llama.block_count": 1}, r"'blk.1.*no place"),
        ({"llama.attention.key_length": 8, "llama.attention.value_length": 8}, "has shape"),
    ],
)
def test_what_does_not_fit_is_refused(
    change: dict[str, Any], said: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama")
    metadata, tensors = gguf_load(path, raw=True)
    metadata.update(change)
    if "llama.attention.key_length" in change:
        metadata["llama.rope.dimension_count"] = 8
    with pytest.raises(FormatError, match=said):
        Model(read_config(metadata), load_weights(tensors, "f32"), 64)


def test_a_weight_beyond_float16_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.gguf"
    write_model(path, "llama")
    _, tensors = gguf_load(path, raw=True)
    weights = load_weights(tensors, "f16")
    assert weights.tensors["blk.0.attn_q.weight"].dtype.name == "float16"
    assert weights.tensors["output_norm.weight"].dtype.name == "float32"
    big = Tensor(np.full((4, 4), 1e6, np.float32))
    from aster_ml.nn.state import ggml_quantize

    with pytest.raises(FormatError, match="1e\\+06, float16 ends at 65504"):
        load_weights({"x.weight": ggml_quantize(big, "F32")}, "f16")


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPED)
def test_every_type_has_the_odds_of_llama_cpp(name: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("xllamacpp")
    path = tmp_path / "x.gguf"
    got = answer(make(path, name), TOKENS)
    want = llama_logits(path, TOKENS)
    assert np.abs(got - want).max() < tolerance(name)
    # Odds that differ: the rounding is small beside what the weights say.
    assert want.max() - want.min() > 10 * tolerance(name)


@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in PACKED]
)
def test_packed_weights_give_the_odds_of_their_floats(name: str, tmp_path: pathlib.Path) -> None:
    model = make(tmp_path / "x.gguf", name)
    metadata, tensors = gguf_load(tmp_path / "x.gguf", raw=True)
    weights = load_weights(tensors, "packed")
    packed = Model(read_config(metadata), weights, CONTEXT, 1, "f32")
    assert weights.nbytes() < model.weights.nbytes() / 2
    # A matrix whose rows are no whole blocks is float16 beside packed ones.
    close = 1e-4 if TYPED[name]["size"] == 64 else 2e-3
    for tokens in (TOKENS, TOKENS[:1]):
        np.testing.assert_allclose(answer(packed, tokens), answer(model, tokens), atol=close)


def test_weights_of_integer_products_leave_nothing_to_compute(tmp_path: pathlib.Path) -> None:
    make(tmp_path / "x.gguf", "llama Q4_1")
    metadata, tensors = gguf_load(tmp_path / "x.gguf", raw=True)
    weights = load_weights(tensors, "packed", products=INT8)
    model = Model(read_config(metadata), weights, CONTEXT, 1, "f32")
    assert len(weights.interleaved) > 7
    assert set(weights.interleaved).isdisjoint(weights.tensors)
    # What waits to be computed is asked about at each write, which is once a token.
    words = [t for matrix in weights.interleaved.values() for t in matrix.memory()]
    assert [t for t in words if find_realized(t.uop) is None] == []
    assert (
        np.abs(
            answer(model, TOKENS) - answer(make(tmp_path / "y.gguf", "llama Q4_1"), TOKENS)
        ).max()
        < 0.1
    )


@pytest.mark.parametrize(
    "name",
    [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in (*PACKED, *MIXTURES)],
)
def test_products_in_integers_give_the_odds_of_floats(name: str, tmp_path: pathlib.Path) -> None:
    model = make(tmp_path / "x.gguf", name)
    metadata, tensors = gguf_load(tmp_path / "x.gguf", raw=True)
    weights = load_weights(tensors, "packed", products=INT8)
    fits = name.split()[-1] in INTERLEAVED
    assert (
        any([n in weights.interleaved for n in ("blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight")])
        == fits
    )
    integers = Model(read_config(metadata), weights, CONTEXT, 1, "f32")
    for tokens in (TOKENS, TOKENS[:1]):
        np.testing.assert_allclose(answer(integers, tokens), answer(model, tokens), atol=4e-3)
