"""Disassembles kernels, each line with the line of the source that it comes from.

Receives LLVM IR; returns assembly text and, for each of its lines, a line of the IR or 0. The IR is
given debug locations of its own lines first, which LLVM hands down to the machine code; they change
no instruction.
"""

from __future__ import annotations

import re
from typing import Any

from aster_ml.errors import AsterError

LOCATION = re.compile(r"^\s*\.loc\s+\d+\s+(\d+)\b")
LABEL = re.compile(r"^[\w.$@\"]+:")
# Directives that say nothing of the instructions, and sections of what debuggers read.
QUIET = re.compile(
    r"^\s*\.(cfi_|file|loc|ident|addrsig|type|size|globl|p2align|intel_syntax|text|build_version)"
)
SECTION = re.compile(r"^\s*\.section\s+\"?([\w.,]+)")


def with_locations(source: str) -> str:
    """The IR with a debug location on each instruction: the number of its own line."""
    lines: list[str] = []
    tail: list[str] = []
    next_id = 1_000_000
    head = [
        "!llvm.module.flags = !{!999990}",
        "!llvm.dbg.cu = !{!999991}",
        '!999990 = !{i32 2, !"Debug Info Version", i32 3}',
        "!999991 = distinct !DICompileUnit(language: DW_LANG_C, file: !999992, "
        "isOptimized: true, runtimeVersion: 0, emissionKind: LineTablesOnly)",
        '!999992 = !DIFile(filename: "kernel.ll", directory: "")',
        "!999993 = !DISubroutineType(types: !{})",
    ]
    scope = 0
    for number, line in enumerate(source.split("\n"), 1):
        if line.startswith("define ") and line.endswith("{"):
            scope, next_id = next_id, next_id + 1
            name = line.partition("@")[2].partition("(")[0].strip('"')
            tail.append(
                f'!{scope} = distinct !DISubprogram(name: "{name}", scope: !999992, '
                f"file: !999992, line: {number}, type: !999993, unit: !999991, "
                "spFlags: DISPFlagDefinition)"
            )
            lines.append(f"{line[:-1]}!dbg !{scope} {{")
        elif line.startswith("}"):
            scope = 0
            lines.append(line)
        elif scope and line.startswith("  ") and not line.lstrip().startswith(";"):
            tail.append(f"!{next_id} = !DILocation(line: {number}, scope: !{scope})")
            lines.append(f"{line}, !dbg !{next_id}")
            next_id += 1
        else:
            lines.append(line)
    return "\n".join([*lines, *head, *tail, ""])


def parts_of(assembly: str) -> tuple[list[str], list[int]]:
    """Lines of instructions, labels and constants, and the line of the source of each (0: none)."""
    text: list[str] = []
    came_from: list[int] = []
    now, skipping = 0, False
    for line in assembly.split("\n"):
        section = SECTION.match(line)
        if section is not None:
            name = section[1]
            skipping = ".debug" in name or "note" in name or name.startswith("__DWARF")
            continue
        if re.match(r"^\s*\.text\b", line):
            skipping = False
            continue
        location = LOCATION.match(line)
        if location is not None:
            now = int(location[1])
            continue
        if skipping or QUIET.match(line) or not line.strip():
            continue
        bare = line.split("#")[0].rstrip() if "-- Begin" not in line else ""
        if not bare or bare.startswith((".Ltmp", ".Lfunc", "Ltmp", "Lfunc")):
            continue
        text.append(bare.replace("\t", "    "))
        is_code = not LABEL.match(bare) and not bare.lstrip().startswith(".")
        came_from.append(now if is_code else 0)
    return text, came_from


def assembly_of(backend: Any, source: str) -> tuple[list[str], list[int], str]:
    """Lines, lines of the source, and why there are none."""
    language = backend.target.language
    if not backend.target.compiles:
        return [], [], f"{backend.name} interprets the linear program"
    if language != "llvm":
        return [], [], f"{backend.name}: the compiler of {language} shows no lines"
    try:
        text = backend.disassemble(with_locations(source))
    except AsterError as error:
        return [], [], f"no assembly: {error}"
    return (*parts_of(text), "")
