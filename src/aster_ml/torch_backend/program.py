"""Compiles a graph to a function of PyTorch's tensors that is recorded once and replayed.

Receives a graph of ATen operators that are all known; returns what PyTorch calls with a list of
tensors and numbers. Memory stays PyTorch's: a recording reads arguments where they lie and writes
results into tensors that PyTorch made. One recording is kept for each combination of shapes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from aster_ml import Tensor, TinyJit
from aster_ml.dtype import dtypes
from aster_ml.extend import OnMemory
from aster_ml.torch_backend.graph import SIZES, Graph, filled, is_number, name_of
from aster_ml.torch_backend.types import aster_dtype
from aster_ml.uop.ops import ELEMENTWISE, Ops

# So many combinations of shapes are kept recorded; past that the oldest goes.
MOST_RECORDED = 32
# Operators that show memory of their argument: on arguments PyTorch itself takes them.
VIEWS = frozenset(
    "view.default permute.default expand.default unsqueeze.default squeeze.default squeeze.dim "
    "squeeze.dims select.int slice.Tensor transpose.int t.default alias.default detach.default "
    "diagonal.default".split()
)


def dense_order(t: Any) -> tuple[int, ...] | None:
    """The axes of a tensor from the outermost in memory on, if it lies densely; else None."""
    if t.is_contiguous():
        return tuple(range(t.dim()))
    strides, sizes = t.stride(), t.shape
    order = tuple(sorted(range(t.dim()), key=lambda d: (-strides[d], d)))
    expected = 1
    for d in reversed(order):
        if sizes[d] != 1 and strides[d] != expected:
            return None
        expected *= sizes[d]
    return order


def order_of_fake(value: Any) -> tuple[int, ...]:
    """The order of axes that a result should have in memory; row-major where it is not dense."""
    rank = value.dim()
    if all(isinstance(s, int) for s in (*value.shape, *value.stride())):
        return dense_order(value) or tuple(range(rank))
    return tuple(range(rank))


class Program:
    """A graph as PyTorch calls it: with a list, which it empties.

    `wanted` are the nodes of the graph's results, `places` which result each of them is; the other
    results are arguments, views of arguments and numbers (`plain`).
    """

    def __init__(self, module: Any, torch: Any) -> None:
        # PyTorch gives its arguments away with the list. It looks for this among the attributes of
        # the object, not of the class.
        self._boxed_call = True
        self.torch = torch
        self.module = module
        nodes = list(module.graph.nodes)
        self.arguments = [n for n in nodes if n.op == "placeholder"]
        self.constants = [(n, constant_of(module, n.target)) for n in nodes if n.op == "get_attr"]
        results = next(n for n in nodes if n.op == "output").args[0]
        self.results = [results] if not isinstance(results, (list, tuple)) else list(results)
        self.is_single = not isinstance(results, (list, tuple))
        self.on_host = host_nodes(nodes)
        self.wanted = list(
            dict.fromkeys([r for r in self.results if hasattr(r, "meta") and not self.is_host(r)])
        )
        graph_nodes = needed_for(self.wanted)
        self.graph = Graph([n for n in nodes if n in graph_nodes], torch)
        self.host_steps = self.steps_on_host(nodes)
        self.tensors = [
            (i, n)
            for i, n in enumerate([*self.arguments, *[n for n, _ in self.constants]])
            if n in graph_nodes and not is_number(n.meta.get("val"))
        ]
        self.numbers = [
            (i, n) for i, n in enumerate(self.arguments) if is_number(n.meta.get("val"))
        ]
        self.is_dynamic = bool(self.numbers) or any(
            not all(isinstance(s, int) for s in n.meta["val"].shape)
            for _, n in self.tensors
            if hasattr(n.meta.get("val"), "shape")
        )
        self.orders = [order_of_fake(n.meta["val"]) for n in self.wanted]
        self.dtypes = [n.meta["val"].dtype for n in self.wanted]
        self.recorded: OrderedDict[Any, Recorded] = OrderedDict()

    def is_host(self, node: Any) -> bool:
        """Whether PyTorch computes a node: numbers, arguments, and views of these."""
        return node in self.on_host

    def steps_on_host(self, nodes: list[Any]) -> list[Any]:
        """The nodes that PyTorch computes for the sake of results."""
        needed = needed_for([r for r in self.results if hasattr(r, "meta") and self.is_host(r)])
        return [n for n in nodes if n in needed and n.op == "call_function"]

    def __call__(self, args: list[Any]) -> Any:
        """The results, new tensors, for arguments in order."""
        torch = self.torch
        given = [*args, *[value for _, value in self.constants]]
        args.clear()
        made: list[Any] = []
        if self.wanted:
            tensors = [given[i] for i, _ in self.tensors]
            key: Any = None
            if self.is_dynamic:
                key = (
                    tuple([tuple(t.shape) for t in tensors]),
                    tuple([given[i] for i, _ in self.numbers]),
                )
            recorded = self.recorded.get(key)
            if recorded is None:
                recorded = self.record(key, tensors, given)
            with torch.no_grad():
                made = recorded(tensors)
        computed = dict(zip(self.wanted, made))
        if self.host_steps or len(computed) < len(self.results):
            names = [*self.arguments, *[n for n, _ in self.constants]]
            computed.update(zip(names, given))
            for node in self.host_steps:
                computed[node] = on_host(node, computed)
        found = [computed[r] if hasattr(r, "meta") else r for r in self.results]
        return found[0] if self.is_single else found

    def record(self, key: Any, tensors: list[Any], given: list[Any]) -> Recorded:
        """Records the graph for arguments of these shapes."""
        while len(self.recorded) >= MOST_RECORDED:
            self.recorded.popitem(last=False)
        numbers = {n: given[i] for i, n in self.numbers}
        found = self.recorded[key] = Recorded(self, tensors, numbers)
        return found


def constant_of(module: Any, name: str) -> Any:
    """A tensor that a graph holds."""
    for part in name.split("."):
        module = getattr(module, part)
    return module


def host_nodes(nodes: list[Any]) -> set[Any]:
    """Arguments, numbers, and views of arguments."""
    found: set[Any] = set()
    for node in nodes:
        if node.op in ("placeholder", "get_attr"):
            found.add(node)
        elif node.op == "call_function":
            is_view = name_of(node) in VIEWS or is_number(node.meta.get("val"))
            if is_view and all(n in found for n in node.all_input_nodes):
                found.add(node)
    return found


def in_order(y: Tensor) -> Tensor:
    """A result that will have memory of its own, in the order of its axes.

    A value that is computed gets such memory anyway, and kernels that come later read it there;
    asked for as contiguous it would be a copy beside theirs.
    """
    u = y.uop
    while u.op is Ops.RESHAPE:
        u = u.src[0]
    is_computed = u.op in ELEMENTWISE or u.op is Ops.REDUCE
    return y if is_computed else y.contiguous()


def needed_for(nodes: list[Any]) -> set[Any]:
    """These nodes and all that they are computed from."""
    found: set[Any] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += node.all_input_nodes
    return found


def on_host(node: Any, values: dict[Any, Any]) -> Any:
    """A node that PyTorch computes."""
    args = [filled(a, values) for a in node.args]
    if name_of(node) in SIZES:
        return SIZES[name_of(node)](*args)
    return node.target(*args, **{k: filled(a, values) for k, a in node.kwargs.items()})


class Recorded:
    """A program for one combination of shapes: run twice, and replayed from then on."""

    def __init__(self, program: Program, tensors: list[Any], numbers: dict[Any, int]) -> None:
        self.program = program
        self.torch = program.torch
        self.numbers = numbers
        # The layout of each argument that the recording reads; others are brought to it.
        self.orders = [dense_order(t) or tuple(range(t.dim())) for t in tensors]
        self.plain_orders = [o == tuple(range(len(o))) for o in self.orders]
        self.shapes = [tuple(t.shape) for t in tensors]
        self.draws = program.graph.draws
        self.is_empty = any(0 in shape for shape in self.shapes)
        self.jit: TinyJit[Any] = TinyJit(self.step)
        self.calls = 0
        self.on_memory: OnMemory | None = None
        self.made: list[tuple[Any, Any, Any]] = []

    def step(self, *tensors: Tensor) -> list[Tensor]:
        """The function that is recorded: arguments and results as they lie in memory."""
        words = tensors[-1] if self.draws else None
        values: dict[Any, Any] = dict(self.numbers)
        for (_, node), t, order in zip(self.program.tensors, tensors, self.orders):
            back = [order.index(i) for i in range(len(order))]
            values[node] = t if back == list(order) == sorted(back) else t.permute(tuple(back))
        found = self.program.graph.run(values, self.program.wanted, words)
        return [
            in_order(y if list(o) == sorted(o) else y.permute(o))
            for y, o in zip(found, self.program.orders)
        ]

    def in_layout(self, number: int, t: Any) -> Any:
        """An argument in the layout that the recording reads."""
        order = self.orders[number]
        if self.plain_orders[number]:
            return t.contiguous()
        if dense_order(t) == order:
            return t
        back = [order.index(i) for i in range(len(order))]
        return t.permute(order).contiguous().permute(back)

    def __call__(self, tensors: list[Any]) -> list[Any]:
        """New tensors with the results."""
        plain = self.plain_orders
        tensors = [
            t if plain[i] and t.is_contiguous() else self.in_layout(i, t)
            for i, t in enumerate(tensors)
        ]
        if self.draws:
            tensors.append(self.torch.empty(1, dtype=self.torch.int64).random_())
        if self.on_memory is None:
            return self.run_plain(tensors)
        empty_strided = self.torch.empty_strided
        made = [empty_strided(size, stride, dtype=dtype) for size, stride, dtype in self.made]
        self.on_memory([t.data_ptr() for t in (*tensors, *made)])
        return made

    def run_plain(self, tensors: list[Any]) -> list[Any]:
        """A call before there is a recording, or where there cannot be one."""
        self.calls += 1
        seen: set[int] = set()
        ours = []
        for t, order in zip(tensors, [*self.orders, (0,)]):
            # Two arguments may be one memory now and two later.
            t = t.clone() if t.data_ptr() in seen else t
            seen.add(t.data_ptr())
            ours.append(self.wrapped(t, order))
        if self.draws:
            ours[-1] = Tensor.from_blob(
                tensors[-1].data_ptr(), (2,), dtype=dtypes.uint32, device="CPU"
            )
        if self.is_empty or not ours:
            found = self.step(*ours)
            Tensor.realize(*found) if found else None
        else:
            found = self.jit(*ours)
        made = [self.given_out(y, i) for i, y in enumerate(found)]
        if self.calls >= 2 and not self.is_empty and ours:
            self.on_memory = OnMemory.of(self.jit.latest, len(ours))
            self.made = [(tuple(m.shape), m.stride(), m.dtype) for m in made]
        return made

    def wrapped(self, t: Any, order: tuple[int, ...]) -> Tensor:
        """The memory of a tensor, flat in its order, as a tensor of ours."""
        shape = tuple([t.shape[i] for i in order]) if t.dim() else ()
        dtype = aster_dtype(t.dtype)
        if not t.numel():
            return Tensor.empty(shape, dtype=dtype, device="CPU")
        return Tensor.from_blob(t.data_ptr(), shape, dtype=dtype, device="CPU")

    def given_out(self, y: Tensor, number: int) -> Any:
        """A result as a tensor of PyTorch's, copied."""
        order, dtype = self.program.orders[number], self.program.dtypes[number]
        back = [order.index(i) for i in range(len(order))]
        flat = self.torch.empty(y.shape, dtype=dtype)
        if y.numel():
            data = bytearray(y._memory().as_memoryview())
            flat.copy_(self.torch.frombuffer(data, dtype=dtype).reshape(y.shape))
        return flat.permute(back) if len(back) > 1 else flat
