"""Compiles LLVM IR in the process: IR text -> object file -> loaded functions.

Receives IR as text; returns bytes, text or addresses. Arguments of kernels, launches and caching of
objects do not belong here. llvmlite is imported on the first use, since that takes longer than
importing the rest of Aster's runtime.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from aster_ml.config import ISA
from aster_ml.errors import ArgumentError, CompileError
from aster_ml.interrupts import Held
from aster_ml.runtime.cpu.object_file import fault_of
from aster_ml.thread_state import ENGINE

# Level 0 keeps every value in memory; level 1 gives a matrix kernel its full speed and compiles in
# a quarter of the time of level 2.
CODEGEN_LEVEL = 1
# For functions that only call kernels: compiles in a fifth of the time of level 1.
QUICK_LEVEL = 0

# Prefixes of features that ISA=avx2 disables. Some processors have parts of what came after AVX2
# without AVX-512.
AVX512 = ("avx512", "avx10", "amx")
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "": (),
    "avxvnni": AVX512,
    "avx2": (*AVX512, "avxvnni", "avxifma", "avxneconvert", "gfni"),
}

# Objects in one library: twice as many are no faster to link.
MAX_TOGETHER = 16

# Libraries in one LLJIT, and the estimated bytes of a library beside its objects: pages for each
# kind of section, tables.
LIBRARIES_EACH, LIBRARY_NBYTES = 128, 44 << 10

LOCK = threading.RLock()
LIBRARY_NUMBERS = itertools.count()


class Host(NamedTuple):
    """The processor that this process runs on, as LLVM sees it."""

    triple: str
    cpu: str
    features: str
    llvm_version: str

    @property
    def machine(self) -> str:
        """The first word of the triple: "x86_64", "aarch64", "arm64", ..."""
        return self.triple.partition("-")[0]

    @property
    def key(self) -> str:
        """A word that changes whenever the same IR could compile to other machine code."""
        digest = hashlib.blake2b(repr(tuple(self)).encode(), digest_size=6).hexdigest()
        return f"{self.machine}-{self.cpu}-llvm{self.llvm_version}-{digest}"

    def has(self, feature: str) -> bool:
        """Whether the processor has a feature, by LLVM's name for it."""
        return f"+{feature}" in self.features.split(",")

    @property
    def vector(self) -> tuple[int, int]:
        """Width in bits and number of the SIMD registers; (0, 0) where none are known."""
        if self.machine in ("x86_64", "i386", "i686", "AMD64"):
            if self.has_masks:
                return 512, 32
            return (256, 16) if self.has("avx2") else (128, 16)
        if self.machine in ("aarch64", "arm64"):
            return 128, 32
        if self.machine.startswith(("powerpc64", "ppc64")):
            return 128, 32
        return 0, 0

    @property
    def move_bits(self) -> int:
        """Bits that a load or store moves at a time if fewer than a register has, else 0.

        Source: AMD, Software Optimization Guide for the Zen4 Microarchitecture (57647).
        """
        return 256 if self.cpu == "znver4" and self.vector[0] > 256 else 0

    @property
    def has_masks(self) -> bool:
        """Whether there are mask registers, and masked loads and stores.

        Source: Intel, 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 15.
        """
        return self.has("avx512f") and self.has("avx512vl")

    @property
    def broadcasts(self) -> bool:
        """Whether arithmetic takes a broadcast operand: from memory (AVX-512), a lane (Neon).

        Source: as above, section 15.3; Arm Architecture Reference Manual, FMLA (by element).
        """
        return self.has_masks or self.machine in ("aarch64", "arm64")

    @property
    def is_fused(self) -> bool:
        """Whether there is a fused multiply-add (FMA)."""
        return self.machine in ("aarch64", "arm64") or self.has("fma")

    @property
    def dot_dtypes(self) -> frozenset[str]:
        """Narrow dtypes with a dot-product instruction, or a short sequence of instructions."""
        wide = self.vector[0] == 512
        found = {"int8"} if self.has("avx512bw" if wide else "avx2") else set()
        return frozenset({*found, "bfloat16"} if wide and self.has("avx512bf16") else found)

    @property
    def simd_features(self) -> frozenset[str]:
        """Further SIMD instructions, by the names of `Target.features`."""
        has_vnni = self.has("avx512vnni" if self.vector[0] == 512 else "avxvnni")
        return frozenset({"vnni"} if has_vnni else ())


@functools.cache
def binding() -> ModuleType:
    """llvmlite's binding, with code generation for this machine set up."""
    import llvmlite.binding as llvm

    with Held():
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    module: ModuleType = llvm
    return module


def host() -> Host:
    """The host as LLVM sees it, without features that ISA disables. Raises: ArgumentError."""
    return host_within(ISA.value)


@functools.cache
def host_within(isa: str) -> Host:
    """The host for a value of ISA."""
    if isa not in LEFT_OUT:
        values = ", ".join([name for name in LEFT_OUT if name])
        raise ArgumentError(f"setting ISA is one of {values}, or empty, given {isa!r}")
    llvm = binding()
    with Held():
        has = dict(llvm.get_host_cpu_features())
        triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
    has.update(dict.fromkeys([name for name in has if name.startswith(LEFT_OUT[isa])], False))
    features = ",".join([("+" if on else "-") + name for name, on in sorted(has.items())])
    version = ".".join(str(part) for part in llvm.llvm_version_info)
    return Host(triple, cpu, features, version)


@functools.cache
def key_within(isa: str) -> str:
    """The key of the host for a value of ISA, computed once."""
    return host_within(isa).key


def host_key() -> str:
    """`host().key`."""
    return key_within(ISA.value)


def target_machine(codegen_level: int) -> Any:
    """LLVM's code generator for this processor."""
    return machine_within(ISA.value, codegen_level)


@functools.cache
def machine_within(isa: str, codegen_level: int) -> Any:
    """The target machine for a value of ISA."""
    return make_target_machine(isa, codegen_level)


def make_target_machine(isa: str, codegen_level: int) -> Any:
    """A code generator of its own: only one thread at a time may use it."""
    machine = host_within(isa)
    with Held():
        target = binding().Target.from_triple(machine.triple)
        return target.create_target_machine(
            cpu=machine.cpu, features=machine.features, opt=codegen_level, reloc="pic",
            codemodel="small", jit=True,
        )  # fmt: skip


class Home:
    """An LLJIT with up to LIBRARIES_EACH libraries.

    A freed library leaves some kilobytes in its LLJIT, which are freed with the LLJIT: once it has
    a successor, and all of its libraries are freed.
    why JITLink: an object is one block of memory. LLVM's older linker places code and tables
    separately, and ends the process where they are 2 GB apart.
    """

    __slots__ = ("lljit", "taken", "used")

    def __init__(self) -> None:
        self.lljit = binding().create_lljit_compiler(use_jit_link=True)
        # Libraries that were added, and libraries that are alive.
        self.taken = self.used = 0


# LLJITs with libraries; the last one takes new libraries. `leave` frees them, since Python frees a
# reference cycle in any order, and an LLJIT must be freed after its libraries.
HOMES: list[Home] = []


def home_for_one() -> Home:
    """The LLJIT that takes the next library."""
    if not HOMES or HOMES[-1].taken == LIBRARIES_EACH:
        HOMES.append(Home())
    return HOMES[-1]


def leave(home: Home, tracker: Any) -> None:
    """Frees a library, and its LLJIT with the last of its libraries."""
    with LOCK, Held():
        tracker.close()
        home.used -= 1
        if not home.used and home is not HOMES[-1]:
            HOMES.remove(home)
            home.lljit.close()


@contextmanager
def built_module(source: str, opt_level: int, codegen_level: int) -> Iterator[Any]:
    """IR parsed and verified, and optimised when `opt_level` is above 0; freed at the end.

    why: Python frees a reference cycle in any order, and the context must be freed last
    """
    llvm = binding()
    # A context of its own is freed with the module; the global one would grow for ever.
    with Held(), llvm.create_context() as context:
        try:
            module = llvm.parse_assembly(source, context)
        except RuntimeError as error:
            raise CompileError(f"LLVM refused generated IR: {error}") from None
        with module:
            try:
                module.verify()
            except RuntimeError as error:
                raise CompileError(f"LLVM refused generated IR: {error}") from None
            module.triple = host().triple
            module.data_layout = str(target_machine(codegen_level).target_data)
            if opt_level > 0:
                tuning = llvm.create_pipeline_tuning_options(speed_level=opt_level)
                builder = llvm.create_pass_builder(target_machine(codegen_level), tuning)
                builder.getModulePassManager().run(module, builder)
            yield module


# Functions of llvmlite's library that `aster_emit` calls, by its names for them.
CALLED = {
    "new_context": "ContextCreate",
    "parse": "ParseAssembly",
    "verify": "VerifyModule",
    "emit": "TargetMachineEmitToMemory",
    "free_module": "DisposeModule",
    "free_context": "ContextDispose",
}
SAID = ("said_by_parse", "said_by_verify", "said_by_emit")
WORDS = (*CALLED, "machine", "source", *SAID, "buffer")


class Emission(ctypes.Structure):
    """Arguments of `aster_emit`: functions of llvmlite's library, and the IR. Results: the object,
    or LLVM's message.
    """

    _fields_ = tuple(
        [(name, ctypes.c_char_p if name == "source" else ctypes.c_void_p) for name in WORDS]
    )


def read_words(base: str, begin: int, *words: str) -> str:
    """The IR that reads consecutive words from byte `begin` of `base` on: "type name".

    The address of each word is its name with `.at`.
    """
    lines = []
    for number, word in enumerate(words):
        kind, name = word.split()
        lines.append(f"%{name}.at = getelementptr i8, ptr {base}, i64 {begin + 8 * number}")
        lines.append(f"%{name} = load {kind}, ptr %{name}.at")
    return "\n  ".join(lines)


# From text to object without Python in between: a thread that returns to Python waits for the GIL,
# and a thread that holds the GIL, as verifying and freeing did, keeps the other threads waiting.
EMIT_IR = f"""
define void @aster_emit(ptr %words) {{
entry:
  {read_words("%words", 0, *[f"ptr {name}" for name in WORDS])}
  ; A context of its own is freed with the module; the global one would grow for ever.
  %context = call ptr %new_context()
  %module = call ptr %parse(ptr %context, ptr %source, ptr %said_by_parse.at)
  %unread = icmp eq ptr %module, null
  br i1 %unread, label %done, label %check
check:
  %faults = call i32 %verify(ptr %module, ptr %said_by_verify.at)
  %sound = icmp eq i32 %faults, 0
  br i1 %sound, label %write, label %free
write:
  %object = call ptr %emit(ptr %machine, ptr %module, i32 1, ptr %said_by_emit.at)
  store ptr %object, ptr %buffer.at
  br label %free
free:
  call void %free_module(ptr %module)
  br label %done
done:
  call void %free_context(ptr %context)
  ret void
}}
"""


class Entries(NamedTuple):
    """`aster_emit`, the functions that it calls, and functions that free its message and object.

    They bypass llvmlite's lock.
    why: llvmlite lets one thread at a time into LLVM, although only threads that share a context or
    a code generator must take turns. The freeing functions keep the GIL, since they are shorter
    than reacquiring it.
    """

    run: Any
    loaded: LoadedObject
    functions: tuple[int | None, ...]
    free_text: Any
    free_buffer: Any
    buffer_start: Any
    buffer_size: Any


@functools.cache
def entries() -> Entries:
    """The functions with their types."""
    library = ctypes.PyDLL(binding().ffi.lib._name)
    pointer = ctypes.c_void_p

    def entry(name: str, result: Any, *arguments: Any) -> Any:
        found = getattr(library, f"LLVMPY_{name}")
        found.restype, found.argtypes = result, arguments
        return found

    places = [getattr(library, f"LLVMPY_{name}") for name in CALLED.values()]
    with LOCK, built_module(EMIT_IR, 0, QUICK_LEVEL) as module:
        binary = bytes(target_machine(QUICK_LEVEL).emit_object(module))
    loaded = load_object(binary, "aster_emit")
    return Entries(
        ctypes.CFUNCTYPE(None, pointer)(loaded.address("aster_emit")),
        loaded,
        tuple([ctypes.cast(place, pointer).value for place in places]),
        entry("DisposeString", None, pointer),
        entry("DisposeMemoryBuffer", None, pointer),
        entry("GetBufferStart", pointer, pointer),
        entry("GetBufferSize", ctypes.c_size_t, pointer),
    )


class Generator:
    """A code generator for one thread at a time; several threads use several generators."""

    def __init__(self, isa: str, codegen_level: int) -> None:
        self.machine = make_target_machine(isa, codegen_level)
        self.address = ctypes.cast(self.machine._ptr, ctypes.c_void_p)
        with Held():
            layout = str(self.machine.target_data)
        self.head = f'target triple = "{host().triple}"\ntarget datalayout = "{layout}"\n'
        # Held while it works.
        self.lock = threading.Lock()

    def emit(self, source: str) -> bytes:
        """IR text -> object. Raises: CompileError with LLVM's message."""
        e = entries()
        words = Emission(*e.functions, self.address, (self.head + source).encode())
        with self.lock:
            e.run(ctypes.addressof(words))
        said = [getattr(words, name) for name in SAID]
        try:
            if words.buffer is None:
                text = " ".join([ctypes.string_at(w).decode() for w in said if w])
                raise CompileError(f"LLVM refused generated IR: {text}")
            return ctypes.string_at(e.buffer_start(words.buffer), e.buffer_size(words.buffer))
        finally:
            if words.buffer is not None:
                e.free_buffer(words.buffer)
            for w in said:
                if w:
                    e.free_text(w)


# (ISA, level) -> idle generators; and all generators.
IDLE_GENERATORS: dict[tuple[str, int], list[Generator]] = {}
GENERATORS: list[Generator] = []


def take_generator(isa: str, codegen_level: int) -> Generator:
    """A generator that no other thread uses."""
    with LOCK:
        at_rest = IDLE_GENERATORS.setdefault((isa, codegen_level), [])
        if at_rest:
            return at_rest.pop()
        # Each generator is listed once, or a fork would wait for its own lock.
        made = Generator(isa, codegen_level)
        GENERATORS.append(made)
        return made


def before_fork() -> None:
    """Waits until no thread is inside of LLVM, and locks all threads out.

    why: a child of a fork that happens while another thread compiles could never compile again
    """
    # The order in which compiling threads take these locks.
    ENGINE.acquire()
    LOCK.acquire()
    for g in GENERATORS:
        g.lock.acquire()


def after_fork() -> None:
    """Lets threads compile again, in either process."""
    for g in GENERATORS:
        g.lock.release()
    LOCK.release()
    ENGINE.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=after_fork)


def compile_ir(source: str, opt_level: int = 0, codegen_level: int = CODEGEN_LEVEL) -> bytes:
    """IR text -> relocatable object for this machine, in several threads at once.

    `opt_level` 0 runs no pass over the IR, only code generation; 1 to 3 run LLVM's pipelines first.
    Raises: CompileError with LLVM's words when the IR is not valid.
    """
    if opt_level == 0:
        isa = ISA.value
        generator = take_generator(isa, codegen_level)
        try:
            return generator.emit(source)
        finally:
            IDLE_GENERATORS[isa, codegen_level].append(generator)
    with LOCK, built_module(source, opt_level, codegen_level) as module:
        return bytes(target_machine(codegen_level).emit_object(module))


def assemble(source: str, opt_level: int = 0, codegen_level: int = CODEGEN_LEVEL) -> str:
    """IR text -> the assembly of the object that `compile_ir` returns."""
    with LOCK, built_module(source, opt_level, codegen_level) as module:
        return str(target_machine(codegen_level).emit_assembly(module))


class LoadedObject:
    """An object in memory, or several of them. Its addresses are valid as long as it lives."""

    __slots__ = ("addresses", "home", "nbytes", "tracker")

    def __init__(self, home: Home, tracker: Any, names: Sequence[str], nbytes: int) -> None:
        self.home = home
        self.tracker = tracker
        self.addresses: dict[str, int] = {name: tracker[name] for name in names}
        # About how much memory it takes.
        self.nbytes = nbytes

    def address(self, name: str) -> int:
        """Where the function `name` starts."""
        return self.addresses[name]

    # Bound here, since at the interpreter's end the names of a module may be gone already.
    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            leave(self.home, self.tracker)


def load_object(binary: bytes, *names: str) -> LoadedObject:
    """Links an object against the C and math libraries of the process; returns these functions.

    Raises: CompileError when a name is not defined or an external symbol does not resolve.
    """
    return load_library([binary], names)


def load_objects(objects: Sequence[tuple[Sequence[str], bytes]]) -> list[LoadedObject]:
    """Links objects, each with functions of these names; several share a library.

    why: most of the time to link is spent for each library. Its memory is freed with the last of
    its functions.
    Raises: CompileError when a name is not defined or an external symbol does not resolve.
    """
    # The numbers of the objects of each library, and all of their names.
    libraries: list[tuple[list[int], set[str]]] = []
    # Name -> the first library that may take it, since names are unique in a library.
    free: dict[str, int] = {}
    first_open = 0
    for i, (names, _) in enumerate(objects):
        while first_open < len(libraries) and len(libraries[first_open][0]) == MAX_TOGETHER:
            first_open += 1
        at = max([free.get(name, 0) for name in names], default=0)
        at = max(at, first_open)
        while at < len(libraries) and (
            len(libraries[at][0]) == MAX_TOGETHER or not libraries[at][1].isdisjoint(names)
        ):
            at += 1
        if at == len(libraries):
            libraries.append(([], set()))
        libraries[at][0].append(i)
        libraries[at][1].update(names)
        free.update(dict.fromkeys(names, at + 1))
    found: dict[int, LoadedObject] = {}
    for numbers, taken in libraries:
        loaded = load_library([objects[i][1] for i in numbers], tuple(taken))
        found.update(dict.fromkeys(numbers, loaded))
    return [found[i] for i in range(len(objects))]


def load_library(binaries: Sequence[bytes], names: tuple[str, ...]) -> LoadedObject:
    """Links objects as one library; returns these functions. Raises: CompileError."""
    for binary in binaries:
        fault = fault_of(binary, host().machine)
        if fault is not None:
            raise CompileError(f"an object could not be linked: {fault}")
    with LOCK, Held():
        try:
            return link(binaries, names)
        except RuntimeError as first:
            if not load_math_library():
                raise CompileError(f"an object could not be linked: {first}") from None
            try:
                return link(binaries, names)
            except RuntimeError as error:
                raise CompileError(f"an object could not be linked: {error}") from None


def link(binaries: Sequence[bytes], names: tuple[str, ...]) -> LoadedObject:
    """Links once; each attempt uses a new name, as LLJIT requires."""
    builder = binding().JITLibraryBuilder().add_current_process()
    for binary in binaries:
        builder.add_object_img(binary)
    for name in names:
        builder.export_symbol(name)
    home = home_for_one()
    home.taken += 1
    tracker = builder.link(home.lljit, f"aster{next(LIBRARY_NUMBERS)}")
    home.used += 1
    nbytes = LIBRARY_NBYTES + sum([len(binary) for binary in binaries])
    return LoadedObject(home, tracker, names, nbytes)


@functools.cache
def load_math_library() -> bool:
    """Loads libm's symbols where the interpreter does not have them; False without libm."""
    import ctypes.util  # it brings subprocess, and hardly any program needs it

    found = ctypes.util.find_library("m") if os.name == "posix" else None
    if found is None:
        return False
    try:
        binding().load_library_permanently(found)
    except RuntimeError:
        return False
    return True


def symbol_address(name: str) -> int:
    """The address of a C function of this process or of the system's core library; 0 if absent."""
    libraries = [ctypes.CDLL(None)] if os.name == "posix" else [ctypes.CDLL("kernel32")]
    for library in libraries:
        if hasattr(library, name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    return 0
