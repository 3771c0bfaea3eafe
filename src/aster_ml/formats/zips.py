"""Checks the directory of a zip archive: where each member's bytes are, and that they are whole.

Receives the bytes of a file; returns its members. Every member has two headers, one in the
directory at the end and one before its bytes: they have to agree, no two members share a byte, no
two have one name, and the checksums are right. What the members hold does not belong here.

Source: the public description of the format, APPNOTE.TXT 6.3.10.
"""

from __future__ import annotations

import codecs
import struct
import zlib
from typing import NamedTuple

from aster_ml.errors import FormatError
from aster_ml.formats.fileio import FileBytes, show_value
from aster_ml.unpacking import unpack

# Looked up here: a codec is a module, and no file has one imported.
OLD_NAME = codecs.getdecoder("cp437")
# The version of the format that a reader has to know, times ten.
MAX_VERSION = 63
END, END_64, LOCATOR_64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
ENTRY, LOCAL = b"PK\x01\x02", b"PK\x03\x04"
MAX_COMMENT, SATURATED_16, SATURATED_32 = 0xFFFF, 0xFFFF, 0xFFFFFFFF
STORED, METHODS = 0, {8: "deflate", 12: "bzip2", 14: "lzma"}
# Flags: encrypted in one of three ways, sizes after the bytes, names in UTF-8.
ENCRYPTED, SIZES_FOLLOW, UTF_8 = 0x1 | 0x40 | 0x2000, 0x8, 0x800
PATCHED, LZMA_END_MARK = 0x20, 0x2
CHECK_NBYTES = 1 << 22
# Memory that a member's row and name take.
MEMBER_NBYTES = 512


class ZipMember(NamedTuple):
    """One file of an archive: its bytes as stored are `begin` to `begin + packed_nbytes`."""

    name: str
    method: int
    crc: int
    packed_nbytes: int
    nbytes: int
    begin: int
    flags: int


class Entry(NamedTuple):
    """A row of the directory."""

    raw_name: bytes
    flags: int
    method: int
    crc: int
    packed_nbytes: int
    nbytes: int
    offset: int


def zip_members(file: FileBytes) -> list[ZipMember]:
    """The files of a zip archive, folders left out.

    Raises: FormatError when it is none, is damaged, or has members that are encrypted or packed in
    a way that is not known here.
    """
    begin, end, count = find_directory(file)
    entries: dict[str, Entry] = {}
    for entry in read_directory(file, begin, end, count):
        name = decode_name(entry)
        if name in entries:
            raise FormatError("the name comes twice", f"zip: member {show_value(name)}")
        entries[name] = entry
    members: dict[str, ZipMember] = {}
    free, last = 0, ""
    # In the order in which they lie, so that none is read twice however they overlap.
    for name, entry in sorted(entries.items(), key=lambda item: item[1].offset):
        place = f"zip: member {show_value(name)}"
        file.allowance.take(MEMBER_NBYTES + 4 * len(name), place)
        if entry.offset < free:
            raise FormatError(
                f"it begins at {entry.offset}, inside of {show_value(last)}, which ends at {free}",
                place,
            )
        member = members[name] = check_local(file, entry, name, begin, place)
        free, last = member.begin + member.packed_nbytes, name
    return [check_content(file, members[name]) for name in entries if not name.endswith("/")]


def find_directory(file: FileBytes) -> tuple[int, int, int]:
    """Where the directory begins and ends, and how many rows it has."""
    tail_start = max(0, file.nbytes - 22 - MAX_COMMENT)
    tail = file.read(tail_start, file.nbytes)
    at = tail.rfind(END)
    while at >= 0:
        if at + 22 <= len(tail):
            comment = struct.unpack("<H", tail[at + 20 : at + 22])[0]
            if at + 22 + comment == len(tail):
                break
        at = tail.rfind(END, 0, at)
    if at < 0:
        raise FormatError(f"no zip archive, or its end is missing (in {file.nbytes} bytes)", "zip")
    end = tail_start + at
    disk, first_disk, here, count, size, offset = struct.unpack("<4H2I", tail[at + 4 : at + 20])
    locator = file.read(end - 20, end) if end >= 20 else b""
    if locator[:4] == LOCATOR_64:
        disk, place, disks = struct.unpack("<IQI", locator[4:])
        record = file.read(place, place + 56)
        if len(record) < 56 or record[:4] != END_64 or disk or disks > 1:
            raise FormatError(f"no end of the directory at {place}, where one is promised", "zip")
        length, _, _, disk, first_disk, here, count, size, offset = struct.unpack(
            "<Q2H2I4Q", record[4:]
        )
        if place + 12 + length != end - 20:
            raise FormatError(f"the end of the directory has {length} bytes at {place}", "zip")
        end = place
    if disk or first_disk or here != count:
        raise FormatError("an archive in several files, one is wanted", "zip")
    if offset + size != end:
        raise FormatError(
            f"the directory is said to be {size} bytes at {offset}, and ends at {end}", "zip"
        )
    return offset, end, count


def read_directory(file: FileBytes, begin: int, end: int, count: int) -> list[Entry]:
    """The rows of the directory."""
    if count * 46 > end - begin:
        raise FormatError(f"a directory of {end - begin} bytes claims {count} members", "zip")
    cursor = file.cursor("zip: the directory", begin, end)
    entries = []
    for _ in range(count):
        cursor.allowance.take(MEMBER_NBYTES, cursor.place)
        row = cursor.take(46, "a member")
        if row[:4] != ENTRY:
            raise FormatError(f"no member at {cursor.position - 46}", cursor.place)
        (flags, method, _, _, crc, packed, nbytes, name_length, extra_length, comment_length) = (
            struct.unpack("<4H3I3H", row[8:34])
        )
        if row[6] > MAX_VERSION:
            raise FormatError(f"a member asks for version {row[6]} of the format", cursor.place)
        disk, _, _, offset = struct.unpack("<2H2I", row[34:46])
        raw_name = cursor.take(name_length, "a name")
        extra = cursor.take(extra_length, "an extra field")
        cursor.take(comment_length, "a comment")
        wide = wide_fields(extra, cursor.place)
        sizes = []
        for value in (nbytes, packed, offset):
            if value == SATURATED_32 and wide is not None:
                if not wide:
                    raise FormatError("a member's wide sizes are missing", cursor.place)
                value = wide.pop(0)
            sizes.append(value)
        if disk not in (0, SATURATED_16):
            raise FormatError("a member in another file of the archive", cursor.place)
        entries.append(Entry(raw_name, flags, method, crc, sizes[1], sizes[0], sizes[2]))
    if cursor.position != end:
        raise FormatError(f"it has {end - cursor.position} bytes more than members", cursor.place)
    return entries


def wide_fields(extra: bytes, place: str) -> list[int] | None:
    """The numbers of 64 bits among the extra fields, or None where there are none."""
    position, found = 0, None
    while position + 4 <= len(extra):
        kind, length = struct.unpack("<2H", extra[position : position + 4])
        data = extra[position + 4 : position + 4 + length]
        if len(data) < length:
            raise FormatError("an extra field is cut short", place)
        if kind == 1:
            found = list(struct.unpack(f"<{length // 8}Q", data[: length // 8 * 8]))
        position += 4 + length
    return found


def decode_name(entry: Entry) -> str:
    """A member's name."""
    try:
        name = (
            entry.raw_name.decode("utf-8") if entry.flags & UTF_8 else OLD_NAME(entry.raw_name)[0]
        )
    except UnicodeDecodeError as error:
        raise FormatError(f"a name is no text: {error}", "zip: the directory") from error
    if not name or "\0" in name:
        raise FormatError(f"{show_value(name)} is no name of a file", "zip: the directory")
    return name


def check_local(file: FileBytes, entry: Entry, name: str, end: int, place: str) -> ZipMember:
    """The member by its two headers, which have to agree."""
    if entry.flags & ENCRYPTED:
        raise FormatError("it is encrypted, which is not read here", place)
    if entry.flags & PATCHED or (entry.method != STORED and entry.method not in METHODS):
        raise FormatError(
            f"it is packed by method {entry.method}; known are 0 stored, "
            + ", ".join([f"{number} {kind}" for number, kind in METHODS.items()]),
            place,
        )
    header = file.read(entry.offset, min(entry.offset + 30, end))
    if len(header) < 30 or header[:4] != LOCAL:
        raise FormatError(f"no local header at {entry.offset}", place)
    flags, method, _, _, crc, packed, nbytes, name_length, extra_length = struct.unpack(
        "<4H3I2H", header[6:30]
    )
    begin = entry.offset + 30 + name_length + extra_length
    rest = file.read(entry.offset + 30, min(begin, end))
    wide = wide_fields(rest[name_length:], place) or []
    if rest[:name_length] != entry.raw_name or len(rest) != name_length + extra_length:
        raise FormatError(f"its header has the name {show_value(rest[:name_length])}", place)
    if nbytes == SATURATED_32 and wide:
        nbytes = wide.pop(0)
    if packed == SATURATED_32 and wide:
        packed = wide.pop(0)
    found, wanted = (crc, packed, nbytes), (entry.crc, entry.packed_nbytes, entry.nbytes)
    unknown = flags & SIZES_FOLLOW and all(
        [f in (0, SATURATED_32, w) for f, w in zip(found, wanted)]
    )
    if method != entry.method or flags & ENCRYPTED or (found != wanted and not unknown):
        raise FormatError(
            f"its header says method {method}, CRC {crc:08x}, {packed} bytes, {nbytes} unpacked; "
            f"the directory says method {entry.method}, CRC {entry.crc:08x}, "
            f"{entry.packed_nbytes} bytes, {entry.nbytes} unpacked",
            place,
        )
    if begin + entry.packed_nbytes > end:
        raise FormatError(
            f"it ends at {begin + entry.packed_nbytes}, the directory begins at {end} "
            f"and the file has {file.nbytes} bytes",
            place,
        )
    if entry.method == STORED and entry.packed_nbytes != entry.nbytes:
        raise FormatError(
            f"it is stored as it is, in {entry.packed_nbytes} bytes and not {entry.nbytes}", place
        )
    if name.endswith("/") and entry.nbytes:
        raise FormatError(f"a folder with {entry.nbytes} bytes", place)
    return ZipMember(name, entry.method, entry.crc, entry.packed_nbytes, entry.nbytes, begin, flags)


def check_content(file: FileBytes, member: ZipMember) -> ZipMember:
    """A member that is stored as it is, its checksum compared; others are checked when unpacked."""
    if member.method == STORED:
        crc, end = 0, member.begin + member.nbytes
        for start in range(member.begin, end, CHECK_NBYTES):
            crc = zlib.crc32(file.read(start, min(start + CHECK_NBYTES, end)), crc)
        check_crc(member, crc)
    return member


def check_crc(member: ZipMember, crc: int) -> None:
    """The checksum of the bytes is the one that the archive has."""
    if crc != member.crc:
        raise FormatError(
            f"its bytes have the CRC {crc:08x}, {member.crc:08x} is wanted: it is damaged",
            f"zip: member {show_value(member.name)}",
        )


def unpack_member(file: FileBytes, member: ZipMember) -> bytearray:
    """The bytes of a member that is packed, checked against its size and checksum."""
    place = f"zip: member {show_value(member.name)}"
    data = file.read(member.begin, member.begin + member.packed_nbytes)
    if member.method == STORED:
        file.allowance.take(member.nbytes, place)
        return bytearray(data)
    kind = METHODS[member.method]
    if kind == "lzma":
        data = lzma_alone(data, member, place)
    result = unpack(data, kind, file.allowance, place, many=False)
    if len(result) != member.nbytes:
        raise FormatError(f"{len(result)} bytes unpacked, {member.nbytes} are promised", place)
    check_crc(member, zlib.crc32(result))
    return result


def lzma_alone(data: bytes, member: ZipMember, place: str) -> bytes:
    """The bytes of method 14 in the form of a file of their own, which has their size in front."""
    if len(data) < 9 or struct.unpack("<H", data[2:4])[0] != 5:
        raise FormatError("its LZMA header is damaged", place)
    # A size of all ones: an end mark follows the bytes.
    size = b"\xff" * 8 if member.flags & LZMA_END_MARK else struct.pack("<Q", member.nbytes)
    return data[4:9] + size + data[9:]
