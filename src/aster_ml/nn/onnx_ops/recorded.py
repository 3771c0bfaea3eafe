"""A model for one combination of shapes and small numbers: recorded once and replayed.

A file does not change while it is open, so what its graph reads needs no watching: `jit/guards`
does not search the code of this folder.
"""

from __future__ import annotations

from collections import ChainMap
from typing import Any

from aster_ml import Tensor, TinyJit
from aster_ml.nn.onnx_ops.registry import Value
from aster_ml.nn.onnx_ops.run import Execution


class Recorded:
    """One recording: the tensors `names` go in; what `result` has of tensors comes out.

    `arrays` are the inputs that are no tensors, the same in every run.
    """

    def __init__(
        self,
        execution: Execution,
        names: list[str],
        arrays: dict[str, Value],
        result: dict[str, Any],
    ) -> None:
        graph = execution.model.graph
        self.result = result
        self.outputs = [n for n, v in result.items() if isinstance(v, Tensor)]
        places = [i for i, name in enumerate(result) if name in self.outputs]

        def step(*tensors: Tensor) -> Any:
            found = execution.run(graph, ChainMap({**arrays, **dict(zip(names, tensors))}), {})
            made = [execution.tensor(found[i]).contiguous() for i in places]
            return made[0] if len(made) == 1 else made

        self.jit: TinyJit[Any] = TinyJit(step)

    def __call__(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        """The outputs for tensors of these shapes."""
        found = self.jit(*tensors)
        return dict(zip(self.outputs, [found] if len(self.outputs) == 1 else found))
