"""Passes on C functions over host memory under the path that programs of tinygrad use."""

from __future__ import annotations

from aster_ml.compat.cpu_programs import ClangCompiler, CPUProgram, MallocAllocator
from aster_ml.compat.cpu_programs import ClangCompiler as ClangJITCompiler

__all__ = ["CPUProgram", "ClangCompiler", "ClangJITCompiler", "MallocAllocator"]
