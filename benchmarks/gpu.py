"""`make gpu-bench`: kernels on a graphics processor beside a copy of its memory and PyTorch.

One table: what was asked, what was reached, what PyTorch reaches in the same process. Times are of
the device's own events, the replay's is the host's. Without a graphics processor it says so in
a line. `--device CPU --small` shows that the rows compute what they should.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Context, Device, Tensor, TinyJit, dtypes
from aster_ml.device import Buffer
from aster_ml.dtype import DType
from benchmarks.gpu_networks import ROWS as NETWORKS
from benchmarks.gpu_networks import line_of

GPUS = ("CUDA", "METAL")
LAUNCHES = 100


class Row(NamedTuple):
    """`make(n)` gives shapes of the inputs and the work of a call: bytes, or operations.

    `asked` and `then` are figures in the unit: GB/s and TFLOP/s, or a share of a copy.
    """

    name: str
    unit: str
    asked: float
    then: float
    dtype: DType
    size: int
    small: int
    make: Callable[[int], tuple[tuple[tuple[int, ...], ...], float]]
    run: Callable[..., Any]
    peer: Callable[..., Any] | None = None


def rows_of_bytes(inputs: int, results: int) -> Callable[[int], Any]:
    """Arrays of n x 8192 float32, so many read and written."""
    return lambda n: (((n, 8192),) * inputs, 4.0 * n * 8192 * (inputs + results))


def square(n: int) -> tuple[tuple[tuple[int, ...], ...], float]:
    """A product of two squares."""
    return ((n, n), (n, n)), 2.0 * n**3


def heads(n: int) -> tuple[tuple[tuple[int, ...], ...], float]:
    """Attention of 4 x 16 heads, 128 wide, over n places."""
    return ((4, 16, n, 128),) * 3, 4.0 * 4 * 16 * n * n * 128


def torch_normal(x: Any) -> Any:
    """LayerNorm by PyTorch."""
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def torch_attention(q: Any, k: Any, v: Any) -> Any:
    """Attention by PyTorch."""
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def rounded_product(a: Tensor, b: Tensor) -> Tensor:
    """A product of float32 whose operands tensor cores may round to TF32."""
    with Context(ALLOW_TF32=1):
        return (a @ b).realize()


def torch_rounded(a: Any, b: Any) -> Any:
    """The same by PyTorch."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def narrow_product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b.T`, in bfloat16 where operands are fp8."""
    found = a.matmul(b.T, dtype=dtypes.float32)
    return found.cast(dtypes.bfloat16) if a.dtype is FP8 else found


def torch_narrow(a: Any, b: Any) -> Any:
    """The same by PyTorch."""
    import torch

    if a.dtype is not torch.float8_e4m3fn:
        return a @ b.T
    one = torch.ones((), device=a.device)
    return torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


F32, F16, BF16, FP8 = dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.fp8e4m3
ROWS = (
    Row("a * b + a", "of a copy", 0.85, 0.92, F32, 8192, 8, rows_of_bytes(2, 1),
        lambda a, b: a * b + a, lambda a, b: a * b + a),
    Row("sum of rows", "of a copy", 0.85, 0.92, F32, 8192, 8, rows_of_bytes(1, 0),
        lambda a: a.sum(-1), lambda a: a.sum(-1)),
    Row("softmax", "GB/s", 2400, 2800, F32, 8192, 8, rows_of_bytes(1, 1),
        lambda a: a.softmax(-1), lambda a: a.softmax(-1)),
    Row("layernorm", "GB/s", 2400, 2800, F32, 8192, 8, rows_of_bytes(1, 1),
        lambda a: a.layernorm(), torch_normal),
    Row("product 4096, float32", "TFLOP/s", 30, 38, F32, 4096, 64, square,
        lambda a, b: a @ b, lambda a, b: a @ b),
    Row("product 8192, bfloat16", "TFLOP/s", 600, 720, BF16, 8192, 64, square,
        lambda a, b: a @ b, lambda a, b: a @ b),
    Row("product 8192, float16", "TFLOP/s", 600, 720, F16, 8192, 64, square,
        lambda a, b: a @ b, lambda a, b: a @ b),
    Row("product 8192, TF32", "TFLOP/s", 170, 220, F32, 8192, 64, square,
        rounded_product, torch_rounded),
    Row("product 8192, fp8", "TFLOP/s", 600, 750, FP8, 8192, 64, square,
        narrow_product, torch_narrow),
    Row("attention, float16", "TFLOP/s", 250, 450, F16, 4096, 32, heads,
        lambda q, k, v: q.scaled_dot_product_attention(k, v), torch_attention),
)  # fmt: skip


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


def inputs_of(row: Row, n: int) -> list[np.ndarray[Any, Any]]:
    """Numbers of a normal distribution, the same in every run."""
    random = np.random.default_rng(30)
    return [random.standard_normal(shape).astype(np.float32) for shape in row.make(n)[0]]


def measured(row: Row, device: str, n: int, turns: int) -> float:
    """Work a second of Aster."""
    tensors = [Tensor(x, device=device).cast(row.dtype).realize() for x in inputs_of(row, n)]
    step = TinyJit(lambda *given: row.run(*given).realize())
    return row.make(n)[1] / seconds_of(device, lambda: step(*tensors), turns)


def peer_measured(row: Row, n: int, turns: int) -> float | None:
    """Work a second of PyTorch on the same device; None where it has none."""
    try:
        import torch
    except ImportError:
        return None
    if row.peer is None or not torch.cuda.is_available():
        return None
    kinds = {
        F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16, FP8: torch.float8_e4m3fn,
    }  # fmt: skip
    tensors = [torch.from_numpy(x).cuda().to(kinds[row.dtype]) for x in inputs_of(row, n)]
    peer = row.peer
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

    step, x = TinyJit(chain), Tensor.ones(64, device=device).contiguous().realize()
    times = []
    for _ in range(turns + 3):
        start = time.perf_counter()
        step(x)
        times.append(time.perf_counter() - start)
        Device[device].synchronize()
    return min(times[3:]) * 1e6


def in_unit(row: Row, rate: float, copy: float) -> float:
    """Work a second in the unit of a row."""
    if row.unit == "of a copy":
        return rate / copy if copy else 0.0
    return rate * (1e-9 if row.unit == "GB/s" else 1e-12)


def table(device: str, small: bool, turns: int) -> list[str]:
    """The lines of the table."""
    copy = copy_rate(device, 1 << (16 if small else 30))
    lines = [
        f"{device}, {Device[device].target.arch}; a copy {copy * 1e-9:.0f} GB/s",
        "| what | unit | Aster | PyTorch | asked | then |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in ROWS:
        n = row.small if small else row.size
        rate = in_unit(row, measured(row, device, n, turns), copy)
        other = peer_measured(row, n, turns) if device == "CUDA" else None
        shown = "-" if other is None else f"{in_unit(row, other, copy):.3g}"
        lines.append(
            f"| {row.name} | {row.unit} | {rate:.3g} | {shown} | {row.asked:g} | {row.then:g} |"
        )
    peer = (lambda f: peer_seconds(f, turns)) if peer_is_there(device) else None
    for network in NETWORKS:
        lines.append(line_of(network, device, small, lambda f: seconds_of(device, f, turns), peer))
    host = replay_us(device, turns)
    lines.append(f"| replay of {LAUNCHES} small kernels, host | us | {host:.3g} | - | 10 | 5 |")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; 0 also where there is no graphics processor, which a line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", help="another device than the best graphics processor")
    parser.add_argument("--small", action="store_true", help="sizes that show no speed")
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args(argv)
    works = Device.get_available_devices()
    device = options.device or next((kind for kind in GPUS if kind in works), None)
    if device is None:
        print("no GPU here: aster doctor says what CUDA, METAL and WEBGPU lack")
        return 0
    print("\n".join(table(device, options.small, options.turns)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
