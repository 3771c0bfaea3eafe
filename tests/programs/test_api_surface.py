"""Public names, parameters and defaults beside those of tinygrad, from a list made once."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import aster_ml
from aster_ml import Tensor, dtypes, nn

LIST = Path(__file__).with_name("api_names.txt")
HOMES: dict[str, Any] = {
    "Tensor": Tensor,
    "dtypes": dtypes,
    "tinygrad": aster_ml,
    "nn": nn,
    **{f"nn.{part}": f"aster_ml.nn.{part}" for part in ("optim", "state", "datasets")},
}
# Names that are not wanted, and why.
NOT_WANTED = {
    "Tensor.decode_hevc_frame": "video decoding of one vendor's GPUs",
    "Tensor.fs_load": "a distributed file system of the reference's own",
    "Tensor.fs_store": "a distributed file system of the reference's own",
    "dtypes.imagef": "images as memory, for one kind of GPU",
    "dtypes.imageh": "images as memory, for one kind of GPU",
}
# What tinygrad has had since: its state of February 2026.
LATER = {
    "nonzero": "", "as_param": "slot", "call": "*lst, fxn, grad_fxn=None", "cummin": "axis=0",
    "log10": "", "size": "dim=None",
}  # fmt: skip

# Parameters that tinygrad hands on and Aster has itself.
SPELLED_OUT = {"Tensor.contiguous": "*, arg=None"}


def read_list() -> dict[str, str | None]:
    """`Home.name` -> its parameters; None for what is no function."""
    names: dict[str, str | None] = {}
    home = ""
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            home = line.strip("[]")
        elif line and not line.startswith("#"):
            name, bracket, rest = line.partition("(")
            names[f"{home}.{name}"] = rest.removesuffix(")") if bracket else None
    return names


NAMES = {**read_list(), **{f"Tensor.{n}": given for n, given in LATER.items()}, **SPELLED_OUT}
WANTED = {name: given for name, given in NAMES.items() if name not in NOT_WANTED}


def home_of(name: str) -> tuple[Any, str]:
    """The object that has the name, and the last part of it."""
    home, _, last = name.rpartition(".")
    found = HOMES[home]
    return (importlib.import_module(found) if isinstance(found, str) else found), last


def split_parameters(text: str) -> list[str]:
    """Parameters apart; commas inside brackets do not count."""
    parts, depth, part = [], 0, ""
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            parts.append(part.strip())
            part = ""
        else:
            part += char
    return [*parts, part.strip()] if part.strip() else parts


def same_default(wanted: str, given: Any) -> bool:
    """Whether a default is the one that is written; a setting that is off is 0."""
    if isinstance(given, type):
        return wanted == given.__name__
    return wanted in (repr(given), getattr(given, "name", None)) or (
        wanted == "0" and given is False
    )


def differences(wanted: str, function: Any) -> list[str]:
    """What a call that fits the written parameters would find different."""
    own = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    by_name = {p.name: p for p in own}
    positional = [p.name for p in own if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in own)
    found: list[str] = []
    by_keyword = False
    for i, text in enumerate(split_parameters(wanted)):
        name, equals, default = text.partition("=")
        if name.startswith("**"):
            if not takes_any and not any(
                p.kind is inspect.Parameter.KEYWORD_ONLY or p.default is not p.empty for p in own
            ):
                found.append(f"{name} is not taken")
        elif name.startswith("*"):
            by_keyword = True
            if name != "*" and not any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in own):
                found.append(f"{name} is not taken")
        elif name not in by_name:
            if not (takes_any and by_keyword):
                found.append(f"{name} is not taken")
        elif not by_keyword and (i >= len(positional) or positional[i] != name):
            found.append(f"{name} is not parameter {i}")
        elif equals and not same_default(default, by_name[name].default):
            found.append(f"the default of {name} is {by_name[name].default!r}, not {default}")
    return found


def test_names_and_parameters() -> None:
    wrong = []
    for name, wanted in WANTED.items():
        home, last = home_of(name)
        if not hasattr(home, last):
            wrong.append(f"{name} is not there")
        elif wanted is not None:
            wrong += [f"{name}: {line}" for line in differences(wanted, getattr(home, last))]
    assert not wrong, "\n".join(wrong)


def test_what_is_not_wanted_is_listed_and_not_there() -> None:
    assert NOT_WANTED.keys() <= NAMES.keys()
    for name in NOT_WANTED:
        home, last = home_of(name)
        assert not hasattr(home, last), f"{name} is there: it belongs to what is wanted"


def test_differences_are_found() -> None:
    def function(self: Any, a: int, b: int = 1, *, c: str = "x") -> None:
        """Nothing."""

    assert not differences("a, b=1, *, c='x'", function)
    assert differences("a, b=2", function) == ["the default of b is 1, not 2"]
    assert differences("b=1, a", function) == ["b is not parameter 0", "a is not parameter 1"]
    assert differences("a, b=1, d=3, *args", function) == ["d is not taken", "*args is not taken"]
    assert differences("a, b=1, c='x'", function) == ["c is not parameter 2"]
