"""Functions of rows, one after the other: what the default schedule pipelines fits its loops.

Each case draws rows, what is computed of them (norms, softmaxes, statistics, several in a row) and
a target. The schedule is chosen before the kernel is lowered: a PIPELINE whose loops do not fit
would be refused here. Its program is well formed, and the same by its own Opts. Of any part of the
rows, as threads have them, it stores to the last bit what it does where nothing is pipelined.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from aster_ml import Context, Tensor, dtypes
from aster_ml.codegen.opts import Opt, OptOps, parse_opts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.device import Device
from aster_ml.engine import storage
from aster_ml.engine.compile import compile_kernel
from aster_ml.engine.realize import schedule_uops
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import RunArg
from aster_ml.uop.spec.verify import verify
from tests.core.golden.kernels import TARGETS
from tests.core.kernel_checks import SMALL_CACHES, kernel_of, memory, run_parts
from tests.fuzz.budget import check_all, draws

WIDE = TARGETS["avx512"]
ALL = (
    *[target for target in TARGETS.values() if target.is_cpu],
    replace(TARGETS["avx2"], cache_bytes=(64 << 10, 1 << 20, 32 << 20)),
    replace(WIDE, cache_bytes=(32 << 10, 1 << 20, 2 << 20)),
    replace(WIDE, cache_bytes=(8 << 10, 64 << 10, 256 << 10)),
)
# Their programs run on any processor.
SMALL = (SMALL_CACHES, replace(SMALL_CACHES, cache_bytes=(32 << 10, 1 << 20, 32 << 20)))
LANES = "VECTOR(r1,8) VECTOR(r2,8) VECTOR(r3,8)"
ROWS = (1, 2, 3, 7, 8, 33, 64, 127, 256, 1000)
COLUMNS = (1, 2, 3, 7, 16, 17, 31, 64, 100, 127, 128, 129, 257, 512, 768, 1023, 1024, 3000, 8192)
FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.softmax(),
    lambda x: x.log_softmax(),
    lambda x: x.layernorm(),
    lambda x: x / (x * x).mean(-1, keepdim=True).sqrt(),
    lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
    lambda x: x.std(-1),
    lambda x: x.logsumexp(-1),
    lambda x: x * x.max(-1, keepdim=True) + x.min(-1, keepdim=True),
    lambda x: x.exp().sum(-1, keepdim=True) * x.sum(-1, keepdim=True) + x,
    lambda x: x.abs().max(-1, keepdim=True) * x,
    lambda x: (x * x).sum(-1) / (x.sum(-1) + 2),
    lambda x: x.half().float().softmax(),
    lambda x: x.softmax().half(),
    lambda x: x.relu(),
)


def numbered(x: Tensor) -> Tensor:
    """Results that take more of a row than one number, and the number of the row itself."""
    e = (x - x.max(1, keepdim=True)).exp()
    s = e.sum(1, keepdim=True)
    return e / s + s + Tensor.arange(x.shape[0]).reshape(-1, 1)


# Rows of these wait in scratch, so that stores can be late.
KEPT: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.softmax(), numbered, lambda x: x.softmax().half(), lambda x: x.double().softmax(),
)  # fmt: skip


def drawn(rng: random.Random) -> list[UOp]:
    """The kernels of some functions of rows, one after the other."""
    columns = rng.choice(COLUMNS)
    rows = rng.choice(ROWS) if columns <= 1024 else 8
    dtype = rng.choice((dtypes.float32, dtypes.float32, dtypes.float64, dtypes.float16))
    batch = [rng.choice((2, 3, 4))] if rng.random() < 0.3 else []
    x = Tensor.empty(*batch, rows, columns, dtype=dtype, device="CPU").float()
    if rng.random() < 0.15:
        x = x.transpose(-2, -1)
    if rng.random() < 0.2:
        x = x.pad((*[(0, 0)] * (x.ndim - 1), (rng.choice((0, 1, 3)), rng.choice((1, 5)))))
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        x = rng.choice(FUNCTIONS)(x)
        if x.ndim < 2:
            break
    schedule, _ = schedule_uops([x.contiguous().uop])
    asts = [step.ast for step in schedule.steps if step.ast is not None]
    return [k for ast in asts for k in (ast.src if isinstance(ast.arg, RunArg) else (ast,))]


def wrong_with(ast: UOp, target: Target) -> str | None:
    """What is wrong with the default schedule of a kernel; None where nothing is."""
    linear, opts = lower(ast, target)
    verify(linear, "linear")
    if opts != tuple(schedule_kernel(ast, target).applied):
        return f"other Opts were chosen than {opts}"
    return None if lower(ast, target, opts)[0] == linear else f"another program by its own {opts}"


def test_what_is_pipelined_by_the_cost_fits(record_property: Callable[[str, str], None]) -> None:
    pipelined = []

    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        for ast in drawn(rng):
            target = rng.choice(ALL)
            wrong = wrong_with(ast, target)
            if wrong is not None:
                return wrong
            kinds = [opt.kind for opt in schedule_kernel(ast, target).applied]
            pipelined.extend([kind for kind in kinds if kind.startswith("PIPELINE")])
        return None

    seeds = draws(40, 4000)
    check_all("schedules of rows", seeds, check, record_property)
    assert pipelined or len(seeds) < 40


def pipelined_in_chunks(seed: int) -> str | None:
    """What is wrong with rows whose stores and folds are pipelined in chunks of threads."""
    rng = random.Random(seed)
    rows, columns = rng.randint(2, 40), rng.choice((32, 64, 256))
    x, out = memory(rows, columns), Tensor.full((rows, columns), float("nan")).contiguous()
    kinds = [f"PIPELINE(r0,0,{how})" for how in ("stores", "folds") if rng.random() < 0.7]
    text = f"STAGE(r3,r1,row) {LANES} {' '.join(kinds)} THREAD(r0,{rng.randint(1, rows)})"
    ast = kernel_of(x.softmax())
    compiled = compile_kernel(ast, Device["CPU"], parse_opts(text))
    handles = [storage.buffer_of(t.uop.base).ensure_allocated().handle for t in (out.realize(), x)]
    compiled.program(tuple(handles), (), compiled.launch)
    numbers = x.numpy().astype(np.float64)
    want = np.exp(numbers - numbers.max(1, keepdims=True))
    want /= want.sum(1, keepdims=True)
    right = np.allclose(out.numpy(), want, atol=1e-6)
    return None if right else f"{text} of {rows} rows of {columns} is wrong"


def test_rows_are_pipelined_within_chunks_of_threads(
    record_property: Callable[[str, str], None],
) -> None:
    seeds = draws(12, 400)
    check_all("rows pipelined in chunks", seeds, pipelined_in_chunks, record_property)


def wrong_part(seed: int, pipelined: list[str]) -> str | None:
    """What rows that the default schedule pipelines make otherwise than if they were not."""
    rng = random.Random(seed)
    rows, columns = rng.choice((2, 3, 7, 8, 20)), rng.choice((256, 512, 768, 1000, 1024, 2048))
    x, out = memory(rows, columns), rng.choice((*FUNCTIONS, *KEPT, *KEPT))
    schedule, _ = schedule_uops([out(x).contiguous().uop])
    asts = [step.ast for step in schedule.steps if step.ast is not None]
    opts = schedule_kernel(asts[0], rng.choice(SMALL)).applied
    found = [opt for opt in opts if opt.op is OptOps.PIPELINE]
    if not found or len(asts) > 1:
        return None
    pipelined += [opt.kind for opt in found]
    threads, apart = Opt(OptOps.THREAD, found[0].axis), [opt for opt in opts if opt not in found]
    like = np.zeros(out(x).shape, out(x).numpy().dtype)
    first = rng.randrange(rows)
    parts = [(0, rows), (first, rng.randint(first, rows)), (rows, rows)]
    with Context(CLANG=rng.randint(0, 1)):
        have, want = [
            [*run_parts(asts[0], (*some, threads), x, like, parts)] for some in (opts, apart)
        ]
    same = all(map(np.array_equal, have, want))
    return None if same else f"{opts} of {rows} x {columns}: parts {parts} are not the same"


def test_any_part_of_pipelined_rows_is_the_same_to_the_last_bit(
    record_property: Callable[[str, str], None],
) -> None:
    seeds, pipelined = draws(24, 1000), list[str]()
    check_all("parts of rows", seeds, lambda seed: wrong_part(seed, pipelined), record_property)
    assert pipelined or len(seeds) < 24
