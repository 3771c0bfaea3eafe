"""Opens CUDA devices: kernels on NVIDIA GPUs, by the driver and NVRTC.

Reports missing parts, makes the Target of a device, and combines the modules of the folder:
`context` (device and errors), `memory`, `queue` (stream and launches), `graph` (recorded launches)
and `compiler`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import replace

from aster_ml.backend import Backend, Call, Graph, Program
from aster_ml.errors import DeviceError
from aster_ml.runtime import verdicts
from aster_ml.runtime.cuda import compiler as cuda_compiler
from aster_ml.runtime.cuda.compiler import arch_name, first_line
from aster_ml.runtime.cuda.context import CudaDevice, binding, library_name, meaning
from aster_ml.runtime.cuda.graph import CudaGraph
from aster_ml.runtime.cuda.memory import CudaAllocator
from aster_ml.runtime.cuda.queue import CudaProgram, CudaQueue
from aster_ml.target import UNTRIED, Target
from aster_ml.target.cuda import CARDS, cuda_target
from aster_ml.target.tensor_cores import GROUP_CORES

DOC = "NVIDIA graphics processors"
EXTRA = "pip install 'aster-ml[cuda]' brings it"


def has_driver() -> bool:
    """Whether the driver's library exists, which does not imply a device."""
    try:
        ctypes.CDLL(library_name())
    except OSError:
        return False
    return True


def has_package(name: str) -> bool:
    """Whether a package is installed; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@functools.cache
def missing() -> str | None:
    """Names what CUDA needs and does not find."""
    lacking = []
    if not has_driver():
        lacking.append(
            f"there is no NVIDIA driver ({library_name()} does not load); the driver's package "
            "brings it (apt-get install nvidia-driver), and a container is given it by --gpus all"
        )
    if not has_package("cuda.bindings"):
        lacking.append(f"cuda-bindings is not installed; {EXTRA}")
    if lacking:
        return "; ".join(lacking)
    return lacks_device() or cuda_compiler.missing() or is_too_old()


def lacks_device() -> str | None:
    """Why the driver opens no device."""
    try:
        cu = binding()
        status = int(cu.cuInit(0)[0])
        count = cu.cuDeviceGetCount()[1] if not status else 0
    except (ImportError, RuntimeError, ValueError) as error:
        # The bindings raise for a status that is newer than they are.
        return f"cuda-bindings does not load the driver ({first_line(error)}); {EXTRA}"
    if status == 100 or (not status and not count):
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if seen is None else f" (CUDA_VISIBLE_DEVICES is {seen!r})"
        return f"the NVIDIA driver finds no device{hint}; nvidia-smi lists those there are"
    if status:
        if words := meaning(status):
            return f"the NVIDIA driver does not start: {words} (error {status})"
        return (
            f"the NVIDIA driver does not start: error {status}; nvidia-smi may say more, and a "
            "restart helps where the driver was updated"
        )
    return None


def is_too_old() -> str | None:
    """Why the driver is too old for the compiler; None within one major version."""
    number = int(binding().cuDriverGetVersion()[1])
    driver, compiler = (number // 1000, number % 1000 // 10), cuda_compiler.version()
    if driver[0] >= compiler[0]:
        return None
    return (
        f"the NVIDIA driver is for CUDA {driver[0]}.{driver[1]} and NVRTC is of CUDA "
        f"{compiler[0]}.{compiler[1]}: a driver of CUDA {compiler[0]} would do, or "
        f"pip install 'cuda-bindings=={driver[0]}.*' nvidia-cuda-nvrtc-cu{driver[0]}"
    )


@functools.cache
def device_count() -> int:
    """Counts the devices that the driver shows; 0 where it does not start."""
    cu = binding()
    return 0 if cu.cuInit(0)[0] else int(cu.cuDeviceGetCount()[1])


def open_backend(name: str) -> Backend:
    """The backend of "CUDA" or "CUDA:1". Raises: DeviceError where there is no such device."""
    number, count = int(name.partition(":")[2] or 0), device_count()
    if number >= count:
        there = f"CUDA to CUDA:{count - 1}" if count > 1 else "only CUDA" if count else "none"
        raise DeviceError(f"device {name!r} is not there: the driver shows {there}")
    return CudaBackend(CudaDevice(name, number))


def number_of(arch: str) -> int:
    """The number of an architecture: 90 of sm_90a."""
    return int(arch.removeprefix("sm_").rstrip("a"))


def probe(device: CudaDevice) -> Target:
    """Makes the Target of a device from its attributes and the table of architectures.

    Raises: DeviceError for an architecture that the compiler does not support.
    """
    major = device.attribute("COMPUTE_CAPABILITY_MAJOR")
    minor = device.attribute("COMPUTE_CAPABILITY_MINOR")
    arch = arch_name(major, minor)
    before = [known for known in CARDS if number_of(known) <= number_of(arch)]
    if not before:
        raise DeviceError(
            f"{device.name} is of compute capability {major}.{minor}; there is code for 7.5 and "
            "later ones, and DEV=OPENCL may run it"
        )
    known = cuda_compiler.architectures()
    if known and number_of(arch) not in known:
        raise DeviceError(
            f"{device.name} is of compute capability {major}.{minor}, for which NVRTC "
            f"{'.'.join(map(str, cuda_compiler.version()))} makes no code (it does for "
            f"{', '.join(f'{n // 10}.{n % 10}' for n in sorted(known))}); pip install -U "
            "cuda-bindings nvidia-cuda-nvrtc brings the newest one"
        )
    alike = cuda_target(max(before, key=number_of))
    first, second, third = alike.cache_bytes
    second = device.attribute("L2_CACHE_SIZE") or second
    return replace(
        alike, arch=arch, cache_bytes=(first, second, third),
        max_group=device.attribute("MAX_THREADS_PER_BLOCK"),
        local_bytes=device.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        units=device.attribute("MULTIPROCESSOR_COUNT"),
        # Features of one architecture may be missing in later ones.
        features=alike.features if alike.arch == arch else alike.features - {"wgmma"},
        tensor_cores=alike.tensor_cores - (frozenset() if alike.arch == arch else GROUP_CORES),
    )  # fmt: skip


def tested_as(target: Target) -> str:
    """The key of a self-test's result: the device, its driver and the compiler."""
    known = replace(target, device="CUDA", features=target.features - {UNTRIED})
    driver = int(binding().cuDriverGetVersion()[1])
    return f"{known.key} driver={driver} nvrtc={'.'.join(map(str, cuda_compiler.version()))}"


def marked(target: Target) -> Target:
    """The target, with a mark if no self-test has shown that TMA works on the device."""
    if "wgmma" not in target.features or verdicts.BOXES in verdicts.passed_parts(tested_as(target)):
        return target
    return replace(target, features=target.features | {UNTRIED})


class CudaBackend(Backend):
    """One NVIDIA device with a stream of its own in the primary context."""

    compiles_beside = True
    keeps_binaries = True
    tries_schedules = True

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.probed = marked(probe(device))
        super().__init__(device.name, CudaAllocator(device), CudaQueue(device))

    @property
    def target(self) -> Target:
        """Target of the device."""
        return self.probed

    @property
    def tested_as(self) -> str:
        """The device, its driver and the compiler."""
        return tested_as(self.probed)

    @property
    def compile_threads(self) -> int:
        """The number of processors, since NVRTC compiles a kernel on one."""
        return os.cpu_count() or 1

    def compile(self, source: str) -> bytes:
        """CUDA C++ as code of the device's own architecture. Raises: CompileError."""
        return cuda_compiler.compile_source(source, self.probed.arch)

    def load(self, name: str, binary: bytes) -> Program:
        """The kernel `name`, ready to launch. Raises: CompileError; DeviceError."""
        found = cuda_compiler.unpack(binary)
        arch = self.probed.arch

        def looking() -> bytes:
            return cuda_compiler.compile_unaligned(found.source, arch)

        looks = looking if found.source else None
        return CudaProgram(name, self.device, found.cubin, found.shared, looks, found.tensors)

    def make_graph(self, calls: Sequence[Call]) -> Graph:
        """The launches as one CUDA graph."""
        assert isinstance(self.allocator, CudaAllocator)
        return CudaGraph(self.allocator, calls)

    def disassemble(self, source: str) -> str:
        """The device's instructions (SASS), if nvdisasm is installed."""
        return cuda_compiler.disassemble(cuda_compiler.unpack(self.compile(source)).cubin)
