"""Names of special tokens in texts, against regular expressions of all of them."""

from __future__ import annotations

import random
import re
from typing import Any

from aster_ml.apps.llm.special_names import Names
from tests.fuzz.budget import check_all, draws

LETTERS = "<ab|>\n]^\\-\u2581\U0001f600"


def expression(names: list[str]) -> str:
    """A regular expression for any of them, the longest first."""
    return "|".join([re.escape(n) for n in sorted(names, key=len, reverse=True)]) or "(?!)"


def test_the_longest_name_at_each_place_is_found(record_property: Any) -> None:
    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        letters = rng.sample(LETTERS, rng.randint(1, 5))
        count, longest = rng.choice([0, 1, 2, 20, 200]), rng.randint(1, 6)
        names = ["".join(rng.choices(letters, k=rng.randint(1, longest))) for _ in range(count)]
        text = "".join(rng.choices(letters, k=rng.choice([0, 1, 5, 60])))
        found, pattern = Names(names), expression(names)
        want = [(m.start(), m[0]) for m in re.finditer(pattern, text)]
        if list(found.find(text)) != want:
            return f"{names} in {text!r}: {list(found.find(text))}, {want} is wanted"
        starts = [m.start() for m in re.finditer(f"(?={pattern})", text)]
        if found.starts(text) != starts:
            return f"{names} in {text!r}: begin at {found.starts(text)}, {starts} is wanted"
        for at in range(len(text) + 1):
            is_begun = any([n.startswith(text[at:]) and n != text[at:] for n in names])
            if found.is_begun(text[at:]) != is_begun:
                return f"{names}: {text[at:]!r} begins one: {is_begun} is wanted"
        return None

    check_all("names of special tokens in texts", draws(300, 20000), check, record_property)


def test_names_that_begin_with_one_another() -> None:
    names = Names(["a" * i for i in range(1, 3000)])
    assert [len(name) for _, name in names.find("a" * 7000)] == [2999, 2999, 1002]
    assert names.longest == 2999
    assert not names.is_begun("a" * 2999)


def test_without_names() -> None:
    names = Names([])
    assert list(names.find("abc")) == names.starts("abc") == []
    assert not names.is_begun("")
