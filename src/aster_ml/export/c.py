"""Writes a plan as C: one source file and its header.

Receives a `Plan` for a target of the language "c"; returns texts. The C is that of `renderer/c`
with typed parameters: C99 where the target has no SIMD, else with the vector extension that GCC and
Clang share. Which files there are, and what compiles them, is decided elsewhere.
"""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from aster_ml import __version__
from aster_ml.dtype import DType, dtypes
from aster_ml.export.assets import asset
from aster_ml.export.plan import Blob, Copy, Place, Plan, offsets_of
from aster_ml.export.trace import Value
from aster_ml.export.weights import fingerprint, header_of
from aster_ml.extend import BIT_DTYPES, CRenderer, CWriter, c_type
from aster_ml.target import PLAIN_OPS, Target
from aster_ml.uop.linear import Linear

# Where weights and temporaries may begin: what the widest SIMD loads like best.
ALIGNMENT = 64
# Words that are no names in C, and names that the generated source has.
RESERVED = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if
    inline int long register restrict return short signed sizeof static struct switch typedef union
    unsigned void volatile while bool true false NULL model arena weights states path file found
    """.split()
)


# Bodies of functions of a uint16_t, a float and a double x. The last gives a float between, with an
# odd last bit, which no later rounding takes for a tie.
FROM_HALF, TO_HALF, TO_ODD = (
    asset(f"native/{name}.c").rstrip() for name in ("from_half", "to_half", "to_odd")
)


class Isa(NamedTuple):
    """Vector instructions of a processor: bits and number of its SIMD registers, compiler flags."""

    vector_bits: int
    registers: int
    flags: str


# "plain" is C99 and nothing else. Vectors of 16 bytes run on every processor: compilers take them
# apart where it has none.
ISAS = {
    "baseline": Isa(128, 16, ""),
    "plain": Isa(0, 0, ""),
    "avx2": Isa(256, 16, "-mavx2 -mfma"),
    "avx512": Isa(512, 32, "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma"),
    "native": Isa(256, 16, "-march=native"),
}


def c_target(isa: str) -> Target:
    """A machine with one thread that runs C with SIMD of this kind, a name of `ISAS`."""
    known = ISAS[isa]
    return Target(
        "CPU", "c", arch=f"export-{isa}", vector_bits=known.vector_bits,
        vector_registers=known.registers, native_ops=PLAIN_OPS,
    )  # fmt: skip


class KernelWriter(CWriter):
    """Writes a kernel as a static function with typed parameters."""

    def prologue(self) -> None:
        """Parameters in place of an array of addresses."""
        self.head: list[str] = []
        self.streams = False
        self.parameters: list[str] = []
        for slot, p in enumerate(self.linear.params):
            const = "" if p.arg.slot in self.linear.written else "const "
            self.names[p] = f"buf{slot}"
            self.parameters.append(f"{const}{self.type_of(p.dtype, 1)} *buf{slot}")
        for v in self.linear.variables:
            name = self.name_variable(v)
            self.parameters.append(f"{self.type_of(v.dtype, 1)} {name}")

    def whole_function(self) -> list[str]:
        """The function alone."""
        _, *lines = super().whole_function()
        head = f"static void {self.linear.name}({', '.join(self.parameters)}) {{"
        return [*textwrap.wrap(head, 100, subsequent_indent="    "), *lines]

    # Halves are integers here: not every compiler, and few processors, have the type.

    def is_bits(self, dtype: DType) -> bool:
        """Every dtype that C99 lacks."""
        return dtype in BIT_DTYPES

    def from_bits(self, value: str, source: DType, n: int) -> str:
        """Of a half: its exponent and fraction as those of a float, scaled by a power of two."""
        if source is not dtypes.float16:
            return super().from_bits(value, source, n)
        name = self.scalar_helper("half_to_float", dtypes.float32, "uint16_t x", FROM_HALF)
        return self.each(name, dtypes.float32, n, [value], [source])

    def to_bits(self, value: str, source: DType, dtype: DType, n: int) -> str:
        """The nearest half, the even one of two."""
        if dtype is not dtypes.float16:
            return super().to_bits(value, source, dtype, n)
        if source is dtypes.float64:
            kept = self.scalar_helper("float_to_odd", dtypes.float32, "double x", TO_ODD)
            value = self.each(kept, dtypes.float32, n, [value], [source])
        elif source is not dtypes.float32:
            if source is dtypes.bool and n > 1:
                value, source = f"(-{value})", dtypes.int8
            # Integers that a float rounds are infinite as halves.
            value = self.convert(value, source, dtypes.float32, n)
        name = self.scalar_helper("float_to_half", dtypes.uint16, "float x", TO_HALF)
        return self.each(name, dtypes.uint16, n, [value], [dtypes.float32])


class KernelRenderer(CRenderer):
    """Kernels as static functions."""

    writer = KernelWriter


def kernel_texts(target: Target, kernels: list[Linear]) -> list[str]:
    """Includes, helpers, and a function for each kernel."""
    return KernelRenderer(target).render_all(kernels, []).split("\n")


def described(value: Value) -> str:
    """A value in a comment: its sizes, dtype and bytes."""
    shape = " x ".join(map(str, value.shape)) or "one number"
    known = value.dtype.name
    as_bits = f", as bits in {c_type(value.dtype)}" if value.dtype in BIT_DTYPES else ""
    return f"{value.name}: {shape}, {known}{as_bits}, {value.nbytes} bytes"


def parameters(plan: Plan) -> str:
    """The inputs and outputs of the function as parameters."""
    given = [f"const {c_type(v.dtype)} *{v.name}" for v in plan.inputs]
    return ", ".join([*given, *[f"{c_type(v.dtype)} *{v.name}" for v in plan.outputs]])


def header_text(plan: Plan, inside: bool) -> str:
    """NAME.h: what a caller needs."""
    name, guard = plan.name, f"{plan.name.upper()}_H"
    weights = f"{plan.weight_nbytes:,} bytes of weights"
    path = "void" if inside else "const char *path"
    kept = (
        "It keeps values from call to call: one thread at a time may run one model, and each\n"
        " * thread may have its own."
        if plan.states
        else "Any number of threads may run the same model at once."
    )
    whence = (
        "the weights are inside."
        if inside
        else f"reads {weights} from the file\n * {name}.safetensors at `path`."
    )
    inputs = "".join([f" *   {described(v)}\n" for v in plan.inputs])
    outputs = "".join([f" *   {described(v)}\n" for v in plan.outputs])
    return asset(
        "native/model.h", NAME=name, VERSION=__version__, INPUTS=inputs, OUTPUTS=outputs,
        GUARD=guard, WHENCE=whence, PATH=path, KEPT=kept, RUN=run_head(plan, ";"),
        ARENA=f"{plan.arena_nbytes:,}",
    )  # fmt: skip


def run_head(plan: Plan, end: str) -> str:
    """The head of the function that runs a model, in lines; `end` is what follows it."""
    head = f"int {plan.name}_run({plan.name}_model *model, {parameters(plan)}){end}"
    return "\n".join(textwrap.wrap(head, 100, subsequent_indent="    "))


class Source:
    """Writes NAME.c."""

    def __init__(self, plan: Plan, inside: bool) -> None:
        self.plan = plan
        self.inside = inside
        self.weights, self.weight_nbytes = offsets_of(plan.weights, ALIGNMENT)
        self.states, self.state_nbytes = offsets_of(plan.states, ALIGNMENT)

    def text(self) -> str:
        """The whole file."""
        plan = self.plan
        # Functions that are inlined pass vectors in no particular way.
        quiet = [
            "#if defined(__GNUC__) && !defined(__clang__)",
            '#pragma GCC diagnostic ignored "-Wpsabi"',
            "#endif",
        ]
        lines = [
            f"/* {plan.name}: exported by Aster ML {__version__}. {plan.name}.h says what it is.",
            f" * {len(plan.kernels)} kernels, {len(plan.steps)} steps, {plan.weight_nbytes:,} "
            f"bytes of weights, {plan.arena_nbytes:,} of temporaries. */",
            f'#include "{plan.name}.h"',
            "",
            "#include <stdio.h>",
            "#include <stdlib.h>",
            "#include <string.h>",
            *(quiet if plan.target.vector_bits else []),
            *kernel_texts(plan.target, plan.kernels),
            *self.steps(),
            "",
            *self.blocks(),
            self.model(),
        ]
        return "\n".join(lines)

    def pointer(self, place: Place, kind: str) -> str:
        """A place as a pointer to elements of a type."""
        if place.region in ("input", "output"):
            values = self.plan.inputs if place.region == "input" else self.plan.outputs
            value = values[place.number]
            if not place.offset and kind in (c_type(value.dtype), "void"):
                return value.name
            const = "const " if place.region == "input" else ""
            byte = f"({const}char *){value.name} + {place.offset}"
            return f"({const}{kind} *)({byte})"
        name, at = place.region, place.offset
        if name != "arena":
            at += (self.weights if name == "weight" else self.states)[place.number]
            name += "s"
        const = "const " if name == "weights" else ""
        return f"({const}{kind} *)({name} + {at})"

    def steps(self) -> list[str]:
        """The function that launches kernels in order."""
        plan = self.plan
        head = (
            f"static void {plan.name}_steps(const unsigned char *weights, unsigned char *states, "
            f"unsigned char *arena, {parameters(plan)}) {{"
        )
        lines = [*textwrap.wrap(head, 100, subsequent_indent="    ")]
        lines.append("  (void)weights, (void)states, (void)arena;")
        for step in plan.steps:
            if isinstance(step, Copy):
                to, source = (self.pointer(place, "void") for place in step)
                call = f"memcpy({to}, {source}, {step.source.nbytes});"
            else:
                linear = plan.kernels[step.kernel]
                kinds = [c_type(p.dtype) for p in linear.params]
                args = [self.pointer(p, k) for p, k in zip(step.places, kinds, strict=True)]
                call = f"{linear.name}({', '.join([*args, *map(str, step.variables)])});"
            lines += textwrap.wrap(
                call, 100, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
            )
        return [*lines, "}"]

    def blocks(self) -> list[str]:
        """Weights and first states that stand in the source."""
        lines = []
        if self.inside and self.plan.weights:
            lines += words("weights", self.plan.weights, self.weight_nbytes)
        if self.plan.states:
            lines += words("first_states", self.plan.states, self.state_nbytes)
        return lines

    def model(self) -> str:
        """The functions that a caller sees."""
        plan, name = self.plan, self.plan.name
        reads = bool(plan.weights) and not self.inside
        weights = "  model->weights = NULL;\n"
        if reads:
            weights = (
                f"  unsigned char *weights = model->states + {self.state_nbytes};\n"
                f"  if (!{name}_read(path, weights)) {{ {name}_free(model); return NULL; }}\n"
                "  model->weights = weights;\n"
            )
        elif plan.weights:
            weights = "  model->weights = (const unsigned char *)weights;\n"
        states = f"  memcpy(model->states, first_states, {self.state_nbytes});\n"
        return asset(
            "native/model.c", NAME=name, READER=self.reader() if reads else "",
            PATH="void" if self.inside else "const char *path",
            UNUSED="" if self.inside or reads else "  (void)path;\n",
            NBYTES=str((self.weight_nbytes if reads else 0) + self.state_nbytes + ALIGNMENT),
            ALIGNMENT=str(ALIGNMENT), WEIGHTS=weights, STATES=states if plan.states else "",
            RUN=run_head(plan, " {"), ARENA=str(plan.arena_nbytes + ALIGNMENT),
            GIVEN=", ".join([v.name for v in [*plan.inputs, *plan.outputs]]),
        )  # fmt: skip

    def reader(self) -> str:
        """The function that reads the weights."""
        plan = self.plan
        header = header_of(plan.name, plan.weights)
        rows = [
            f"{{{at}, {len(blob.data)}}}"
            for at, blob in zip(self.weights, plan.weights, strict=True)
        ]
        table = textwrap.wrap(f"{', '.join(rows)}", 96, initial_indent="  ", subsequent_indent="  ")
        return asset(
            "native/reader.c", NAME=plan.name, PARTS="\n".join(table),
            HEADER_NBYTES=str(len(header)), DIGEST=f"{fingerprint(header):x}",
        )  # fmt: skip


def words(name: str, blobs: list[Blob], nbytes: int) -> list[str]:
    """Blobs as one array of words, which the compiler reads faster than bytes."""
    block = bytearray(nbytes)
    for at, blob in zip(offsets_of(blobs, ALIGNMENT)[0], blobs, strict=True):
        block[at : at + len(blob.data)] = blob.data
    found = [int.from_bytes(block[i : i + 8], "little") for i in range(0, nbytes, 8)]
    rows = [found[i : i + 4] for i in range(0, len(found), 4)]
    return [
        f"static const uint64_t {name}[{len(found)}] __attribute__((aligned({ALIGNMENT}))) = {{",
        *[f"  {', '.join([f'0x{word:x}u' for word in row])}," for row in rows],
        "};",
        "",
    ]
