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

from aster_ml.config import THREADS
from aster_ml.torch_backend import aster
from benchmarks.compiled_models import MODELS, inference, training

# How long a call is repeated for one figure, and how many figures each form gives.
SECONDS, ROUNDS = 0.3, 5


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
    THREADS.value = options.threads
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
