"""Names the messages that are sent to Apple's Metal objects.

A table maps names to selectors, results and arguments. `api().NAME(receiver, ...)` sends a message.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from aster_ml.runtime.metal.objc import BOOL, FORGETTING, POINTER, WORD, Range, Size, message

TEXT, DOUBLE = ctypes.c_char_p, ctypes.c_double
# name here -> (name there, result, kinds of the values)
MESSAGES: dict[str, tuple[Any, ...]] = {
    # devices
    "name": ("name", POINTER),
    "largest": ("maxBufferLength", WORD),
    "working_set": ("recommendedMaxWorkingSetSize", WORD),
    "shared_nbytes": ("maxThreadgroupMemoryLength", WORD),
    "supports_family": ("supportsFamily:", BOOL, ctypes.c_long),
    "new_queue": ("newCommandQueueWithMaxCommandBufferCount:", POINTER, WORD),
    "new_buffer": ("newBufferWithLength:options:", POINTER, WORD, WORD),
    "contents": ("contents", POINTER),
    # programs
    "new_library": ("newLibraryWithSource:options:error:", POINTER, POINTER, POINTER, POINTER),
    "set_fast_math": ("setFastMathEnabled:", None, BOOL),
    "new_function": ("newFunctionWithName:", POINTER, POINTER),
    "set_function": ("setComputeFunction:", None, POINTER),
    "set_for_graphs": ("setSupportIndirectCommandBuffers:", None, BOOL),
    "new_pipeline": (
        "newComputePipelineStateWithDescriptor:options:reflection:error:",
        POINTER, POINTER, WORD, POINTER, POINTER,
    ),
    "max_threads": ("maxTotalThreadsPerThreadgroup", WORD),
    "static_shared": ("staticThreadgroupMemoryLength", WORD),
    # command buffers
    "command_buffer": ("commandBuffer", POINTER),
    "compute_encoder": ("computeCommandEncoder", POINTER),
    "blit_encoder": ("blitCommandEncoder", POINTER),
    "set_pipeline": ("setComputePipelineState:", None, POINTER),
    "set_buffer": ("setBuffer:offset:atIndex:", None, POINTER, WORD, WORD),
    "set_bytes": ("setBytes:length:atIndex:", None, POINTER, WORD, WORD),
    "dispatch": ("dispatchThreadgroups:threadsPerThreadgroup:", None, Size, Size),
    "copy": (
        "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",
        None, POINTER, WORD, POINTER, WORD, WORD,
    ),
    "end_encoding": ("endEncoding", None),
    "commit": ("commit", None),
    "wait": ("waitUntilCompleted", None),
    "status": ("status", WORD),
    "error": ("error", POINTER),
    "code": ("code", ctypes.c_long),
    "start_time": ("GPUStartTime", DOUBLE),
    "end_time": ("GPUEndTime", DOUBLE),
    # indirect command buffers
    "set_types": ("setCommandTypes:", None, WORD),
    "set_inherits_buffers": ("setInheritBuffers:", None, BOOL),
    "set_inherits_pipeline": ("setInheritPipelineState:", None, BOOL),
    "set_most_buffers": ("setMaxKernelBufferBindCount:", None, WORD),
    "new_commands": (
        "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:",
        POINTER, POINTER, WORD, WORD,
    ),
    "command": ("indirectComputeCommandAtIndex:", POINTER, WORD),
    "set_kernel_buffer": ("setKernelBuffer:offset:atIndex:", None, POINTER, WORD, WORD),
    "set_sizes": ("concurrentDispatchThreadgroups:threadsPerThreadgroup:", None, Size, Size),
    "set_barrier": ("setBarrier", None),
    "reset": ("reset", None),
    "use": ("useResources:count:usage:", None, POINTER, WORD, WORD),
    "execute": ("executeCommandsInBuffer:withRange:", None, POINTER, Range),
}  # fmt: skip


class Api:
    """Each message as a function, from its first use on."""

    def __getattr__(self, name: str) -> Any:
        made = message(*MESSAGES[name])
        setattr(self, name, made)
        return made


@functools.cache
def api() -> Api:
    """The messages."""
    return Api()


FORGETTING.append(api.cache_clear)
