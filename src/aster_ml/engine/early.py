"""Kernels of a body that are compiled while the rest of it is planned.

Receives the kernels that planning yields, one by one; gives `engine/launch.bind` what was begun.
"""

from __future__ import annotations

from aster_ml.config import BEAM, DEBUG
from aster_ml.device import Device
from aster_ml.engine.compile import MEMORY_CACHE, Compilation, Key, key_of
from aster_ml.schedule.steps import FinalKernel


class Early:
    """Kernels that one call of `realize` has begun to compile."""

    compilation: Compilation | None = None
    # Kernels that could not be written.
    failed: frozenset[Key] = frozenset()

    def take(self, kernel: FinalKernel) -> None:
        """Goes on to compile a kernel, where a thread has nothing else to do.

        Not where the kernel is searched for or shown: those wait for their turn.
        """
        ast, backend = kernel.ast, Device[kernel.device]
        key = key_of(ast, backend)
        quick = key in MEMORY_CACHE or key in self.failed
        if backend.compile_threads < 2 or BEAM or DEBUG >= 2 or quick:
            return
        if self.compilation is None:
            self.compilation = Compilation(backend.compile_threads - 1)
        try:
            self.compilation.begin(key, ast, backend, None)
        except Exception:
            # Whoever runs the kernel meets the error, which is not one of planning.
            self.failed |= {key}

    def close(self) -> None:
        """Ends the threads, where any were begun."""
        if self.compilation is not None:
            self.compilation.close()
            self.compilation = None
