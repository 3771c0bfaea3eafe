"""What is built and published is complete: source distribution, extras, the menu of the site."""

from __future__ import annotations

import re
import subprocess
import tomllib
from typing import Any

import pytest

from aster_ml.apps.packages import EXTRAS, PACKAGE, REQUIRED
from tests.lint.sources import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# What every source distribution has, whatever is included.
ALWAYS = {"pyproject.toml", "README.md", "LICENSE", ".gitignore"}


def git(*words: str) -> list[str]:
    """The lines that git says of the clone."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no clone: which files are the project's, git says")
    return done.stdout.splitlines()


def test_the_source_distribution_has_all_files() -> None:
    included = set(PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    assert all(name.startswith("/") for name in included), "else it is looked for in any folder"
    there = {name.partition("/")[0] for name in git("ls-files")}
    assert there - ALWAYS == {name[1:] for name in included} - ALWAYS
    assert git("ls-files", "-ci", "--exclude-standard") == [], "what is ignored is left out"


def test_the_wheel_has_all_files_of_the_package() -> None:
    """Scripts, pages and tables beside the modules go with them: nothing is chosen by its kind."""
    target = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert target == {"packages": ["src/aster_ml"]}


def name_of(requirement: str) -> str:
    """The package of a requirement."""
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found is not None
    return found[0]


def test_the_extras_that_doctor_lists_are_those_of_the_project() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert {name_of(r) for r in PROJECT["project"]["dependencies"]} == set(REQUIRED)
    assert EXTRAS.keys() == extras.keys()
    for name, requirements in extras.items():
        others = [r for r in requirements if name_of(r) == PACKAGE]
        brought = re.findall(r"[a-z]+", " ".join(r[len(PACKAGE) :] for r in others))
        assert sorted(EXTRAS[name].extras) == sorted(brought), name
        wanted = sorted(name_of(r) for r in requirements if r not in others)
        assert sorted(EXTRAS[name].packages) == wanted, name


def menu() -> list[str]:
    """The pages that the menu of the site names, in order."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return re.findall(r"[\w/.-]+\.md", text[text.index("\nnav:") :])


def test_every_page_is_in_the_menu_once() -> None:
    named = menu()
    assert sorted(set(named)) == sorted(named)
    docs = ROOT / "docs"
    assert set(named) == {p.relative_to(docs).as_posix() for p in docs.rglob("*.md")}
