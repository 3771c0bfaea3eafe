"""Fills the generated parts of docs/reference; `--check` says whether they are up to date.

`<!-- modules: NAME NAME -->` lists modules, or those of a folder, with the first sentence of each
and its rewrite, when and why; `<!-- rules -->` lists the rules of `uop/rules`, each with an
example that it really rewrites. What stands around these parts is written by hand.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.pattern import PatternMatcher, Rule
from aster_ml.uop.print.infix import render_expr
from aster_ml.uop.rules import algebra, conditions, divmod, sums
from tests.core.rules.instances import DrawAgainError, Instance

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
PACKAGE = ROOT / "src" / "aster_ml"
BLOCK = re.compile(r"<!-- (modules|rules):? ?([\w/ ]*) ?-->\n.*?<!-- end -->", re.S)
# Draws of which the shortest is shown, and the most that are made for them.
DRAWS, TRIES = 12, 4_000
TABLES: tuple[tuple[str, list[Rule]], ...] = (
    ("Constants, in every dtype", algebra.CONSTANT_RULES),
    ("Sums and products of indices", sums.SUM_RULES),
    ("Division and remainder of indices", divmod.DIVMOD_RULES),
    ("Whole numbers", algebra.WHOLE_NUMBER_RULES),
    ("Floats", algebra.FLOAT_RULES),
    ("Any dtype", algebra.ANY_DTYPE_RULES),
    ("Bools", algebra.BOOL_RULES),
    ("Conditions on indices", conditions.CONDITION_RULES),
    ("Gates of memory", algebra.GATE_RULES),
)


def all_modules() -> list[str]:
    """Every module of the package, as `codegen/kernel`; folders are no modules."""
    paths = [p.relative_to(PACKAGE).with_suffix("") for p in sorted(PACKAGE.rglob("*.py"))]
    return [p.as_posix() for p in paths if p.name != "__init__"]


def modules_of(name: str) -> list[str]:
    """A module, or the modules of a folder."""
    if (PACKAGE / name).is_dir():
        return [m for m in all_modules() if m.rpartition("/")[0] == name]
    if not (PACKAGE / f"{name}.py").exists():
        raise FileNotFoundError(f"docs/reference names {name}, which is no module of src/aster_ml")
    return [name]


def parts_of(module: str) -> Iterator[tuple[str, str]]:
    """The parts of a module's docstring that pages show: its first sentence, rewrite, when, why."""
    path = PACKAGE / f"{module}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    yield "", text.partition("\n\n")[0].replace("\n", " ")
    for paragraph in text.split("\n\n"):
        found = re.split(r"^(rewrite|when|why)\b[^:\n]*:", paragraph, flags=re.M)
        for kind, said in zip(found[1::2], found[2::2], strict=True):
            yield kind, " ".join(said.split())


def module_lines(names: str) -> list[str]:
    """What is said of modules."""
    lines = []
    for module in [m for name in names.split() for m in modules_of(name)]:
        for kind, said in parts_of(module):
            lines.append(f"  - {kind}: {said}" if kind else f"- `{module}`: {said}")
    return lines


def sized(u: UOp) -> str:
    """An expression, with the lengths of its ranges behind it."""
    ranges = [r for r in toposort(u) if r.op is Ops.RANGE and r.src[0].op is Ops.CONST]
    lengths = [f"{render_expr(r)} < {render_expr(r.src[0])}" for r in ranges]
    return f"`{render_expr(u)}`" + (f" for {', '.join(sorted(set(lengths)))}" if lengths else "")


def rewritten(rule: Rule) -> str | None:
    """The shortest of some nodes that the rule rewrites, and what it makes of it."""
    rng, alone, found = random.Random(rule.name), PatternMatcher([rule]), []
    for _ in range(TRIES):
        instance = Instance(rng)
        try:
            before = instance.node(rule.pattern, None)
        except DrawAgainError:
            continue
        after = alone.rewrite(before)
        if after is not None:
            found.append((before, after))
            if len(found) == DRAWS:
                break
    if not found:
        return None
    before, after = min(found, key=lambda pair: len(sized(pair[0]) + render_expr(pair[1])))
    return f"{sized(before)} -> `{render_expr(after)}`"


def said_by(function: object) -> dict[str, str]:
    """What a docstring says behind rewrite, when and why."""
    found = re.split(r"\b(rewrite|when|why): ", " ".join((function.__doc__ or "").split()))
    return dict(zip(found[1::2], [said.strip() for said in found[2::2]], strict=True))


def rule_lines() -> list[str]:
    """What is said of rules, table by table."""
    lines = []
    for title, rules in TABLES:
        lines += [f"### {title}", ""]
        for rule in rules:
            said = said_by(rule.replace)
            example = rewritten(rule)
            shown = f"`{rule.name}`: {said.get('rewrite', '')}".rstrip(": ")
            lines.append(f"- {shown}")
            lines += [f"  - {kind}: {said[kind]}" for kind in ("when", "why") if kind in said]
            lines += [f"  - example: {example}"] if example else []
        lines.append("")
    return lines[:-1]


def filled(text: str) -> str:
    """A page with its generated parts up to date."""

    def block(match: re.Match[str]) -> str:
        kind, names = match[1], match[2].strip()
        lines = module_lines(names) if kind == "modules" else rule_lines()
        head = f"<!-- modules: {names} -->" if kind == "modules" else "<!-- rules -->"
        return "\n".join([head, *lines, "<!-- end -->"])

    return BLOCK.sub(block, text)


def pages() -> list[Path]:
    """The pages of the reference."""
    return sorted(FOLDER.glob("*.md"))


def unnamed() -> list[str]:
    """Modules that no page of the reference names."""
    named = set(
        re.findall(r"`([\w/.]+)`", "\n".join(p.read_text(encoding="utf-8") for p in pages()))
    )
    return [m for m in all_modules() if not {m, f"{m}.py"} & named]


def main() -> int:
    """Entry point."""
    stale = [p for p in pages() if filled(p.read_text(encoding="utf-8")) != p.read_text("utf-8")]
    if "--check" not in sys.argv[1:]:
        for page in stale:
            page.write_text(filled(page.read_text("utf-8")), encoding="utf-8", newline="\n")
        print(f"{len(stale)} pages of docs/reference written; not named: {unnamed() or 'none'}")
        return 0
    for page in stale:
        print(f"docs/reference/{page.name} is out of date: run python -m tools.make_reference")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
