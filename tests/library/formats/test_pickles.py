"""Pickles read as data: what Python's own reader gives for data, placeholders for the rest."""

from __future__ import annotations

import collections
import io
import pathlib
import pickle
import sys
import time
import zipfile
from typing import Any

import pytest

from aster_ml import dtypes
from aster_ml.errors import FormatError
from aster_ml.formats.checkpoints import Checkpoint
from aster_ml.formats.fileio import cursor_over
from aster_ml.formats.pickles import PLAIN_MAKERS, PickleReader, Placeholder
from aster_ml.nn.state import torch_load
from aster_ml.unpacking import Allowance

SHARED: list[Any] = [1, 2]
DATA: list[Any] = [
    None,
    True,
    [False, 0, 1, 255, 256, 65536, -1, 2**31, -(2**31), 2**63, -(2**100), 10**400],
    [0.0, -0.5, 1e300, float("inf")],
    ["", "text", "grüße", "😀", "x" * 300, "line\nbreak", "'quotes\"", "\ud800"],
    [b"", b"bytes", bytes(range(256)), b"x" * 300],
    bytearray(b"array"),
    (),
    (1,),
    (1, 2),
    (1, 2, 3),
    (1, 2, 3, 4),
    [[], [[]], [1] * 1500],
    {},
    {"a": 1, 2: "b", (1, "x"): [3], None: 0, 1.5: 2, b"k": 1},
    {i: str(i) for i in range(1500)},
    set(),
    {1, "a", (2, 3)},
    frozenset({1, 2}),
    [SHARED, SHARED, {"again": SHARED}],
    collections.OrderedDict(b=1, a=2),
]


def read(data: bytes, nbytes: int | None = None) -> Any:
    """What the reader makes of a pickle in a file of that size."""
    cursor = cursor_over(data, "test", Allowance(len(data) if nbytes is None else nbytes))
    return PickleReader(cursor, PLAIN_MAKERS).load()


def checkpoint(data: bytes) -> bytes:
    """A zip checkpoint with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", data)
    return file.getvalue()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("number", range(len(DATA)))
def test_data_is_read_as_python_reads_it(protocol: int, number: int) -> None:
    value = DATA[number]
    if isinstance(value, (frozenset, bytearray)) and protocol < 4:
        assert isinstance(read(pickle.dumps(value, protocol)), Placeholder) or protocol == 3
        return
    raw = pickle.dumps(value, protocol)
    got = read(raw)
    assert got == value
    assert repr(got) == repr(dict(value) if isinstance(value, collections.OrderedDict) else value)


def test_what_is_shared_or_goes_in_a_circle_stays_so() -> None:
    got = read(pickle.dumps([SHARED, SHARED, {"again": SHARED}]))
    assert got[0] is got[1] is got[2]["again"]
    circle: list[Any] = []
    circle.append((circle, {"me": circle}))
    got = read(pickle.dumps(circle))
    assert got[0][0] is got
    assert got[0][1]["me"] is got


class Thing:
    """Any object."""

    def __init__(self) -> None:
        self.field = 3


def test_objects_are_placeholders() -> None:
    got = read(pickle.dumps([Thing(), Thing, Thing]))
    assert got[0].name == f"{__name__}.Thing"
    assert got[0].args == ()
    assert got[0].state == {"field": 3}
    assert repr(got[1]) == f"<Placeholder {__name__}.Thing>"
    assert got[1].args is None


class Evil:
    """Its pickle asks for a call of anything."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.parts = (function, args)

    def __reduce__(self) -> Any:
        return self.parts


def test_nothing_is_imported_or_called(tmp_path: pathlib.Path) -> None:
    before = set(sys.modules)
    got = read(pickle.dumps([Evil(pathlib.Path.touch, tmp_path / "owned"), Evil(eval, "1/0")]))
    assert got[1].name == "builtins.eval"
    assert got[1].args == ("1/0",)
    read(b"cthis\nThis is an import\n.")
    read(b"cantigravity\nfly\n.")
    assert set(sys.modules) == before
    assert not (tmp_path / "owned").exists()


BARE = b"ctorch\nFloatStorage\n"
STATE = b"N}X\x08\x00\x00\x00itemsizeK\x01s\x86"


@pytest.mark.parametrize(
    "name",
    [
        b"torch\nFloatStorage",
        b"torch._utils\n_rebuild_tensor_v2",
        b"torch._utils\n_rebuild_parameter",
        b"collections\nOrderedDict",
        b"torch\nSize",
        b"aster_ml.dtype\ndtypes",
    ],
)
@pytest.mark.parametrize("action", [STATE + b"b", b"K\x01a", b"K\x01K\x02s", b"(K\x01e"])
def test_names_take_no_parts(tmp_path: pathlib.Path, name: bytes, action: bytes) -> None:
    before = {k: dict.copy(vars(v)) for k, v in vars(dtypes).items() if hasattr(v, "__dict__")}
    functions = [dict.copy(vars(f)) for f in (Checkpoint.tensor, Checkpoint.parameter)]
    (tmp_path / "x.pt").write_bytes(checkpoint(b"\x80\x02c" + name + b"\n" + action + b"."))
    with pytest.raises(FormatError, match="which is a name and no object"):
        torch_load(tmp_path / "x.pt")
    assert functions == [vars(f) for f in (Checkpoint.tensor, Checkpoint.parameter)]
    assert before == {k: vars(v) for k, v in vars(dtypes).items() if hasattr(v, "__dict__")}
    assert dtypes.float32.itemsize == 4


def test_sharing_does_not_unfold(tmp_path: pathlib.Path) -> None:
    level: Any = []
    for _ in range(100):
        level = [level, level]
    raw = pickle.dumps(level)
    assert len(raw) < 1000
    (tmp_path / "x.pt").write_bytes(checkpoint(raw))
    start = time.monotonic()
    got: Any = torch_load(tmp_path / "x.pt")
    assert time.monotonic() - start < 20
    assert got[0] is got[1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "an opcode takes 1 bytes at 0, there are 0"),
        (b"\x80\x09N.", "protocol 9, 0 to 5 are known"),
        (b"N\x00", r"opcode b'\\x00' is none"),
        (b".", "no value is there to take"),
        (b"t.", "cannot be done"),
        (b"h\x07.", "nothing was remembered as 7"),
        (b"(K\x01K\x02K\x03d.", "a key without a value"),
        (b"}K\x01K\x02sK\x01K\x03s.", "the key 1 comes twice"),
        (b"}]K\x02s.", "is no key; a number, a text or a tuple"),
        (b"}((K\x01ttK\x02s.", "is no key"),
        (b"K\x01)R.", "1 is called, and is no name"),
        (b"cos\nsystem\nK\x01R.", "os.system is called with 1, which is no tuple"),
        (b"\x8d" + (2**60).to_bytes(8, "little") + b"x.", "a text takes"),
        (b"\x8e" + (2**60).to_bytes(8, "little") + b"x.", "bytes takes"),
        (b"\x8b\xff\xff\xff\x7f.", "a number takes 2147483647 bytes"),
        (b"I" + b"9" * 5000 + b"\n.", "cannot be done: ValueError"),
        (b"cos\n" + b"x" * 100_000, "has no end"),
        (b"S'a' + 'b'\n.", "a text in quotes is wanted"),
        (b"K\x01}b.", "a dict as a state for 1"),
        (b"\x82\x01.", "is none, or none that is read here"),
        (b"\x97.", "is none, or none that is read here"),
        (b"K\x01Q.", "outside of the pickle"),
        (b"\x8c\x01\xff.", "UnicodeDecodeError"),
    ],
)
def test_damaged_pickles_say_what_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read(data)


def test_memo_numbers_cost_nothing() -> None:
    # Python's own reader takes 2 GB for this one.
    assert read(b"Kr\x07\x00\x00\x08"[:2] + b"r\x00\x00\x00\x08.") == 114


def test_memory_is_bounded() -> None:
    with pytest.raises(FormatError, match=r"would take .* bytes of memory or more, the limit is"):
        read(b"\x8f" * 1_000_000 + b".", nbytes=1000)


def test_deep_nesting_is_no_recursion() -> None:
    got = read(b"]" * 200_000 + b"a" * 199_999 + b".")
    depth = 0
    while got:
        got, depth = got[0], depth + 1
    assert depth == 199_999
    assert isinstance(read(b"cx\ny\n)R" * 3 + b"bb."), Placeholder)


SHORT = b"(" + b"K\x01" * 1000


@pytest.mark.parametrize(
    ("start", "again"),
    [
        # A long tuple as a key, looked up anew each time.
        (b"(" + b"K\x01" * 100_000 + b"tq\x000", b"}h\x00Ns0"),
        # Shared lists, tuples and texts that are made into something anew each time.
        (
            b"ccollections\nOrderedDict\nq\x000"
            + b"("
            + b"".join([b"K" + bytes([i]) + b"N\x86" for i in range(250)])
            + b"l\x85q\x010",
            b"h\x00h\x01R0",
        ),
        (b"cbuiltins\nset\nq\x000" + SHORT + b"l\x85q\x010", b"h\x00h\x01R0"),
        (b"c_codecs\nencode\nq\x000X\xff\xff\0\0" + b"x" * 65535 + b"\x85q\x010", b"h\x00h\x01R0"),
        (b"X\xff\xff\0\0" + b"x" * 65535 + b"q\x000", b"h\x00h\x00\x930"),
        (b"ctorch\nthing\nq\x000" + SHORT + b"tq\x010", b"h\x00h\x01R0"),
    ],
)
def test_what_is_shared_pays_each_time_it_is_copied(start: bytes, again: bytes) -> None:
    with pytest.raises(FormatError, match=r"the limit is|is no key"):
        read(start + again * 100_000 + b"N.")
