"""torch.compile: models of PyTorch compiled by Aster, beside eager PyTorch and Inductor.

All three are PyTorch with the same model; Aster's process compiles it with `backend="aster"`, where
PyTorch is installed. Inductor is shown, and counts where the first call is compared. Knows no
models: they stand in `compiled_models`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.draws import summary
from benchmarks.libraries import Library
from benchmarks.row import Case, Row, Wanted

SUBJECT = "torch.compile"
# By the names of `compiled_models`, which needs PyTorch.
MODELS = (
    "MLP 784-512-512-10, batch 64",
    "ResNet-18, batch 1",
    "GPT-2, 2 layers of 256, 4 x 64 tokens",
    "Llama, 2 layers of 256, 4 x 64 tokens",
    "LSTM, 128 wide, batch 16 of 32 steps",
)


def build(library: Library, name: str, kind: str) -> Case:
    """A call of a model: inference, or forwards and backwards with a step of nothing."""
    torch: Any = importlib.import_module("torch")
    models: Any = importlib.import_module("benchmarks.compiled_models")
    torch.set_num_threads(library.threads)
    torch.manual_seed(0)
    make, make_input = models.MODELS[name]
    model, x = make().train(kind == "training"), make_input()
    backend = {"aster": "aster", "before": "aster", "compile": "inductor"}.get(library.name)
    compiled = model
    if backend is not None:
        torch.compiler.reset()
        given: Any = backend
        if backend == "aster":
            given = importlib.import_module("aster_ml.torch_backend").aster
        compiled = torch.compile(model, backend=given)
    run: Callable[[], Any] = models.KINDS[kind](model, compiled, x)

    def check() -> list[float]:
        found = [run().detach().reshape(-1)]
        if kind == "training":
            found += [p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]
        return summary(np.concatenate([f.numpy() for f in found]))

    return Case(run, check)


def rows() -> list[Row]:
    """A call in a living process, and the first one in a new process."""
    if importlib.util.find_spec("torch") is None:
        return []
    found = []
    for name in MODELS:
        for kind in ("inference", "training"):
            params = {"name": name, "kind": kind}
            found.append(
                Row(
                    f"{name}: {kind}", SUBJECT, "compiled model", "ms",
                    Wanted(1.0, of_ratio=True), params, libraries=("torch", "compile"),
                    aside=("compile",),
                )
            )  # fmt: skip
            found.append(
                Row(
                    f"{name}: first call, {kind}", SUBJECT, "compiled model", "s",
                    Wanted(5.0, of_ratio=True), params, how="fresh", key="cold",
                    libraries=("compile",),
                )
            )  # fmt: skip
    return found


CASES = {"compiled model": build}
