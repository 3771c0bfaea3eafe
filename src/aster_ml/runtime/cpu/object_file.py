"""Checks that bytes are an object that LLVM's linker can read, before it is given them.

Receives an object from the disk cache or from a compiler; returns a sentence that says what is
wrong, or None. LLVM's linker ends the process at a malformed object, so everything that it reads is
checked first: the processor, and that sections, names, symbols and relocations are within the file.
Instructions cannot be checked.
"""

from __future__ import annotations

import struct
import sys

# First word of a triple -> machine number of ELF, Mach-O and COFF. Machines of ELF are 64-bit and
# little-endian; objects for others are not checked.
ELF_MACHINES = {
    "x86_64": 62, "AMD64": 62, "aarch64": 183, "arm64": 183, "riscv64": 243,
    "powerpc64le": 21, "ppc64le": 21, "loongarch64": 258,
}  # fmt: skip
MACH_MACHINES = {"x86_64": 0x01000007, "arm64": 0x0100000C, "aarch64": 0x0100000C}
COFF_MACHINES = {"x86_64": 0x8664, "AMD64": 0x8664, "aarch64": 0xAA64, "arm64": 0xAA64}

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")
RELOCATABLE = 1
SYMBOLS, STRINGS, RELOCATIONS, NO_BYTES = 2, 3, 4, 8
# Section numbers from RESERVED on are special: among them those of absolute and common symbols.
RESERVED, ABSOLUTE, COMMON = 0xFF00, 0xFFF1, 0xFFF2
FRAMES = b".eh_frame\0"
MAX_ALIGNMENT = 1 << 16
# Flags of sections: written to, in memory, run, merged, text, by a relocation, in order; large.
IN_MEMORY, FLAGS = 2, 0xF7 | 0x10000000
KINDS, BINDINGS = 6, 2


class Damaged(ValueError):
    """Bytes that are no object; the text says why."""


def fault_of(binary: bytes, machine: str) -> str | None:
    """Names what is wrong with an object for this processor (the first word of LLVM's triple)."""
    try:
        if sys.platform == "darwin":
            check_start(binary, b"\xcf\xfa\xed\xfe", 4, "<I", MACH_MACHINES.get(machine))
        elif sys.platform == "win32":
            check_start(binary, b"", 0, "<H", COFF_MACHINES.get(machine))
        elif machine in ELF_MACHINES:
            check_elf(binary, machine)
    except Damaged as error:
        return str(error)
    except struct.error:
        return "it is cut short"
    return None


def check_start(binary: bytes, magic: bytes, at: int, form: str, machine: int | None) -> None:
    """Raises Damaged for another format, or another processor."""
    if not binary.startswith(magic):
        raise Damaged("it is of another format")
    (found,) = struct.unpack_from(form, binary, at)
    if machine is not None and found != machine:
        raise Damaged(f"it is for processor {found}, not {machine}")


def check_elf(binary: bytes, machine: str) -> None:
    """Raises Damaged unless a file is a 64-bit ELF object for this processor."""
    if not binary.startswith(b"\x7fELF\x02\x01\x01"):
        raise Damaged("it is no ELF file of 64 bits")
    head = HEADER.unpack_from(binary)
    found_kind, found = head[1], head[2]
    if found != ELF_MACHINES[machine]:
        raise Damaged(f"it is for processor {found}, not {ELF_MACHINES[machine]}")
    if found_kind != RELOCATABLE:
        raise Damaged(f"it is an ELF file of kind {found_kind}, not {RELOCATABLE}")
    check_sections(binary, head[6], *head[11:14])


def check_sections(binary: bytes, at: int, size: int, count: int, names: int) -> None:
    """Raises Damaged where a section, or a reference from it, is outside of the file."""
    if size != SECTION.size or at % 8 or at + size * count > len(binary) or names >= count:
        raise Damaged("its table of sections is damaged")
    sections = [SECTION.unpack_from(binary, at + size * i) for i in range(count)]
    for _, kind, flags, address, begin, length, link, _, align, _ in sections[1:]:
        if kind != NO_BYTES and begin + length > len(binary):
            raise Damaged("a section lies outside of it")
        if length > 1 << 40 or not align or align & (align - 1) or align > MAX_ALIGNMENT:
            raise Damaged("a section is damaged")
        if link >= count or flags & ~FLAGS or address or not kind:
            raise Damaged("a section is damaged")
    if sections[0][1]:
        raise Damaged("its first section is none")
    texts = [binary[s[4] : s[4] + s[5]] if s[1] == STRINGS and s[5] else None for s in sections]
    labels = texts[names]
    if labels is None or labels[-1] or any([s[0] >= len(labels) for s in sections]):
        raise Damaged("its names of sections are damaged")
    counts = [s[5] // SYMBOL.size for s in sections]
    for section in sections:
        _, kind, _, _, begin, length, link, info, _, entry = section
        if kind == SYMBOLS:
            if entry != SYMBOL.size or length % entry:
                raise Damaged("its table of symbols is damaged")
            check_symbols(binary[begin : begin + length], sections, texts[link], info)
        elif labels[section[0] : section[0] + len(FRAMES)] == FRAMES:
            check_frames(binary[begin : begin + length], max(s[5] for s in sections))
        elif kind == RELOCATIONS:
            if entry != RELOCATION.size or length % entry or info >= count:
                raise Damaged("a table of relocations is damaged")
            if sections[link][1] != SYMBOLS:
                raise Damaged("relocations are by no symbols")
            target = sections[info]
            for place, what, _ in RELOCATION.iter_unpack(binary[begin : begin + length]):
                if place + 4 > target[5] or what >> 32 >= counts[link]:
                    raise Damaged("a relocation lies outside of its section")


def check_frames(frames: bytes, longest: int) -> None:
    """Raises Damaged for a description of stack frames in another form than LLVM's."""
    begins = set[int]()
    at = 0
    while at < len(frames):
        length, back = struct.unpack_from("<II", frames, at)
        if length < 16 or at + 4 + length > len(frames):
            raise Damaged("its stack frames are damaged")
        if not back:
            begins.add(at)
            # Version, what comes with it, how an address is written: four bytes from here.
            if not frames.startswith(b"\x01zR\0", at + 8) or frames[at + 15 : at + 17] != b"\1\x1b":
                raise Damaged("its stack frames are of another form")
        elif (
            at + 4 - back not in begins
            or struct.unpack_from("<I", frames, at + 12)[0] > longest
            or frames[at + 16]
        ):
            raise Damaged("its stack frames are damaged")
        at += 4 + length


def check_symbols(
    table: bytes, sections: list[tuple[int, ...]], texts: bytes | None, first: int
) -> None:
    """Raises Damaged for a symbol outside of its section, or without a name."""
    if texts is None or texts[-1]:
        raise Damaged("its names of symbols are damaged")
    for number, (name, info, _, where, value, size) in enumerate(SYMBOL.iter_unpack(table)):
        if name >= len(texts) or info & 15 > KINDS or info >> 4 > BINDINGS:
            raise Damaged("a symbol is damaged")
        if (info >> 4 == 0) != (number < first):
            raise Damaged("its local symbols are not the first")
        if where < RESERVED:
            if where >= len(sections):
                raise Damaged("a symbol is in no section")
            if where and (value + size > sections[where][5] or not sections[where][2] & IN_MEMORY):
                raise Damaged("a symbol lies outside of its section")
        elif where not in (ABSOLUTE, COMMON):
            raise Damaged("a symbol is in no section")
