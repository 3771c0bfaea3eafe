"""torch.compile with Aster beside eager PyTorch and Inductor: `python -m benchmarks.torch_compile`.

CPU seconds of the whole process, the forms in turns, the least of some rounds: what else runs on
the machine hardly counts. Without a C++ compiler there is no Inductor. Prints one line a model and
what is done: seconds of eager PyTorch, and how many times as quick the others are.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from aster_ml.torch_backend import aster
from benchmarks import torch_models

# How long a call is repeated for one figure, and how many figures each form gives.
SECONDS, ROUNDS = 0.3, 5


class ViT(nn.Module):
    """A vision transformer of two layers for 32 x 32 pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 4, 4)
        layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        """[b, 3, 32, 32] -> [b, 10]."""
        return self.head(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class UNet(nn.Module):
    """Down and up again once, with a way across."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.low = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.out = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        """[b, 3, h, w] -> the same."""
        high = self.down(x)
        low = self.low(nn.functional.max_pool2d(high, 2))
        return self.out(torch.cat([high, self.up(low)], 1))


# For each model how it is made, and what it is given.
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "MLP 784-512-512-10, batch 64": (torch_models.Perceptron, lambda: torch.randn(64, 784)),
    "ResNet-18, batch 1": (torch_models.ResNet18, lambda: torch.randn(1, 3, 224, 224)),
    "GPT-2, 2 layers of 256, 4 x 64 tokens": (
        lambda: torch_models.GPT2(2, 256, 4, 1000),
        lambda: torch.randint(0, 1000, (4, 64)),
    ),
    "ViT, 2 layers of 64, batch 16": (ViT, lambda: torch.randn(16, 3, 32, 32)),
    "U-Net, batch 8 of 32 x 32": (UNet, lambda: torch.randn(8, 3, 32, 32)),
}


def inference(model: Any, run: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    """One call without gradients."""

    def call() -> Any:
        with torch.no_grad():
            return run(x)

    return call


def training(model: Any, run: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    """One step of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def call() -> Any:
        optimizer.zero_grad()
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return call


def cpu_seconds(call: Callable[[], Any], seconds: float) -> float:
    """CPU seconds of one call, over as many as take this long."""
    count, start = 0, time.process_time()
    while count == 0 or time.process_time() - start < seconds:
        call()
        count += 1
    return (time.process_time() - start) / count


def measure(name: str, kind: Any, forms: dict[str, Any], seconds: float, rounds: int) -> str:
    """The line of one model."""
    torch.manual_seed(0)
    make, make_input = MODELS[name]
    original, x = make(), make_input()
    calls, first, results = {}, {}, {}
    for form, backend in forms.items():
        torch._dynamo.reset()
        model = copy.deepcopy(original).train(kind is training)
        run = model if backend is None else torch.compile(model, backend=backend)
        calls[form] = kind(model, run, x)
        start = time.process_time()
        results[form] = calls[form]()
        first[form] = time.process_time() - start
        for _ in range(3):
            calls[form]()
    wanted = results["eager"]
    for form, found in results.items():
        away = float((found - wanted).abs().max() / wanted.abs().max())
        assert away < 1e-4, f"{form} differs from eager PyTorch by {away:.1e}"
    warm = dict.fromkeys(forms, float("inf"))
    for _ in range(rounds):
        for form in forms:
            warm[form] = min(warm[form], cpu_seconds(calls[form], seconds))
    parts = [f"{kind.__name__:9} eager {1e3 * warm['eager']:8.2f} ms"]
    for form in list(forms)[1:]:
        ratio = warm["eager"] / warm[form]
        parts.append(f"{form} {ratio:5.2f}x, first call {first[form]:5.1f} s")
    return f"{name:40} {'; '.join(parts)}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_compile")
    parser.add_argument("--only", default="", help="models whose name has this text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--no-inductor", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    forms: dict[str, Any] = {"eager": None, "aster": aster}
    if not options.no_inductor and (shutil.which("g++") or shutil.which("clang++")):
        forms["inductor"] = "inductor"
    rounds, seconds = (1, 0.05) if options.quick else (ROUNDS, SECONDS)
    print(f"PyTorch {torch.__version__}, {options.threads} threads, CPU seconds of the process")
    for name in [n for n in MODELS if options.only.lower() in n.lower()]:
        for kind in (inference, training):
            print(measure(name, kind, forms, seconds, rounds), flush=True)


if __name__ == "__main__":
    main()
