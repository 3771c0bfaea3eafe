"""Kernels of a body that are compiled while the rest of it is planned.

Receives kernels from `schedule/ahead.py`, one by one; gives `engine/launch.bind` what was begun.
"""

from __future__ import annotations

from aster_ml.config import BEAM, DEBUG
from aster_ml.device import Device
from aster_ml.engine.compile import MEMORY_CACHE, Compilation, key_of, threads_of
from aster_ml.uop.node import UOp


class Early:
    """What one call of `realize` has begun to compile."""

    compilation: Compilation | None = None

    def begin(self, ast: UOp, device: str) -> None:
        """Goes on to compile a kernel, where a thread has nothing else to do.

        Not where the kernel is searched for or shown: those wait for their turn.
        """
        backend = Device[device]
        key = key_of(ast, backend)
        if threads_of(backend) < 2 or BEAM or DEBUG >= 2 or key in MEMORY_CACHE:
            return
        if self.compilation is None:
            self.compilation = Compilation(threads_of(backend) - 1)
        self.compilation.begin(key, ast, backend, None)

    def close(self) -> None:
        """Ends the threads, where any were begun."""
        if self.compilation is not None:
            self.compilation.close()
            self.compilation = None
