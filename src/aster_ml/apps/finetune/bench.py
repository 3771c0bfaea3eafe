"""Measures a training step beside PyTorch's: CPU time, wall time, peak memory.

Receives a model's file and a recipe; prints. Each side runs in processes of its own, in turns, on
the same tokens from the same start, so that the losses that are printed are alike. PyTorch's model
is float32 and eager (`torch_peer`); Aster's weights are as `--dtype` says.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from aster_ml.apps.finetune.data import POSITIONS, TARGETS, TEXTS, TOKENS, empty_row
from aster_ml.apps.finetune.train import Recipe, Trainer, add_adapters
from aster_ml.apps.llm.architectures import read_config
from aster_ml.apps.llm.model import Model
from aster_ml.apps.llm.rope import tables
from aster_ml.apps.llm.weights import load_weights
from aster_ml.config import THREADS
from aster_ml.errors import ArgumentError
from aster_ml.nn.state import gguf_load
from aster_ml.processes import run_quietly

LENGTH, STEPS, WARM, TURNS = 128, 8, 3, 2
PLAIN = ("llama", "qwen3")


def random_row(vocabulary: int, length: int) -> Any:
    """A row that is one text of random tokens, all learned but the last."""
    drawn = np.random.default_rng(0).integers(0, vocabulary, length + 1)
    row = empty_row(length)
    row[TOKENS], row[TARGETS] = drawn[:-1], drawn[1:]
    row[POSITIONS], row[TEXTS] = range(length), 1
    return row


def make_trainer(path: pathlib.Path, recipe: Recipe, dtype: str) -> Trainer:
    """A model with fresh adapters, and a random row."""
    metadata, tensors = gguf_load(path, raw=True)
    config = read_config(metadata)
    weights = load_weights(tensors, dtype)
    adapters = add_adapters(weights, config, recipe)
    model = Model(config, weights, recipe.length, slots=0)
    row = random_row(model.vocabulary, recipe.length)
    return Trainer(model, adapters, row[None], recipe)


def peak_bytes() -> int:
    """The most memory that this process had."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def measure_here(path: pathlib.Path, recipe: Recipe, dtype: str) -> dict[str, Any]:
    """Steps of this process."""
    trainer = make_trainer(path, recipe, dtype)
    walls, cpus = [], []
    for _ in range(STEPS):
        wall, cpu = time.perf_counter(), time.process_time()
        trainer.step()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {"losses": trainer.losses, "wall": walls, "cpu": cpus, "peak": peak_bytes()}


def write_task(path: pathlib.Path, recipe: Recipe, folder: pathlib.Path) -> pathlib.Path:
    """Writes a task for PyTorch: numbers in one file, all else in another, whose path is returned.

    Raises: ArgumentError for a model that is more than a plain llama.
    """
    trainer = make_trainer(path, recipe, "f32")
    model, config = trainer.model, trainer.model.config
    plain = [layer.after_feed is None and layer.gate is not None for layer in model.layers]
    if config.family.name not in PLAIN or config.experts or not all(plain):
        raise ArgumentError(f"--bench has no peer of the architecture {config.family.name}")
    downs = {f"{name} down": adapter.down for name, adapter in trainer.adapters.items()}
    entries, offset = [], 0
    with (folder / "numbers").open("wb") as file:
        for name, t in {**model.weights.tensors, **downs}.items():
            data = np.ascontiguousarray(t.float().numpy())
            file.write(data.data)
            entries.append([name, list(data.shape), offset])
            offset += data.nbytes
    row = trainer.rows[0]
    task = {
        "tensors": entries, "file": str(folder / "numbers"), "adapted": list(trainer.adapters),
        "scale": recipe.alpha / recipe.rank, "rates": trainer.schedule.rates.tolist(),
        "clip": recipe.clip,
        "epsilon": config.epsilon, "halves": config.family.halves, "layers": config.layers,
        "heads": config.heads, "kv_heads": config.kv_heads, "threads": int(THREADS.value) or 1,
        "table": tables(config.rope, recipe.length).tolist(), "steps": STEPS,
        "tokens": row[TOKENS].tolist(), "targets": row[TARGETS].tolist(),
    }  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))
    return folder / "task.json"


def in_a_process(*command: str) -> dict[str, Any]:
    """Runs a process and reads its last line.

    Raises: ArgumentError with the end of its errors where it fails.
    """
    done = run_quietly(command)
    if done.returncode:
        raise ArgumentError(f"--bench: {' '.join(command[:2])} failed: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def copied(name: str, folder: pathlib.Path) -> pathlib.Path:
    """A module as a script in a folder, whichever kind of file it was imported from."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    path = folder / pathlib.Path(spec.origin).name
    loader: Any = spec.loader
    path.write_bytes(loader.get_data(spec.origin))
    return path


def summary(turns: list[dict[str, Any]]) -> dict[str, float]:
    """The best step of all turns, and the largest peak."""
    return {
        "cpu": min([x for turn in turns for x in turn["cpu"][WARM:]]),
        "wall": min([x for turn in turns for x in turn["wall"][WARM:]]),
        "peak": max([turn["peak"] for turn in turns]),
        "first": turns[-1]["losses"][0],
        "last": turns[-1]["losses"][-1],
    }


def measure(path: pathlib.Path, recipe: Recipe, dtype: str) -> dict[str, dict[str, float]]:
    """Both sides in turns; PyTorch where it is installed."""
    recipe = replace(recipe, length=recipe.length or LENGTH, batch=1, accumulate=1, steps=100)
    turns: dict[str, list[dict[str, Any]]] = {"aster": []}
    ours = json.dumps(recipe.values())
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        sides: dict[str, Callable[[], dict[str, Any]]] = {
            "aster": lambda: in_a_process("-m", __name__, str(path), ours, dtype)
        }
        if importlib.util.find_spec("torch") is not None:
            task = write_task(path, recipe, folder)
            peer = copied("aster_ml.apps.finetune.torch_peer", folder)
            turns["torch"] = []
            sides["torch"] = lambda: in_a_process(str(peer), str(task))
        for _ in range(TURNS):
            for name, side in sides.items():
                turns[name].append(side())
    return {name: summary(found) for name, found in turns.items()}


def run_bench(
    path: pathlib.Path, recipe: Recipe, dtype: str, write: Callable[[str], None] = print
) -> int:
    """Measures and prints."""
    if not os.path.exists("/proc/self/status"):
        write("--bench reads memory from /proc, which Linux has")
        return 1
    found = measure(path, recipe, dtype)
    length, threads = recipe.length or LENGTH, int(THREADS.value) or 1
    write(
        f"{path.name}: a step of {length} tokens, adapters of rank {recipe.rank} on "
        f"{recipe.targets}, {threads} threads, best of {TURNS * (STEPS - WARM)}"
    )
    write(f"{'':12} {'CPU s':>8} {'wall s':>8} {'peak MB':>8} {'loss of steps':>14}")
    for name, row in found.items():
        shown = f"{name} {dtype if name == 'aster' else 'f32'}"
        write(
            f"{shown:12} {row['cpu']:8.3f} {row['wall']:8.3f} {row['peak'] / 1e6:8.0f} "
            f"{row['first']:.4f} to {row['last']:.4f}"
        )
    if "torch" in found:
        a, b = found["aster"], found["torch"]
        write(
            f"of PyTorch's: {a['cpu'] / b['cpu']:.2f} of the CPU time, "
            f"{a['peak'] / b['peak']:.2f} of the memory"
        )
    return 0


if __name__ == "__main__":
    print(
        json.dumps(
            measure_here(pathlib.Path(sys.argv[1]), Recipe(**json.loads(sys.argv[2])), sys.argv[3])
        )
    )
