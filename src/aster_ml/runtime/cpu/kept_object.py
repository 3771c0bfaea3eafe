"""Loads Aster's own native code, compiled once a machine and loaded once a process.

Receives IR and a key for it; returns its functions, from the disk cache if the key is there.
"""

from __future__ import annotations

from aster_ml.errors import CompileError
from aster_ml.runtime import object_cache
from aster_ml.runtime.cpu import llvm_jit


def load_kept(key: str, source: str, *names: str) -> llvm_jit.LoadedObject:
    """Functions of IR whose object is cached under a key.

    Raises: CompileError.
    """
    binary = object_cache.get(key)
    if binary is not None:
        try:
            return llvm_jit.load_object(binary, *names)
        except CompileError:
            # A damaged entry of the cache is compiled again.
            binary = None
    binary = llvm_jit.compile_ir(source, codegen_level=llvm_jit.QUICK_LEVEL)
    object_cache.put(key, binary)
    return llvm_jit.load_object(binary, *names)
