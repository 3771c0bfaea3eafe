"""Exports further names of the core to packages on top of it, beside those of `aster_ml`.

With the modules that `layers.toml` lists as `interface` these are all names of the core that the
library and the programs use, and that other packages can rely on. docs/how-to/packages.md lists
them by task. A module is imported when one of its names is first read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aster_ml.late import late

if TYPE_CHECKING:
    from aster_ml.codegen.explain import arranged_lines
    from aster_ml.codegen.lower.indices import lower_index_dtype
    from aster_ml.codegen.passes import kernel_name, lower, schedule_kernel
    from aster_ml.engine.compile import write_kernel
    from aster_ml.engine.estimate import Estimates, estimate
    from aster_ml.engine.explain import run_name, show_slots, show_work
    from aster_ml.engine.launch import size_now
    from aster_ml.engine.memory import Arena, plan_memory
    from aster_ml.engine.observed import Observed, Ran
    from aster_ml.engine.planning import kernel_passes, plan_body, plan_for, schedule_passes
    from aster_ml.engine.program import ProgramSpec, get_program
    from aster_ml.engine.realized import buffers_of, whole_buffer
    from aster_ml.engine.reproduce import reproduce
    from aster_ml.engine.sources import source_digest
    from aster_ml.engine.storage import buffer_of
    from aster_ml.frames import is_own
    from aster_ml.gradient import written_views
    from aster_ml.interpreters import python_command, python_environment
    from aster_ml.jit.graph_runner import GraphRunner
    from aster_ml.jit.kept import dump_recordings, load_recordings, named_memory
    from aster_ml.jit.on_memory import OnMemory
    from aster_ml.jit.recording import Recording
    from aster_ml.migration_hints import hint
    from aster_ml.ops.complexes import COMPLEX_KINDS
    from aster_ml.ops.data import wrapped_node
    from aster_ml.ops.elementwise import ElementwiseMixin
    from aster_ml.ops.handle import check_tensor
    from aster_ml.ops.interop import BINARY, UNARY, as_numpy
    from aster_ml.ops.linalg import matrix_sizes, root_of_sum
    from aster_ml.ops.reduce import identity_of
    from aster_ml.ops.solve import epsilon, exchanged, largest_left
    from aster_ml.renderer.c import CRenderer, CWriter, c_type
    from aster_ml.renderer.cstyle import BIT_DTYPES
    from aster_ml.renderer.lanes import lane_ranges, read_affine, size_of
    from aster_ml.renderer.wgsl.renderer import WgslRenderer
    from aster_ml.runtime.cpu.clang import compile_c, load_library
    from aster_ml.runtime.disk import forget_pages, plain_file_size
    from aster_ml.runtime.foreign import resolved
    from aster_ml.runtime.object_cache import cache_folder, current_cache, digest
    from aster_ml.runtime.verdicts import BOXES, keep_verdicts, passed_parts
    from aster_ml.runtime.webgpu.device import webgpu_target
    from aster_ml.runtime.webgpu.program import (
        BINDING_NBYTES,
        MAX_BLOCKS,
        WORD_NBYTES,
        LaunchFacts,
        shader_variant,
    )
    from aster_ml.schedule.handwritten import Handwritten, as_kernel
    from aster_ml.schedule.steps import Schedule, Slot, Step
    from aster_ml.uop.infer import show_shape
    from aster_ml.uop.movement import flat_index, source_index
    from aster_ml.uop.passes import Pass, PassRun, record_always, record_no_more
    from aster_ml.uop.print.infix import render_expr
    from aster_ml.uop.rewrite import graph_rewrite
    from aster_ml.uop.rules.symbolic import simplify, simplify_around, symbolic
    from aster_ml.uop.spec.tables import KERNEL_SPEC, TENSOR_SPEC

__all__ = [
    "BINARY", "BINDING_NBYTES", "BIT_DTYPES", "BOXES", "COMPLEX_KINDS", "KERNEL_SPEC", "MAX_BLOCKS",
    "TENSOR_SPEC", "UNARY", "WORD_NBYTES", "Arena", "CRenderer", "CWriter", "ElementwiseMixin",
    "Estimates", "GraphRunner", "Handwritten", "LaunchFacts", "Observed", "OnMemory", "Pass",
    "PassRun", "ProgramSpec", "Ran", "Recording", "Schedule", "Slot", "Step", "WgslRenderer",
    "arranged_lines", "as_kernel", "as_numpy", "buffer_of", "buffers_of", "c_type", "cache_folder",
    "check_tensor", "compile_c", "current_cache", "digest", "dump_recordings", "epsilon",
    "estimate", "exchanged", "flat_index", "forget_pages", "get_program", "graph_rewrite", "hint",
    "identity_of", "is_own", "keep_verdicts", "kernel_name", "kernel_passes", "lane_ranges",
    "largest_left", "load_library", "load_recordings", "lower", "lower_index_dtype", "matrix_sizes",
    "named_memory", "passed_parts", "plain_file_size", "plan_body", "plan_for", "plan_memory",
    "python_command", "python_environment", "read_affine", "record_always", "record_no_more",
    "render_expr", "reproduce", "resolved", "root_of_sum", "run_name", "schedule_kernel",
    "schedule_passes", "shader_variant", "show_shape", "show_slots", "show_work", "simplify",
    "simplify_around", "size_now", "size_of", "source_digest", "source_index", "symbolic",
    "webgpu_target", "whole_buffer", "wrapped_node", "write_kernel", "written_views",
]  # fmt: skip
# Modules, and the names that each has.
HOMES = {
    "codegen.explain": "arranged_lines",
    "codegen.lower.indices": "lower_index_dtype",
    "codegen.passes": "kernel_name lower schedule_kernel",
    "engine.compile": "write_kernel",
    "engine.estimate": "Estimates estimate",
    "engine.explain": "run_name show_slots show_work",
    "engine.launch": "size_now",
    "engine.memory": "Arena plan_memory",
    "engine.observed": "Observed Ran",
    "engine.planning": "kernel_passes plan_body plan_for schedule_passes",
    "engine.program": "ProgramSpec get_program",
    "engine.realized": "buffers_of whole_buffer",
    "engine.reproduce": "reproduce",
    "engine.sources": "source_digest",
    "engine.storage": "buffer_of",
    "frames": "is_own",
    "gradient": "written_views",
    "interpreters": "python_command python_environment",
    "migration_hints": "hint",
    "jit.graph_runner": "GraphRunner",
    "jit.kept": "dump_recordings load_recordings named_memory",
    "jit.on_memory": "OnMemory",
    "jit.recording": "Recording",
    "ops.complexes": "COMPLEX_KINDS",
    "ops.data": "wrapped_node",
    "ops.elementwise": "ElementwiseMixin",
    "ops.handle": "check_tensor",
    "ops.interop": "BINARY UNARY as_numpy",
    "ops.linalg": "matrix_sizes root_of_sum",
    "ops.reduce": "identity_of",
    "ops.solve": "epsilon exchanged largest_left",
    "renderer.c": "CRenderer CWriter c_type",
    "renderer.cstyle": "BIT_DTYPES",
    "renderer.lanes": "lane_ranges read_affine size_of",
    "renderer.wgsl.renderer": "WgslRenderer",
    "runtime.cpu.clang": "compile_c load_library",
    "runtime.disk": "forget_pages plain_file_size",
    "runtime.foreign": "resolved",
    "runtime.object_cache": "cache_folder current_cache digest",
    "runtime.verdicts": "BOXES keep_verdicts passed_parts",
    "runtime.webgpu.device": "webgpu_target",
    "runtime.webgpu.program": "BINDING_NBYTES MAX_BLOCKS WORD_NBYTES LaunchFacts shader_variant",
    "schedule.handwritten": "Handwritten as_kernel",
    "schedule.steps": "Schedule Slot Step",
    "uop.infer": "show_shape",
    "uop.movement": "flat_index source_index",
    "uop.passes": "Pass PassRun record_always record_no_more",
    "uop.print.infix": "render_expr",
    "uop.rewrite": "graph_rewrite",
    "uop.rules.symbolic": "simplify simplify_around symbolic",
    "uop.spec.tables": "KERNEL_SPEC TENSOR_SPEC",
}
HOME_OF = {name: module for module, names in HOMES.items() for name in names.split()}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, getattr(late(HOME_OF[name]), name))
