"""Lines of training data and adapters' configurations, changed at random.

A line is an example whose tokens and marks are as many, or it is refused with an error of Aster's;
a configuration gives a rank and a finite scale, or it is refused.
"""

from __future__ import annotations

import copy
import json
import math
import pathlib
import random
from collections.abc import Callable

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from aster_ml.apps.finetune.data import Reader
from aster_ml.apps.llm.adapters import read_scale
from aster_ml.errors import AsterError, FormatError
from tests.fuzz.budget import check_all, draws
from tests.programs.finetune.test_data import reader
from tests.programs.fuzz.test_fuzz_llm import ODD

LINES = [
    {"text": "the inner text"},
    {"messages": [
        {"role": "system", "content": "be"}, {"role": "user", "content": "the\n"},
        {"role": "assistant", "content": "an end <|end|> of it"}, {"role": "user", "content": "x"},
        {"role": "assistant", "content": "no"},
    ]},
]  # fmt: skip
CONFIG = {
    "peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "use_rslora": False,
    "target_modules": ["q_proj"], "rank_pattern": {"q_proj": 2},
    "alpha_pattern": {"^model.layers.1.*": 3}, "modules_to_save": None, "init_lora_weights": True,
}  # fmt: skip


def places(value: object) -> list[tuple[object, object]]:
    """All containers in a value with each of their keys."""
    found: list[tuple[object, object]] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if type(one) is list else ()
        found += [(one, key) for key in keys]
        waiting += [one[key] for key in keys]
    return found


def changed(value: object, rng: random.Random) -> bytes:
    """JSON of a value with odd ones in some places; now and then with a damaged byte."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.randint(0, 2)):
        owner, key = rng.choice(places(value))
        owner[key] = copy.deepcopy(rng.choice(ODD))
    raw = bytearray(json.dumps(value).encode())
    for _ in range(rng.choice([0, 0, 1, 3])):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def line_said(made: Reader, seed: int) -> str | None:
    """An example, or an error of Aster's."""
    rng = random.Random(seed)
    line = changed(rng.choice(LINES), rng)
    try:
        tokens, learned = made.example(line)
    except AsterError:
        return None
    known = len(made.tokenizer.tokens)
    fits = len(tokens) == len(learned) and any(learned) and all([0 <= t < known for t in tokens])
    return None if fits else f"{line!r} gave {tokens} and {learned}"


def config_said(path: pathlib.Path, seed: int) -> str | None:
    """A rank and a scale, or a FormatError."""
    path.write_bytes(changed(CONFIG, random.Random(seed)))
    try:
        rank, scale = read_scale(path).of("model.layers.0.self_attn.q_proj")
    except FormatError:
        return None
    return None if rank > 0 and math.isfinite(scale) else f"{rank} and {scale}"


def test_lines(record_property: Callable[[str, str], None]) -> None:
    made = reader()
    check_all("lines", draws(300, 50_000), lambda seed: line_said(made, seed), record_property)


def test_configurations(
    tmp_path: pathlib.Path, record_property: Callable[[str, str], None]
) -> None:
    path = tmp_path / "adapter_config.json"
    check_all("adapters", draws(300, 50_000), lambda seed: config_said(path, seed), record_property)


PATTERNS = [
    "q_proj", "k_proj", "self_attn.q_proj", "model.layers.0.self_attn.q_proj", r"layers\.1\..*",
    "^model.layers.1.self_attn.k_proj", "proj", "layers.0.self_attn",
    r"layers.[0-9]+.self_attn.k_proj", ".*q_proj$",
]  # fmt: skip


def peft_said(folder: pathlib.Path, seed: int) -> str | None:
    """Ranks and scales are those that PEFT gives its modules by the same configuration."""
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    rng = random.Random(seed)
    layers = torch.nn.ModuleList()
    for _ in range(2):
        layer = torch.nn.Module()
        layer.self_attn = torch.nn.Module()
        layer.self_attn.q_proj, layer.self_attn.k_proj = (
            torch.nn.Linear(8, 8),
            torch.nn.Linear(8, 8),
        )
        layers.append(layer)
    whole = torch.nn.Module()
    whole.model = torch.nn.Module()
    whole.model.layers = layers
    config = peft.LoraConfig(
        r=rng.randint(1, 8), lora_alpha=rng.choice([1, 4, 16, 0.5]), use_rslora=rng.random() < 0.5,
        target_modules=["q_proj", "k_proj"],
        init_lora_weights=rng.choice([True, False, "gaussian", "mica"]),
        rank_pattern={p: rng.randint(1, 8) for p in rng.sample(PATTERNS, rng.randint(0, 3))},
        alpha_pattern={p: rng.randint(1, 32) for p in rng.sample(PATTERNS, rng.randint(0, 3))},
    )  # fmt: skip
    # PEFT sorts names as it writes them, and the first pattern that fits counts.
    config.save_pretrained(folder)
    config = peft.LoraConfig.from_pretrained(folder)
    model = peft.LoraModel(whole, config, "default")
    scales = read_scale(folder / "adapter_config.json")
    for name, module in model.model.named_modules():
        if name.endswith("_proj"):
            wanted = module.r["default"], module.scaling["default"]
            found = scales.of(name)
            if found[0] != wanted[0] or not math.isclose(found[1], wanted[1], rel_tol=1e-12):
                return f"{name}: {found}, and PEFT has {wanted}"
    return None


@pytest.mark.filterwarnings("ignore")
def test_scales_of_peft(
    tmp_path: pathlib.Path, record_property: Callable[[str, str], None]
) -> None:
    pytest.importorskip("peft", reason="PEFT is absent: pip install 'aster-ml[peft]'")
    check_all("scales", draws(20, 2000), lambda seed: peft_said(tmp_path, seed), record_property)
