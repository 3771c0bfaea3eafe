"""Computes control flow: If, Loop, Scan, and operators on sequences by a graph.

Conditions and counts are numbers on the host, so branches are chosen and loops unrolled while the
graph of Tensors is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aster_ml.errors import ShapeError
from aster_ml.onnx.ops.model import Graph
from aster_ml.onnx.ops.registry import Array, Value, op
from aster_ml.onnx.ops.types import NUMPY


@op("If", host="condition")
def if_(condition: Array, *, then_branch: Graph, else_branch: Graph, call: Any) -> Value:
    """The outputs of one of two graphs."""
    return tuple(call.run(then_branch if bool(condition.reshape(-1)[0]) else else_branch, []))


def stacked(values: list[Value], axis: int, call: Any) -> Value:
    """Values of single steps along a new axis."""
    if all(isinstance(value, np.ndarray) for value in values):
        return np.stack(values, axis)
    first, *rest = [call.tensor(value) for value in values]
    return first.stack(*rest, dim=axis)


@op("Loop", raw=True)
def loop(m: Value, condition: Value, *state: Value, body: Graph, call: Any) -> Value:
    """A graph again and again: at most `m` times, and as long as the condition holds."""
    most = None if m is None else int(call.read(m).reshape(-1)[0])
    goes_on = condition is None or bool(call.read(condition).reshape(-1)[0])
    values, step = list(state), 0
    scanned: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    keeps_condition = len(body.inputs) > 1
    while goes_on and (most is None or step < most):
        call.iterate()
        given = [np.asarray(step, np.int64), np.asarray(True), *values]
        found = call.run(body, given if keeps_condition else given[:1])
        goes_on = bool(call.read(found[0]).reshape(-1)[0])
        values = found[1 : 1 + len(state)]
        for rows, value in zip(scanned, found[1 + len(state) :]):
            rows.append(value)
        step += 1
    names = list(body.outputs.values())[1 + len(state) :]
    ends = [
        stacked(rows, 0, call) if rows else nothing(spec, call)
        for rows, spec in zip(scanned, names)
    ]
    return (*values, *ends)


def nothing(spec: Any, call: Any) -> Value:
    """Empty scan output of a loop without a step."""
    shape = [size if isinstance(size, int) else 0 for size in spec.shape or ()]
    return np.zeros((0, *shape), NUMPY.get(spec.element, np.float32))


@op("Scan", raw=True, since=9)
def scan(
    *given: Value,
    body: Graph,
    num_scan_inputs: int,
    scan_input_axes: list[int] | None = None,
    scan_input_directions: list[int] | None = None,
    scan_output_axes: list[int] | None = None,
    scan_output_directions: list[int] | None = None,
    call: Any,
) -> Value:
    """A graph for each element along an axis, with values that go from step to step."""
    states = list(given[: len(given) - num_scan_inputs])
    return scan_steps(
        states, list(given[len(states) :]), body, scan_input_axes, scan_input_directions,
        scan_output_axes, scan_output_directions, call,
    )  # fmt: skip


def scan_steps(
    states: list[Value],
    inputs: list[Value],
    body: Graph,
    axes: list[int] | None,
    directions: list[int] | None,
    out_axes: list[int] | None,
    out_directions: list[int] | None,
    call: Any,
) -> tuple[Value, ...]:
    """All steps of a Scan."""
    axes, directions = axes or [0] * len(inputs), directions or [0] * len(inputs)
    sizes = {x.shape[axis] for x, axis in zip(inputs, axes)}
    if len(sizes) != 1:
        raise ShapeError(f"what is scanned has {sorted(sizes)} steps")
    steps = sizes.pop()
    rows: list[list[Value]] = [[] for _ in range(len(body.outputs) - len(states))]
    for step in range(steps):
        call.iterate()
        parts = []
        for x, axis, backwards in zip(inputs, axes, directions):
            at = steps - 1 - step if backwards else step
            parts.append(x[(*(slice(None),) * (axis % x.ndim), at)])
        found = call.run(body, [*states, *parts])
        states = found[: len(states)]
        for row, value in zip(rows, found[len(states) :]):
            row.append(value)
    ends = []
    for i, row in enumerate(rows):
        row = row[::-1] if out_directions and out_directions[i] else row
        ends.append(stacked(row, out_axes[i] if out_axes else 0, call))
    return (*states, *ends)


@op("Scan", raw=True)
def scan_of_batches(
    sequence_lens: Value,
    *given: Value,
    body: Graph,
    num_scan_inputs: int,
    directions: list[int] | None = None,
    call: Any,
) -> Value:
    """Scan of version 8: each sample of a batch by itself, along axis 1."""
    if sequence_lens is not None:
        raise ShapeError("sequence_lens of Scan, version 8")
    values = [call.tensor(value) for value in given]
    count = len(values) - num_scan_inputs
    results = [
        scan_steps(
            [v[i] for v in values[:count]], [v[i] for v in values[count:]],
            body, None, directions, None, None, call,
        )
        for i in range(values[0].shape[0])
    ]  # fmt: skip
    return tuple([stacked(list(column), 0, call) for column in zip(*results)])


@op("SequenceMap", raw=True)
def sequence_map(first: Value, *more: Value, body: Graph, call: Any) -> Value:
    """A graph for each element of a sequence; others are sequences or the same every time."""
    results = []
    for i in range(len(first)):
        given = [first[i], *[x[i] if isinstance(x, list) else x for x in more]]
        results.append(call.run(body, given))
    count = len(body.outputs)
    return tuple([[row[i] for row in results] for i in range(count)])


@op("Optional", raw=True)
def optional(value: Value = None, *, type: Any = None) -> Value:
    """A value that may be absent."""
    return value


@op("OptionalHasElement", raw=True)
def optional_has_element(value: Value = None) -> Array:
    """Tests whether the optional has an element."""
    return np.asarray(value is not None)


@op("OptionalGetElement", raw=True)
def optional_get_element(value: Value) -> Value:
    """Element of the optional."""
    if value is None:
        raise ShapeError("an optional value that is asked for is absent")
    return value
