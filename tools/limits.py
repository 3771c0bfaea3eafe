"""Measures what each limit decides: `python -m tools.limits [NAME ...]` prints a table.

A limit is a number that bounds what a kernel writes out, keeps or joins, and that no document
gives. For each, at half and at double: how many kernels of the golden catalogue change for the
Target avx512, the lines of LLVM IR that they have then and had before, and the cycles by
`codegen/estimate` as a part of those before. Nothing runs, so that every machine prints the same.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import math
import os
import pickle
import sys
from typing import Any, NamedTuple

from aster_ml import Context
from aster_ml.codegen.estimate import estimate
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.engine.compile import render
from tests.core.golden import kernels
from tools.measures import is_number, trees, within

TARGET = kernels.TARGETS["avx512"]
PACKAGES = ("codegen", "schedule")


class Limit(NamedTuple):
    """The name of a number, its module, and the modules that import it from there."""

    module: str
    name: str

    @property
    def value(self) -> Any:
        """The number as it is now."""
        return getattr(importlib.import_module(self.module), self.name)

    def put(self, value: Any) -> None:
        """Gives all modules that have the number another one."""
        for path, tree in trees("src/aster_ml").items():
            module = module_of(path)
            nodes = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
            mine = [a for n in nodes if n.module == self.module for a in n.names]
            if module == self.module or self.name in [a.name for a in mine]:
                setattr(importlib.import_module(module), self.name, value)


def module_of(path: str) -> str:
    """The module of a source file."""
    return path.removeprefix("src/").removesuffix(".py").replace("/", ".")


def limits(names: list[str]) -> list[Limit]:
    """All limits, or those of these names."""
    found = []
    for package in PACKAGES:
        for path, tree in within(package).items():
            for node in tree.body:
                if isinstance(node, ast.Assign) and is_number(node.value):
                    (target,) = node.targets
                    parts = target.elts if isinstance(target, ast.Tuple) else [target]
                    found += [Limit(module_of(path), ast.unparse(x)) for x in parts]
    return [x for x in found if x.name in names or not names]


def programs(limit: Limit | None, value: Any) -> dict[str, tuple[str, int, float]]:
    """By kernel: the digest of its text, its lines and its cycles, with a limit at a value."""
    if limit is not None:
        limit.put(value)
    found = {}
    for kernel in kernels.catalogue().values():
        with Context(NOOPT=0, DETERMINISTIC=0):
            cycles = estimate(schedule_kernel(kernel, TARGET), TARGET).cycles
            text = render(lower(kernel, TARGET)[0], TARGET)
        digest = hashlib.sha256(text.encode()).hexdigest()
        found[kernel.key] = digest, text.count("\n"), cycles
    return found


def apart(limit: Limit | None = None, value: Any = None) -> dict[str, tuple[str, int, float]]:
    """The programs, by a process of its own, which nothing was planned in before."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        with os.fdopen(writer, "wb") as stream:
            pickle.dump(programs(limit, value), stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        found: dict[str, tuple[str, int, float]] = pickle.load(stream)
    os.wait()
    return found


def decided(base: dict[str, tuple[str, int, float]], now: dict[str, tuple[str, int, float]]) -> str:
    """What became of kernels: how many, lines before and after, the part of the cycles.

    Cycles are the geometric mean over kernels that are the same, else a ratio of sums.
    """
    old = {k: x for k, x in base.items() if now.get(k, ("",))[0] != x[0]}
    new = {k: x for k, x in now.items() if base.get(k, ("",))[0] != x[0]}
    if not old:
        return "none"
    before, after = (sum([x[1] for x in some.values()]) for some in (old, new))
    cycles = sum([x[2] for x in new.values()]) / sum([x[2] for x in old.values()])
    if old.keys() == new.keys():
        cycles = math.exp(sum([math.log(new[k][2] / old[k][2]) for k in old]) / len(old))
    return f"{len(old)}: {before:,} to {after:,}, {cycles:.2f}"


def scaled(value: Any, factor: float) -> Any:
    """A number, or what a ratio has above 1, times a factor."""
    if isinstance(value, tuple):
        return tuple([scaled(x, factor) for x in value])
    if isinstance(value, float):
        return 1 + (value - 1) * factor
    return max(int(value * factor), 1)


def main() -> int:
    """Prints the table, a row a limit."""
    base = apart()
    print("| limit | | at half | at double |\n|---|--:|---|---|")
    for limit in limits(sys.argv[1:]):
        values = [scaled(limit.value, factor) for factor in (0.5, 2.0)]
        found = [decided(base, apart(limit, value)) for value in values]
        module = limit.module.removeprefix("aster_ml.").replace(".", "/")
        print(
            f"| `{module}`: `{limit.name}` | {limit.value} | {found[0]} | {found[1]} |", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
