"""Adds tinygrad's names to `engine.realize`, `codegen` and `renderer`."""

from __future__ import annotations

from aster_ml.compat.devices import RendererView as Renderer
from aster_ml.compat.kernel import Kernel, get_kernel
from aster_ml.compat.listing import full_rewrite_to_sink
from aster_ml.compat.programs import Estimates, ProgramSpec, get_program
from aster_ml.engine.items import (
    BufferCopy,
    CompiledRunner,
    ExecItem,
    Runner,
    get_runner,
    run_schedule,
)
from aster_ml.engine.items import BufferCopy as BufferXfer
from aster_ml.engine.items import BufferView as ViewOp

__all__ = [
    "BufferCopy", "BufferXfer", "CompiledRunner", "Estimates", "ExecItem", "Kernel", "ProgramSpec",
    "Renderer", "Runner", "ViewOp", "full_rewrite_to_sink", "get_kernel", "get_program",
    "get_runner", "run_schedule",
]  # fmt: skip
