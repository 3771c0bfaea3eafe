"""Every lesson prints what it says, its solutions are right, and its exercises are not begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aster_ml.apps import lesson
from aster_ml.runtime.cpu import clang

FOLDER = Path(__file__).resolve().parents[3] / "lessons"
LESSONS = lesson.lessons(FOLDER)
NO_COMPILER = clang.find_compiler() is None
SLOW = [pytest.mark.slow]
NEEDS_CC = [
    pytest.mark.cc,
    pytest.mark.skipif(NO_COMPILER, reason="no C compiler on PATH"),
    *SLOW,
]
MARKS: dict[str, Any] = {"04": SLOW, "07": NEEDS_CC}
NUMBERS = [pytest.param(n, marks=MARKS.get(n, [])) for n in LESSONS]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_lesson_prints_what_it_says(number: str) -> None:
    assert lesson.run(LESSONS[number], echo=False) == []


@pytest.mark.parametrize("number", NUMBERS)
def test_solutions_are_right(number: str) -> None:
    path = LESSONS[number]
    outcomes = lesson.check(path, FOLDER / "solutions" / path.name)
    assert [o.note for o in outcomes if not o.solved] == []
    assert len(outcomes) >= 3


@pytest.mark.parametrize("number", LESSONS)
def test_exercises_are_told_as_not_begun(number: str) -> None:
    path = LESSONS[number]
    outcomes = lesson.check(path, FOLDER / "exercises" / path.name)
    assert outcomes
    assert all(not o.solved and o.note.startswith("not begun. ") for o in outcomes)


@pytest.mark.parametrize("number", LESSONS)
def test_exercises_and_solutions_are_of_one_form(number: str) -> None:
    name = LESSONS[number].name
    texts = [(FOLDER / part / name).read_text(encoding="utf-8") for part in PARTS]
    heads = [[line for line in text.splitlines() if line.startswith("def ")] for text in texts]
    wanted, given = heads
    assert [line for line in wanted if line not in given] == []


PARTS = ("exercises", "solutions")


def test_a_line_that_is_not_as_said_is_told() -> None:
    source = "print(1)\n# > 1\nprint(2.5)\n# > 2...\nprint('x')\n# > y\n"
    assert list(lesson.differences(source, ["1", "2.5", "x"])) == [
        "line 6: wanted 'y', printed 'x'"
    ]
    assert list(lesson.differences(source, ["1", "2.5"])) == ["line 6: 'y' was not printed"]
    assert list(lesson.differences("", ["3"])) == ["printed and not promised: '3'"]


def test_an_unknown_lesson_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert lesson.main(["run", "99"]) == 2
    assert "there is no '99'; there are 00, 01" in capsys.readouterr().err


def test_a_script_that_fails_says_so(tmp_path: Path) -> None:
    script = tmp_path / "09_fails.py"
    script.write_text("print(1)\n# > 1\nraise SystemExit(3)\n", encoding="utf-8")
    (said,) = lesson.run(script, echo=False)
    assert said.startswith("the script ended with 3")
