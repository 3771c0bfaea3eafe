"""What outcomes are compared with, and the table that is printed. Nothing here runs a test.

`baseline.txt` names the tests that the reference itself passes on a CPU, `must_pass.txt` those that
have to pass on Aster, `differs.toml` those that Aster answers differently on purpose.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
# An experiment of the reference that it later gave up, and image dtypes.
NOT_WANTED = frozenset(
    {"test/test_outerworld.py", "test/test_outerworld_range.py", "test/test_image_dtype.py"}
)

Outcomes = Mapping[str, Mapping[str, str]]


def read_ids(path: Path) -> set[str]:
    """`file::Class.test` ids of a list: a line with a file, then indented names."""
    ids: set[str] = set()
    file = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        text = line.partition("#")[0].rstrip()
        if text.startswith(" "):
            ids.add(f"{file}::{text.strip()}")
        elif text:
            file = text
    return ids


def write_ids(path: Path, ids: Iterable[str], about: str) -> None:
    """The reverse of `read_ids`, sorted, with one line that says what the list is."""
    lines = [f"# {about}"]
    last = ""
    for file, name in sorted(tuple(i.split("::", 1)) for i in ids):
        if file != last:
            lines.append(file)
            last = file
        lines.append(f"  {name}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_baseline() -> set[str]:
    """What the reference passes."""
    return read_ids(FOLDER / "baseline.txt")


def read_must_pass() -> set[str]:
    """What has to pass."""
    return read_ids(FOLDER / "must_pass.txt")


def read_differs(path: Path = FOLDER / "differs.toml") -> dict[str, str]:
    """Id -> the reason why Aster's answer is another one."""
    if not path.exists():
        return {}
    rows = tomllib.loads(path.read_text(encoding="utf-8")).get("differs", [])
    for row in rows:
        if not row.get("reason", "").strip():
            raise ValueError(f"{path.name}: {row.get('tests')} has no reason")
    return {test: row["reason"] for row in rows for test in row["tests"]}


def all_ids(outcomes: Outcomes, wanted: str) -> set[str]:
    """Ids of the tests with this outcome."""
    return {f"{f}::{n}" for f, tests in outcomes.items() for n, o in tests.items() if o == wanted}


def regressions(outcomes: Outcomes, must_pass: Iterable[str]) -> list[str]:
    """Tests of the files that ran which have to pass and did not; one that is gone counts."""
    passed = all_ids(outcomes, "passed")
    return sorted(t for t in must_pass if t.split("::")[0] in outcomes and t not in passed)


def update_must_pass(outcomes: Outcomes, baseline: set[str]) -> None:
    """Adds what passes here and in the reference; nothing is ever taken off by a run."""
    ids = read_must_pass() | (all_ids(outcomes, "passed") & baseline)
    write_ids(FOLDER / "must_pass.txt", ids, "Tests of the reference that have to pass on Aster.")


def table(outcomes: Outcomes, baseline: set[str], differs: Mapping[str, str]) -> str:
    """One Markdown row a file, and a last one with the sums.

    A test that the reference is known to fail counts as passed where Aster gets it right.
    "of those" counts, of what the reference passes, what Aster passes; "differs" what it answers
    differently on purpose.
    """
    rows = [("file", "passed", "failed", "skipped", "reference passes", "of those", "differs")]
    sums = [0] * 6
    for file in sorted(outcomes):
        tests = outcomes[file]
        wanted = {i for i in baseline if i.startswith(f"{file}::")}
        passed = {f"{file}::{n}" for n, o in tests.items() if o == "passed"}
        counts = [
            sum(o in ("passed", "xpassed") for o in tests.values()),
            sum(o == "failed" for o in tests.values()),
            sum(o in ("skipped", "xfailed") for o in tests.values()),
            len(wanted),
            len(wanted & passed),
            len((wanted - passed) & differs.keys()),
        ]
        sums = [a + b for a, b in zip(sums, counts)]
        rows.append((file, *map(str, counts)))
    rows.append(("all", *map(str, sums)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| "
        + " | ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths))
        )
        + " |"
        for row in rows
    ]
    rule = (
        "|"
        + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths))
        + "|"
    )
    return "\n".join([lines[0], rule, *lines[1:]])


def document(text: str, differs: Mapping[str, str]) -> str:
    """docs/reference/parity.md: the table, how it is made, and what differs on purpose."""
    reasons: dict[str, list[str]] = {}
    for test, reason in differs.items():
        reasons.setdefault(reason, []).append(test)
    listed = (
        "\n".join(
            f"- {reason}\n" + "\n".join(f"  - `{t}`" for t in sorted(tests))
            for reason, tests in reasons.items()
        )
        or "Nothing so far."
    )
    return f"""# Parity

`python -m tests.parity.run --doc` writes this page. It runs the test files of tinygrad 0.12.0's
source distribution, unchanged, with `tinygrad` served from Aster, and compares with what tinygrad
itself passes on a CPU. `tests/parity/hook.py` says which name comes from where. Random numbers of
NumPy, PyTorch, Python and Aster are seeded before each test.

{text}

Not run: the outer-range experiment and image dtypes.

## Answered differently on purpose

{listed}
"""
