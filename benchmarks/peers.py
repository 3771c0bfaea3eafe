"""Processes of the libraries that are compared, each started with its own interpreter.

Threads, caches and devices are set by the environment before a library is imported, so that every
library has the same number of threads and an empty disk cache of its own.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
# The environment variable that names another checkout of Aster, which runs as a peer.
BEFORE = "BENCH_BEFORE"
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "THREADS",
    "CPU_COUNT",
)
# What these say would change what is measured.
REMOVED = (
    "DEBUG", "BEAM", "DETERMINISTIC", "NOOPT", "JIT", "SPEC", "CLANG", "VIZ", "CACHE",
    "GRAPH_LIMIT", "FUSE", "SPLIT_REDUCE",
)  # fmt: skip
# How each library is told to leave out AVX-512, as ISA=avx2 tells Aster; tinygrad cannot be told.
WITHOUT_AVX512 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "OPENBLAS_CORETYPE": "Zen",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
}


class PeerError(Exception):
    """A library could not do what was asked; the text says why."""


def make_environment(library: str, threads: int, cache: Path) -> dict[str, str]:
    """The environment of a process of `library` with its disk cache in `cache`."""
    environment = {k: v for k, v in os.environ.items() if k not in REMOVED}
    environment.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    # Peers read files of models with what is here.
    tree = environment[BEFORE] if library == "before" else str(ROOT)
    environment["PYTHONPATH"] = os.pathsep.join((str(Path(tree) / "src"), str(ROOT)))
    if environment.get("ISA") == "avx2":
        environment.update(WITHOUT_AVX512)
    if library in ("aster", "before"):
        environment["CACHEDIR"] = str(cache)
    elif library == "tinygrad":
        environment["CACHEDB"] = str(cache / "cache.db")
    elif library == "compile":
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    elif library == "jax":
        environment["JAX_PLATFORMS"] = "cpu"
        # Else float64 is quietly computed as float32.
        environment["JAX_ENABLE_X64"] = "1"
        if threads == 1:
            flags = environment.get("XLA_FLAGS", "")
            environment["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    if library in ("aster", "before", "tinygrad"):
        environment["DEV"] = "CPU"
    return environment


class Peer:
    """A living process of one library. Use as a context, or `close` it.

    Between its answers the process is stopped where the system can: threads of OpenBLAS and of
    OpenMP look for work for tens of milliseconds after a call, on the next library's cores.
    """

    def __init__(
        self, library: str, python: str, threads: int, cache: Path, timeout_s: float
    ) -> None:
        cache.mkdir(parents=True, exist_ok=True)
        self.library = library
        self.timeout_s = timeout_s
        self.log = tempfile.TemporaryFile()
        try:
            self.process = self.spawn(python, threads, cache)
        except OSError:
            self.log.close()
            raise
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        try:
            hello = self.receive()
        except PeerError:
            self.close()
            raise
        self.version = str(hello["version"])
        self.python = str(hello["python"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def spawn(self, python: str, threads: int, cache: Path) -> subprocess.Popen[str]:
        """The worker, with pipes to and from it."""
        return subprocess.Popen(
            [python, "-m", "benchmarks.worker", self.library, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            encoding="utf-8",
            env=make_environment(self.library, threads, cache),
            cwd=cache,
        )

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None

    def read(self) -> None:
        """Hands lines over until the process ends; an empty one says that it did."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One request and its answer.

        Raises: PeerError when the library fails, does not answer in time, or its process ends.
        """
        assert self.process.stdin is not None
        self.let_run(True)
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise PeerError(self.last_words()) from None
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """The next answer."""
        try:
            line = self.lines.get(timeout=self.timeout_s)
        except queue.Empty:
            self.process.kill()
            # It is gone by the next look at whether it lives.
            self.process.wait()
            raise PeerError(f"no answer in {self.timeout_s:.0f} s") from None
        if not line:
            raise PeerError(self.last_words())
        self.let_run(False)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        return answer

    def let_run(self, on: bool) -> None:
        """Stops the process with all its threads, or lets it go on."""
        if os.name == "posix" and self.alive:
            self.process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)

    def last_words(self) -> str:
        """Why the process ended, as far as it said."""
        code = self.process.wait()
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return f"the process ended with {code}" + (f": {lines[-1]}" if lines else "")

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except OSError:
            # What was still to be sent has no reader any more.
            return
        finally:
            self.log.close()
