"""Golden cases of elementwise functions: shapes, layouts, dtypes, edges; no reductions."""

from __future__ import annotations

from collections.abc import Iterator

from tests.core.golden.vectors import Case, Input, case, plain

# (method call, low, high of the inputs); gradients are taken of all of these.
SMOOTH: list[tuple[str, float, float]] = [
    ("a.exp()", -3, 3), ("a.exp2()", -3, 3), ("a.log()", 0.1, 4), ("a.log2()", 0.1, 4),
    ("a.sin()", -6, 6), ("a.cos()", -6, 6), ("a.tan()", -1, 1), ("a.sqrt()", 0.1, 4),
    ("a.rsqrt()", 0.1, 4), ("a.reciprocal()", 0.5, 4), ("a.square()", -2, 2), ("-a", -2, 2),
    ("a.sinh()", -2, 2), ("a.cosh()", -2, 2), ("a.tanh()", -3, 3), ("a.asinh()", -2, 2),
    ("a.acosh()", 1.25, 4), ("a.atanh()", -0.75, 0.75), ("a.asin()", -0.75, 0.75),
    ("a.acos()", -0.75, 0.75), ("a.atan()", -3, 3), ("a.erf()", -2, 2), ("a.sigmoid()", -4, 4),
    ("a.logsigmoid()", -4, 4), ("a.relu()", -2, 2), ("a.relu6()", -4, 8),
    ("a.leaky_relu(0.2)", -2, 2), ("a.elu(0.5)", -2, 2), ("a.selu()", -2, 2), ("a.celu(2.0)", -2,
    2),
    ("a.gelu()", -3, 3), ("a.quick_gelu()", -3, 3), ("a.silu()", -3, 3), ("a.mish()", -3, 3),
    ("a.softplus()", -3, 3), ("a.softsign()", -3, 3), ("a.hardswish()", -4, 4),
    ("a.hardsigmoid()", -4, 4), ("a.hardtanh(-0.5, 1.0)", -2, 2), ("a.abs()", -2, 2),
    ("a.clip(-1, 0.5)", -2, 2), ("a ** 2", -2, 2), ("a ** 3", -2, 2), ("a ** -1.5", 0.5, 2),
    ("a ** 0.5", 0.5, 4), ("2 ** a", -2, 2), ("1 / a", 0.5, 2), ("3 - a", -2, 2),
    ("a / 3", -2, 2), ("(a * 2 + 1).relu() - a.sigmoid()", -2, 2),
    ("a.tanh() * a.exp() / (1 + a.square())", -2, 2),
]  # fmt: skip
# Without a gradient that says anything.
STEPPED: list[tuple[str, float, float]] = [
    ("a.sign()", -2, 2), ("a.floor()", -4, 4), ("a.ceil()", -4, 4), ("a.round()", -4, 4),
    ("a.trunc()", -4, 4), ("a.isnan()", -2, 2), ("a.isinf()", -2, 2), ("a.isfinite()", -2, 2),
    ("a.logical_not()", -2, 2), ("a > 0.5", -2, 2), ("a <= 0", -2, 2), ("0.5 < a", -2, 2),
    ("a % 0.75", 0, 4), ("a // 0.75", 0, 4),
]  # fmt: skip
LAYOUTS: list[Input] = [
    Input(()), Input((1,)), Input((5,)), Input((0,)), Input((3, 4), layout="permute"),
    Input((2, 3, 4), layout="flip"), Input((1, 3, 1)), Input((2, 1, 3, 2), layout="stride"),
    Input((2, 2, 2, 3), layout="shrink"), Input((4, 3), layout="expand"), Input((2, 0, 3)),
    Input((1, 2, 3, 1, 2)), Input((6, 5), layout="permute"), Input((33,), layout="flip"),
]  # fmt: skip
# What pads with zeros may give a value that the range leaves out, so it has functions of its own.
PADDED = ["a.exp()", "a.sin()", "a.relu()", "a.sigmoid()", "a.square()", "a.tanh()", "a.gelu()",
          "a.erf()", "a + 1", "a.softplus()"]  # fmt: skip
FLOATS = ("float16", "bfloat16", "float64")
INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")

# Two operands; the second is drawn away from 0.
PAIRS = ["a + b", "a - b", "a * b", "a / b", "a.maximum(b)", "a.minimum(b)", "a.logaddexp(b)",
         "a.copysign(b)", "a.lerp(b, 0.25)", "a * a - b * b", "a.where(a, b)"]  # fmt: skip
SHAPES = [
    ((), ()), ((), (3,)), ((4,), (4,)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((2, 3, 4), (3, 1)),
    ((1, 1, 5), (2, 3, 1)), ((2, 1, 3, 1), (3, 1, 4)), ((0, 3), (1, 3)), ((2, 1, 3, 1, 2), (3, 1,
    1)),
]  # fmt: skip
COMPARED = ["a < b", "a <= b", "a > b", "a >= b", "a == b", "a != b"]
ON_INTS = ["a + b", "a - b", "a * b", "a.maximum(b)", "a.minimum(b)", "a // b", "a % b", "a < b",
           "a == b", "a / b", "a & b", "a | b", "a ^ b", "a.div(b, rounding_mode='floor')",
           "a.div(b, rounding_mode='trunc')", "-a", "a.abs()", "a.sign()", "~a", "a.square()",
           "(a > b).where(a, b)"]  # fmt: skip
MIXED = [("int32", "float32"), ("int8", "uint8"), ("bool", "int32"), ("uint8", "int32"),
         ("float16", "float32"), ("bfloat16", "float32"), ("int64", "float16"), ("bool", "float32"),
         ("uint32", "int32"), ("float32", "float64"), ("int16", "uint16"), ("uint64",
         "uint8")]  # fmt: skip


def smooth() -> Iterator[Case]:
    """Each function on float32 in several layouts, and once in each other float dtype."""
    for k, (text, low, high) in enumerate(SMOOTH):
        for step in range(6):
            i = LAYOUTS[(k + step * 5) % len(LAYOUTS)]
            yield case(text, Input(i.shape, "float32", low, high, i.layout))
        for dtype in FLOATS:
            yield case(text, Input((3, 5), dtype, low, high), grads="a")
    for text in PADDED:
        yield case(text, Input((3, 4), layout="pad"))
        yield case(text, Input((2, 2, 3), layout="pad"))


def stepped() -> Iterator[Case]:
    """Functions whose results jump."""
    for k, (text, low, high) in enumerate(STEPPED):
        for step in range(4):
            i = LAYOUTS[(k + step * 5) % len(LAYOUTS)]
            yield case(text, Input(i.shape, "float32", low, high, i.layout), grads="")
        yield case(text, Input((3, 5), "float64", low, high), grads="")
        yield case(text, Input((7,), "float16", low, high), grads="")


def pairs() -> Iterator[Case]:
    """Two operands that broadcast."""
    for text in PAIRS:
        if "where" in text:
            continue
        for first, second in SHAPES:
            # The reference cannot expand the empty gradient of a * a - b * b.
            if (first, text) != ((0, 3), "a * a - b * b"):
                yield case(text, plain(*first), plain(*second, low=0.5, high=3))
        for layout in ("permute", "flip", "stride"):
            yield case(
                text, Input((3, 4), layout=layout), Input((3, 4), "float32", 0.5, 3, "permute")
            )
        for dtype in FLOATS:
            yield case(text, plain(2, 5, dtype=dtype), plain(2, 1, dtype=dtype, low=0.5, high=3))
    for text in COMPARED:
        for first, second in SHAPES[::3]:
            yield case(text, plain(*first), plain(*second), grads="")
        yield case(text, Input((4, 3), "int32", -2, 2, "permute"), plain(3, dtype="int32"))
        yield case(
            text, plain(9, dtype="uint8", low=0, high=3), plain(9, dtype="uint8", low=0, high=3)
        )
    for text in ("a ** b", "a % b", "a // b"):
        grads = "ab" if "**" in text else ""
        for first, second in SHAPES[:7]:
            yield case(text, plain(*first, low=0.5, high=3), plain(*second, low=0.5, high=3),
                       grads=grads)  # fmt: skip
    for first, second in SHAPES:
        yield case("(a > 0).where(a, b)", plain(*first), plain(*second))
        yield case("a.where(b, -1.5)", plain(*first, dtype="bool"), plain(*second))
    yield case("a.where(b, c)", plain(3, 1, dtype="bool"), plain(1, 4), plain(2, 1, 1))
    yield case("a.masked_fill(b, -2)", plain(3, 4), plain(4, dtype="bool"))


def whole() -> Iterator[Case]:
    """Whole numbers of every width, negative divisors and overflow; and mixed dtypes."""
    for text in ON_INTS:
        for dtype in INTS:
            low = 0 if dtype.startswith("u") else -100
            yield case(text, plain(4, 3, dtype=dtype, low=low, high=120),
                       plain(3, dtype=dtype, low=1, high=9))  # fmt: skip
    for text in ("a // b", "a % b", "a.div(b, rounding_mode='trunc')", "a / b"):
        yield case(text, plain(4, 5, dtype="int32", low=-20, high=20),
                   plain(4, 5, dtype="int32", low=-7, high=0))  # fmt: skip
    for dtype in ("int32", "uint32", "int64", "uint8"):
        low = 0 if dtype.startswith("u") else -50
        shifts = ("a << 2", "a >> 1", "a.lshift(3)", "a.rshift(2)") if low == 0 else ()
        for text in (*shifts, "a & 6", "a | 9", "a ^ 5", "~a", "a ** 2", "2 * a + 1", "a // 4",
                     "a % 8"):  # fmt: skip
            yield case(text, plain(11, dtype=dtype, low=low, high=60))
    for text in ("a & b", "a | b", "a ^ b", "~a", "a + b", "a * b", "a < b", "a == b",
                 "a.logical_not()", "a.where(1, 2)"):  # fmt: skip
        yield case(text, plain(3, 4, dtype="bool"), plain(4, dtype="bool"))
    for first, second in MIXED:
        for text in ("a + b", "a * b", "a < b", "a.maximum(b)", "(a > 0).where(a, b)"):
            low = 0 if "u" in first + second or "bool" in first + second else -3
            yield case(text, plain(2, 3, dtype=first, low=low, high=4),
                       plain(3, dtype=second, low=1, high=5), grads="")  # fmt: skip
    for dtype in ("int8", "uint8", "int32", "int64", "bool", "float16", "bfloat16", "float64"):
        for text in ("a + 1", "a * 2.5", "a + True", "1 - a.cast('float32')", "a / 2", "a > 1"):
            yield case(text, plain(6, dtype=dtype, low=0, high=5), grads="")


EDGES = "float('nan'), float('inf'), -float('inf'), 0.0, -0.0, 1.0, -1.5, 1e-40, 3e38"
OVER_EDGES = ["exp", "log", "sqrt", "sin", "abs", "sign", "floor", "round", "relu", "isnan",
              "isinf", "reciprocal", "tanh", "sigmoid", "square", "trunc", "log2", "exp2",
              "rsqrt", "logical_not", "erf", "isfinite", "ceil", "softplus"]  # fmt: skip


def edges() -> Iterator[Case]:
    """NaN, infinities, signed zeros, subnormal and huge numbers."""
    for name in OVER_EDGES:
        if name not in ("sin",):
            yield case(f"Tensor([{EDGES}]).{name}()")
    rows, columns = f"Tensor([{EDGES}]).reshape(9, 1)", f"Tensor([{EDGES}])"
    for text in ("{} + {}", "{} * {}", "{} / {}", "{}.maximum({})", "{}.minimum({})", "{} < {}",
                 "{} == {}", "{} != {}", "{} - {}", "{}.copysign({})"):  # fmt: skip
        yield case(text.format(rows, columns))
