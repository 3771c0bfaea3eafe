"""Rows of `make gpu-bench` of networks: ResNet-18 and GPT-2 small, forward and a training step.

Receives a row, a device and sizes; returns seconds of a call, by Aster's recording and by
`torch.compile` where PyTorch has the device. Both start from the same parameters, and what the
first call of each computes is compared.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Context, Device, Tensor, TinyJit, dtypes, nn
from aster_ml.dtype import DType
from benchmarks import models
from benchmarks.draws import Array, draw_labels, draw_parameter
from benchmarks.networks import LEARNING_RATE, SAMPLES, SMALL_GPT2, input_of

CLASSES = 10
# How far the two may be apart in bfloat16, relative to the largest result.
MOST_OFF = 0.1


class NetworkRow(NamedTuple):
    """`size` is batch, and tokens of GPT-2; a training step is one of Adam.

    Speeds are asked for as shares of what `torch.compile` takes: at least so many times as quick.
    """

    name: str
    network: str
    training: bool
    dtype: DType
    size: tuple[int, int]
    small: tuple[int, int]
    asked: float = 0.8
    then: float = 1.0


ROWS = (
    NetworkRow("ResNet-18 forward, 64", "ResNet18", False, dtypes.bfloat16, (64, 0), (1, 0)),
    NetworkRow("ResNet-18 training step, 64", "ResNet18", True, dtypes.bfloat16, (64, 0), (2, 0)),
    NetworkRow("GPT-2 small forward, 8 x 512", "GPT2", False, dtypes.bfloat16, (8, 512), (1, 32)),
    NetworkRow("GPT-2 small training, 8 x 512", "GPT2", True, dtypes.bfloat16, (8, 512), (2, 32)),
)


def sizes_of(row: NetworkRow, small: bool) -> dict[str, Any]:
    """Sizes of the network: of GPT-2 there is a small form."""
    found: dict[str, Any] = SMALL_GPT2["sizes"] if small and row.network == "GPT2" else {}
    return found


def inputs_of(row: NetworkRow, small: bool) -> tuple[Array, Array]:
    """A batch, and what a training step is told of it; images of the small form are of 32 x 32."""
    batch, tokens = row.small if small else row.size
    sizes = sizes_of(row, small)
    x = input_of(row.network, batch, tokens, sizes)
    if small and row.network in SAMPLES:
        x = x[..., :32, :32].copy()
    count = batch * max(tokens, 1)
    classes = sizes.get("vocabulary", 50257) if row.network == "GPT2" else CLASSES
    return x, draw_labels("y", count, classes)


def aster_call(row: NetworkRow, device: str, small: bool, dtype: DType) -> Callable[[], Tensor]:
    """A call of Aster's, recorded: the result of forward, or the loss of a step."""
    before, Device.DEFAULT = Device.DEFAULT, device
    try:
        net = getattr(models, row.network)(nn, **sizes_of(row, small))
        state = nn.state.get_state_dict(net)
        for name, t in state.items():
            values = Tensor(draw_parameter(name, t.shape), device=device)
            t.replace(values.cast(dtype if t.dtype.kind == "float" else t.dtype).realize())
        given = [Tensor(a, device=device) for a in inputs_of(row, small)]
        optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=LEARNING_RATE)
    finally:
        Device.DEFAULT = before
    x, y = given
    if row.network != "GPT2":
        x = x.cast(dtype)
    Tensor.realize(x, y)

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return net(x).realize()

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        out = net(x).cast(dtypes.float32)
        loss = out.reshape(-1, out.shape[-1]).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    step = TinyJit(train if row.training else forward)

    def call() -> Tensor:
        with Tensor.train(row.training):
            result: Tensor = step(x, y)
        return result

    return call


def torch_call(row: NetworkRow, device: str, small: bool, dtype: DType) -> Callable[[], Any]:
    """The same by PyTorch; on a graphics processor compiled by torch.compile."""
    torch = importlib.import_module("torch")
    torch_models = importlib.import_module("benchmarks.torch_models")
    net = getattr(torch_models, row.network)(**sizes_of(row, small)).train(row.training)
    torch_models.load_parameters(net, draw_parameter)
    kind = getattr(torch, dtype.name)
    net = net.to(device).to(kind)
    run = torch.compile(net) if device == "cuda" else net
    x, y = [torch.from_numpy(a).to(device) for a in inputs_of(row, small)]
    x = x if row.network == "GPT2" else x.to(kind)
    fused = {"fused": True} if device == "cuda" else {}
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, **fused)

    def forward() -> Any:
        with torch.inference_mode():
            return run(x)

    def train() -> Any:
        optimizer.zero_grad()
        out = run(x).float()
        loss = torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.long())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train if row.training else forward


def times_of(
    row: NetworkRow, device: str, small: bool, seconds: Callable[[Callable[[], object]], float],
    peer_seconds: Callable[[Callable[[], object]], float] | None,
) -> tuple[float, float | None, str]:  # fmt: skip
    """Seconds of a call of Aster's and of torch.compile's, and why there are none of that.

    Raises: ValueError where results are no numbers, or not PyTorch's.
    """
    with Context(ALLOW_TF32=1):
        call = aster_call(row, device, small, row.dtype)
        first = call().cast(dtypes.float32).numpy()
        own = seconds(call)
    if not np.isfinite(first).all():
        raise ValueError("results are no finite numbers")
    if peer_seconds is None:
        return own, None, ""
    try:
        other = torch_call(row, "cuda", small, row.dtype)
        want = other().float().cpu().numpy()
        taken = peer_seconds(other)
    except Exception as error:
        words = " ".join(str(error).split())[:100].replace("|", "/")
        return own, None, f"torch.compile: {type(error).__name__}: {words}"
    off = float(np.abs(first - want).max()) / max(float(np.abs(want).max()), 1e-30)
    if not off <= MOST_OFF:
        raise ValueError(f"results are {off:.2g} of the largest off PyTorch's")
    return own, taken, ""
