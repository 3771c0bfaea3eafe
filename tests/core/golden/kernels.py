"""The kernels over which schedules are checked: of networks, of benchmarks, and random ones.

Returns kernel ASTs by name, each once, and the Targets that they are compiled for; nothing has
memory and nothing is run, so that sizes cost no time. Kernels are the same on every machine: they
depend neither on the processor nor on the settings that a person has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import benchmarks.kernels
from aster_ml import Context, Tensor, Variable, dtypes, nn
from aster_ml.apps.demo import DigitReader
from aster_ml.config import DEPTH_FIRST, FUSE, MAX_KERNEL_NODES, SPLIT_REDUCE, WINO
from aster_ml.engine.realize import schedule_uops
from aster_ml.nn.state import get_parameters
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import RunArg
from benchmarks import drawn, models, sets
from benchmarks.libraries import Aster
from tests.core.golden.decisions import of_decisions
from tests.fuzz.random_kernels import AVX2, AVX512, GROUPS, NEON, Drawing

TARGETS: dict[str, Target] = {"avx2": AVX2, "avx512": AVX512, "neon": NEON, "groups": GROUPS}
Work = Callable[[], list[Tensor]]
# Rows of each random set of `benchmarks`, and random programs: small ones, and ones that are large.
PRODUCTS, CONVOLUTIONS, REDUCTIONS, MIXES, PROGRAMS, LARGE = 8, 8, 8, 8, 40, 24


def empty(*shape: int, dtype: Any = dtypes.float32) -> Tensor:
    """Memory of which nothing is known."""
    return Tensor.empty(*shape, dtype=dtype, device="CPU")


def bare(model: Any) -> Any:
    """A network whose parameters are memory, not what they begin with."""
    for p in get_parameters(model):
        p.replace(empty(*p.shape, dtype=p.dtype))
    return model


class Sketching(Aster):
    """Leaves what a case of `benchmarks` computes as it is, of inputs without values."""

    def tensor(self, array: Any) -> Tensor:
        """Memory of the array's shape."""
        return empty(*array.shape)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself."""
        return function

    def wait(self) -> None:
        """Nothing has run."""


# networks


class LeNet:
    """Two convolutions with pools and three linear layers."""

    def __init__(self) -> None:
        self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.l1, self.l2, self.l3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def __call__(self, x: Tensor) -> Tensor:
        """[n, 1, 28, 28] -> [n, 10]."""
        x = self.c2(self.c1(x).tanh().avg_pool2d()).tanh().avg_pool2d().flatten(1)
        return self.l3(self.l2(self.l1(x).tanh()).tanh())


class Autoencoder:
    """A variational autoencoder of 784 pixels in 20 numbers."""

    def __init__(self) -> None:
        self.encode, self.both = nn.Linear(784, 200), nn.Linear(200, 40)
        self.widen, self.decode = nn.Linear(20, 200), nn.Linear(200, 784)

    def __call__(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[n, 784], [n, 20] -> pixels [n, 784], means and logarithms of variances [n, 20]."""
        both = self.both(self.encode(x).relu())
        mean, log_variance = both[:, :20], both[:, 20:]
        z = mean + noise * (log_variance * 0.5).exp()
        return self.decode(self.widen(z).relu()).sigmoid(), mean, log_variance


def trained(
    model: Any, loss: Callable[[Any], Tensor], optimizer: Any = nn.optim.SGD, **words: Any
) -> list[Tensor]:
    """A step of training: the loss, and what the optimizer stores."""
    params = get_parameters(bare(model))
    with Tensor.train():
        made = optimizer(params, **words)
        # State of the steps before.
        for t in get_parameters(made):
            if all([t is not p for p in params]) and t.ndim:
                t.replace(empty(*t.shape, dtype=t.dtype))
        value = loss(model).backward()
        return [value, *made.schedule_step()]


def labels(n: int) -> Tensor:
    """Classes of n images."""
    return empty(n, dtype=dtypes.int32)


def autoencoder_loss(model: Any) -> Tensor:
    """How far pixels are off, and how far the numbers are from normal ones."""
    x = empty(32, 784)
    made, mean, log_variance = model(x, empty(32, 20))
    off = -(x * made.log() + (1 - x) * (1 - made).log()).sum(1)
    return (off - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)).mean()


def recurrent() -> list[Tensor]:
    """Two steps of an LSTM cell, with gradients."""
    cell = bare(nn.LSTMCell(32, 48))
    state = None
    for _ in range(2):
        state = cell(empty(16, 32), state)
    assert state is not None
    return [*state, *state[0].square().mean().gradient(*get_parameters(cell))]


def of_networks() -> Iterator[tuple[str, Work]]:
    """Forward calls and steps of training."""
    yield "MLP forward", lambda: [bare(models.Perceptron(nn))(empty(64, 784))]
    yield (
        "MLP step",
        lambda: trained(
            models.Perceptron(nn),
            lambda m: m(empty(64, 784)).sparse_categorical_crossentropy(labels(64)),
            lr=0.1,
        ),
    )
    yield "demo forward", lambda: [bare(DigitReader())(empty(100, 1, 28, 28))]
    yield (
        "demo step",
        lambda: trained(
            DigitReader(),
            lambda m: m(empty(100, 1, 28, 28)).sparse_categorical_crossentropy(labels(100)),
            nn.optim.AdamW,
        ),
    )
    yield (
        "LeNet step",
        lambda: trained(
            LeNet(),
            lambda m: m(empty(16, 1, 28, 28)).sparse_categorical_crossentropy(labels(16)),
            momentum=0.9,
        ),
    )
    for c_in, c_out, stride, side in ((64, 64, 1, 56), (64, 128, 2, 56), (256, 512, 2, 14)):
        yield (
            f"ResNet block {c_in} {c_out} {stride}",
            lambda c=c_in, o=c_out, s=stride, n=side: [  # type: ignore[misc]
                bare(models.BasicBlock(nn, c, o, s))(empty(1, c, n, n))
            ],
        )
    yield (
        "ResNet block step",
        lambda: trained(
            models.BasicBlock(nn, 16, 32, 2), lambda m: m(empty(4, 16, 28, 28)).mean(), lr=0.1
        ),
    )
    yield "GPT-2 block", lambda: [bare(models.Block(nn, 768, 12))(empty(1, 64, 768))]
    yield (
        "GPT-2 block step",
        lambda: trained(
            models.Block(nn, 64, 4), lambda m: m(empty(2, 32, 64)).square().mean(), nn.optim.AdamW
        ),
    )
    yield (
        "GPT-2 ends",
        lambda: [
            bare(models.GPT2(nn, layers=0, width=256, vocabulary=1000))(
                empty(2, 48, dtype=dtypes.int32)
            )
        ],
    )
    yield "LSTM steps", recurrent
    yield "VAE step", lambda: trained(Autoencoder(), autoencoder_loss, nn.optim.AdamW)
    for name, optimizer in {"LAMB": nn.optim.LAMB, "Adam": nn.optim.Adam}.items():
        yield (
            f"{name} step",
            lambda o=optimizer: trained(  # type: ignore[misc]
                nn.Linear(50, 30), lambda m: m(empty(8, 50)).square().mean(), o
            ),
        )
    for tiles, shape in ((1, (1, 32, 28, 28)), (-1, (4, 64, 56, 56)), (1, (2, 16, 17, 17))):
        yield f"Winograd {tiles} {shape}", lambda t=tiles, s=shape: winograd(t, s)  # type: ignore[misc]


def winograd(tiles: int, shape: tuple[int, ...]) -> list[Tensor]:
    """A convolution of 3x3 by Winograd's algorithm, and its gradients."""
    x, w = empty(*shape), empty(shape[1], shape[1], 3, 3)
    with Context(WINO=tiles):
        made = x.conv2d(w, padding=1)
        return [made, *made.square().sum().gradient(x, w)]


# benchmarks


def of_benchmarks() -> Iterator[tuple[str, Work]]:
    """Every single kernel of the table, and the first of each random set."""
    import aster_ml

    for name, k in benchmarks.kernels.KERNELS.items():
        yield name, lambda k=k: listed(k.lazy(aster_ml, *[empty(*s) for s in k.shapes]))  # type: ignore[misc]
    counts = {"matmuls, float32": PRODUCTS, "convolutions": CONVOLUTIONS}
    counts |= {"reductions and norms": REDUCTIONS, "elementwise mixes": MIXES}
    counts |= {f"matmuls, {d}": 2 for d in sets.OTHER_DTYPES}
    for row in sets.rows(sets.DEFAULT_SEED):
        left = counts[row.drawn]
        counts[row.drawn] -= 1
        if left > 0:
            yield (
                row.name,
                lambda row=row: [drawn.CASES[row.case](Sketching(1), **row.params).run()],  # type: ignore[misc]
            )


def listed(made: Any) -> list[Tensor]:
    """One tensor or several."""
    return [made] if isinstance(made, Tensor) else list(made)


# kinds of work that neither has


def of_kinds() -> Iterator[tuple[str, Work]]:
    """Dtypes, orders and sizes of their own."""
    x, y = functools.partial(empty, 120, 200), functools.partial(empty, 8, 30, 40)
    count = Variable("n", 1, 64)
    yield "argmax", lambda: [x().argmax(1), x().argmax(0)]
    yield "variance", lambda: [y().var(1)]
    yield "any and all", lambda: [(x() > 0).any(1), (x() > 0).all(0)]
    yield "sum of uint8", lambda: [empty(300, 100, dtype=dtypes.uint8).sum(1)]
    yield "sum of float16", lambda: [empty(300, 100, dtype=dtypes.float16).sum(1)]
    yield "softmax over a short axis", lambda: [empty(5000, 10).softmax(1)]
    yield "argmax over a short axis", lambda: [empty(5000, 10).argmax(1)]
    yield "group norm", lambda: [nn.GroupNorm(4, 16, affine=False)(empty(2, 16, 20, 20))]
    yield "cross entropy", lambda: [x().sparse_categorical_crossentropy(labels(120))]
    yield "cat", lambda: [Tensor.cat(x(), x() * 2, dim=1)]
    yield "stack", lambda: [Tensor.stack(x(), x().relu(), dim=2)]
    yield "pad", lambda: [y().pad(((1, 2), (0, 3), (2, 2))) + 1]
    yield "triangle", lambda: [empty(100, 100).tril().contiguous()]
    yield "permute", lambda: [(y().permute(2, 0, 1) + 1).contiguous()]
    yield "transpose and add", lambda: [x().T + empty(200, 120)]
    yield "flip", lambda: [(x().flip(1) * 2).contiguous()]
    yield "every third", lambda: [x()[::3, 1::3] * 2]
    yield "gather of rows", lambda: [empty(1000, 64)[empty(300, dtype=dtypes.int32)]]
    yield "gradient of rows", lambda: scattered()
    yield "one-hot", lambda: [labels(500).one_hot(100)]
    yield "cumsum", lambda: [x().cumsum(1), x().cumsum(0)]
    yield "sort", lambda: [*empty(50, 33).sort(1)]
    yield "max pool, overlapping", lambda: [empty(4, 8, 30, 30).max_pool2d(3, stride=2, padding=1)]
    yield "average pool, overlapping", lambda: [empty(4, 8, 30, 30).avg_pool2d(3, 1, padding=1)]
    yield (
        "interpolate",
        lambda: [empty(2, 3, 17, 20).interpolate((34, 41))],
    )
    yield "random numbers", lambda: [Tensor.rand(100, 30, device="CPU")]
    yield "float64, exp", lambda: [empty(1000, dtype=dtypes.float64).exp()]
    yield "bfloat16", lambda: [empty(40, 100, dtype=dtypes.bfloat16).gelu()]
    yield "int8 from float32", lambda: [(x() * 12).round().clamp(-128, 127).cast(dtypes.int8)]
    yield "pixels", lambda: [pixels()]
    yield "sin and erf", lambda: [x().sin() + x().erf()]
    yield "power", lambda: [(x().abs() + 0.1) ** 1.7]
    yield "division", lambda: [empty(999, dtype=dtypes.int32) // 7 % 5]
    yield "batched products", lambda: [empty(12, 40, 24) @ empty(12, 24, 33)]
    yield "int8 product", lambda: [small_product(dtypes.int8, 64, 96, 128)]
    yield "symbolic rows", lambda: [empty(64, 96)[: count.bind(9)] * 2]
    yield "symbolic sum", lambda: [empty(96, 64)[:, : count.bind(9)].sum(1)]


def scattered() -> list[Tensor]:
    """The gradient of rows that were looked up."""
    table = empty(1000, 64)
    return table[empty(300, dtype=dtypes.int32)].square().sum().gradient(table)


def pixels() -> Tensor:
    """Bytes as numbers, channels first."""
    images = empty(4, 50, 64, 3, dtype=dtypes.uint8)
    return (images.permute(0, 3, 1, 2).cast(dtypes.float32) / 255 - 0.5).contiguous()


def small_product(dtype: Any, m: int, n: int, k: int) -> Tensor:
    """Of whole numbers, into int32."""
    return empty(m, k, dtype=dtype).matmul(empty(k, n, dtype=dtype), dtype=dtypes.int32)


# random programs


def of_programs() -> Iterator[tuple[str, Work]]:
    """Of `random_kernels`, by their seeds."""
    for seed in range(PROGRAMS):
        yield f"program {seed}", lambda s=seed: [Drawing(s).program().on_nothing().contiguous()]  # type: ignore[misc]
    for seed in range(LARGE):
        yield (
            f"large program {seed}",
            lambda s=seed: [Drawing(s, large=True).program().on_nothing().contiguous()],  # type: ignore[misc]
        )


SOURCES = (of_networks, of_benchmarks, of_kinds, of_programs, of_decisions)
# What decides where a kernel ends, as it is by default; a sum is shared out as if among so many
# threads whatever the machine has.
AS_BY_DEFAULT: dict[str, Any] = {
    **{s.name: s.default for s in (DEPTH_FIRST, FUSE, MAX_KERNEL_NODES, SPLIT_REDUCE, WINO)},
    "DETERMINISTIC": 1,
}


def kernels_of(tensors: list[Tensor]) -> list[UOp]:
    """The kernels that realizing these takes, those of runs too."""
    steps = schedule_uops([t.uop for t in tensors])[0].steps
    asts = [step.ast for step in steps if step.ast is not None]
    return [k for ast in asts for k in (ast.src if isinstance(ast.arg, RunArg) else (ast,))]


@functools.cache
def catalogue() -> dict[str, UOp]:
    """Kernels by name, `name` or `name, kernel 2`; each once."""
    found: dict[UOp, str] = {}
    with Context(**AS_BY_DEFAULT):
        for source in SOURCES:
            for name, work in source():
                asts = list(dict.fromkeys(kernels_of(work())))
                for i, ast in enumerate(asts):
                    found.setdefault(ast, f"{name}, kernel {i + 1}" if len(asts) > 1 else name)
    return {name: ast for ast, name in found.items()}
