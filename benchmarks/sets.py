"""Sets of random cases, so that nothing is tuned to a list of rows.

Everything is drawn from one seed, here and nowhere else; a case is plain data that any process can
run. What the cases compute stands in `drawn`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from benchmarks.row import Row

DEFAULT_SEED = 4
# Sizes of a set in full, and what the quick form takes of it.
COUNTS = {"matmuls": 40, "convolutions": 30, "reductions": 20, "mixes": 20}
OTHER_DTYPES = {"float16": 8, "bfloat16": 8, "float64": 8, "int8": 8}
QUICK_CASES = 3
# Keeps a call within some tens of milliseconds, and the whole run within its time.
MAX_FLOPS, MAX_ELEMENTS = 4e9, 3 << 20
# Rounding of narrow types, as it shows in means of results.
TOLERANCES = {"float16": 5e-3, "bfloat16": 2e-2}
# NumPy multiplies these without a BLAS, in minutes.
NO_NUMPY = ("float16", "bfloat16", "int8")
LIBRARIES = ("torch", "jax", "numpy")

Params = dict[str, Any]


def log_uniform(rng: random.Random, low: int, high: int) -> int:
    """Small sizes as often as large ones."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def sizes(rng: random.Random, form: str) -> tuple[int, int, int, int]:
    """Batch, rows, columns, depth of a product of some form."""
    if form == "tall":
        return 1, rng.randint(500, 3000), log_uniform(rng, 1, 64), log_uniform(rng, 16, 1024)
    if form == "wide":
        return 1, log_uniform(rng, 1, 64), rng.randint(500, 3000), log_uniform(rng, 16, 1024)
    if form == "deep":
        return 1, log_uniform(rng, 4, 128), log_uniform(rng, 4, 128), rng.randint(500, 3000)
    if form == "batched":
        side = [log_uniform(rng, 4, 300) for _ in range(3)]
        return rng.randint(2, 32), side[0], side[1], side[2]
    if form == "round":
        side = [64 * rng.randint(1, 24) for _ in range(3)]
        return 1, side[0], side[1], side[2]
    if form == "any":
        return 1, rng.randint(1, 3000), rng.randint(1, 3000), rng.randint(1, 3000)
    side = [log_uniform(rng, 1, 3000) | (form == "odd") for _ in range(3)]
    return 1, side[0], side[1], side[2]


FORMS = ("any", "odd", "tall", "wide", "deep", "batched", "round", "small")


def draw_matmul(rng: random.Random, number: int, dtype: str = "float32") -> tuple[Params, float]:
    """A product, and its floating-point operations."""
    while True:
        form = FORMS[number % len(FORMS)]
        # PyTorch multiplies int8 into int32 for two matrices only.
        if dtype == "int8" and form == "batched":
            form = "odd"
        b, m, n, k = sizes(rng, form)
        if 1e5 <= 2.0 * b * m * n * k <= MAX_FLOPS:
            break
    turned = [rng.random() < 0.35, rng.random() < 0.35] if dtype != "int8" else [False, False]
    params = {"b": b, "m": m, "n": n, "k": k, "turned": turned, "dtype": dtype}
    return params, 2.0 * b * m * n * k


def draw_conv(rng: random.Random, number: int) -> tuple[Params, float]:
    """A convolution, and its floating-point operations."""
    while True:
        kernel = (1, 2, 3, 3, 4, 5, 6, 7)[number % 8]
        stride, dilation = rng.choice((1, 1, 1, 2, 3)), rng.choice((1, 1, 1, 2))
        groups = ("one", "one", "some", "one", "each")[number % 5]
        side = log_uniform(rng, 7, 112)
        batch = rng.choice((1, 1, 2, 4, 8))
        if groups == "each":
            count = c_in = c_out = rng.choice((16, 24, 32, 64, 96, 144, 256))
        elif groups == "some":
            count = rng.choice((2, 3, 4, 8))
            c_in, c_out = count * rng.randint(2, 24), count * rng.randint(2, 24)
        else:
            count, c_in, c_out = 1, log_uniform(rng, 1, 256), log_uniform(rng, 4, 256)
        padding = rng.choice((0, (kernel * dilation - dilation) // 2))
        out = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        flops = 2.0 * batch * c_out * out * out * (c_in // count) * kernel * kernel
        if out >= 1 and 1e5 <= flops <= MAX_FLOPS:
            break
    params = {
        "x": [batch, c_in, side, side],
        "w": [c_out, c_in // count, kernel, kernel],
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": count,
    }
    return params, flops


REDUCTIONS = ("sum", "max", "mean", "softmax", "norm", "logsumexp", "standardize", "rms")


def draw_shape(rng: random.Random, dims: int, limit: int = MAX_ELEMENTS) -> list[int]:
    """Sizes of so many axes, a good part of the limit together."""
    longest = limit if dims == 1 else 3000
    while True:
        shape = [log_uniform(rng, 2, longest) for _ in range(dims)]
        if limit // 64 <= math.prod(shape) <= limit:
            return shape


def draw_reduction(rng: random.Random, number: int) -> tuple[Params, float]:
    """A reduction or norm over any axes, and the bytes that it has to read and write."""
    kind = REDUCTIONS[number % len(REDUCTIONS)]
    shape = draw_shape(rng, rng.choice((1, 2, 2, 3, 3, 4)))
    count = rng.randint(1, len(shape))
    axes = sorted(rng.sample(range(len(shape)), 1 if kind == "softmax" else count))
    kept = math.prod(s for i, s in enumerate(shape) if i not in axes)
    same = kind in ("softmax", "standardize", "rms")
    nbytes = 4.0 * (math.prod(shape) + (math.prod(shape) if same else kept))
    return {"kind": kind, "shape": shape, "axes": axes}, nbytes


ONE, TWO = ("relu", "sigmoid", "tanh", "decay", "root", "neg"), ("add", "sub", "mul", "max", "div")


def draw_mix(rng: random.Random, number: int) -> tuple[Params, float]:
    """An elementwise expression over inputs that broadcast, and its bytes."""
    shape = draw_shape(rng, rng.choice((1, 2, 2, 3, 4)))
    shapes = [shape]
    for _ in range(rng.randint(1, 3)):
        less = [1 if rng.random() < 0.4 else s for s in shape]
        shapes.append(less[rng.randint(0, len(less) - 1) :] if rng.random() < 0.5 else less)
    expression: Any = 0
    unused = list(range(1, len(shapes)))
    for _ in range(rng.randint(3, 9)):
        if unused or rng.random() < 0.5:
            other = unused.pop() if unused else rng.randrange(len(shapes))
            expression = [rng.choice(TWO), expression, other]
        else:
            expression = [rng.choice(ONE), expression]
    nbytes = 4.0 * (sum(math.prod(s) for s in shapes) + math.prod(shape))
    return {"shapes": shapes, "expression": expression}, nbytes


def matmul_name(p: Params) -> str:
    """`[2, 30, 40]T @ [2, 40, 50]`."""
    batch = f"{p['b']}x" if p["b"] > 1 else ""
    left, right = (" turned" if t else "" for t in p["turned"])
    return f"{batch}{p['m']}x{p['k']}{left} @ {batch}{p['k']}x{p['n']}{right}, {p['dtype']}"


def conv_name(p: Params) -> str:
    """All that tells it apart."""
    x, w = "x".join(map(str, p["x"])), "x".join(map(str, p["w"]))
    more = "".join(
        f", {key} {p[key]}"
        for key, usual in (("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1))
        if p[key] != usual
    )
    return f"conv {x} * {w}{more}"


def show_expression(e: Any) -> str:
    """`add(relu(x0), x1)`."""
    return f"x{e}" if isinstance(e, int) else f"{e[0]}({', '.join(map(show_expression, e[1:]))})"


def mix_name(p: Params) -> str:
    """The expression and the shapes."""
    shapes = ", ".join("x".join(map(str, s)) for s in p["shapes"])
    return f"{show_expression(p['expression'])} of {shapes}"


def reduction_name(p: Params) -> str:
    """`sum of 3x4x5 over 0, 2`."""
    return f"{p['kind']} of {'x'.join(map(str, p['shape']))} over {', '.join(map(str, p['axes']))}"


def rows(seed: int = DEFAULT_SEED, quick: bool = False) -> list[Row]:
    """All cases of all sets. The quick form has the first few of each, so that they compare."""
    found = []

    def add(
        name: str,
        count: int,
        unit: str,
        case: str,
        draw: Callable[[random.Random, int], tuple[Params, float]],
        named: Callable[[Params], str],
        **more: Any,
    ) -> None:
        # A generator each, so that the sets do not depend on one another.
        rng = random.Random(f"{seed} {name}")
        drawn = [draw(rng, i) for i in range(count)]
        for i, (params, work) in enumerate(drawn[:QUICK_CASES] if quick else drawn):
            title = f"{name} {i + 1}, seed {seed}: {named(params)}"
            row = Row(
                title, "random cases", case, unit, None, params, work=work, drawn=name,
                one_thread_too=True, **{"libraries": LIBRARIES, **more},
            )  # fmt: skip
            found.append(row)

    add("matmuls, float32", COUNTS["matmuls"], "GFLOP/s", "drawn matmul", draw_matmul, matmul_name)
    for dtype, count in OTHER_DTYPES.items():
        add(
            f"matmuls, {dtype}",
            count,
            "GFLOP/s",
            "drawn matmul",
            lambda rng, i, dtype=dtype: draw_matmul(rng, i, dtype),  # type: ignore[misc]
            matmul_name,
            tolerance=TOLERANCES.get(dtype, 2e-3),
            libraries=tuple(n for n in LIBRARIES if n != "numpy" or dtype not in NO_NUMPY),
        )
    add("convolutions", COUNTS["convolutions"], "GFLOP/s", "drawn conv", draw_conv, conv_name)
    add(
        "reductions and norms", COUNTS["reductions"], "GB/s", "drawn reduction",
        draw_reduction, reduction_name, libraries=(*LIBRARIES, "compile"),
    )  # fmt: skip
    add(
        "elementwise mixes", COUNTS["mixes"], "GB/s", "drawn mix",
        draw_mix, mix_name, libraries=(*LIBRARIES, "compile"),
    )  # fmt: skip
    return found
