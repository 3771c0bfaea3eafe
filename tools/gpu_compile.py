"""CUDA C++ through NVRTC and ptxas without a card: which kernels compile, registers, spills.

`python -m tools.gpu_compile` schedules ResNet-18, GPT-2 small and a training step of each for a
device that is not there, and compiles every kernel for each architecture. `--sources FOLDER`
compiles the `.cu` files of a folder, such as `SHIM_SOURCES=FOLDER` makes the shim of the tests
leave there. Prints a table; exits with 1 where a kernel does not compile or spills registers.

Needs the extra `cuda` (cuda-bindings, nvidia-cuda-nvrtc) and no driver.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from aster_ml import Context, Device, Tensor, nn
from aster_ml.backend import Backend, Program
from aster_ml.runtime.cuda.compiler import roomier
from aster_ml.runtime.host_queue import HostQueue
from aster_ml.runtime.null import NullAllocator, NullProgram, no_copy
from aster_ml.target import Target
from aster_ml.target.cuda import cuda_target
from benchmarks import models

ARCHS = ("sm_80", "sm_90a")
OPTIONS = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")
KIND = "CUDATRY"


class Report(NamedTuple):
    """What the compilers say of one kernel; `error` is what they refuse it with.

    `warned` is what ptxas says of products of matrices that have to wait for one another.
    """

    name: str
    registers: int = 0
    spilled: int = 0
    stack: int = 0
    seconds: float = 0.0
    error: str = ""
    warned: str = ""


def compile_kernel(source: str, arch: str) -> Report:
    """One source for one architecture."""
    from cuda.bindings import nvrtc

    start = time.process_time()
    name = (re.search(r"__launch_bounds__\([^)]*\)\s+(\w+)\(", source) or ["", "?"])[1]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    options = [f"--gpu-architecture={arch}".encode(), *[o.encode() for o in OPTIONS]]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, nbytes = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(nbytes)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    text, seconds = log.decode(errors="replace"), time.process_time() - start
    if (roomy := roomier(source, text)) is not None:
        return compile_kernel(roomy, arch)
    if status:
        return Report(name, seconds=seconds, error=text)
    numbers = [
        max([int(n) for n in re.findall(pattern, text)], default=0)
        for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill stores", r"(\d+) bytes stack")
    ]
    warned = "\n".join(re.findall(r"^.*\(C75\d\d\).*$", text, re.MULTILINE))
    return Report(name, *numbers, seconds=seconds, warned=warned)


def kind_of(arch: str) -> str:
    """The kind of device of an architecture: what is compiled is kept by that name."""
    return f"{KIND}{arch.replace('_', '').upper()}"


class TryBackend(Backend):
    """A card that is not there: sources are kept, kernels do nothing."""

    def __init__(self, name: str, arch: str) -> None:
        super().__init__(name, NullAllocator(), HostQueue(no_copy))
        self.arch = arch
        self.sources: dict[str, None] = {}

    @property
    def target(self) -> Target:
        """That of the architecture."""
        return cuda_target(self.arch, kind_of(self.arch))

    def compile(self, source: str) -> bytes:
        """Keeps the source."""
        self.sources[source] = None
        return source.encode()

    def load(self, name: str, binary: bytes) -> Program:
        """A program that does nothing."""
        return NullProgram(name, binary.decode())


class TryRuntime:
    """The runtime of such a card."""

    DOC = "sources for a card that is not there"

    def __init__(self, arch: str) -> None:
        self.backend = TryBackend(kind_of(arch), arch)

    @staticmethod
    def missing() -> str | None:
        """Nothing is needed."""
        return None

    def open_backend(self, name: str) -> Backend:
        """The one there is."""
        return self.backend


def sources_of(run: Callable[[], Any], arch: str) -> list[str]:
    """The kernels that a function compiles, where its tensors are on such a card."""
    runtime = TryRuntime(arch)
    Device.register(kind_of(arch), runtime)
    with Context(DEV=kind_of(arch), CACHE=0):
        run()
    return list(runtime.backend.sources)


def forward(network: Any, shape: tuple[int, ...], whole: bool) -> Callable[[], Any]:
    """A forward call."""

    def run() -> None:
        net = network()
        x = Tensor.zeros(*shape, dtype="int32" if whole else "float32").contiguous().realize()
        net(x).realize()

    return run


def training(network: Any, shape: tuple[int, ...], whole: bool) -> Callable[[], Any]:
    """A training step by Adam."""

    def run() -> None:
        net = network()
        optimizer = nn.optim.Adam(nn.state.get_parameters(net))
        x = Tensor.zeros(*shape, dtype="int32" if whole else "float32").contiguous().realize()
        y = Tensor.zeros(*(shape if whole else shape[:1]), dtype="int32").contiguous().realize()
        with Tensor.train():
            optimizer.zero_grad()
            loss = net(x).sparse_categorical_crossentropy(y).backward()
            loss.realize(*optimizer.schedule_step())

    return run


def small_gpt2() -> Any:
    """GPT-2 small but for how many equal layers there are: their kernels are the same."""
    return models.GPT2(nn, layers=2)


def resnet18() -> Any:
    """ResNet-18."""
    return models.ResNet18(nn)


PROGRAMS: dict[str, Callable[[], Any]] = {
    "ResNet-18, batch 1": forward(resnet18, (1, 3, 224, 224), False),
    "ResNet-18, training step, batch 32": training(resnet18, (32, 3, 224, 224), False),
    "GPT-2 small, 128 tokens": forward(small_gpt2, (1, 128), True),
    "GPT-2 small, training step, 4 x 128": training(small_gpt2, (4, 128), True),
}


def report(name: str, sources: Iterable[str], arch: str, workers: int) -> bool:
    """Prints a row, and each kernel that fails or spills; whether there is none."""
    given = list(sources)
    if workers > 1:
        with ProcessPoolExecutor(workers) as pool:
            found = list(pool.map(compile_kernel, given, [arch] * len(given), chunksize=4))
    else:
        found = [compile_kernel(source, arch) for source in given]
    refused = [r for r in found if r.error]
    spilling = [r for r in found if r.spilled]
    print(
        f"| {name} | {arch} | {len(found)} | {len(refused)} | {len(spilling)} | "
        f"{max([r.registers for r in found], default=0)} | "
        f"{max([r.stack for r in found], default=0)} | {sum([r.seconds for r in found]):.1f} |",
        flush=True,
    )
    for r in refused:
        print(f"{r.name} is refused:\n{r.error}")
    for r in spilling:
        print(f"{r.name} spills {r.spilled} bytes")
    return not refused and not spilling


def main() -> int:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", nargs="*", default=ARCHS)
    parser.add_argument("--sources", type=Path, help="compile the .cu files of a folder instead")
    parser.add_argument("--keep", type=Path, help="leave the sources of networks in a folder")
    parser.add_argument("--only", default="", help="programs whose name has this")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    print("| program | for | kernels | refused | spill | registers | stack, bytes | CPU s |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    fine = True
    for arch in args.arch:
        if args.sources:
            given = [path.read_text() for path in sorted(args.sources.glob("*.cu"))]
            fine &= report("kernels of the tests", given, arch, args.workers)
            continue
        for name, run in PROGRAMS.items():
            if args.only in name:
                sources = sources_of(run, arch)
                if args.keep:
                    args.keep.mkdir(parents=True, exist_ok=True)
                    for i, source in enumerate(sources):
                        path = args.keep / f"{arch} {name} {i}.cu".replace(" ", "_")
                        path.write_text(source)
                fine &= report(name, sources, arch, args.workers)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
