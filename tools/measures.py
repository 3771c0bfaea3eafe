"""Counts in the sources what the structure of the project is measured by.

`python -m tools.measures` prints each figure with the most that `tests/lint/measures.txt` allows
and the rule by which it is counted; `--write` lowers what the file allows to what there is. A test
fails where a figure has risen. A rise needs a record in `docs/decisions` that says what was tried
instead. No rule depends on how a thing is named, so that a new name lowers no figure.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "aster_ml"
ALLOWED = ROOT / "tests" / "lint" / "measures.txt"
# Networks, file formats and rows of benchmarks: words that the compiler does not know.
WORKLOADS = ROOT / "tests" / "lint" / "workloads.txt"
LAYERS = SOURCES / "layers.toml"
# The one place of the core that may know a workload.
LIBRARY = "kernel_library"
OVERVIEW = ROOT / "docs" / "explanation" / "overview.md"
RINGS = ("core", "library", "programs", "top")
# A comment above a constant that says where the number comes from.
SOURCED = re.compile(r"(?i)\b(source|measured)\b")


class Measure(NamedTuple):
    """A figure: its name, the rule by which it is counted, and what counts it."""

    name: str
    rule: str
    count: Callable[[], int]


@cache
def texts(folder: str) -> dict[str, str]:
    """Texts of the Python files below a folder of the project, by path."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in paths}


@cache
def trees(folder: str) -> dict[str, ast.Module]:
    """Syntax trees of these files."""
    return {path: ast.parse(text) for path, text in texts(folder).items()}


def within(package: str) -> dict[str, ast.Module]:
    """The modules of a package of ours."""
    prefix = f"src/aster_ml/{package}/"
    return {path: tree for path, tree in trees("src/aster_ml").items() if path.startswith(prefix)}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """All functions and methods."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def class_named(name: str, where: dict[str, ast.Module]) -> ast.ClassDef:
    """The one class of this name."""
    nodes = [node for tree in where.values() for node in ast.walk(tree)]
    found = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]
    if len(found) != 1:
        raise LookupError(f"measures: {len(found)} classes are named {name}, wanted one")
    return found[0]


# Lines of code, and the rings.


def lines_of(node: ast.expr | ast.stmt) -> set[int]:
    """The lines that a node stands on."""
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines of a module that are no comment, no docstring and not blank."""
    docstrings: set[int] = set()
    strings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings |= lines_of(node)
        elif isinstance(node, (ast.Constant, ast.JoinedStr)) and node.lineno != node.end_lineno:
            strings |= lines_of(node)
    numbered = enumerate(text.splitlines(), 1)
    written = {n for n, line in numbered if line.strip() and not line.lstrip().startswith("#")}
    return len((written | strings) - docstrings)


def module_of(path: str) -> str:
    """`src/aster_ml/uop/node.py` -> `uop.node`; the package itself is `aster_ml`."""
    name = path.removeprefix("src/aster_ml/").removesuffix(".py").removesuffix("/__init__")
    return "aster_ml" if name == "__init__" else name.replace("/", ".")


@cache
def layers() -> dict[str, Any]:
    """The table of layers and rings."""
    return tomllib.loads(LAYERS.read_text(encoding="utf-8"))


@cache
def ring_rows() -> dict[str, str]:
    """The ring of each row of `layers.toml`, a module or `package.*`."""
    return {name: row["ring"] for row in layers()["layer"] for name in row["modules"]}


@cache
def ring_of(module: str) -> str:
    """The ring of a module: of its own row, else of the nearest package's; of a package, core."""
    rows = ring_rows()
    parts = module.split(".")
    packages = [".".join([*parts[:n], "*"]) for n in range(len(parts) - 1, 0, -1)]
    return next((rows[row] for row in [module, *packages] if row in rows), "core")


@cache
def lines_by_module() -> dict[str, int]:
    """Code lines of each module, by name."""
    parsed, found = trees("src/aster_ml"), texts("src/aster_ml").items()
    return {module_of(path): code_lines(text, parsed[path]) for path, text in found}


def lines_of_ring(ring: str) -> Callable[[], int]:
    """Counts the code lines of a ring."""
    return lambda: sum([n for name, n in lines_by_module().items() if ring_of(name) == ring])


def lines_of_package(package: str) -> Callable[[], int]:
    """Counts the code lines of a package."""
    return lambda: sum(
        [n for m, n in lines_by_module().items() if f"{m}.".startswith(f"{package}.")]
    )


# The code generator.


def fields_of_plans() -> int:
    """Annotated fields of the classes in codegen/plans, and what `Kernel.__init__` gives self."""
    tree = within("codegen")["src/aster_ml/codegen/plans.py"]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found = sum([isinstance(n, ast.AnnAssign) for node in classes for n in node.body])
    start = next(
        f for f in functions(class_named("Kernel", within("codegen"))) if f.name == "__init__"
    )
    names = set()
    for node in ast.walk(start):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        names |= {t.attr for t in targets if isinstance(t, ast.Attribute)}
    return found + len(names)


def changes_of_opts() -> int:
    """Rows of APPLY."""
    nodes = [n for tree in within("codegen").values() for n in tree.body]
    tables = [
        n.value for n in nodes
        if isinstance(n, ast.AnnAssign) and getattr(n.target, "id", "") == "APPLY"
    ]  # fmt: skip
    (table,) = tables
    if not isinstance(table, ast.Dict):
        raise LookupError("measures: APPLY is a dict")
    return len(table.keys)


def kinds_of_opt() -> int:
    """Members of OptOps; another name of a member is none."""
    body = class_named("OptOps", within("codegen")).body
    return len({ast.unparse(node.value) for node in body if isinstance(node, ast.Assign)})


def predicates_of_flags() -> int:
    """Functions that decide whether a pass applies, and read an attribute of an attribute of it."""
    tree = within("codegen")["src/aster_ml/codegen/passes.py"]
    calls = [n for n in ast.walk(tree) if called(n) == "Pass" and isinstance(n, ast.Call)]
    names = {
        k.value.id for c in calls for k in c.keywords
        if k.arg == "applies" and isinstance(k.value, ast.Name)
    }  # fmt: skip
    found = [f for f in functions(tree) if f.name in names]
    return sum([any(map(reads_flag, ast.walk(f))) for f in found])


def reads_flag(node: ast.AST) -> bool:
    """Whether a node is `kernel.a.b`, which says that a pass knows how its kernel was marked."""
    inner = node.value if isinstance(node, ast.Attribute) else None
    of = inner.value if isinstance(inner, ast.Attribute) else None
    return isinstance(of, ast.Name) and of.id == "kernel"


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
    return sum([any(map(makes_scratch, ast.walk(tree))) for tree in within("codegen").values()])


def asks_for_language(node: ast.AST) -> bool:
    """Whether a comparison has the language of a target on one side."""
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    return any([isinstance(s, ast.Attribute) and s.attr == "language" for s in sides])


def language_places() -> int:
    """Comparisons of a target's language outside of renderers and runtimes."""
    apart = ("src/aster_ml/renderer/", "src/aster_ml/runtime/")
    where = {p: t for p, t in trees("src/aster_ml").items() if not p.startswith(apart)}
    return sum([asks_for_language(node) for tree in where.values() for node in ast.walk(tree)])


def is_number(value: ast.AST | None) -> bool:
    """Whether an expression is made of numbers alone."""
    if isinstance(value, ast.Constant):
        return type(value.value) in (int, float)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    return isinstance(value, ast.Tuple) and bool(value.elts) and all(map(is_number, value.elts))


def is_sourced(lines: list[str], number: int) -> bool:
    """Whether the comment above or beside a line says where its number comes from."""
    said = [lines[number - 1].partition("#")[2]]
    for line in reversed(lines[: number - 1]):
        if not line.lstrip().startswith("#"):
            break
        said.append(line)
    return any(map(SOURCED.search, said))


def numeric_constants() -> int:
    """Names that modules give to numbers of which no source is said."""
    count = 0
    for package in ("codegen", "schedule", "kernel_library"):
        for path, tree in within(package).items():
            lines = texts("src/aster_ml")[path].splitlines()
            for node in tree.body:
                if isinstance(node, (ast.Assign, ast.AnnAssign)) and is_number(node.value):
                    if not is_sourced(lines, node.lineno):
                        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                        count += len(target.elts) if isinstance(target, ast.Tuple) else 1
    return count


@cache
def workloads() -> re.Pattern[str]:
    """Finds a word of the list of workloads."""
    lines = WORKLOADS.read_text(encoding="utf-8").split("\n")
    words = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return re.compile(rf"(?i)(?<![a-z])({'|'.join(words)})")


def modules_of_workloads() -> list[str]:
    """Modules of the core whose text, comments and path included, has a word of the list.

    The kernel library is the one place of the core that may know a workload.
    """
    return [
        path
        for path, text in texts("src/aster_ml").items()
        if ring_of(module_of(path)) == "core"
        and not module_of(path).startswith(LIBRARY)
        and workloads().search(f"{path}\n{text}")
    ]


# The package as programs see it.

ASKED = """
import json, sys
from aster_ml import Tensor
loaded = [name for name in sys.modules if name.split(".")[0] == "aster_ml"]
depth = lambda c: 0 if c is object else 1 + max(map(depth, c.__bases__))
hidden = set(type.__dir__(Tensor)) - set(dir(Tensor))
print(json.dumps([loaded, len(Tensor.__mro__) - 2, depth(Tensor), len(hidden)]))
"""


@cache
def of_process() -> tuple[list[str], int, int, int]:
    """Of a fresh process: modules loaded, classes below Tensor, their depth, names it hides."""
    run = subprocess.run(
        [sys.executable, "-c", ASKED],
        capture_output=True, text=True, check=True, cwd=ROOT / "src",
    )  # fmt: skip
    loaded, bases, depth, hidden = json.loads(run.stdout)
    return loaded, bases, depth, hidden


def core_loaded() -> int:
    """Modules of the core among them."""
    return sum([ring_of(name.removeprefix("aster_ml.")) == "core" for name in of_process()[0]])


# What is written for people.


def words_of_overview() -> int:
    """Words of the page that a newcomer reads first, blocks of code aside."""
    text = re.sub(r"^```.*?^```", "", OVERVIEW.read_text(encoding="utf-8"), flags=re.M | re.S)
    return len(text.split())


def first_lines() -> Iterator[tuple[ast.AST, str]]:
    """What docstrings are of, and their first lines."""
    for tree in trees("src/aster_ml").values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                doc = ast.get_docstring(node)
                if doc:
                    yield node, doc.splitlines()[0]


# What a predicate returns.
PREDICATES = ("bool", "TypeGuard")


def weak_first_lines() -> int:
    """First lines that begin with What or How; with Whether, where no bool is returned."""
    count = 0
    for node, line in first_lines():
        word = line.split()[0]
        returns = getattr(node, "returns", None)
        is_predicate = returns is not None and ast.unparse(returns).startswith(PREDICATES)
        count += word in ("What", "How") or (word == "Whether" and not is_predicate)
    return count


def pages_apart() -> int:
    """Pages of docs that the menu of the site does not have."""
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]
    return sum([not re.search(rf"[\s\[]{re.escape(page)}", menu) for page in pages])


# Packages of which each has a budget.
PACKAGES = (
    "uop", "schedule", "codegen", "kernel_library", "renderer", "runtime", "engine", "jit", "ops",
    "nn", "formats", "onnx", "apps", "export",
)  # fmt: skip
WITHOUT = "without comments, docstrings and blanks"
MEASURES = (
    Measure("code lines", f"of src, {WITHOUT}", lambda: sum(lines_by_module().values())),
    *[
        Measure(f"code lines, ring {ring}", "of its modules by layers.toml", lines_of_ring(ring))
        for ring in RINGS
    ],
    *[Measure(f"code lines of {name}/", WITHOUT, lines_of_package(name)) for name in PACKAGES],
    Measure(
        "fields of plans and Kernel", "of classes in codegen/plans.py, and given to self in Kernel",
        fields_of_plans,
    ),
    Measure("kinds of Opt", "members of OptOps", kinds_of_opt),
    Measure("rows of APPLY", "ways in which an Opt changes a kernel", changes_of_opts),
    Measure(
        "predicates that read a flag", "`applies` of a Pass that read kernel.a.b",
        predicates_of_flags,
    ),
    Measure(
        "mechanisms that allocate scratch", "modules of codegen that make a DEFINE_LOCAL",
        scratch_mechanisms,
    ),
    Measure(
        "places that ask for a language",
        "comparisons of .language outside of renderer/ and runtime/", language_places,
    ),
    Measure(
        "numeric constants",
        "names for numbers at module level in codegen, schedule and kernel_library whose comment "
        "says neither source nor measurement", numeric_constants,
    ),
    Measure(
        "core modules that name a workload",
        "outside of kernel_library, by the words of tests/lint/workloads.txt",
        lambda: len(modules_of_workloads()),
    ),
    Measure("classes below Tensor", "in its method resolution order", lambda: of_process()[1]),
    Measure("depth of Tensor's bases", "longest path to object", lambda: of_process()[2]),
    Measure("names of Tensor hidden by hand", "that dir() leaves out", lambda: of_process()[3]),
    Measure(
        "modules that `import` loads", "of ours, in a fresh process",
        lambda: len(of_process()[0]),
    ),
    Measure("core modules among them", "by ring", core_loaded),
    Measure(
        "imports across rings", "that layers.toml's `ring_breaks` list",
        lambda: sum(map(len, layers()["ring_breaks"].values())),
    ),
    Measure(
        "names passed on", "modules in layers.toml's list `passing`",
        lambda: len(layers()["passing"]),
    ),
    Measure("words of the overview", "code aside", words_of_overview),
    Measure(
        "first lines that say no verb", "begin with What or How; with Whether, and return no bool",
        weak_first_lines,
    ),
    Measure("pages outside of the menu", "of docs, by mkdocs.yml", pages_apart),
)  # fmt: skip


def allowed() -> dict[str, int]:
    """The most that each figure may be."""
    lines = ALLOWED.read_text(encoding="utf-8").splitlines()
    pairs = [line.rsplit(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return {name.strip(): int(most.replace(",", "")) for name, most in pairs}


HEAD = (
    "# The most that each figure of tools/measures.py may be, which says how each is counted. It",
    "# may fall: `python -m tools.measures --write` lowers it to what there is. A line that is",
    "# raised needs a record in docs/decisions.",
)


def budget(name: str, found: int) -> int:
    """The limit of a figure: as it is, of code lines the next hundred, so that a mend has room."""
    return -(-found // 100) * 100 if name.startswith("code lines") else found


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
        lower = {
            name: min(budget(name, n), most.get(name, budget(name, n))) for name, n in found.items()
        }
        ALLOWED.write_text(written(lower), encoding="utf-8", newline="\n")
    return int(any([n > most.get(name, n) for name, n in found.items()]))


if __name__ == "__main__":
    sys.exit(main())
