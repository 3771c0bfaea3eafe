"""Costs of operations on processors, by architecture: cycles of one core, and rates of its memory.

Data alone: what is scheduled by it stands in `schedule/fusion` and `codegen/policy`, and how it
adds up to the cycles of a kernel in `codegen/estimate`. A figure names where it comes from: a page
of docs/explanation/tuning, a document of a vendor, or what LLVM's scheduling models quote of one.
What no machine was measured for has the figures of the one that was, a Zen 4; those that follow
from a `Target` are no rows of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Costs:
    """Costs of operations on one core: cycles, where nothing else is said."""

    # Arithmetic (uops.info: two SIMD units; latency 4 of a multiplication with addition).
    # Accumulators that keep both units busy: each addition waits for the one before it.
    accumulators: int = 8
    # Additions that a step of a maximum takes as long as: comparison, search for NaN, choice.
    maximum: int = 2
    # Half a register against a whole one, where processors do one half after another (tails.md).
    half: float = 0.6
    # To add up the lanes of a SIMD value, and of each of as many as it has lanes.
    horizontal: float = 4.0
    horizontal_together: float = 2.0

    # Accesses, each element on its own where lanes lie apart (panels.md).
    gather: float = 0.85
    # One that may be outside, on whose place or on nothing the load then waits.
    masked_gather: float = 1.5
    # One that is loaded in a run and transposed, and one that is scattered.
    transposed: float = 0.3
    scatter: float = 1.15
    # A SIMD value of every second, third and fourth element: as many loads, and shuffles.
    every: dict[int, float] = field(default_factory=lambda: {2: 1.5, 3: 2.5, 4: 3.5})
    # A masked access against a whole one, and what masked or unaligned operands add to the
    # arithmetic of a product, of one instruction.
    masked: float = 1.5
    uneven: float = 0.3
    # A value of a tile that is broadcast from memory, and where arithmetic does that by itself.
    broadcast: float = 0.3
    embedded_broadcast: float = 0.15
    # A SIMD value that is loaded for a tile: it may have to come from the second cache.
    loaded: float = 0.75
    # One on a page of its own, on top; and where rows that lie powers of two apart throw one
    # another out of the first cache, though of each line one element is used at a time.
    far: float = 0.125
    crowded: float = 1.0
    # A stretch of SIMD values on a page of its own that comes from beyond the second cache.
    row: float = 2.0
    # A line that comes from memory while a tile goes from row to row, far apart (panels.md).
    far_line: float = 125.0
    # What an operand adds to the arithmetic of a product that goes down columns of a matrix beyond
    # the second cache, of one instruction (prefetch.md).
    down_columns: float = 0.5

    # Bytes a cycle from each cache, for each core (AMD, Software Optimization Guide for the Zen4
    # Microarchitecture, 57647), and from memory, for all cores together (measured copies).
    cache_bytes: tuple[float, float, float] = (64, 32, 16)
    memory_bytes: float = 8
    # Neighbouring bytes that one channel of memory has (transposes.md).
    channel: int = 256
    # Bytes of the stack that a kernel's scratch may take: half of what most systems give a thread
    # (pthread_create(3): 8 MB where RLIMIT_STACK is Linux's default).
    scratch_nbytes: int = 4 << 20
    # The part of the first cache in which an operand stays until it is read again (pipelining.md).
    near_part: float = 0.5
    # What is asked for ahead of its use (prefetch.md): rows before a panel is filled with them;
    # pages between what a pass over rows computes with and what it asks for; lines between the
    # columns that a product goes down and those that it asks for; loads, and asks, that there is
    # room for in a step of a product, for each SIMD value of results; and bytes between words of
    # blocks and those that are asked for (packed-weights.md: from 512 to 3,072 times are the same).
    rows_ahead: int = 8
    pages_ahead: int = 2
    lines_ahead: int = 4
    loads_a_result: float = 1.25
    words_ahead_nbytes: int = 1024
    # Parts of the last cache: what is smaller stays there whatever a kernel does besides; of what
    # is larger several rows push each other out; and what is larger comes from memory
    # (non-temporal-stores.md, prefetch.md, reductions.md, shared-divisions.md).
    kept_part: float = 0.25
    several_part: float = 0.4
    full_part: float = 0.7
    # SIMD values loaded, and stored, and instructions begun in a cycle (uops.info, Zen 4).
    loads: int = 2
    stores: int = 1
    begun: int = 6
    # Cycles of a kernel from which on a second thread pays for its wake-up (threads.md).
    thread: float = 22_000
    # From the call of a kernel to its first result (threads.md).
    launch: float = 1000.0

    # Narrow products where pairs make a DOT, as on AVX2 (narrow-products.md): instructions a
    # result, and those that split each row and each SIMD value that it is multiplied with.
    pairs: int = 4
    split_row: int = 4
    split_value: int = 3
    # So many of them begin in a cycle.
    pairs_begun: int = 4
    # To put a SIMD value of words into a panel: lanes are neighbours, or steps, or neither; and
    # the part of it where the value is used at once.
    words_neighbours: float = 1.0
    words_transposed: float = 8.0
    words_apart: float = 12.0
    words_read_once: float = 0.3
    # To finish and store a SIMD value of results, also where its lanes lie apart; and to begin a
    # tile.
    words_stored: float = 3.0
    words_stored_apart: float = 10.0
    tile_begun: float = 8.0

    # A register keeps the unit that divides busy, which is part of one of the two units of
    # arithmetic (shared-divisions.md).
    busy: dict[str, float] = field(
        default_factory=lambda: {"FDIV": 6.0, "RECIPROCAL": 6.0, "SQRT": 11.0}
    )
    # Instructions that a core looks ahead, and chains of them that keep it busy.
    in_flight: int = 70
    chains: int = 6


# The only row that was measured.
ZEN4 = Costs()
# What documents leave open of the others is as on a Zen 4; nobody has measured one.
#
# Two units for products, of latency 4; two loads and one store of 256 bits, and six macro-ops begun
# a cycle: all of it as on a Zen 4. Source: AMD, Software Optimization Guide for AMD Family 19h
# Processors (56665), sections 2.10 to 2.12, as quoted by section in LLVM's X86ScheduleZnver3.td.
ZEN3 = Costs()
# Two units for products of 512 bits, of latency 4; two loads and one store of 512 bits, and six
# micro-ops begun a cycle. Source: LLVM's X86SchedSapphireRapids.td (allocation of 6, ports, FMA of
# 4 cycles) and chipsandcheese.com, "Popping the Hood on Golden Cove" (two loads of 64 bytes). That
# the second cache sustains 48 of its 64 bytes a cycle is as Intel says of Ice Lake (248966); it was
# not looked up again.
SAPPHIRE_RAPIDS = Costs(cache_bytes=(128, 48, 16))
# Four pipelines for products of 128 bits, of latency 4; three loads and two stores of 128 bits, and
# eight macro-operations dispatched a cycle. Source: Arm Neoverse V1 Core Software Optimization
# Guide (PJDOC-466751330-9685), as LLVM's AArch64SchedNeoverseV1.td has it. Graviton 3 has such
# cores.
NEOVERSE_V1 = Costs(accumulators=16, loads=3, stores=2, begun=8, cache_bytes=(48, 32, 16))
# By how the name of a processor in a Target begins.
ROWS: dict[str, Costs] = {
    "x86_64-znver3": ZEN3,
    "x86_64-znver4": ZEN4,
    "x86_64-sapphirerapids": SAPPHIRE_RAPIDS,
    "aarch64-neoverse-v1": NEOVERSE_V1,
}


def costs_of(arch: str) -> Costs:
    """The row of a processor, by its name in a Target."""
    return next((row for name, row in ROWS.items() if arch.startswith(name)), ZEN4)


@dataclass(frozen=True)
class Card:
    """Rates of one processor of a graphics card, by its documents; nobody has measured one."""

    # Multiplications with addition a clock: of float32, and of 16 bits on tensor cores.
    multiplications: int
    on_cores: int
    # Bytes a clock of local memory (CUDA C++ Programming Guide: 32 banks of 4 bytes).
    local_nbytes: int = 128
    # Work-items that it has under way at once, and bytes that memory moves at least (the same,
    # "Technical Specifications per Compute Capability"; Best Practices Guide, "Coalesced Access").
    items: int = 2048
    sector_nbytes: int = 32
    # Registers of 4 bytes that a work-item can have, and all that a processor has (the same).
    own_registers: int = 255
    registers: int = 65536
    # Multiplications that reading four bytes of other memory takes as long as. Assumed: on an A100
    # it would be 5 for all of the second cache's rate and 25 for that of memory (7,219 and 1,555
    # GB/s for 108 processors at 1.41 GHz: PMC10448217, table 3).
    far_read: float = 20.0


# 64 FP32 units a processor, and 16 times as many multiplications of 16 bits on tensor cores: 19.5
# and 312 TFLOP/s. Source: NVIDIA, "Hopper Architecture In-Depth", table of A100 and H100
# (developer.nvidia.com/blog/nvidia-hopper-architecture-in-depth).
A100 = Card(64, 1024)
# 128 FP32 units a processor, and 16 times as many on tensor cores: about 60 and 1,000 TFLOP/s.
# Source: the same table.
H100 = Card(128, 2048)


@dataclass(frozen=True)
class Assumed:
    """Costs that schedules assume of every machine: they are planned before there is a Target.

    Costs are in instructions an element, rough by intent: a choice that hangs on a factor of two is
    a choice either way.
    """

    # One more store and load of an element that stays in some cache; one more load; and what is
    # made of places alone by so little that it is as good as a load.
    store_and_load: int = 8
    extra_load: int = 2
    as_a_load: int = 4
    # Computing twice inside one kernel saves a launch and a round trip besides.
    same_kernel: int = 10
    # A launch: what it costs to have one more kernel.
    launch: int = 2000
    # Elements of work below which threads gain nothing, and rows below which a kernel that works
    # row by row cannot fill the machine (threads.md).
    small_work: int = 1 << 15
    few_rows: int = 16
    # Elements that kernels may go over column by column: what a second cache holds.
    near_elements: int = 1 << 18
    page_nbytes: int = 4096
    # Bytes of a temporary that leaves the caches before it is read, and of one that takes longer to
    # read back than to make anew (convolutions.md).
    large_nbytes: int = 4 << 20
    again_nbytes: int = 32 << 20
    # Longest row of values side by side that a kernel writes out.
    written_out: int = 8
    # Bytes of scratch of a part that stay in the second or third cache; at most, where rows are
    # long; and of all lanes together.
    part_nbytes: int = 1 << 20
    most_part_nbytes: int = 16 << 20
    lanes_nbytes: int = 64 << 20


ASSUMED = Assumed()
