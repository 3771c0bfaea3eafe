"""Lists the members of a tar archive: where the bytes of each regular file are.

Receives the bytes of a file; returns names with spans. Reads the forms of POSIX (ustar, pax), GNU
and the one before them; sparse files, which store a map of holes, are refused. A header that is
damaged is an error wherever it stands, and so is an archive without its end mark: what comes after
would be missing without a word. Compression does not belong here.

Source: POSIX.1-2017, pax interchange format; the description of GNU tar's basic format.
"""

from __future__ import annotations

from aster_ml.errors import FormatError
from aster_ml.formats.fileio import FileBytes, show_value
from aster_ml.unpacking import Allowance

BLOCK = 512
# The first byte of a number that is no text.
POSITIVE, NEGATIVE = 0x80, 0xFF
REGULAR, SPARSE = frozenset({b"0", b"\0", b"7"}), b"S"
LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL = b"L", b"K", b"x", b"g"
# What GNU and Solaris have besides: an older pax header, lists of names, volumes.
PAX_SUN, OTHER_KINDS = b"X", frozenset({b"D", b"M", b"N", b"V"})
# The form: ustar and pax, GNU, and before them.
USTAR, GNU, OLDEST = b"ustar\x00", b"ustar ", b"\0" * 6
NUMBERS = {"mode": (100, 108), "owner": (108, 116), "group": (116, 124), "time": (136, 148)}
# What is taken from extended headers.
KEYS, SPARSE_KEY = frozenset({b"path", b"size"}), "GNU.sparse"
# These have no bytes of their own, whatever their size says.
WITHOUT_DATA = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})
MEMBER_NBYTES = 512


class TarReader:
    """Goes through the headers of an archive.

    `read` gives bytes of it by begin and end; `nbytes` is how many it has.
    """

    def __init__(self, file: FileBytes | Unpacked) -> None:
        self.file, self.position = file, 0
        self.members: dict[str, tuple[int, int]] = {}
        # What extended headers say of the next member, and of all that follow.
        self.next: dict[str, str] = {}
        self.all: dict[str, str] = {}
        self.kinds: set[bytes] = set()

    def load(self) -> dict[str, tuple[int, int]]:
        """Where the bytes of each regular file begin, and how many they are.

        Raises: FormatError when it is no tar archive, or a damaged one.
        """
        while (block := self.read_block()) is not None:
            self.read_member(block)
        if self.kinds:
            raise FormatError("an extended header at the end, with no member after it", "tar")
        return self.members

    def read_block(self) -> bytes | None:
        """The next header, or None at the end mark, which is two blocks of zeros."""
        block = self.file.read(self.position, self.position + BLOCK)
        if len(block) < BLOCK:
            raise FormatError(
                f"a header is wanted at {self.position}, there are {self.file.nbytes} bytes: no "
                "tar archive, or it is truncated",
                "tar",
            )
        if any(block):
            return block
        second = self.file.read(self.position + BLOCK, self.position + 2 * BLOCK)
        if any(second):
            raise FormatError(
                f"the header at {self.position} is all zeros, and more follows", "tar"
            )
        return None

    def read_member(self, block: bytes) -> None:
        """One header, and what it stands before."""
        place = f"tar: header at {self.position}"
        check_sum(block, place)
        check_form(block, place)
        kind, size = block[156:157], number(block[124:136], "size", place)
        special = kind in (LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL, PAX_SUN)
        if not special and kind not in REGULAR | WITHOUT_DATA | OTHER_KINDS | {SPARSE}:
            raise FormatError(f"a member of the unknown kind {kind!r}", place)
        if not special and "size" in self.next | self.all:
            size = decimal((self.all | self.next)["size"], "size", place)
        begin = self.position + BLOCK
        stored = 0 if kind in WITHOUT_DATA else size
        if begin + stored > self.file.nbytes:
            raise FormatError(
                f"a member of {show_value(size)} bytes begins at {begin}, there are "
                f"{self.file.nbytes}: it is truncated, or its header lies",
                place,
            )
        self.position = begin + (stored + BLOCK - 1) // BLOCK * BLOCK
        if special:
            self.file.allowance.take(8 * size, place)
            self.read_extension(kind, self.file.read(begin, begin + size), place)
            return
        told, self.next = self.all | self.next, {}
        self.kinds.clear()
        name = told["path"] if "path" in told else header_name(block)
        if not name:
            raise FormatError("a member without a name", place)
        self.file.allowance.take(MEMBER_NBYTES + 4 * len(name), place)
        if kind == SPARSE or SPARSE_KEY in told:
            raise FormatError(f"{show_value(name)} is a sparse file, which is not read here", place)
        if kind not in REGULAR or (kind == b"\0" and name.endswith("/")):
            return
        if name in self.members:
            raise FormatError(f"the name {show_value(name)} comes twice", place)
        self.members[name] = (begin, size)

    def read_extension(self, kind: bytes, data: bytes, place: str) -> None:
        """A header that says more of what follows."""
        if kind in self.kinds or (self.kinds and kind not in (LONG_NAME, LONG_LINK)):
            raise FormatError("a second extended header for one member", place)
        if kind != PAX_GLOBAL:
            self.kinds.add(PAX if kind == PAX_SUN else kind)
        if kind in (LONG_NAME, LONG_LINK):
            name, end, _ = data.partition(b"\0")
            if not end:
                raise FormatError(f"a name of {len(data)} bytes without its end", place)
            self.next["path" if kind == LONG_NAME else "linkpath"] = text(name)
        else:
            (self.all if kind == PAX_GLOBAL else self.next).update(pax_records(data, place))


def check_sum(block: bytes, place: str) -> None:
    """The sum of a header's bytes is what it says."""
    wanted = number(block[148:156], "checksum", place)
    plain = block[:148] + b" " * 8 + block[156:]
    # Some have added up signed bytes.
    total = sum(plain)
    if wanted not in (total, total - 256 * sum([byte > 127 for byte in plain])):
        raise FormatError(
            f"no tar archive, or a damaged header: its checksum is {total}, {wanted} is wanted",
            place,
        )


def check_form(block: bytes, place: str) -> None:
    """The form of a header is known, and its numbers are numbers."""
    form = block[257:263]
    if form not in (USTAR, GNU, OLDEST):
        raise FormatError(f"a header of the unknown form {form!r}", place)
    if form == GNU and any(block[345:500]):
        raise FormatError("an incremental archive of GNU, which is not read here", place)
    for what, (begin, end) in NUMBERS.items():
        if block[begin] != NEGATIVE:
            number(block[begin:end], what, place)


def number(field: bytes, what: str, place: str) -> int:
    """A number of a header: octal digits, or big-endian bytes after 0x80."""
    if field[0] == POSITIVE:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.strip(b"01234567"):
        raise FormatError(f"no tar archive, or a damaged header: its {what} is {field!r}", place)
    return int(digits or b"0", 8)


def decimal(digits: str, what: str, place: str) -> int:
    """A number of an extended header."""
    if not digits.isascii() or not digits.isdigit() or len(digits) > 20:
        raise FormatError(f"its {what} is {show_value(digits)}, a number is wanted", place)
    return int(digits)


def text(raw: bytes) -> str:
    """A name."""
    return raw.decode("utf-8", errors="surrogateescape")


def header_name(block: bytes) -> str:
    """The name of a member, with the folders that ustar has apart."""
    name = text(block[:100].partition(b"\0")[0])
    prefix = text(block[345:500].partition(b"\0")[0])
    return f"{prefix}/{name}" if prefix and name else name


def pax_records(data: bytes, place: str) -> dict[str, str]:
    """The records of an extended header: `length key=value` and an end of line each."""
    records: dict[str, str] = {}
    position = 0
    while position < len(data):
        space = data.find(b" ", position, position + 21)
        digits = text(data[position:space]) if space > 0 else ""
        stop = position + decimal(digits or "-", "record's length", place)
        key, equals, value = data[space + 1 : stop - 1].partition(b"=")
        if stop > len(data) or stop < space + 3 or data[stop - 1 : stop] != b"\n" or not equals:
            raise FormatError(f"a damaged record at {position} of an extended header", place)
        # Of the others a global header may have any number, which are nothing to a reader of bytes.
        if key in KEYS:
            records[text(key)] = text(value)
        elif key.startswith(b"GNU.sparse."):
            records[SPARSE_KEY] = ""
        position = stop
    return records


class Unpacked:
    """Bytes in memory that are read as those of a file are."""

    def __init__(self, data: bytearray, allowance: Allowance) -> None:
        self.data, self.nbytes, self.allowance = data, len(data), allowance

    def read(self, begin: int, end: int) -> bytes:
        """Bytes begin to end, as many of them as there are."""
        return bytes(self.data[begin:end])
