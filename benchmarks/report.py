"""What came out, as tables of text: for a terminal, and for `page`. Receives plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.results import SET_MEAN, SET_WORST, Data


def number(value: float) -> str:
    """Three significant digits."""
    if value == 0 or (value == int(value) and abs(value) < 1e6):
        return f"{value:,.0f}"
    for least, form in ((100, ",.0f"), (10, ".1f"), (1, ".2f")):
        if abs(value) >= least:
            return format(value, form)
    return format(value, ".3g")


def short_reason(error: str) -> str:
    """An error in the few words that a cell has room for."""
    if "clang" in error and ("No such file" in error or "not found" in error):
        return "no clang"
    for start, words in (
        ("the result differs", "differs"),
        ("no answer in", "too slow"),
        ("the process ended", "died"),
        ("NotImplementedError", "-"),
    ):
        if error.startswith(start):
            return words
    return error.split(":", 1)[0]


def cell(figures: Data | None) -> str:
    """Best and median, or why there are none."""
    if figures is None:
        return "-"
    if "error" in figures:
        return short_reason(figures["error"])
    best, median = number(figures["best"]), number(figures["median"])
    return best if best == median else f"{best} / {median}"


def ratio_cell(row: Data) -> str:
    """Ratio of the best samples, and of the medians."""
    best, median = row["ratio_best"], row["ratio_median"]
    return "" if best is None or median is None else f"{best:.2f} / {median:.2f}"


def answer(met: bool | None) -> str:
    """Whether what is wanted is so."""
    return {True: ", yes", False: ", NO", None: ""}[met]


def wanted_cell(row: Data) -> str:
    """What is wanted, and whether it is so."""
    return "" if row["wanted"] is None else row["wanted"] + answer(row["met"])


def libraries_of(rows: Sequence[Data]) -> list[str]:
    """Columns: every library that takes part in some row."""
    return list(dict.fromkeys(name for r in rows for name in r["libraries"]))


def table_cells(rows: Sequence[Data], libraries: Sequence[str]) -> list[list[str]]:
    """The table as text, its head first."""
    lines = [["row", "threads", "unit", *libraries, "ratio", "wanted"]]
    for r in rows:
        lines.append(
            [
                r["name"],
                str(r["threads"]),
                r["unit"],
                *[cell(r["libraries"].get(name)) for name in libraries],
                ratio_cell(r),
                wanted_cell(r),
            ]
        )
    return lines


def set_cells(sets: Sequence[Data]) -> list[list[str]]:
    """The random sets as text, the head first."""
    lines = [["random set", "threads", "cases", "geometric mean", "worst", "worst case", "wanted"]]
    for s in sets:
        failed = f", {len(s['failed'])} FAILED" if s["failed"] else ""
        cases = f"{s['cases']}{failed}"
        wanted = f"{SET_MEAN:.1f}x, none below {SET_WORST:.1f}x{answer(s.get('met'))}"
        line = [s["set"], str(s["threads"]), cases]
        if "mean" in s:
            mean = f"{s['mean_best']:.2f} / {s['mean']:.2f}"
            line += [mean, f"{s['worst']:.2f}", s["worst_case"], wanted]
        else:
            line += ["", "", "", wanted]
        lines.append(line)
    return lines


def aligned(lines: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Columns under one another; those in `left` begin together, the others end together."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(
            text.ljust(w) if i in left else text.rjust(w)
            for i, (text, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def plain_tables(data: Data) -> Iterable[str]:
    """For a terminal: one table, its subjects apart; random sets in a line each."""
    rows = [r for r in data["rows"] if not r.get("drawn")]
    if rows:
        lines = aligned(table_cells(rows, libraries_of(rows)), (0, 2))
        yield lines[0]
        subject = ""
        for r, line in zip(rows, lines[1:], strict=True):
            if r["subject"] != subject:
                subject = r["subject"]
                yield f"-- {subject} " + "-" * (len(lines[0]) - len(subject) - 4)
            yield line
    if data["sets"]:
        yield ""
        yield from aligned(set_cells(data["sets"]), (0, 5))


def reasons(data: Data) -> list[str]:
    """Every cell in words, in full, and every library that is not there."""
    found = [
        f"{name} is left out: {why}; --peer {name}=PYTHON names an interpreter that has it"
        for name, why in data["left_out"].items()
    ]
    failed: dict[tuple[str, str], list[str]] = {}
    for r in data["rows"]:
        bound = {r["ceiling"]["name"]: r["ceiling"]} if "ceiling" in r else {}
        for name, figures in {**r["libraries"], **bound}.items():
            error = figures.get("error", "")
            if error and short_reason(error) != "-":
                failed.setdefault((name, error), []).append(r["name"])
    for (name, error), titles in failed.items():
        more = f" (and {len(titles) - 1} more)" if len(titles) > 1 else ""
        found.append(f"{name}, {titles[0]}{more}: {error}")
    return found
