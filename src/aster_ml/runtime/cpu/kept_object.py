"""Native code of Aster's own, compiled once a machine and loaded once a process.

Receives IR and a name for it; returns its functions, from the disk cache where that has them.
"""

from __future__ import annotations

from aster_ml.errors import CompileError
from aster_ml.runtime import object_cache
from aster_ml.runtime.cpu import llvm_jit


def load_kept(key: str, source: str, *names: str) -> llvm_jit.LoadedObject:
    """These functions of IR whose object is kept under a key.

    Raises: CompileError.
    """
    binary = object_cache.get(key)
    if binary is not None:
        try:
            return llvm_jit.load_object(binary, *names)
        except CompileError:
            # What is in the cache is only a shortcut: anything odd is compiled again.
            binary = None
    binary = llvm_jit.compile_ir(source, codegen_level=llvm_jit.QUICK_LEVEL)
    object_cache.put(key, binary)
    return llvm_jit.load_object(binary, *names)
