"""docs/explanation/generated-kernels.md and overview.md show what the compiler makes now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aster_ml.codegen.opts import OPT_DOCS, WAYS, OptOps, parse_opts
from tools import make_kernels_doc, make_opts_doc, make_passes_doc, show_stages
from tools.make_kernels_doc import EXAMPLES, PAGE, annotated, kernels_page, shortened


@pytest.fixture(scope="module")
def page() -> str:
    return kernels_page()


def test_committed_page_is_what_the_compiler_makes(page: str) -> None:
    assert PAGE.read_text(encoding="utf-8") == page, "run: make docs"


def test_the_overview_shows_what_the_compiler_makes() -> None:
    text = show_stages.DOC.read_text(encoding="utf-8")
    assert len(re.findall(r"<!-- stage: ", text)) >= 6
    assert len(re.findall(r"<!-- table: ", text)) == 1
    assert show_stages.filled(text) == text, "run: make docs"


def test_the_overview_is_read_in_twenty_minutes() -> None:
    text = show_stages.DOC.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    assert 1_000 < len(prose.split()) <= 2_500


def test_the_core_is_read_in_a_weekend() -> None:
    counts = show_stages.core_counts()
    assert 8_000 <= sum(counts.values()) <= 11_000
    table = show_stages.core_table()
    assert show_stages.is_about(table, table)
    name, lines = show_stages.COUNTED.findall(table)[0]
    longer = table.replace(f"`{name}` {lines}", f"`{name}` {int(lines) + 1_000}")
    assert not show_stages.is_about(longer, table)
    assert not show_stages.is_about(table.replace(f"`{name}`", "`gone`"), table)


def test_code_lines_are_counted_without_comments_and_docstrings(tmp_path: Path) -> None:
    source = '"""About\nit."""\n\n# why\nx = 1\n\n\ndef f():\n    """Meaning."""\n    return 1\n'
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    assert show_stages.code_lines(path) == 3


def test_every_kernel_has_its_reasons_and_notes(page: str) -> None:
    sources = re.findall(r"^```c\n(.*?)^```", page, re.S | re.M)
    assert len(sources) >= len(EXAMPLES)
    kernels = [source for source in sources if "the lanes of this thread" not in source]
    assert len(sources) == len(kernels) + 1
    assert page.count("  schedule: ") == page.count("  estimate: ") == len(kernels)
    for source in sources:
        assert source.count("// ") >= 3, source
        assert source.rstrip().endswith("}")
    for example in EXAMPLES:
        assert f"## {example.title}" in page


def test_repeated_lines_are_shown_a_few_times() -> None:
    lines = ["start", *[f"  a{i} = b{i};" for i in range(9)], "end"]
    assert list(shortened(lines)) == [
        "start", "  a0 = b0;", "  a1 = b1;", "  a2 = b2;", "  // ... and 6 more lines like these",
        "end",
    ]  # fmt: skip
    pairs = [x for i in range(6) for x in (f"v{i} = load(p + {i});", f"acc{i} += v{i};")]
    found = list(shortened(pairs))
    assert found == [*pairs[:2], "// ... and 10 more lines like these"]


def test_what_differs_in_more_than_numbers_is_shown() -> None:
    lines = ["a = 1;", "b = 1;", "c = 1;", "a = 2;", "d = 1;", "e = 1;"]
    assert list(shortened(lines)) == lines


def test_notes_come_once_and_before_their_line() -> None:
    source = "helper\nvoid f() {\n  store_x(buf0, a);\n  y;\n  store_x(buf0, b);\n}\n"
    lines = annotated(source)
    assert lines[1] == "void f() {"
    assert sum("leave the registers" in line for line in lines) == 1
    assert "leave the registers" in lines[lines.index("  store_x(buf0, a);") - 1]
    assert "helper" not in lines


def test_check_finds_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_kernels_doc, "PAGE", tmp_path / "kernels.md")
    monkeypatch.setattr(make_kernels_doc, "kernels_page", lambda: "now\n")
    monkeypatch.setattr("sys.argv", ["make_kernels_doc.py"])
    assert make_kernels_doc.main() == 0
    monkeypatch.setattr("sys.argv", ["make_kernels_doc.py", "--check"])
    assert make_kernels_doc.main() == 0
    (tmp_path / "kernels.md").write_text("older\n")
    assert make_kernels_doc.main() == 1
    assert "make docs" in capsys.readouterr().err


def test_the_page_of_passes_is_up_to_date() -> None:
    text = make_passes_doc.DOC.read_text(encoding="utf-8")
    assert text == make_passes_doc.text(), "run: python tools/make_passes_doc.py"


def test_the_page_of_opts_is_up_to_date() -> None:
    text = make_opts_doc.DOC.read_text(encoding="utf-8")
    assert text == make_opts_doc.text(), "run: make docs"


@pytest.mark.parametrize("kind", OPT_DOCS)
def test_every_kind_of_opt_is_documented_by_an_example_of_it(kind: str) -> None:
    doc = OPT_DOCS[kind]
    assert doc.rewrite
    assert doc.when
    assert doc.why
    assert parse_opts(doc.example)[-1].kind == kind


def test_no_kind_of_opt_is_left_out() -> None:
    kinds = [f"{op.name} {how}".strip() for op in OptOps for how in WAYS.get(op, ("",))]
    assert sorted(OPT_DOCS) == sorted(kinds)
