"""`make gpu-bench`: kernels and networks on a graphics processor, beside PyTorch and Triton.

Prints one table: what was asked, what was reached, its share of the processor's ceiling, and what
PyTorch (for products cuBLAS) and torch.compile (Triton) reach in the same process. Numbers are
drawn from a normal distribution; memory of results holds NaN before the call that is checked, and a
row whose results are wrong has no time. Rows run in a process that is started anew after one that
fails or takes too long; what is left when time is up is named. Without a graphics processor it says
so in a line. Times are of the device's own events, a replay's is the host's. `--device CPU --small`
shows that rows compute what they should.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from aster_ml import Context, Device, Tensor, TinyJit, dtypes
from aster_ml.device import Buffer
from aster_ml.engine import storage
from benchmarks.gpu_networks import ROWS as NETWORKS
from benchmarks.gpu_networks import NetworkRow, times_of
from benchmarks.gpu_rows import BF16, F16, F32, FP8, ROWS, Array, Row

GPUS = ("CUDA", "METAL")
LAUNCHES = 100
REPLAY = f"replay of {LAUNCHES} small kernels, host"
# Rows of a result that NumPy computes too.
CHECKED = 16
# Seconds of all rows, and of one.
ALL_S, ROW_S = 480.0, 120.0
# Products of dense matrices by the data sheets, in TFLOP/s: of float32, TF32, 16 bits and fp8.
PEAKS = {
    "sm_80": (19.5, 156.0, 312.0, 0.0), "sm_90a": (66.9, 494.7, 989.4, 1978.9),
    "sm_100a": (75.0, 1125.0, 2250.0, 4500.0),
}  # fmt: skip
HEAD = (
    "| what | unit | Aster | of the ceiling | PyTorch | Triton | asked | then |",
    "|---|---|--:|--:|--:|--:|--:|--:|",
)
# What a row gives: figures by column, or why there is none.
Answer = dict[str, Any]


class WrongError(Exception):
    """Results are wrong; the text says how."""


# measuring


def seconds_of(device: str, function: Callable[[], object], turns: int) -> float:
    """The shortest time of a call on the device; the first two are warming up."""
    queue = Device[device].queue
    times = []
    for _ in range(turns + 2):
        before = queue.signal()
        function()
        times.append(queue.signal().seconds_since(before))
    return max(min(times[2:]), 1e-9)


def copy_rate(device: str, nbytes: int) -> float:
    """Bytes a second, read and written, of a copy within the device; 0 where it makes none."""
    source = Buffer(device, nbytes, dtypes.uint8).allocate()
    target = Buffer(device, nbytes, dtypes.uint8).allocate()
    queue = Device[device].queue
    if not queue.copy(target.handle, source.handle, nbytes):
        return 0.0
    seconds = seconds_of(device, lambda: queue.copy(target.handle, source.handle, nbytes), turns=10)
    return 2 * nbytes / seconds


@functools.lru_cache(2)
def drawn(shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    """Numbers of a normal distribution, the same in every run."""
    random = np.random.default_rng(30)
    return [random.standard_normal(shape, np.float32) for shape in shapes]


def inputs_of(row: Row, n: int) -> list[Array]:
    """What a row is given, before it is made of its dtype."""
    return drawn(row.make(n)[0])


def as_array(result: Any) -> Array:
    """A result of Aster's or PyTorch's in float32."""
    found = result.cast(F32).numpy() if isinstance(result, Tensor) else result.float().cpu().numpy()
    return np.asarray(found)


def check(row: Row, result: Array, given: Sequence[Array]) -> None:
    """Compares some rows of a result with NumPy's. Raises: WrongError."""
    part_of = result[0, 0] if result.ndim == 4 else result
    part = np.linspace(0, len(part_of) - 1, min(CHECKED, len(part_of))).astype(int)
    want = row.want(part, *given)
    found = part_of[part]
    off = float(np.abs(found - want).max()) / max(float(np.abs(want).max()), 1e-30)
    # A comparison with NaN is false.
    if not off <= row.tolerance:
        raise WrongError(f"results are wrong: {off:.2g} of the largest off")


def poison(result: Tensor) -> None:
    """Fills the memory of a result with NaN, before it is given back."""
    buffer = storage.buffer_of(result.uop.base)
    buffer.copyin(b"\xff" * buffer.nbytes)


def measured(row: Row, device: str, n: int, turns: int) -> float:
    """Work a second of Aster. Raises: WrongError."""
    with Context(**row.settings):
        tensors = [Tensor(x, device=device).cast(row.dtype).realize() for x in inputs_of(row, n)]
        step = TinyJit(lambda *given: row.run(*given).realize())
        for _ in range(3):
            result = step(*tensors)
            poison(result)
        result = step(*tensors)
        check(row, as_array(result), [as_array(x) for x in tensors])
        return row.make(n)[1] / seconds_of(device, lambda: step(*tensors), turns)


def peer_measured(row: Row, n: int, turns: int, triton: bool = False) -> float | None:
    """Work a second of PyTorch on the same device; None where it has none.

    Raises: WrongError.
    """
    if row.peer is None or (triton and not row.triton) or not peer_is_there("CUDA"):
        return None
    import torch

    kinds = {
        F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16, FP8: torch.float8_e4m3fn,
    }  # fmt: skip
    tensors = [torch.from_numpy(x).cuda().to(kinds[row.dtype]) for x in inputs_of(row, n)]
    peer = torch.compile(row.peer, dynamic=False) if triton else row.peer
    check(row, as_array(peer(*tensors)), [as_array(x) for x in tensors])
    return row.make(n)[1] / peer_seconds(lambda: peer(*tensors), turns)


def peer_seconds(function: Callable[[], object], turns: int) -> float:
    """The shortest time of a call of PyTorch's on its device."""
    import torch

    times = []
    for _ in range(turns + 2):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        function()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) * 1e-3)
    return max(min(times[2:]), 1e-9)


def peer_is_there(device: str) -> bool:
    """Whether PyTorch has the device of a kind."""
    try:
        import torch
    except ImportError:
        return False
    return device == "CUDA" and torch.cuda.is_available()


def replay_us(device: str, turns: int) -> float:
    """Microseconds of the host for a replay of many small kernels, which it does not wait for."""

    def chain(x: Tensor) -> Tensor:
        for _ in range(LAUNCHES):
            x = (x + 1).contiguous()
        return x.realize()

    step, x = TinyJit(chain), Tensor.zeros(64, device=device).contiguous().realize()
    times = []
    for _ in range(turns + 3):
        start = time.perf_counter()
        result = step(x)
        times.append(time.perf_counter() - start)
        Device[device].synchronize()
    if set(as_array(result).tolist()) != {float(LAUNCHES)}:
        raise WrongError("results are wrong")
    return min(times[3:]) * 1e6


# rows


class Bench:
    """One device, sizes, and how often each call is timed."""

    def __init__(self, device: str, small: bool, turns: int) -> None:
        self.device = device
        self.small = small
        self.turns = turns

    @functools.cached_property
    def copy(self) -> float:
        """Bytes a second of a copy."""
        return copy_rate(self.device, 1 << (16 if self.small else 30))

    @property
    def peer(self) -> bool:
        """Whether PyTorch is measured, too."""
        return self.device == "CUDA" and not self.small

    def names(self) -> list[str]:
        """All rows, in order."""
        return [*[row.name for row in ROWS], REPLAY, *[row.name for row in NETWORKS]]

    def head(self) -> Answer:
        """What is said of the device."""
        target = Device[self.device].target
        said = f"{self.device}, {target.arch}, {target.units} processors"
        return {"said": f"{said}; a copy {self.copy * 1e-9:.0f} GB/s"}

    def answer(self, name: str) -> Answer:
        """The figures of a row. Raises: whatever it fails with."""
        if name == REPLAY:
            return {"unit": "us", "aster": replay_us(self.device, self.turns), "limits": [10, 5]}
        network = next((row for row in NETWORKS if row.name == name), None)
        if network is not None:
            return self.network(network)
        return self.kernel(next(row for row in ROWS if row.name == name))

    def kernel(self, row: Row) -> Answer:
        """The figures of a kernel."""
        target = Device[self.device].target
        if row.needs and row.needs not in target.features and not self.small:
            return {"why": f"there is no {row.needs} on {target.arch}"}
        n = row.small if self.small else row.size
        found = measured(row, self.device, n, self.turns)
        answer: Answer = {
            "unit": row.unit, "limits": [row.asked, row.then],
            "aster": self.in_unit(row, found), "share": found / self.ceiling(row),
        }  # fmt: skip
        for key, triton in (("torch", False), ("triton", True)) if self.peer else ():
            try:
                other = peer_measured(row, n, self.turns, triton)
            except Exception as error:
                answer["note"] = f"{key}: {words_of(error)}"
                continue
            if other is not None:
                answer[key] = self.in_unit(row, other)
        return answer

    def network(self, row: NetworkRow) -> Answer:
        """Milliseconds of a network; limits are shares of the speed of torch.compile."""

        def timed(function: Callable[[], object]) -> float:
            return seconds_of(self.device, function, self.turns)

        peer = (lambda f: peer_seconds(f, self.turns)) if self.peer else None
        own, other, why = times_of(row, self.device, self.small, timed, peer)
        answer: Answer = {"unit": "ms", "aster": own * 1e3, "limits": [row.asked, row.then]}
        if other is not None:
            answer |= {"triton": other * 1e3, "unit": f"ms; {other / own:.2f} times"}
        if why:
            answer["note"] = why
        return answer

    def in_unit(self, row: Row, rate: float) -> float:
        """Work a second in the unit of a row."""
        if row.unit == "of a copy":
            return rate / self.copy if self.copy else 0.0
        return rate * (1e-9 if row.unit == "GB/s" else 1e-12)

    def ceiling(self, row: Row) -> float:
        """The most work a second: of a copy, or of products by the data sheet; else infinity."""
        if row.unit != "TFLOP/s":
            return self.copy or float("inf")
        kinds = {F32: int(bool(row.settings.get("ALLOW_TF32"))), F16: 2, BF16: 2, FP8: 3}
        peaks = PEAKS.get(Device[self.device].target.arch)
        peak = peaks[kinds[row.dtype]] if peaks is not None else 0.0
        return peak * 1e12 or float("inf")


def words_of(error: BaseException) -> str:
    """What an error says, in one line."""
    text = " ".join(str(error).split()).replace("|", "/")
    return text if isinstance(error, WrongError) else f"{type(error).__name__}: {text}"[:200]


def serve(bench: Bench) -> None:
    """Names of rows come as lines, answers go as lines of JSON; what a row raises is one."""
    for line in sys.stdin:
        name = line.rstrip("\n")
        try:
            answer = bench.answer(name) if name else bench.head()
        except Exception as error:
            answer = {"why": words_of(error)}
        print(json.dumps(answer), flush=True)


class Child:
    """A process that runs rows, and is started anew after one that ended it or took too long."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self.process: subprocess.Popen[str] | None = None

    def stop(self) -> None:
        """Ends the process."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()

    def ask(self, name: str, limit_s: float) -> Answer:
        """The answer of a row, or why there is none in so many seconds."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        process, late = self.process, threading.Event()
        assert process.stdin is not None
        assert process.stdout is not None

        def give_up() -> None:
            late.set()
            process.kill()

        watch = threading.Timer(limit_s, give_up)
        watch.start()
        try:
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
            line = self.next_answer(process)
        except OSError:
            line = ""
        finally:
            watch.cancel()
        if line:
            answer: Answer = json.loads(line)
            # A device that was lost is lost to that process.
            if "why" in answer:
                self.stop()
            return answer
        self.stop()
        if late.is_set():
            return {"why": f"it took more than {limit_s:.0f} s"}
        return {"why": f"its process ended (status {process.returncode})"}

    @staticmethod
    def next_answer(process: subprocess.Popen[str]) -> str:
        """The next line that is an answer; others may print, too."""
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                return line
        return ""


def answers(
    names: Sequence[str], ask: Callable[[str, float], Answer], seconds: float
) -> Iterator[tuple[str, Answer]]:
    """Each row's answer, until time is up."""
    stop = time.monotonic() + seconds
    for name in names:
        left = stop - time.monotonic()
        late = {"why": f"not run: the {seconds:.0f} s are over (--seconds)"}
        yield name, ask(name, min(left, ROW_S)) if left > 1 else late


def line_of(name: str, answer: Answer) -> str:
    """A line of the table."""
    if "why" in answer:
        return f"| {name} | {answer['why']} | - | - | - | - | - | - |"
    share = answer.get("share", 0.0)
    cells = [
        f"{answer['aster']:.3g}",
        f"{share:.0%}" if share else "-",
        *[f"{answer[key]:.3g}" if key in answer else "-" for key in ("torch", "triton")],
        *[f"{n:g}" if n else "-" for n in answer["limits"]],
    ]
    note = f" ({answer['note']})" if "note" in answer else ""
    return f"| {name}{note} | {answer['unit']} | {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; 0 also where there is no graphics processor, which a line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", help="another device than the best graphics processor")
    parser.add_argument("--small", action="store_true", help="sizes that show no speed")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=ALL_S, help="for all rows together")
    parser.add_argument("--only", default="", help="rows whose name has this")
    parser.add_argument("--here", action="store_true", help="in this process, which a row may end")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    works = Device.get_available_devices() if options.device is None else []
    device = options.device or next((kind for kind in GPUS if kind in works), None)
    if device is None:
        print("no GPU here: aster doctor says what CUDA, METAL and WEBGPU lack")
        return 0
    bench = Bench(device, options.small, options.turns)
    if options.serve:
        serve(bench)
        return 0
    command = [sys.executable, "-m", "benchmarks.gpu", "--serve", "--device", device]
    command += ["--turns", str(options.turns), *(["--small"] if options.small else [])]
    child = Child(command)

    def ask(name: str, limit_s: float) -> Answer:
        if not options.here:
            return child.ask(name, limit_s)
        try:
            return bench.answer(name) if name else bench.head()
        except Exception as error:
            return {"why": words_of(error)}

    names = [name for name in bench.names() if options.only in name]
    try:
        for name, answer in answers(["", *names], ask, options.seconds):
            if name:
                print(line_of(name, answer), flush=True)
            else:
                print(answer.get("said", answer.get("why")), *HEAD, sep="\n", flush=True)
    finally:
        child.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
