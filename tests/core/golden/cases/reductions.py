"""Golden cases of reductions, scans and orders."""

from __future__ import annotations

from collections.abc import Iterator

from tests.core.golden.vectors import Case, Input, case, plain

REDUCE = ["sum", "mean", "max", "min", "prod", "var", "std", "logsumexp"]
# (input, arguments)
AXES: list[tuple[Input, str]] = [
    (Input(()), ""), (Input((1,)), ""), (Input((7,)), "0"), (Input((3, 4)), ""),
    (Input((3, 4)), "1, keepdim=True"), (Input((3, 4), layout="permute"), "0"),
    (Input((2, 3, 4), layout="flip"), "(0, 2)"), (Input((2, 3, 4), layout="stride"), "-1"),
    (Input((2, 3, 2, 3), layout="shrink"), "(1, 3), keepdim=True"), (Input((4, 3), layout="pad"),
    "1"),
    (Input((5, 4), layout="expand"), "0"), (Input((2, 1, 3, 1, 2)), "(1, 2)"), (Input((3, 1)), "1"),
    (Input((40,)), ""), (Input((2, 130)), "1"), (Input((65, 3)), "0"),
]  # fmt: skip
# With `correction` 1 these have no finite result over one element.
SPREAD = ("var", "std")


def count(shape: tuple[int, ...], arguments: str) -> int:
    """How many elements a reduction of AXES adds up; enough to leave out spreads of one."""
    return 1 if shape in ((), (1,)) or (shape, arguments) == ((3, 1), "1") else 2


def reduced() -> Iterator[Case]:
    """Each reduction over axes and layouts."""
    for name in REDUCE:
        for i, arguments in AXES:
            if name == "logsumexp" and arguments.startswith("("):
                continue  # the reference takes one axis
            if name in SPREAD and (count(i.shape, arguments) == 1 or i.layout == "expand"):
                continue  # of equal numbers a deviation has no derivative
            if name == "prod" and i.shape in ((40,), (2, 130), (65, 3)):
                i = Input(i.shape, "float32", 0.9, 1.1)
            if name == "prod" and i.layout == "pad":
                continue
            yield case(f"a.{name}({arguments})", i)
        for dtype in ("float16", "bfloat16", "float64"):
            yield case(f"a.{name}(1)", plain(3, 6, dtype=dtype, low=0.5, high=2))
    for name in ("sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin"):
        for dtype in (
            "int8",
            "uint8",
            "int16",
            "uint16",
            "int32",
            "uint32",
            "int64",
            "uint64",
            "bool",
        ):
            low = 0 if dtype.startswith("u") else -3
            yield case(f"a.{name}(0)", plain(5, 4, dtype=dtype, low=low, high=5))
        yield case(f"a.{name}()", plain(2, 3, 2), grads="")
        yield case(f"a.{name}(-1)", Input((3, 5), layout="permute"), grads="")
    for name in ("sum", "prod", "any", "all", "max"):
        yield case(f"a.{name}(1)", plain(2, 0, 3), grads="")
        yield case(f"a.{name}()", plain(0), grads="")
        yield case(f"a.{name}(0)", plain(2, 0), grads="")
    for text in ("a.var_mean(1)", "a.std_mean(0)", "a.var(1, correction=0)", "a.std(correction=2)",
                 "a.sum(0, dtype='float64')", "a.sum((0, 1)) * a.max()", "a.mean(1).square().sum()",
                 "a.square().sum(1).sqrt()", "(a - a.mean(1, keepdim=True)).abs().sum()",
                 "a.max(1, keepdim=True) - a.min(1, keepdim=True)"):  # fmt: skip
        yield case(text, plain(4, 5))
        yield case(text, Input((6, 3), layout="permute"))
    for text in ("a.softmax()", "a.log_softmax()", "a.softmax(0)", "a.log_softmax(0)",
                 "a.softmax(-2)", "a.softmax(dtype='float64')",
                 "a.logsumexp(0)", "a.logsumexp(keepdim=True)"):  # fmt: skip
        yield case(text, plain(3, 5))
        yield case(text, Input((2, 4, 3), layout="flip"))
        yield case(text, plain(2, 3, dtype="float16"))
    for text in ("a.argmax()", "a.argmin()", "a.argmax(1, keepdim=True)", "a.argmin(0)"):
        yield case(text, plain(4, 5), grads="")
        yield case(text, Input((4, 5), "int32", 0, 3), grads="")
        yield case(text, Input((3, 4), layout="stride"), grads="")


def scans() -> Iterator[Case]:
    """Running sums, products and maxima."""
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        for i, axis in ((Input((7,)), 0), (Input((3, 4)), 1), (Input((3, 4), layout="permute"), 0),
                        (Input((2, 3, 2)), -2), (Input((1,)), 0), (Input((600,), low=-1, high=1),
                        0),
                        (Input((2, 0)), 1), (Input(()), 0)):  # fmt: skip
            if name == "cumprod" and i.shape == (600,):
                continue
            # What the reference adds up along 600 elements has an error of its own.
            grads = "" if name == "logcumsumexp" and i.shape == (600,) else "a"
            yield case(f"a.{name}({axis})", i, grads=grads)
    for name in ("cumsum", "cumprod"):
        for dtype in ("int32", "int64", "uint8", "bool", "float16"):
            if name == "cumprod" and dtype == "bool":
                continue
            yield case(f"a.{name}(0)", plain(5, 2, dtype=dtype, low=1, high=4))


def orders() -> Iterator[Case]:
    """Sorting, its gradient, and what stands on it."""
    for i, arguments in (
        (Input((8,)), ""), (Input((3, 5)), "1"), (Input((5, 3), layout="permute"), "0"),
        (Input((2, 3, 4), layout="flip"), "1, descending=True"), (Input((1,)), ""),
        (Input((6,), "int32", 0, 3), ""), (Input((4, 5), "int32", -3, 3), "1, True"),
        (Input((9,), "uint8", 0, 200), ""), (Input((5,), "int64", -9, 9), "0, True"),
        (Input((17,), layout="stride"), ""), (Input((6,), "float16"), ""), (Input((0,)), ""),
        (Input((3, 1)), "1"),
    ):  # fmt: skip
        yield case(f"a.sort({arguments})", i)
        yield case(f"a.argsort({arguments})", i, grads="")
    for i, arguments in (
        (Input((8,)), "3"), (Input((3, 5)), "2, 1"), (Input((5, 3)), "2, 0, False"),
        (Input((4, 6), "int32", 0, 4), "4"), (Input((6,), layout="flip"), "6"),
        (Input((2, 7)), "1, largest=False"),
    ):  # fmt: skip
        yield case(f"a.topk({arguments})", i)
