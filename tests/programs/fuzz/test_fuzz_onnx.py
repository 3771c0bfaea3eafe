"""Damaged ONNX files: each is refused with an error that says why, or runs; none crashes.

A case mutates a model with control flow, a recurrent layer, functions and initialisers: bytes
flipped, cut, repeated and exchanged, or fields of the message changed. What `onnx.checker` refuses
is refused here too, but for what other readers take.
"""

from __future__ import annotations

import random
from collections import ChainMap
from functools import cache
from typing import Any

import numpy as np
import onnx

from aster_ml.errors import AsterError, InternalError
from aster_ml.nn.onnx import OnnxRunner
from tests.fuzz.budget import check_all, draws
from tests.fuzz.messages import change
from tests.programs.fuzz.test_fuzz_onnx_ml import MAKERS, model_of
from tests.programs.onnx.node_cases import cases

MODULES = ["if_", "loop", "lstm", "conv", "reshape", "slice", "attention", "celu", "cast"]
MOST = 1 << 12
# So many nodes of ai.onnx.ml are among the models.
OF_ML = 24


@cache
def models() -> list[bytes]:
    """Files to damage, small ones first."""
    found = [case.model.SerializeToString() for case in cases(MODULES)]
    for seed in range(OF_ML):
        draw, rng = random.Random(seed), np.random.default_rng(seed)
        model = model_of(*draw.choice(MAKERS)(draw, rng))
        found.append(model.SerializeToString())
    return sorted([data for data in found if len(data) < 6000], key=len)


def damaged(data: bytes, draw: random.Random) -> bytes:
    """A file with a few changes."""
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        if not changed:
            break
        at = draw.randrange(len(changed))
        other = draw.randrange(len(changed))
        match draw.randrange(6):
            case 0:
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                changed[at] = draw.randrange(256)
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + draw.randrange(1, 9)]
            case 4:
                changed[at:at] = changed[other : other + draw.randrange(1, 17)]
            case _:
                changed[at : at + 1] = b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
    return bytes(changed)


def check(seed: int) -> str | None:
    """What is wrong with how one damaged file is met."""
    draw = random.Random(seed)
    data = damaged(draw.choice(models()), draw)
    try:
        runner = OnnxRunner(data, device="PYTHON")
        run(runner)
    except InternalError as error:
        return f"InternalError: {error}"
    except AsterError as error:
        return None if str(error) else f"{type(error).__name__} without a word"
    return None


def run(runner: OnnxRunner) -> None:
    """Makes the graph of a run, where its inputs are small; computes nothing that is large."""
    values: dict[str, Any] = {}
    for name, spec in runner.graph_inputs.items():
        shape = [size if isinstance(size, int) else 1 for size in spec.shape or ()]
        if spec.kind != "tensor" or np.prod(shape, dtype=object) > MOST:
            return
        values[name] = runner.input_value(np.zeros(shape, np.int64), spec)
    runner.execution.run(runner.model.graph, ChainMap(values), {})


def test_damaged_files_are_refused_or_run(record_property: Any) -> None:
    assert len(models()) > 20
    check_all("damaged ONNX files", draws(150, 50_000), check, record_property)


# Values of a graph without a shape, as programs write them that do not know how many axes there
# are, and operators that are deprecated.
LENIENT = ("Field 'shape' of 'type' is required", "has been deprecated since")


def check_fields(seed: int) -> str | None:
    """What is wrong with how a model with other fields is met."""
    draw = random.Random(seed)
    model = onnx.ModelProto()
    model.ParseFromString(draw.choice(models()))
    for _ in range(draw.choice([1, 1, 2])):
        change(model, draw)
    try:
        onnx.checker.check_model(model)
        refusal = ""
    except onnx.checker.ValidationError as error:
        refusal = str(error)
    try:
        run(OnnxRunner(model.SerializeToString(), device="PYTHON"))
    except InternalError as error:
        return f"InternalError: {error}"
    except AsterError as error:
        return None if str(error) else f"{type(error).__name__} without a word"
    if refusal and not any(text in refusal for text in LENIENT):
        return f"read, and refused by the checker: {refusal[:200]}"
    return None


def test_what_the_checker_refuses_is_refused(record_property: Any) -> None:
    check_all("ONNX files with other fields", draws(150, 50_000), check_fields, record_property)
