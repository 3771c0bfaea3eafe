"""One small interface over the libraries that are compared, each in a process of its own.

Nothing is imported before a Library is made; the environment that sets threads and caches is made
by `peers`. Knows no rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Library:
    """A library, as the cases see it; `module` is what their expressions are written in."""

    name = ""
    module_name = ""

    def __init__(self, threads: int) -> None:
        self.module: Any = importlib.import_module(self.module_name)
        self.threads = threads

    def version(self) -> str:
        """Of the library."""
        return str(self.module.__version__)

    def tensor(self, array: Array) -> Any:
        """A tensor with memory of its own."""
        return array.copy()

    def cast(self, tensor: Any, dtype: str) -> Any:
        """The tensor with elements of another type, in memory of its own."""
        return tensor.astype(dtype)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of tensors in the quickest form that the library has for repeated calls."""
        return function

    def wait(self) -> None:
        """Returns when all that was asked for is done."""

    def array(self, result: Any) -> Array:
        """The values of a tensor, or of several one after another."""
        if isinstance(result, (tuple, list)):
            return np.concatenate([self.array(part).reshape(-1) for part in result])
        return self.values(result)

    def values(self, tensor: Any) -> Array:
        """The values of one tensor; of types that NumPy has not, as float32."""
        return np.asarray(tensor)

    def kernels(self) -> int | None:
        """How many kernels have run so far, where the library counts them."""
        return None


class NumPy(Library):
    """NumPy, with the BLAS in its wheel."""

    name = module_name = "numpy"


class Torch(Library):
    """PyTorch as it is without torch.compile."""

    name = module_name = "torch"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.module.set_num_threads(threads)

    def tensor(self, array: Array) -> Any:
        """A tensor with memory of its own."""
        return self.module.from_numpy(array.copy())

    def cast(self, tensor: Any, dtype: str) -> Any:
        """The tensor with elements of another type."""
        return tensor.to(getattr(self.module, dtype))

    def values(self, tensor: Any) -> Array:
        """The values of one tensor; of types that NumPy has not, as float32."""
        tensor = tensor.detach()
        if tensor.dtype is self.module.bfloat16:
            tensor = tensor.float()
        return tensor.numpy()  # type: ignore[no-any-return]


class TorchCompile(Torch):
    """PyTorch with torch.compile, which needs a C++ compiler."""

    name = "compile"

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Through Inductor, for these shapes alone."""
        # What other cases compiled counts towards a limit of versions of one function.
        self.module.compiler.reset()
        return self.module.compile(function, dynamic=False)  # type: ignore[no-any-return]


class Jax(Library):
    """JAX on its CPU backend."""

    name = module_name = "jax"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        importlib.import_module("jax.numpy")
        self.last: Any = None

    def tensor(self, array: Array) -> Any:
        """A tensor with memory of its own."""
        return self.module.numpy.array(array)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Through XLA."""
        jitted = self.module.jit(function)

        def call(*args: Any) -> Any:
            self.last = jitted(*args)
            return self.last

        return call

    def wait(self) -> None:
        """Returns when the last result is there."""
        self.module.block_until_ready(self.last)

    def values(self, tensor: Any) -> Array:
        """The values of one tensor; of types that NumPy has not, as float32."""
        if tensor.dtype.name == "bfloat16":
            tensor = tensor.astype("float32")
        return np.asarray(tensor)


class OnnxRuntime(NumPy):
    """onnxruntime on its CPU provider: it runs model files, and has arrays of NumPy."""

    name = module_name = "onnxruntime"


class LlamaCpp(NumPy):
    """llama.cpp as the package xllamacpp has it, prebuilt: it runs files of language models."""

    name, module_name = "llama.cpp", "xllamacpp"

    def version(self) -> str:
        """From the package: the module has no version."""
        return importlib.import_module("importlib.metadata").version("xllamacpp")  # type: ignore


class Lazy(Library):
    """Aster or tinygrad: the same code with its import changed."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.nn: Any = importlib.import_module(f"{self.module_name}.nn")
        self.state: Any = importlib.import_module(f"{self.module_name}.nn.state")
        self.optim: Any = importlib.import_module(f"{self.module_name}.nn.optim")
        self.device = self.module.Device[self.module.Device.DEFAULT]

    def tensor(self, array: Array) -> Any:
        """A tensor with memory of its own."""
        return self.module.Tensor(array.copy()).contiguous().realize()

    def cast(self, tensor: Any, dtype: str) -> Any:
        """The tensor with elements of another type."""
        return tensor.cast(dtype).contiguous().realize()

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Recorded by TinyJit."""
        realize = self.module.Tensor.realize

        def realized(*args: Any) -> Any:
            result = function(*args)
            realize(*result) if isinstance(result, (tuple, list)) else realize(result)
            return result

        return self.module.TinyJit(realized)  # type: ignore[no-any-return]

    def wait(self) -> None:
        """Returns when the device is idle."""
        self.device.synchronize()

    def values(self, tensor: Any) -> Array:
        """The values of one tensor; of types that NumPy has not, as float32."""
        if tensor.dtype.name in ("bfloat16", "__bf16"):
            tensor = tensor.float()
        return tensor.numpy()  # type: ignore[no-any-return]

    def kernels(self) -> int | None:
        """How many kernels have run so far."""
        return int(self.module.GlobalCounters.kernel_count)


class Aster(Lazy):
    """The library of this repository."""

    name = "aster"
    module_name = "aster_ml"


class Before(Lazy):
    """Aster as another checkout has it, for what a change has made of its speed."""

    name = "before"
    module_name = "aster_ml"


class Tinygrad(Lazy):
    """The reference of the API."""

    name = module_name = "tinygrad"

    def version(self) -> str:
        """From the package: the module has no version."""
        return importlib.import_module("importlib.metadata").version("tinygrad")  # type: ignore


LIBRARIES: dict[str, type[Library]] = {
    c.name: c
    for c in (Aster, Before, Torch, TorchCompile, Jax, NumPy, OnnxRuntime, LlamaCpp, Tinygrad)
}
