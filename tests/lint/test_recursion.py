"""No function of the package calls itself, directly or through others, but where depth is bounded.

why: a graph is as deep as a program is long, and Python's stack is not; a walk over nodes, terms,
kernels or steps is a loop with a stack of its own

A call is what the source shows: a name that is a function of the same module or is imported from
one, a method by `self` or `cls`, and, of classes whose instances hang together in graphs, a method
of any expression. What stands in `BOUNDED` says how deep it goes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache

from tests.lint.sources import package_modules

# A function by module and name, as `uop.graph:toposort` or `uop.gradient_terms:Term.scale`.
Function = str
# Classes whose instances are made of instances: their methods count whoever they are called on.
LINKED = frozenset(
    {"Interned", "UOp", "KernelMixin", "ShardMixin", "SymbolMixin", "WalkMixin", "Term", "Form"}
)  # fmt: skip

BLOCKS_OF_STATEMENTS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.ExceptHandler)
# Modules of Python that have functions of the same names.
MODULES = frozenset({"math", "itertools", "operator"})

DEVICES = "a MULTI holds one value for each device, and none that is a MULTI itself"
RUN = "the kernels of a run are no runs"
INNER = "as deep as graphs stand in graphs of a file, of which protobuf reads 100"
DATA = (
    "as deep as the caller's own lists and dicts, of which Python's repr, == and copy recurse too"
)
TYPE = "one step to a wider dtype"
HALVES = "each call has half of the values"
BLOCKS = "each call has one element of a block of 256"
PATTERN = "as deep as a pattern is written"
ARGUMENT = "as deep as the tuples in a node's argument, which no program nests"
HANDWRITTEN = (
    "as deep as loads that tell where to load, and stores that wait for loads, in a kernel that "
    "somebody has written by hand"
)
READ = "as deep as loads that tell where to load stand in one kernel: gathers past 24 are stored"
LISTED = "constants and lanes alone, which have no sources to speak of"
CONFINED = (
    "as deep as JSON or a template is nested; the process it runs in tells where that is too deep"
)
JSON = "as deep as JSON is nested; who asks is told where that is too deep"
BOUNDED: dict[Function, str] = {
    "apps.llm.schema_check:Shortest.of": CONFINED,
    "apps.llm.template_sandbox:Meter.made": "a list of what comes one by one is made of no third",
    "apps.llm.template_sandbox:Meter.weight": CONFINED,
    "apps.llm.template_sandbox:wrap_made": CONFINED,
    "apps.llm.tokenizer:Tokenizer.marked": JSON,
    "codegen.decompose.ops:Decomposition.function": TYPE,
    "codegen.decompose.ops:Decomposition.power": TYPE,
    "dtype:dtypes.as_const": DATA,
    "dtype:dtypes.from_py": DATA,
    "dtype:odd_float32": "float32 is packed, and asks for no odd neighbour",
    "dtype:promotions": "as deep as the table of dtypes",
    "engine.estimate:estimate": RUN,
    "engine.explain:kernel_lines": RUN,
    "engine.realize:Request.add": "from a view to the CONTIGUOUS that it is of",
    "engine.realize:prepare": "what was there before a recording began, with no recording",
    "engine.realize:realize_uops": DEVICES,
    "engine.realized:find_realized": DEVICES,
    "interrupts:report": "it starts a thread, which looks whether the first has left it",
    "jit.fast_path:FastPath.call": "once, with the lock that threads share in hand",
    "engine.storage:buffers_below": DEVICES,
    "ops.data:bytes_as_lists": "lists in lists down to as many as a tensor has axes",
    "engine.storage:is_memory_view": DEVICES,
    "jit.guards:uses_of": "as deep as functions are written inside of functions",
    "helpers:fully_flatten": DATA,
    "jit.pytree:Inputs.take": DATA,
    "jit.pytree:has_variables": DEVICES,
    "jit.pytree:leaves": DATA,
    "jit.pytree:rebuild": DATA,
    "ops.assign:value_to_write": "once, with the value cast",
    "ops.math:power_of_number": "twice: with the power of an int, and with its negative",
    "ops.assign:buffers_of": DEVICES,
    "ops.data:copied_node": DEVICES,
    "ops.devices:move": "from one disk to another by way of memory",
    "ops.handle:is_stored": DEVICES,
    "ops.math:floor_parts": TYPE,
    "ops.movement:check_size": "what __index__ gives is an int",
    "ops.random:draw_words": DEVICES,
    "ops.views:is_view": DEVICES,
    "ops.views:shows_memory": DEVICES,
    "jit.recording:Filling.leaf": "the result that another one is a view of is a view of no third",
    "ops.random:RandomMixin.randn": TYPE,
    "ops.reduce:ReduceMixin._full_of": "one of each pair is a node's, the other a tensor's",
    "ops.scan:log_scan": BLOCKS,
    "ops.scan:scan": "once, with a symbolic axis filled",
    "ops.scan:scan_axis": BLOCKS,
    "formats.fileio:show_value": DATA,
    "formats.gguf.reader:HeaderReader.value": "arrays of arrays, as deep as the file's bytes allow",
    "formats.gguf.values:type_of": "lists in lists, MAX_DEPTH deep",
    "formats.gguf.values:pack_values": "lists in lists, as deep as their type is",
    "onnx.runner:OnnxRunner.handed_out": DATA,
    "onnx.runner:OnnxRunner.input_value": DATA,
    "onnx.runner:frozen": DATA,
    "onnx.ops.model:Reader.graph": INNER,
    "onnx.ops.run:Execution.run": INNER,
    "onnx.ops.run:mark_constants": INNER,
    "onnx.ops.run:type_of": DATA,
    "nn.optim:all_optimizers": "as deep as groups of optimizers are made of groups",
    "renderer.access:AccessWriter.interleave": HALVES,
    "renderer.access:AccessWriter.turn_blocks": HALVES,
    "renderer.base:KernelWriter.need": READ,
    "renderer.base:KernelWriter.cell": LISTED,
    "renderer.c:CWriter.math_call": TYPE,
    "renderer.cstyle:CStyleWriter.literal": TYPE,
    "renderer.cstyle_rules:write_cast": TYPE,
    "renderer.llvm.rules:write_32nds": TYPE,
    "renderer.llvm.rules:write_ldexp": TYPE,
    "compat.translate:Translator.lanes": HANDWRITTEN,
    "schedule.rewrites.sink_gather:Picking.pick": "MAX_NODES deep",
    "schedule.kernels.kernelize:Splitter.memory": "from a target to the parameter it is a view of",
    "codegen.transforms.factored_sums:Written.total": "as deep as one product is written",
    "uop.evaluate:evaluate_expr": "as deep as reductions stand in reductions of one kernel",
    "uop.rules.linear_form:form_within": "factors of a product of sums, whose products are atoms",
    "uop.movement:is_whole_memory": DEVICES,
    "uop.node:UOp.new_memory": DEVICES,
    "uop.node:index_alu": "folding leaves no constant beside a constant",
    "uop.pattern:match_steps": PATTERN,
    "uop.pattern:orders_of": PATTERN,
    "uop.pattern:write_steps": "as deep as the longest pattern has steps",
    "uop.print.python:plain": ARGUMENT,
    "uop.print.text:value_text": ARGUMENT,
}


class Sources:
    """What is defined where in the package."""

    def __init__(self) -> None:
        self.functions: dict[Function, ast.AST] = {}
        self.owners: dict[Function, str | None] = {}
        # The functions that are defined in a function.
        self.inner: dict[Function, list[Function]] = {}
        self.bases: dict[str, list[str]] = {}
        self.imports: dict[str, dict[str, str]] = {}
        for module in package_modules():
            self.imports[module.name] = {}
            self.define(module.name, module.tree, "", None)
        self.linked: dict[str, set[Function]] = {}
        for name, owner in self.owners.items():
            if owner is not None and owner.partition(":")[2] in LINKED:
                self.linked.setdefault(name.rpartition(".")[2], set()).add(name)

    def define(self, module: str, tree: ast.AST, within: str, owner: str | None) -> None:
        """Notes functions and classes, those inside of others too."""
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                name = f"{within}.{node.name}" if within else node.name
                known = f"{module}:{name}"
                if isinstance(node, ast.ClassDef):
                    self.bases[known] = [ast.unparse(b).rpartition(".")[2] for b in node.bases]
                    self.define(module, node, name, known)
                else:
                    self.functions[known] = node
                    self.owners[known] = owner
                    self.inner.setdefault(known.rpartition(".")[0], []).append(known)
                    self.define(module, node, name, owner)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                source = node.module.removeprefix("aster_ml").removeprefix(".") or "aster_ml"
                for alias in node.names:
                    self.imports[module][alias.asname or alias.name] = f"{source}:{alias.name}"
            elif isinstance(node, BLOCKS_OF_STATEMENTS):
                self.define(module, node, within, owner)

    @cache  # noqa: B019
    def family(self, owner: str) -> frozenset[str]:
        """A class, those that it inherits from, and those that inherit from one of these."""
        found = {owner}
        while True:
            names = {name.partition(":")[2] for name in found}
            above = {b for name in found for b in self.bases[name]}
            more = {
                known
                for known, bases in self.bases.items()
                if known.partition(":")[2] in above or (known not in found and names & {*bases})
            }
            if more <= found:
                return frozenset(found)
            found |= more

    @cache  # noqa: B019
    def methods(self, owner: str, name: str) -> set[Function]:
        """What `self.name` may be in a class."""
        return {m for c in self.family(owner) if (m := f"{c}.{name}") in self.functions}

    def named(self, caller: Function, name: str) -> Function | None:
        """The function that a plain name means in another function."""
        module, _, within = caller.partition(":")
        scopes = within.split(".")
        for end in range(len(scopes), -1, -1):
            scope = f"{module}:{'.'.join(scopes[:end])}"
            found = f"{scope}.{name}" if end else scope + name
            if scope not in self.bases and found in self.functions:
                return found
        imported = self.imports[module].get(name)
        return imported if imported in self.functions else None

    def class_named(self, caller: Function, name: str) -> str | None:
        """The class that a plain name means in a function."""
        module = caller.partition(":")[0]
        known = f"{module}:{name}"
        known = known if known in self.bases else self.imports[module].get(name, "")
        return known if known in self.bases else None

    def called(self, caller: Function) -> Iterator[Function]:
        """The functions that a function may call, or hand on to be called."""
        owner = self.owners[caller]
        for node in own_nodes(self.functions[caller]):
            if isinstance(node, ast.Name):
                found = self.named(caller, node.id)
                if found is not None:
                    yield found
            elif isinstance(node, ast.Attribute):
                value = node.value
                name = value.id if isinstance(value, ast.Name) else ""
                kind = owner if name in ("self", "cls") else self.class_named(caller, name)
                if kind is not None:
                    yield from () if node.attr == "__init__" else self.methods(kind, node.attr)
                elif owner is not None and owner.partition(":")[2] in LINKED:
                    if name not in MODULES:
                        yield from self.linked.get(node.attr, ())
        yield from self.inner.get(caller, ())


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without functions and classes that are defined in it."""
    stack = [*ast.iter_child_nodes(function)]
    while stack:
        node = stack.pop()
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node
            stack.extend(ast.iter_child_nodes(node))


def circles(calls: dict[Function, set[Function]]) -> Iterator[list[Function]]:
    """The functions that may come to call themselves, those of one circle together."""
    # What calls none that is left, or is called by none that is left, is in no circle.
    left, size = {*calls}, -1
    while len(left) != size:
        size = len(left)
        left &= {called for name in left for called in calls[name]}
        left = {name for name in left if not calls[name].isdisjoint(left)}
    calls = {name: calls[name] & left for name in left}
    reach = {name: reached(name, calls) for name in calls}
    left = {name for name in calls if name in reach[name]}
    while left:
        first = min(left)
        circle = sorted({first} | {x for x in reach[first] & left if first in reach[x]})
        left -= {*circle}
        yield circle


def reached(start: Function, calls: dict[Function, set[Function]]) -> set[Function]:
    """What a function may come to call."""
    found: set[Function] = set()
    stack = [*calls[start]]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(calls[name])
    return found


def recursive(sources: Sources) -> list[list[Function]]:
    """The circles of the package."""
    calls = {name: {*sources.called(name)} for name in sources.functions}
    return [*circles(calls)]


def unbounded(found: Iterable[list[Function]]) -> list[str]:
    """The circles of which no function is in the table."""
    return [" and ".join(circle) for circle in found if not BOUNDED.keys() & {*circle}]


def test_no_walk_recurses() -> None:
    found = recursive(Sources())
    names = {name for circle in found for name in circle}
    assert not unbounded(found), (
        f"call themselves: {unbounded(found)}; make it a loop, or say in BOUNDED how deep it goes"
    )
    assert not BOUNDED.keys() - names, f"need no row any more: {sorted(BOUNDED.keys() - names)}"


def test_circles_are_found() -> None:
    calls = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"d"}, "e": {"a"}}
    assert [*circles(calls)] == [["a", "b", "c"], ["d"]]
    assert unbounded([["a", "b"], ["uop.print.text:value_text"]]) == ["a and b"]
