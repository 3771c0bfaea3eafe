"""Recordings and programs as the reference's tests look at them.

Adapters between those tests and Aster: each does its work through what the engine runs itself.
"""

from __future__ import annotations

import functools
from typing import Any

from aster_ml import config, trace
from aster_ml.allocator import Allocator
from aster_ml.codegen.opts import Opt, parse_opts
from aster_ml.compat.programs import get_program
from aster_ml.engine import items
from aster_ml.jit.graph_runner import GraphRunner
from aster_ml.uop.ops import KernelArg


class MultiGraphRunner(GraphRunner):
    """A graph over several devices; Aster makes one for each."""


class HCQGraph(GraphRunner):
    """A graph of hardware queues; no device of Aster has them."""


class MetadataVar:
    """The variable that has the call that is going on; who sets it wants calls to be noted.

    The reference notes them always, Aster when TRACEMETA says so.
    """

    def set(self, value: Any) -> Any:
        """Sets it, and turns noting on."""
        config.set_value(config.TRACEMETA, 1)
        return trace._METADATA.set(value)

    def get(self) -> Any:
        """The call that is going on."""
        return trace._METADATA.get()


def opts_to_apply(arg: KernelArg) -> tuple[Opt, ...] | None:
    """The Opts that somebody asked for."""
    return None if arg.opts is None else parse_opts(arg.opts)


# Attributes that the tests read off Aster's own objects: (class, name, value, why it is not there).
ATTRIBUTES: list[tuple[type, str, Any, str]] = [
    (Allocator, "_offset", Allocator.offset, "a public name here"),
    (
        items.CompiledRunner,
        "p",
        functools.cached_property(lambda self: get_program(self.ast, self.device)),
        "the tests look at it in the dialect",
    ),
    (KernelArg, "opts_to_apply", property(opts_to_apply), "Opts in the graph are text"),
]
