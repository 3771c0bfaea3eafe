"""Kernels each of which shows one decision of the default schedule, by the decision's name.

The golden table has what becomes of them for each Target; which Opts that should be is reviewed
as a diff of the table, and no test asserts it. Names say what the Opts of a CPU show, which may
hold for some Targets alone. Nothing has memory, so that sizes beyond all caches cost no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aster_ml import Tensor, dtypes
from aster_ml.dtype import DType

Work = Callable[[], list[Tensor]]


def empty(*shape: int, dtype: DType = dtypes.float32) -> Tensor:
    """Memory of which nothing is known."""
    return Tensor.empty(*shape, dtype=dtype, device="CPU")


def product(n: int, k: int, m: int, turns: str = "nn", dtype: DType = dtypes.float32) -> Tensor:
    """[n, k] @ [k, m]; t: the operand lies in memory as its transpose; of int8 in int32."""
    x = empty(n, k, dtype=dtype) if turns[0] == "n" else empty(k, n, dtype=dtype).T
    y = empty(k, m, dtype=dtype) if turns[1] == "n" else empty(m, k, dtype=dtype).T
    return x.matmul(y, dtype=dtypes.int32) if dtype is dtypes.int8 else x @ y


def increased(x: Tensor) -> Tensor:
    """Memory that is written in place."""
    return x.assign(x + 1)


def gradient(x: Tensor, pool: Callable[[Tensor], Tensor]) -> Tensor:
    """That of the sum of a pool."""
    return pool(x).sum().gradient(x)[0]


def rows_added(columns: int) -> Tensor:
    """Rows of a table to which others are added where an index says so."""
    table = empty(10, columns)
    return table[empty(5, dtype=dtypes.int32)].square().sum().gradient(table)[0]


def scattered(axis: int) -> Tensor:
    """Rows that are added up in the places that other memory names."""
    x, places = empty(256, 1000), empty(256, 1000, dtype=dtypes.int32)
    return x.scatter_reduce(axis, places, x, "sum")


def windows(c: int, side: int, size: int, **options: int) -> Tensor:
    """A convolution of each channel by itself."""
    return empty(2, c, side, side).conv2d(empty(c, 1, size, size), groups=c, **options)


def convolution(image: tuple[int, ...], weight: tuple[int, ...]) -> Tensor:
    """Without padding."""
    return empty(*image).conv2d(empty(*weight))


F64, HALF, BFLOAT, INT8 = dtypes.float64, dtypes.float16, dtypes.bfloat16, dtypes.int8

ELEMENTWISE: dict[str, Callable[[], Tensor]] = {
    "axes merge": lambda: empty(32, 64) + empty(32, 64),
    "last lanes start early": lambda: empty(9, 1955) + empty(1955),
    "few values of a row run twice": lambda: empty(90, 102) + empty(102),
    "less than one SIMD value is masked": lambda: empty(90, 7) * empty(7),
    "last steps start early": lambda: empty(8008) + empty(8008),
    "enough long chains stand side by side": lambda: empty(1 << 16).tanh().tanh().tanh(),
    "few long chains stand alone": lambda: empty(1 << 8).tanh().tanh().tanh(),
    "repeats are interleaved": lambda: empty(16, 32).repeat_interleave(2, 1) + 1,
    "masks of a row serve several rows": lambda: (empty(8, 16, 14, 14) + 1).pad((1, 1, 1, 1)),
    "rows share their divisors": lambda: (empty(523, 1560) / empty(1, 1560)).sqrt(),
    "random numbers have lanes of words": lambda: Tensor.rand(4096, device="CPU"),
    "results beyond the caches stream": lambda: empty(4096, 2048) + 1,
    "results in the caches do not": lambda: empty(256, 256) + 1,
    "what is updated in place does not": lambda: increased(empty(4096, 2048)),
    "values of a stack stand alone": lambda: stacked(),
    "adding rows has lanes where places differ": lambda: rows_added(64),
    "scattered columns are shared out": lambda: scattered(0),
    "scattered rows are shared out": lambda: scattered(1),
    "gathered elements have lanes of indices": lambda: gathered(),
    "rows at loaded places are whole": lambda: empty(100, 64)[empty(300, dtype=dtypes.int32)],
    "most accesses lie in a row": lambda: (
        gathered() * empty(64, 512) + empty(64, 512) + empty(1, 512)
    ),
}  # fmt: skip

TRANSPOSES: dict[str, Callable[[], Tensor]] = {
    "small transpose": lambda: empty(64, 48).T,
    "transpose of any size has no gathers": lambda: empty(129, 161).T,
    "transpose past the caches streams": lambda: empty(2048, 4096).T,
    "transpose to rows that are no lines": lambda: empty(2049, 4096).T,
    "transpose of short rows": lambda: empty(262144, 100).T,
    "channels last": lambda: empty(256, 32, 64, 64).permute(0, 2, 3, 1),
}

PRODUCTS: dict[str, Callable[[], Tensor]] = {
    "rows of a tile in the ways of a cache": lambda: product(16, 4096, 4096, "nt"),
    "rows of a tile in all its sets": lambda: product(16, 512, 4096, "nt"),
    "few columns of short sums": lambda: empty(20, 45, 20) @ empty(20, 5, 20).transpose(1, 2),
    "loops that load less again": lambda: product(221, 891, 2962, "tn", F64),
    "narrow product starts early": lambda: product(1231, 29, 4, "nt"),
    "few results by whole rows": lambda: product(3, 1 << 15, 1200),
    "few results of a near matrix": lambda: product(3, 600, 1000),
    "columns of a large matrix": lambda: product(26, 1 << 15, 1200),
    "columns of a small one": lambda: product(26, 64, 1200),
    "lanes along far columns": lambda: product(2845, 4096, 512, "tt"),
    "register tile": lambda: product(64, 65, 64),
    "tile of a prime number of rows": lambda: product(67, 64, 64),
    "panels stay whole for threads": lambda: product(67, 400, 288),
    "too small for threads": lambda: product(16, 16, 16),
    "large enough for threads": lambda: product(256, 256, 257),
    "far operand is packed": lambda: product(512, 512, 520),
    "long reduction is blocked": lambda: product(64, 12000, 256),
    "long lanes have a panel": lambda: product(74, 2053, 101, "nt"),
    "lanes of what follows": lambda: product(8, 256, 1024, "nt").gelu(),
    "wide tile of few rows": lambda: product(3, 955, 1735),
    "large matrix is read where it lies": lambda: product(50, 4096, 4096),
    "product streams nothing": lambda: product(2048, 64, 2048),
    "rows that are broadcast": lambda: product(8192, 2048, 64),
    "columns that are broadcast": lambda: product(4096, 4000, 64, "tn"),
    "no room to ask": lambda: product(8192, 2048, 8),
    "strips of colliding columns": lambda: product(768, 1536, 768, "tn"),
    "columns in all places": lambda: product(780, 1536, 768, "tn"),
    "rows of a vector ask": lambda: empty(16384, 2048) @ empty(2048),
    "batch has panels": lambda: empty(31, 56, 121) @ empty(31, 121, 6),
    "lanes of sums are one value": lambda: product(32, 64, 4),
    "int8 in words": lambda: product(64, 129, 64, dtype=INT8),
    "bfloat16 in words": lambda: product(64, 129, 64, dtype=BFLOAT),
    "float16 in words": lambda: product(64, 129, 64, dtype=HALF),
    "few int8 without words": lambda: product(4, 4, 4, dtype=INT8),
    "narrow by wide in words": lambda: empty(33, 70) @ empty(70, 21, dtype=INT8).cast("float32"),
    "few rows of bfloat16": lambda: product(3, 866, 70, "nt", BFLOAT),
    "rows of bfloat16 beyond a cache": lambda: product(107, 2852, 22, "nt", BFLOAT),
    "words filled in parts": lambda: product(700, 300, 320, "nn", HALF),
}

CONVOLUTIONS: dict[str, Callable[[], Tensor]] = {
    "far lanes are gathered into a panel": lambda: convolution((4, 8, 21, 21), (32, 8, 5, 5)),
    "lanes lie side by side": lambda: convolution((8, 221, 47, 47), (66, 221, 2, 2)),
    "padded windows have a slab": lambda: windows(32, 50, 5, padding=2),
    "strided windows have a slab": lambda: windows(32, 50, 5, stride=2, padding=1),
    "plain windows have none": lambda: windows(32, 50, 5),
    "long rows go through a panel": lambda: convolution((1, 512, 24000), (512, 512, 3)),
    "short rows do not": lambda: convolution((1, 512, 1200), (512, 512, 3)),
    "overlapping windows along lanes": lambda: empty(2, 3, 24, 24).avg_pool2d(3, 1, padding=1),
    "phases of a pool's gradient": lambda: gradient(
        empty(2, 3, 28, 28), lambda x: x.avg_pool2d(3, stride=2, padding=1)
    ),
    "many phases in one direction": lambda: gradient(
        empty(1, 2, 68, 68), lambda x: x.avg_pool2d(11, stride=4, padding=2)
    ),
}

REDUCTIONS: dict[str, Callable[[], Tensor]] = {
    "lanes along a row": lambda: empty(64, 256).sum(1),
    "lanes across columns": lambda: empty(256, 64).sum(0),
    "accumulators of a maximum": lambda: empty(4, 16 * 13 * 20 + 5).max(1),
    "accumulators beside a sum": lambda: empty(64, 4096).logsumexp(1),
    "accumulators of all": lambda: empty(1 << 14).max(),
    "accumulators of a whole sum": lambda: empty(1 << 14).sum(),
    "long code has one accumulator": lambda: (
        empty(128).sin() - empty(128, 10).square().sum(1)
    ).sum(),
    "streamed rows stay whole": lambda: empty(1024, 1024).sum(0),
    "streamed rows of any number": lambda: empty(67, 700).max(0),
    "short columns in one tile": lambda: empty(64, 32).sum(0),
    "rows from memory ask": lambda: empty(16384, 2048).sum(0),
    "long sums are sums of sums": lambda: empty(2, 1 << 14).sum(1),
    "shorter ones are plain": lambda: empty(2, 1 << 10).sum(1),
    "what is over is peeled": lambda: empty(64, 1063).sum(1),
    "nothing is over": lambda: empty(64, 1056).sum(1),
    "short rows of sums are masked": lambda: empty(300, 70, 27).sum(1),
    "short row side by side": lambda: empty(300, 27).sum(0),
    "short row that loops read": lambda: short_rows(),
    "channels side by side": lambda: empty(48, 29, 4, 4).sum((0, 2, 3)),
    "channels with lanes of their own": lambda: empty(8, 128, 14, 14).sum((0, 2, 3)),
    "channels end in one fold": lambda: empty(64, 32, 23, 23).sum((0, 2, 3)),
    "short rows are written out": lambda: empty(1001, 7).sum(1),
    "short rows share a row": lambda: (empty(1001, 8) + empty(8)).max(1),
    "longer rows have lanes": lambda: empty(300, 33).sum(1),
    "parts of rows are not gathered": lambda: empty(300, 64)[:, :3].sum(1),
}

ROWS: dict[str, Callable[[], Tensor]] = {
    "next row is folded beside": lambda: empty(64, 512).log_softmax(),
    "deviations of rows too long for two": lambda: empty(64, 3072).layernorm(),
    "sums of sums share both loops": lambda: empty(64, 4096).std(1),
    "powers hide where rows come from": lambda: empty(64, 3072).softmax(),
    "two rows do not fit": lambda: empty(64, 8192).softmax(),
    "stores wait for the next row": lambda: empty(16384, 2048).softmax(),
    "three bodies divide a row": lambda: empty(16384, 1008).softmax(),
    "rows read again are asked for": lambda: empty(16384, 2048).layernorm(),
    "short rows are not": lambda: empty(65536, 64).softmax(),
    "stores that read rows do not wait": lambda: empty(16384, 2048).softmax() * empty(16384, 2048),
}

DECISIONS = {
    "elementwise": ELEMENTWISE,
    "transpose": TRANSPOSES,
    "product": PRODUCTS,
    "convolution": CONVOLUTIONS,
    "reduction": REDUCTIONS,
    "rows": ROWS,
}


def stacked() -> Tensor:
    """Columns of one memory as rows."""
    x = empty(160, 16, 6)
    rows = [x[:, :, i] * 2 for i in range(4)]
    return rows[0].stack(*rows[1:], dim=0) + 1


def gathered() -> Tensor:
    """Elements of each row."""
    return empty(64, 512).gather(1, empty(64, 512, dtype=dtypes.int32))


def short_rows() -> Tensor:
    """What is over the least of each column."""
    x = empty(1001, 24)
    return x - x.max(0)


def of_decisions() -> Iterator[tuple[str, Work]]:
    """All of them, by kind and name."""
    for kind, made in DECISIONS.items():
        for name, work in made.items():
            yield f"{kind}: {name}", lambda work=work: [work().contiguous()]  # type: ignore[misc]
