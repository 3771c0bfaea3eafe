"""Counts in the sources what the structure of the code generator is measured by.

`python tools/measures.py` prints each figure with the most that `tests/lint/measures.txt` allows
and the rule by which it is counted; `--write` lowers what the file allows to what there is. A test
fails where a figure has risen: more needs a reason, and a diff of that file.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "aster_ml"
ALLOWED = ROOT / "tests" / "lint" / "measures.txt"
OVERVIEWS = ("docs/overview.md",)
# What identifiers are made of that are about each subject.
TAILS = r"tail|overlap|padto|^pad$|peel|^early$|twice|^apart$|uneven|last_steps"
PREFETCH = r"prefetch|ahead|^ask"
PACKING = r"panel|(?<!un)pack(?!ed_words)"
PRICES = r"cost|cycles|price|bound_of"
UNITS = ("cycle", "instruction", "node", "byte", "load", "element", "operation", "weight", "point")


class Measure(NamedTuple):
    """A figure: its name, the rule by which it is counted, and what counts it."""

    name: str
    rule: str
    count: Callable[[], int]


@cache
def trees(folder: str) -> dict[str, ast.Module]:
    """Syntax trees of the Python files below a folder of the project, by path."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {p.relative_to(ROOT).as_posix(): ast.parse(p.read_text(encoding="utf-8")) for p in paths}


def codegen() -> dict[str, ast.Module]:
    """The modules of the code generator."""
    return trees("src/aster_ml/codegen")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """All functions and methods."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def class_named(name: str, where: dict[str, ast.Module]) -> ast.ClassDef:
    """The one class of this name."""
    found = [
        node
        for tree in where.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    if len(found) != 1:
        raise LookupError(f"measures: {len(found)} classes are named {name}, wanted one")
    return found[0]


def attributes_of_kernel() -> int:
    """Names that `Kernel.__init__` gives to self."""
    start = next(
        f for f in functions(class_named("Kernel", codegen_core())) if f.name == "__init__"
    )
    names = set()
    for node in ast.walk(start):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        names |= {t.attr for t in targets if isinstance(t, ast.Attribute)}
    return len(names)


def codegen_core() -> dict[str, ast.Module]:
    """The modules that stand in the folder of the code generator itself."""
    return {path: tree for path, tree in codegen().items() if path.count("/") == 3}


def kinds_of_opt() -> int:
    """Members of OptOps; another name of a member is none."""
    body = class_named("OptOps", codegen_core()).body
    return len({ast.unparse(node.value) for node in body if isinstance(node, ast.Assign)})


def called(node: ast.AST) -> str:
    """The name of what a call calls."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def makes_scratch(node: ast.AST) -> bool:
    """Whether a call makes a DEFINE_LOCAL."""
    if called(node) in ("UOp", "new_node") and isinstance(node, ast.Call) and node.args:
        return ast.unparse(node.args[0]) == "Ops.DEFINE_LOCAL"
    return False


def scratch_mechanisms() -> int:
    """Modules that make scratch."""
    found = [any(map(makes_scratch, ast.walk(tree))) for tree in codegen().values()]
    return sum(found)


def defined(tree: ast.Module) -> Iterator[str]:
    """Names of functions, classes, methods, constants and attributes that a module gives."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else []
        for t in [node.target] if isinstance(node, ast.AnnAssign) else targets:
            if isinstance(t, ast.Attribute):
                yield t.attr
            if isinstance(t, ast.Name) and t.id.isupper():
                yield t.id


def used(tree: ast.Module) -> Iterator[str]:
    """Names that a module reads, and those that it gives."""
    yield from defined(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield node.id if isinstance(node, ast.Name) else node.attr


def files_with(pattern: str, names: Callable[[ast.Module], Iterator[str]]) -> Callable[[], int]:
    """Counts the modules of codegen among whose names one is about a subject."""
    about = re.compile(pattern, re.IGNORECASE)
    trees_of = codegen()
    # The table of passes names them all, and so do the kinds of plans: who asks for a plan of
    # another subject decides nothing of it.
    plans = next(tree for path, tree in trees_of.items() if path.endswith("/codegen/plans.py"))
    kinds = {node.name for node in plans.body if isinstance(node, ast.ClassDef)}
    tables = ("/passes.py", "/plans.py")
    own = [{*names(tree)} - kinds for path, tree in trees_of.items() if not path.endswith(tables)]
    return lambda: sum([any(map(about.search, found)) for found in own])


def asks_for_language(node: ast.AST) -> bool:
    """Whether a comparison has the language of a target on one side."""
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    return any([isinstance(s, ast.Attribute) and s.attr == "language" for s in sides])


def language_places() -> int:
    """Comparisons of a target's language outside of renderers and runtimes."""
    apart = ("src/aster_ml/renderer/", "src/aster_ml/runtime/")
    return sum(
        [
            asks_for_language(node)
            for path, tree in trees("src/aster_ml").items()
            if not path.startswith(apart)
            for node in ast.walk(tree)
        ]
    )


def is_number(value: ast.AST | None) -> bool:
    """Whether an expression is made of numbers alone."""
    if isinstance(value, ast.Constant):
        return type(value.value) in (int, float)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    return isinstance(value, ast.Tuple) and bool(value.elts) and all(map(is_number, value.elts))


def numeric_constants() -> int:
    """Names that modules of codegen and schedule give to numbers."""
    count = 0
    for tree in (codegen() | trees("src/aster_ml/schedule")).values():
        for node in tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and is_number(node.value):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                count += len(target.elts) if isinstance(target, ast.Tuple) else 1
    return count


def priced() -> list[ast.FunctionDef]:
    """Functions of codegen that are named after a price."""
    return [f for tree in codegen().values() for f in functions(tree) if re.search(PRICES, f.name)]


def price_units() -> int:
    """Units that the names and docstrings of these functions speak of."""
    texts = [f"{f.name} {ast.get_docstring(f)}".lower() for f in priced()]
    return sum([any([unit in text for text in texts]) for unit in UNITS])


def cycle_formulas() -> int:
    """Functions of codegen and engine that are named after cycles, or a bound of them."""
    where = codegen() | trees("src/aster_ml/engine")
    names = [f.name for tree in where.values() for f in functions(tree)]
    return sum([bool(re.search("cycles|bound_of", name)) for name in names])


def lines_of_source() -> int:
    """Lines of the Python files in src, empty ones too."""
    return sum([len(p.read_text(encoding="utf-8").splitlines()) for p in SOURCES.rglob("*.py")])


def words_of_overview() -> int:
    """Words of the page that a newcomer reads first, blocks of code aside."""
    page = next(ROOT / name for name in OVERVIEWS if (ROOT / name).exists())
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return len(text.split())


# How many arguments of these leave the choice of Opts to the default policy.
CHOOSING = {"schedule_kernel": 2, "lower": 2}


def chooses(node: ast.AST, name: str) -> bool:
    """Whether a call has the default policy choose."""
    arguments = len(node.args) + len(node.keywords) if isinstance(node, ast.Call) else 0
    return called(node) == name and arguments == CHOOSING[name]


def own_parts(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of an expression, but what it gives to a function that lowers or schedules."""
    yield node
    if called(node) not in CHOOSING:
        for child in ast.iter_child_nodes(node):
            yield from own_parts(child)


def reads_choice(expression: ast.AST, kernels: set[str], opts: set[str]) -> bool:
    """Whether an expression reads Opts that the default policy chose, or one of these names."""
    for node in own_parts(expression):
        if isinstance(node, ast.Attribute) and node.attr == "applied":
            of = node.value
            if chooses(of, "schedule_kernel") or getattr(of, "id", "") in kernels:
                return True
        if isinstance(node, ast.Subscript) and chooses(node.value, "lower"):
            if ast.unparse(node.slice) == "1":
                return True
        if isinstance(node, ast.Name) and node.id in opts:
            return True
    return False


def names_of_choice(function: ast.FunctionDef, helpers: set[str]) -> tuple[set[str], set[str]]:
    """Names of a function for kernels with default Opts, and for such Opts or parts of them."""
    kernels, opts = set[str](), set(helpers)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            target, value = (node.targets[0], node.value)
        elif isinstance(node, (ast.For, ast.comprehension)):
            target, value = (node.target, node.iter)
        else:
            continue
        names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
        if chooses(value, "schedule_kernel"):
            kernels |= set(names)
        elif chooses(value, "lower"):
            opts |= set(names[1:]) - {"_"}
        elif reads_choice(value, kernels, opts):
            opts |= set(names)
    return kernels, opts


def helpers_of(tests: dict[str, ast.Module]) -> set[str]:
    """Functions of the tests that return what the default policy chose, also by way of another."""
    found, before = set[str](), None
    while found != before:
        before = set(found)
        for function in [f for t in tests.values() for f in functions(t)]:
            names = names_of_choice(function, found)
            results = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value]
            if any([reads_choice(r, *names) for r in results]):
                found.add(function.name)
    return found


def asserts_choice(test: ast.FunctionDef, helpers: set[str]) -> bool:
    """Whether an assertion of a test says which Opts the default policy is to choose."""
    names = names_of_choice(test, helpers)
    given = {a.arg for a in test.args.args}
    asserted = [n.test for n in ast.walk(test) if isinstance(n, ast.Assert)]
    return any([reads_choice(e, *names) and says_what(e, given) for e in asserted])


def says_what(expression: ast.AST, given: set[str]) -> bool:
    """Whether a constant, an empty list or a parameter of the test stands in an expression."""
    for node in own_parts(expression):
        if isinstance(node, ast.Constant) or (isinstance(node, ast.List) and not node.elts):
            return True
        if isinstance(node, ast.Name) and node.id in given:
            return True
    return False


def threshold_tests() -> int:
    """Tests that assert which Opts the default policy chooses."""
    tests = trees("tests/unit")
    helpers = helpers_of(tests)
    found = [f for t in tests.values() for f in functions(t) if f.name.startswith("test_")]
    return sum([asserts_choice(f, helpers) for f in found])


IN_CODEGEN = "modules of codegen, passes.py and plans.py aside, that"
MEASURES = (
    Measure("attributes of Kernel", "given to self in its __init__", attributes_of_kernel),
    Measure("kinds of Opt", "members of OptOps", kinds_of_opt),
    Measure(
        "mechanisms that allocate scratch", f"{IN_CODEGEN} make a DEFINE_LOCAL", scratch_mechanisms
    ),
    Measure(
        "files that decide tails", f"{IN_CODEGEN} define a name with {TAILS}",
        files_with(TAILS, defined),
    ),
    Measure(
        "files that speak of tails", f"{IN_CODEGEN} define or read such a name",
        files_with(TAILS, used),
    ),
    Measure(
        "files that decide prefetch", f"{IN_CODEGEN} define a name with {PREFETCH}",
        files_with(PREFETCH, defined),
    ),
    Measure(
        "files that speak of prefetch", f"{IN_CODEGEN} define or read such a name",
        files_with(PREFETCH, used),
    ),
    Measure(
        "files that decide packing", f"{IN_CODEGEN} define a name with {PACKING}",
        files_with(PACKING, defined),
    ),
    Measure(
        "files that speak of packing", f"{IN_CODEGEN} define or read such a name",
        files_with(PACKING, used),
    ),
    Measure(
        "places that ask for a language",
        "comparisons of .language outside of renderer/ and runtime/", language_places,
    ),
    Measure(
        "numeric constants", "names for numbers at module level in codegen and schedule",
        numeric_constants,
    ),
    Measure(
        "functions that price", f"in codegen, with {PRICES} in their names", lambda: len(priced())
    ),
    Measure(
        "units of price", f"those of {', '.join(UNITS)} that these functions speak of", price_units
    ),
    Measure(
        "formulas for cycles", "functions of codegen and engine named cycles or bound_of",
        cycle_formulas,
    ),
    Measure("lines of src", "of all .py files", lines_of_source),
    Measure(
        "words of the overview", f"of the first of {', '.join(OVERVIEWS)}, code aside",
        words_of_overview,
    ),
    Measure(
        "tests of tuning thresholds",
        "tests in tests/unit with an assertion that reads Opts which schedule_kernel or lower "
        "chose by themselves, also by way of a helper, and says by a constant or a parameter "
        "which; Opts that a test gives, and those compared with others that are computed, are none",
        threshold_tests,
    ),
)  # fmt: skip


def allowed() -> dict[str, int]:
    """The most that each figure may be."""
    lines = ALLOWED.read_text(encoding="utf-8").splitlines()
    pairs = [line.rsplit(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return {name.strip(): int(most.replace(",", "")) for name, most in pairs}


HEAD = (
    "# The most that each figure of tools/measures.py may be, which says how each is counted. It",
    "# may fall: `python tools/measures.py --write` lowers it to what there is. A line that is",
    "# raised needs a reason in its commit.",
)


def written(most: dict[str, int]) -> str:
    """The file of what is allowed."""
    return "\n".join([*HEAD, *[f"{name:36}{n:8,}" for name, n in most.items()], ""])


def main() -> int:
    """Prints the figures; 1 where one is above what is allowed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="lowers what is allowed to what is")
    write = parser.parse_args().write
    most = allowed() if ALLOWED.exists() else {}
    found = {m.name: m.count() for m in MEASURES}
    for m in MEASURES:
        limit = f"{most[m.name]:,}" if m.name in most else "any"
        print(f"{m.name:36}{found[m.name]:8,}  at most {limit:>8}   {m.rule}")
    if write:
        lower = {name: min(n, most.get(name, n)) for name, n in found.items()}
        ALLOWED.write_text(written(lower), encoding="utf-8", newline="\n")
    return int(any([n > most.get(name, n) for name, n in found.items()]))


if __name__ == "__main__":
    sys.exit(main())
