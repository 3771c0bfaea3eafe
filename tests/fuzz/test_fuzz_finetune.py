"""Lines of training data and adapters' configurations, changed at random.

A line is an example whose tokens and marks are as many, or it is refused with an error of Aster's;
a configuration gives a rank and a finite scale, or it is refused.
"""

from __future__ import annotations

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
from tests.apps.finetune.test_data import reader
from tests.fuzz.budget import check_all, draws
from tests.fuzz.test_fuzz_llm import ODD

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
    "target_modules": ["q_proj"], "rank_pattern": {}, "modules_to_save": None,
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
        owner[key] = rng.choice(ODD)
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
        rank, scale = read_scale(path)
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
