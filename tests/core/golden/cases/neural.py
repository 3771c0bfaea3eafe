"""Golden cases of normalisation, losses, linear algebra, creation, random numbers and dtypes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.core.golden.vectors import Case, Input, case, plain

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
          "float16", "bfloat16", "float32", "float64"]  # fmt: skip
SAME_WIDTH = [("int8", "uint8"), ("int16", "float16"), ("uint16", "int16"), ("int32", "float32"),
              ("float32", "uint32"), ("float64", "int64"), ("float16", "uint16"),
              ("int64", "float64")]  # fmt: skip
OTHER_WIDTH = [("int32", "int8"), ("uint8", "int32"), ("float32", "uint8"), ("int64", "int16"),
               ("int16", "float32"), ("float16", "int32")]  # fmt: skip
MADE = [
    "Tensor.zeros(2, 3)", "Tensor.ones(3)", "Tensor.full((2, 2), 7)", "Tensor.full((2, 2), 1.5)",
    "Tensor.full((3,), True)", "Tensor.arange(5)", "Tensor.arange(2, 9, 3)",
    "Tensor.arange(5, 0, -2)",
    "Tensor.arange(0.5, 3, 0.5)", "Tensor.arange(5.0)", "Tensor.arange(3, dtype='int64')",
    "Tensor.arange(0)", "Tensor.eye(3)", "Tensor.eye(2, 4)", "Tensor.linspace(0, 1, 5)",
    "Tensor.linspace(-3, 3, 7)", "Tensor.linspace(2, 2, 3)", "Tensor.linspace(1, 5, 1)",
    "Tensor.zeros(2, dtype='int8')", "Tensor.ones(2, 0)", "Tensor(3)", "Tensor(2.5)",
    "Tensor(True)",
    "Tensor([1, 2, 3])", "Tensor([1.5, 2])", "Tensor([True, False])", "Tensor([])",
    "Tensor([[1], [2]])",
    "Tensor([1, 2], dtype='float16')", "Tensor([1, 2.5], dtype='int32')", "Tensor(None)",
    "Tensor([-1, 300], dtype='uint8')", "Tensor.ones(2, 3, dtype='bool')",
    "Tensor.eye(3, dtype='int32')",
    "Tensor.zeros()", "Tensor.ones((2, 2))",
]  # fmt: skip
LIKE = ["a.zeros_like()", "a.ones_like()", "a.full_like(3)", "a.full_like(2.5)",
        "a.ones_like(dtype='int8')"]  # fmt: skip
DRAWN = ["rand(5)", "rand(3, 4)", "rand(2, dtype='float16')", "rand(7, dtype='float64')",
"randn(6)",
         "randn(2, 3)", "randint(9, low=-3, high=8)", "randint(2, 5, low=0, high=100)",
         "normal(4, mean=2.0, std=0.5)",
         "uniform(5, low=-1, high=3)", "scaled_uniform(2, 3)", "glorot_uniform(3, 2)",
         "kaiming_uniform(2, 3, 2)", "kaiming_normal(3, 4)", "randperm(8)", "rand(0)", "rand(1)",
         "rand(129)"]  # fmt: skip


def casts() -> Iterator[Case]:
    """Every pair of dtypes, and bits read as another dtype."""
    for first in DTYPES:
        low, high = (
            (0, 2) if first == "bool" else (0, 120) if first.startswith("u") else (-100, 120)
        )
        for second in DTYPES:
            if {first, second} == {"float16", "bfloat16"}:
                continue  # the reference computes these two on different devices
            unsigned = second.startswith("u") and "float" in first
            yield case(
                f"a.cast('{second}')",
                plain(9, dtype=first, low=0 if unsigned else low, high=high),
                grads="",
            )
    for first, second in SAME_WIDTH + OTHER_WIDTH:
        yield case(f"a.bitcast('{second}')", plain(2, 4, dtype=first, low=1, high=90), grads="")
    for text in ("a.float()", "a.half()", "a.int()", "a.bool()", "a.double()", "a.long()",
    "a.short()",
                 "a.bfloat16()", "a.cast('float16').cast('float32')",
                 "a.cast('int32').cast('float32')"):  # fmt: skip
        yield case(text, plain(2, 5, low=-50, high=50), grads="")
    for first in ("float16", "bfloat16", "float64", "float32"):
        for second in ("float16", "bfloat16", "float64", "float32"):
            if {first, second} != {"float16", "bfloat16"}:
                yield case(f"(a * 1.5).cast('{second}') * 3", plain(7, dtype=first))


def made() -> Iterator[Case]:
    """Creation, and random numbers by seed."""
    for text in MADE:
        yield case(text)
    for text in LIKE:
        for dtype in ("float32", "int32", "bool", "float16"):
            yield case(text, plain(2, 3, dtype=dtype), grads="")
    for text in DRAWN:
        for seed in (0, 1337):
            yield case(f"[Tensor.manual_seed({seed}), Tensor.{text}.realize()][1]")
    yield case("[Tensor.manual_seed(5), Tensor.rand(3).realize(), Tensor.rand(4).realize()][1:]")
    yield case(
        "[Tensor.manual_seed(6), a.multinomial(4, replacement=True).realize()][1]",
        plain(5, low=0.1, high=1),
        grads="",
    )
    yield case("[Tensor.manual_seed(6), a.rand_like().realize()][1]", plain(2, 3), grads="")
    yield case("[Tensor.manual_seed(6), a.randn_like().realize()][1]", plain(2, 3), grads="")
    for text in ("a.isclose(b)", "a.isclose(a + 1e-9)", "a.isclose(b, atol=2)"):
        yield case(text, plain(3, 3), plain(3, 3), grads="")


def normalised() -> Iterator[Case]:
    """Normalisation layers as methods."""
    for text in (
        "a.layernorm()",
        "a.layernorm(eps=1e-3)",
        "a.layernorm(axis=(-2, -1))",
        "a.layernorm(axis=1)",
    ):
        yield case(text, plain(3, 6))
        yield case(text, Input((2, 4, 5), layout="permute"))
    norm = "a.batchnorm({weight}, {bias}, a.mean((0, 2)), (a.var((0, 2)) + 1e-5).rsqrt())"
    for weight, bias in (("None", "None"), ("b", "None"), ("b", "c")):
        grads = "a" + ("b" if weight == "b" else "") + ("c" if bias == "c" else "")
        yield case(
            norm.format(weight=weight, bias=bias), plain(3, 2, 4), plain(2), plain(2), grads=grads
        )
    for text in ("a.dropout(0.5)", "a.dropout(0.0)"):
        yield case(text, plain(3, 4))
    for text in ("a.swish()", "a.sequential([lambda x: x * 2, lambda x: x.relu()])"):
        yield case(text, plain(3, 4))
    yield case("a.lerp(b, 0.3)", plain(3, 4), plain(3, 4))
    yield case("a.lerp(b, c)", plain(3, 4), plain(3, 4), plain(3, 4))


def losses() -> Iterator[Case]:
    """Losses, each with its reductions."""
    for reduction in ("mean", "sum", "none"):
        r = f"reduction='{reduction}'"
        yield case(
            f"a.sigmoid().binary_crossentropy(b, {r})", plain(3, 4), plain(3, 4, low=0, high=1)
        )
        yield case(f"a.binary_crossentropy_logits(b, {r})", plain(3, 4), plain(3, 4, low=0, high=1))
        yield case(
            f"a.binary_crossentropy_logits(b, {r}, pos_weight=c)",
            plain(3, 4),
            plain(3, 4, low=0, high=1),
            plain(4, low=1, high=3),
            grads="a",
        )
        for smoothing in (0.0, 0.2):
            s = f", label_smoothing={smoothing}"
            yield case(
                f"a.sparse_categorical_crossentropy(b, {r}{s})",
                plain(4, 5),
                plain(4, dtype="int32", low=0, high=5),
            )
            yield case(
                f"a.cross_entropy(b, {r}{s})", plain(4, 5), plain(4, dtype="int32", low=0, high=5)
            )
            yield case(f"a.cross_entropy(b.softmax(), {r}{s})", plain(4, 5), plain(4, 5))
        yield case(
            f"a.sparse_categorical_crossentropy(b, ignore_index=1, {r})",
            plain(5, 4),
            plain(5, dtype="int32", low=0, high=4),
        )
        yield case(
            f"a.log_softmax(1).nll_loss(b, {r})",
            plain(4, 5),
            plain(4, dtype="int32", low=0, high=5),
        )
        yield case(
            f"a.log_softmax(1).nll_loss(b, c, {r})",
            plain(4, 5),
            plain(4, dtype="int32", low=0, high=5),
            plain(5, low=0.5, high=2),
            grads="a",
        )
        yield case(
            f"a.log_softmax(1).nll_loss(b, ignore_index=2, {r})",
            plain(4, 3, 2),
            plain(4, 2, dtype="int32", low=0, high=3),
        )


def algebra() -> Iterator[Case]:
    """Decompositions as products that do not depend on signs, and hashes."""
    for n, m in ((3, 3), (4, 2), (2, 2), (5, 3)):
        yield case("(lambda q, r: [q @ r, (r * r).sum(1)])(*a.qr())", plain(n, m), grads="")
        yield case(
            "(lambda u, s, v: [u[:, :len(s)] @ (s.unsqueeze(-1) * v[:len(s)]), s])(*a.svd())",
            plain(n, m),
            grads="",
        )
    yield case("(lambda q, r: [q @ r])(*a.qr())", plain(2, 3, 3), grads="")
    yield case("a.newton_schulz(3, (3.4445, -4.7750, 2.0315))", plain(4, 3), grads="")
    for shape in ((5,), (136,), (300,), (2, 40)):
        yield case("a.keccak()", plain(*shape, dtype="uint8", low=0, high=256))
    yield case("a.keccak('shake_128')", plain(20, dtype="uint8", low=0, high=256))


def composed() -> Iterator[Case]:
    """Several ops in one expression, as models have them."""
    for text in (
        "((a @ b).relu() @ b.T).sin()", "(a - a.mean(0)) / (a.std(0) + 1e-5) * b.sum(1)",
        "a.T.reshape(3, 4).flip(0) * b.pad((0, 1)).permute(1, 0).sum(1, keepdim=True)[:3]",
        "(a.exp() / a.exp().sum(1, keepdim=True)).log()",
        "a[:, ::2].cat(a[:, 1::2], dim=1).cumsum(1)",
        "a.pad((1, 1)).unfold(1, 3, 1).max(-1)", "(a > 0).where(a.sin(), a.cos()).prod(1)",
        "a.sort(1)[0][:, -1] * a.softmax(1).max(1)",
        "(a.unsqueeze(1) - a.unsqueeze(0)).square().sum(-1)",
        "a.reshape(2, 2, 3).permute(2, 0, 1).tril().sum(0)",
        "a.sum(0).expand(4, 3) * a - a.max(1, keepdim=True)",
        "(a * (a.detach() > 0)).sum(1)", "a.square().mean(1).sqrt().reciprocal().unsqueeze(1) * a",
    ):  # fmt: skip
        grads = "ab" if "b" in text.replace("abs", "").replace("unsqueeze", "") else "a"
        for layout in ("plain", "permute", "flip", "shrink"):
            yield case(
                text,
                Input((4, 3), layout=layout),
                plain(3, 2) if "b" in text else plain(1),
                grads=grads,
            )
