"""Measures how fast a model reads and writes here, beside the bandwidth of this machine's memory.

Receives a `Language`; returns rows. The bandwidth is that of a sum over a large array, measured in
the same run. Where the package xllamacpp is there, llama.cpp runs the same file in turns with it.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Device, Tensor, TinyJit
from aster_ml.apps.llm.answers import Answer, collect
from aster_ml.apps.llm.extras import needed
from aster_ml.apps.llm.loading import Language
from aster_ml.apps.llm.sampling import Sampling

PROMPTS, DEPTHS, WRITTEN, ROUNDS = (128, 512), (16, 512), 16, 3
ARRAY_BYTES = 256 << 20


class Figure(NamedTuple):
    """One row: what it is, tokens a second by wall time and by CPU time."""

    what: str
    wall: float
    cpu: float


def clock(work: Callable[[], int]) -> tuple[int, float, float]:
    """Runs work; returns its count and seconds: wall, and CPU of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    count = work()
    return count, time.perf_counter() - wall, time.process_time() - cpu


def threads() -> int:
    """So many compute here; the peer gets as many."""
    return Device[Device.DEFAULT].target.threads


def bandwidth() -> float:
    """Bytes a second that a sum reads; the best of several."""
    x = Tensor(np.ones(ARRAY_BYTES // 4, np.float32)).realize()
    total = TinyJit(lambda: x.sum().realize())
    best = 0.0
    for _ in range(6):
        begin = time.perf_counter()
        total().item()
        best = max(best, ARRAY_BYTES / (time.perf_counter() - begin))
    return best


def bytes_per_token(language: Language, depth: int) -> int:
    """The bytes of weights, and of keys and values, that one token reads."""
    model = language.engine.model
    config = model.config
    weights = model.weights.nbytes()
    if model.head is not model.embedding:
        weights -= model.weights.nbytes_of(model.embedding)
    if config.experts:
        experts = [model.weights.nbytes_of(w) for layer in model.layers for w in layer.experts]
        weights -= sum(experts) * (config.experts - config.experts_used) // config.experts
    memory = model.memory[0]
    seen = sum([min(depth, window or depth) for window in config.windows])
    return weights + 2 * config.kv_heads * config.head_size * seen * memory.dtype.itemsize


def make_answer(language: Language, prompt: list[int], count: int) -> Answer:
    """An answer of so many tokens, whatever they are."""
    return Answer(
        language.tokenizer,
        prompt,
        Sampling(temperature=0.0),
        collect()[1],
        count,
        vocabulary=language.engine.model.vocabulary,
        ends=(),
    )


def random_prompt(language: Language, count: int, seed: int) -> list[int]:
    """Tokens that no slot has yet."""
    rng = np.random.default_rng(seed)
    return [int(t) for t in rng.integers(0, len(language.tokenizer.tokens), count)]


def ours(language: Language) -> Callable[[int, int, int], tuple[float, float, float, float]]:
    """Reads a prompt and writes tokens: seconds of both, by wall and by CPU."""
    engine = language.engine

    def measure(length: int, count: int, seed: int) -> tuple[float, float, float, float]:
        answer = make_answer(language, random_prompt(language, length, seed), count + 1)
        engine.submit(answer)

        def read() -> int:
            while not answer.tokens:
                engine.step()
            return length

        def write() -> int:
            while answer.reason is None:
                engine.step()
            return count

        _, read_wall, read_cpu = clock(read)
        # The step that ends a prompt writes a token more.
        early = len(answer.tokens) - 1
        _, write_wall, write_cpu = clock(write)
        wall, cpu = [seconds / (count - early) for seconds in (write_wall, write_cpu)]
        return read_wall - early * wall, read_cpu - early * cpu, count * wall, count * cpu

    return measure


def llama_cpp(language: Language) -> Callable[[int, int, int], tuple[float, float, float, float]]:
    """The same by llama.cpp; it tells wall time alone, so CPU time is that of the whole call."""
    library = needed("xllamacpp", "llama")
    params = library.CommonParams()
    params.model.path = str(language.path)
    params.n_ctx, params.n_parallel, params.warmup = language.engine.model.context, 1, True
    params.fit_params, params.verbosity = False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads()
    server = library.Server(params)

    def measure(length: int, count: int, seed: int) -> tuple[float, float, float, float]:
        question = {
            "prompt": random_prompt(language, length, seed), "n_predict": count + 1,
            "temperature": 0.0, "cache_prompt": False, "ignore_eos": True,
        }  # fmt: skip
        cpu = time.process_time()
        timings: dict[str, Any] = server.handle_completions(question)["timings"]
        cpu = time.process_time() - cpu
        read, write = timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3
        return read, cpu * read / (read + write), write, cpu * write / (read + write)

    return measure


def figures(name: str, measured: dict[int, list[tuple[float, ...]]]) -> Iterator[Figure]:
    """Rows of the best of each measure."""
    for length in PROMPTS:
        best = [min([m[i] for m in measured[length]]) for i in range(2)]
        yield Figure(f"{name} prefill {length}", length / best[0], length / best[1])
    for depth in DEPTHS:
        best = [min([m[i] for m in measured[depth]]) for i in (2, 3)]
        yield Figure(f"{name} decode at {depth}", WRITTEN / best[0], WRITTEN / best[1])


def run_bench(language: Language, write: Callable[[str], None] = print) -> int:
    """Measures and prints."""
    engine = language.engine
    lengths = sorted({*PROMPTS, *DEPTHS})
    lengths = [n for n in lengths if n + WRITTEN + 1 < engine.model.context]
    if lengths != sorted({*PROMPTS, *DEPTHS}):
        write(f"--bench needs a context of {max(PROMPTS) + WRITTEN + 2} tokens")
        return 1
    peers = {"aster": ours(language)}
    if importlib.util.find_spec("xllamacpp") is not None:
        peers["llama.cpp"] = llama_cpp(language)
    measured: dict[str, dict[int, list[tuple[float, ...]]]] = {
        name: {n: [] for n in lengths} for name in peers
    }
    for measure in peers.values():
        for warm in range(3):
            measure(lengths[0], 3, warm)
    for turn in range(ROUNDS):
        for length in lengths:
            for name, measure in peers.items():
                measured[name][length].append(measure(length, WRITTEN, 10 + turn))
    write(f"{language.name}, {threads()} threads, best of {ROUNDS}")
    write(f"{'':24} {'tokens/s':>9} {'a CPU-second':>13}")
    rate = bandwidth()
    shown = {}
    for name in peers:
        for figure in figures(name, measured[name]):
            shown[figure.what] = figure
            write(f"{figure.what:24} {figure.wall:9.1f} {figure.cpu:13.1f}")
    for depth in DEPTHS:
        nbytes = bytes_per_token(language, depth)
        share = nbytes * shown[f"aster decode at {depth}"].wall / rate
        write(
            f"at {depth}: {nbytes / 1e6:.1f} MB a token, {share:.0%} of the {rate / 1e9:.1f} GB/s "
            "that a sum reads"
        )
    return 0
