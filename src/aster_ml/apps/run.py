"""Runs the command `aster run MODEL.onnx`: prints inputs, outputs, operators and time of a model.

Inputs are random numbers of the shapes that the model names (`--size batch=4` for a size that has a
name only), or arrays of an .npz file. `--compare onnxruntime` runs both, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aster_ml import Tensor
from aster_ml.apps.reporting import reports_errors
from aster_ml.onnx.ops.model import Spec
from aster_ml.onnx.ops.types import NUMPY, STRING
from aster_ml.onnx.runner import OnnxRunner


def make_parser() -> argparse.ArgumentParser:
    """The options of `aster run`."""
    parser = argparse.ArgumentParser(prog="aster run", description=__doc__)
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument("--inputs", help="an .npz file with an array for each input")
    parser.add_argument(
        "--size", action="append", default=[], metavar="NAME=N", help="a size that has a name"
    )
    parser.add_argument("--runs", type=int, default=10, help="how many are timed (10)")
    parser.add_argument("--device", help="where it runs; the default device without")
    parser.add_argument("--compare", choices=["onnxruntime"], help="run this one too")
    return parser


def named_sizes(texts: Sequence[str], prog: str = "aster run") -> dict[str, int]:
    """Sizes by name, of texts like batch=4. Raises: SystemExit."""
    found = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not equals or not number.isdigit():
            raise SystemExit(f"{prog}: --size {text}: NAME=N is wanted")
        found[name] = int(number)
    return found


def axis_names(spec: Spec) -> dict[int, str]:
    """Names the axes of an input that have no size, for `--size`: x.1 is one without a name."""
    sizes = enumerate(spec.shape or ())
    return {i: size or f"{spec.name}.{i}" for i, size in sizes if not isinstance(size, int)}


def random_input(spec: Spec, sizes: dict[str, int]) -> np.ndarray[Any, Any]:
    """Numbers for an input: floats of a normal distribution, small integers, bools.

    Axes that are open have the sizes of their names, or 1.
    """
    names = axis_names(spec)
    shape = [
        s if isinstance(s, int) else sizes.get(names[i], 1) for i, s in enumerate(spec.shape or ())
    ]
    draw = np.random.default_rng(0)
    kind = np.dtype(NUMPY[spec.element])
    if kind.kind in "iu":
        return draw.integers(0, 4, shape).astype(kind)
    return np.asarray(draw.normal(size=shape)).astype(kind)


def inputs_of(runner: OnnxRunner, options: argparse.Namespace) -> dict[str, Any]:
    """Arrays for all inputs."""
    given = dict(np.load(options.inputs)) if options.inputs else {}
    sizes = named_sizes(options.size)
    for name, spec in runner.graph_inputs.items():
        if name not in given:
            if spec.element == STRING or spec.element not in NUMPY or spec.kind != "tensor":
                raise SystemExit(f"aster run: input {name} is {spec}; --inputs gives it a value")
            given[name] = random_input(spec, sizes)
    return given


def milliseconds(function: Callable[[], Any], runs: int) -> tuple[float, float]:
    """The best and the median of some runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times), statistics.median(times)


def show_model(runner: OnnxRunner) -> None:
    """Inputs, outputs and operators."""
    for title, specs in (("inputs", runner.graph_inputs), ("outputs", runner.graph_outputs)):
        print(title)
        for name, spec in specs.items():
            print(f"  {name}  {spec}")
    kinds = Counter([node.kind for node in runner.model.walk()])
    versions = ", ".join([f"{d or 'ai.onnx'} {v}" for d, v in runner.model.opsets.items()])
    print(f"operators ({versions})")
    print("  " + ", ".join([f"{kind} {count}" for kind, count in kinds.most_common()]))


def show_kernels(runner: OnnxRunner) -> None:
    """Shows the kernels of the last run."""
    recorded = next(reversed(runner.recorded.values()), None)
    captured = None if recorded is None else recorded.jit.captured
    if captured is None:
        print("kernels  not recorded: numbers are looked at on the way, or drawn")
        return
    print(f"kernels  {len(captured.jit_cache)} in one recording")


def compare(options: argparse.Namespace, inputs: dict[str, Any], found: dict[str, Any]) -> None:
    """The same by onnxruntime: the largest differences, and its time."""
    try:
        import onnxruntime
    except ImportError:
        raise SystemExit(
            "aster run: --compare wants onnxruntime: pip install onnxruntime"
        ) from None
    session = onnxruntime.InferenceSession(options.model, providers=["CPUExecutionProvider"])
    wanted = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs)))
    for name, values in wanted.items():
        given = found[name].numpy() if isinstance(found[name], Tensor) else found[name]
        error = np.abs(np.asarray(given, np.float64) - np.asarray(values, np.float64))
        size = float(np.abs(np.asarray(values, np.float64)).max(initial=0))
        print(f"  {name}  differs by at most {error.max(initial=0):.3g} of {size:.3g}")
    best, middle = milliseconds(lambda: session.run(None, inputs), options.runs)
    print(f"onnxruntime  best {best:.3f} ms, median {middle:.3f} ms of {options.runs} runs")


@reports_errors("aster run")
def main(argv: Sequence[str] | None = None) -> int:
    """Runs a model; 1 where it cannot be read or run."""
    options = make_parser().parse_args(argv)
    runner = OnnxRunner(options.model, options.device)
    show_model(runner)
    inputs = inputs_of(runner, options)

    def run() -> dict[str, Any]:
        found = runner(inputs)
        for value in found.values():
            if isinstance(value, Tensor):
                value.realize()
        return found

    # Plain, plain in the jit, recorded: what is timed is a replay.
    for _ in range(3):
        found = run()
    best, middle = milliseconds(run, max(options.runs, 1))
    show_kernels(runner)
    print(f"a run    best {best:.3f} ms, median {middle:.3f} ms of {options.runs} runs")
    if options.compare:
        compare(options, inputs, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
