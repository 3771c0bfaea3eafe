"""The kernels over which default schedules are compared with those that a search finds.

Of the random sets of `benchmarks`, of the networks there, and of kinds of work that neither has;
everything is drawn from one seed. Returns kernel ASTs by name; nothing here is run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes, nn
from aster_ml.engine.realize import schedule_uops
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, RunArg
from benchmarks import drawn, networks, sets
from benchmarks.libraries import Aster

Work = Callable[[], list[Tensor]]
# Of each set, so that a comparison ends within its hour.
PRODUCTS, CONVOLUTIONS, REDUCTIONS, MIXES = 6, 6, 16, 10
# Elements of what a kind reads: a core moves them in some milliseconds at most.
FEW, MANY = 1 << 16, 1 << 20
# Training with 12 layers has no kernels that training with two has not.
GPT2: dict[str, Any] = {"network": "GPT2", "batch": 1, "tokens": 64, "sizes": {"layers": 1}}


class Drafting(Aster):
    """Leaves what a case computes as it is, so that it can be scheduled."""

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself."""
        return function

    def wait(self) -> None:
        """Nothing has run."""


def kernels_of(tensors: list[Tensor]) -> list[UOp]:
    """The different kernels that realizing these takes, those that a search can try."""
    steps = schedule_uops([t.uop for t in tensors])[0].steps
    asts = dict.fromkeys([step.ast for step in steps if step.ast is not None])
    return [
        ast
        for ast in asts
        if not isinstance(ast.arg, RunArg)
        and not any(u.op is Ops.DEFINE_VAR for u in toposort(ast))
    ]


def floats(rng: random.Random, *shape: int, dtype: Any = dtypes.float32) -> Tensor:
    """A realized tensor of normal numbers."""
    values = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(shape, dtype=np.float32)
    return Tensor(values).cast(dtype).contiguous().realize()


def integers(rng: random.Random, high: int, *shape: int, dtype: Any = dtypes.int32) -> Tensor:
    """A realized tensor of integers from 0 to below `high`."""
    values = np.random.default_rng(rng.randrange(1 << 30)).integers(0, high, shape, dtype=np.int32)
    return Tensor(values).cast(dtype).contiguous().realize()


def shape_of(rng: random.Random, dims: int) -> list[int]:
    """Some sizes."""
    return sets.draw_shape(rng, dims, rng.choice((FEW, MANY)))


def image(rng: random.Random) -> Tensor:
    """Several channels of a batch of images."""
    side = sets.log_uniform(rng, 12, 60)
    return floats(rng, rng.choice((2, 8, 16)), rng.choice((8, 16, 32)), side, side)


def with_gradient(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The gradients of a function's sum, after weights of its own, by its inputs."""
    result = function(*inputs)
    weights = Tensor(np.linspace(-1, 1, result.numel(), dtype=np.float32)).reshape(result.shape)
    return list((result * weights.realize()).sum().gradient(*inputs))


def axis_of(rng: random.Random, x: Tensor) -> int:
    """One of its axes."""
    return rng.randrange(x.ndim)


def reducing(rng: random.Random) -> dict[str, Work]:
    """Reductions of every dtype, along any axis."""
    x, y, z = (floats(rng, *shape_of(rng, dims)) for dims in (2, 3, 3))
    small = floats(rng, sets.log_uniform(rng, 1000, 60000), rng.choice((2, 3, 5, 7, 10, 12)))
    ints = integers(rng, 100, *shape_of(rng, 2))
    bools = (integers(rng, 2, *shape_of(rng, 2)) > 0).contiguous().realize()
    bytes_ = integers(rng, 100, *shape_of(rng, 2), dtype=dtypes.uint8)
    double = floats(rng, *shape_of(rng, 2), dtype=dtypes.float64)
    half = floats(rng, *shape_of(rng, 2), dtype=dtypes.float16)
    images = image(rng)
    a, b, c = axis_of(rng, x), axis_of(rng, y), axis_of(rng, z)
    return {
        "argmax": lambda: [x.argmax(a)],
        "argmin of 3 axes": lambda: [y.argmin(b)],
        "max of 3 axes": lambda: [z.max(c)],
        "prod": lambda: [x.prod(1 - a)],
        "variance": lambda: [y.var(b)],
        "sum over a short axis": lambda: [small.sum(1)],
        "max over a short axis": lambda: [small.max(1)],
        "softmax over a short axis": lambda: [small.softmax(1)],
        "sum over all but a short axis": lambda: [small.sum(0)],
        "argmax over a short axis": lambda: [small.argmax(1)],
        "norm over a short axis": lambda: [small.square().sum(1).sqrt()],
        "sum of int32": lambda: [ints.sum(0)],
        "sum of int32, rows": lambda: [ints.sum(1)],
        "max of int32": lambda: [ints.max(1)],
        "any": lambda: [bools.any(1)],
        "all, over axis 0": lambda: [bools.all(0)],
        "count": lambda: [(x > 0.5).sum(1)],
        "count, over axis 0": lambda: [(x > 0.5).sum(0)],
        "sum of uint8": lambda: [bytes_.sum(1)],
        "max of uint8": lambda: [bytes_.max(0)],
        "sum of float64": lambda: [double.sum(1)],
        "sum of float64, axis 0": lambda: [double.sum(0)],
        "sum of float16": lambda: [half.sum(1)],
        "max of float16": lambda: [half.max(0)],
        "softmax of float16": lambda: [half.softmax(1)],
        "statistics of channels": lambda: [images.mean((0, 2, 3)), images.var((0, 2, 3))],
        "means of images": lambda: [images.mean((2, 3))],
        "group norm": lambda: [nn.GroupNorm(4, images.shape[1], affine=False)(images)],
        "gradient of softmax": lambda: with_gradient(lambda t: t.softmax(1), x),
        "gradient of log_softmax": lambda: with_gradient(lambda t: t.log_softmax(0), x),
        "gradient of layernorm": lambda: with_gradient(lambda t: t.layernorm(-1), x),
        "gradient of max": lambda: with_gradient(lambda t: t.max(a), x),
        "gradient of variance": lambda: with_gradient(lambda t: t.var(b), y),
        "gradient of a bias": lambda: with_gradient(
            lambda t: y.gelu() + t, floats(rng, y.shape[2])
        ),
    }


def moving(rng: random.Random) -> dict[str, Work]:
    """What moves, joins, chooses and pools."""
    x, y = (floats(rng, *shape_of(rng, dims)) for dims in (2, 3))
    other = floats(rng, *x.shape)
    images = image(rng)
    table = floats(rng, sets.log_uniform(rng, 100, 4000), rng.choice((16, 50, 64, 256)))
    places = integers(rng, table.shape[0], sets.log_uniform(rng, 100, 3000))
    rows = integers(rng, x.shape[0], *x.shape)
    short = floats(rng, sets.log_uniform(rng, 16, 200), sets.log_uniform(rng, 16, 500))
    a, b = axis_of(rng, x), axis_of(rng, y)
    order = rng.sample(range(3), 3)
    side = rng.choice((2, 3))
    more = rng.randint(1, 5)
    return {
        "cat": lambda: [Tensor.cat(x, other * 2, dim=a)],
        "cat of three": lambda: [Tensor.cat(y, y.relu(), -y, dim=b)],
        "stack": lambda: [Tensor.stack(x, other, dim=a + 1)],
        "pad": lambda: [y.pad(tuple([(1, more) for _ in range(3)])) + 1],
        "pad, last axis": lambda: [x.pad((more, 1)).relu()],
        "where": lambda: [(x > other).where(x.exp(), other * 3)],
        "masked triangle": lambda: [short.tril().contiguous()],
        "permute": lambda: [(y.permute(order) + 1).contiguous()],
        "transpose and add": lambda: [x.T + floats(rng, *reversed(x.shape))],
        "flip": lambda: [(x.flip(a) * 2).contiguous()],
        "every second": lambda: [x[:, ::2] + 1],
        "every third": lambda: [x[::3, 1::3] * 2],
        "repeat": lambda: [(y.repeat_interleave(2, dim=b) + 1).contiguous()],
        "gather of rows": lambda: [table[places]],
        "gather along an axis": lambda: [x.gather(0, rows)],
        "scatter of additions": lambda: with_gradient(lambda t: t[places], table),
        "one-hot": lambda: [places.one_hot(rng.choice((10, 100, 333)))],
        "cross entropy": lambda: [
            short.sparse_categorical_crossentropy(places[: short.shape[0]] % 10)
        ],
        "cumsum": lambda: [short.cumsum(1)],
        "cumsum, axis 0": lambda: [short.cumsum(0)],
        "cummax": lambda: [short.cummax(1)[0]],
        "sort": lambda: [*short[:, :64].sort(1)],
        "max pool": lambda: [images.max_pool2d(side)],
        "max pool, overlapping": lambda: [images.max_pool2d(3, stride=2, padding=1)],
        "average pool": lambda: [images.avg_pool2d(side)],
        "average pool, overlapping": lambda: [images.avg_pool2d(3, stride=1, padding=1)],
        "gradient of max pool": lambda: with_gradient(lambda t: t.max_pool2d(side), images),
        "gradient of average pool": lambda: with_gradient(lambda t: t.avg_pool2d(side), images),
        "interpolate": lambda: [images.interpolate((images.shape[2] * 2, images.shape[3] * 2))],
        "roll": lambda: [x.roll(more, a)],
    }


def computing(rng: random.Random) -> dict[str, Work]:
    """Elementwise work of every dtype, random numbers, and steps of optimizers."""
    x, y = (floats(rng, *shape_of(rng, dims)) for dims in (2, 3))
    double = floats(rng, *shape_of(rng, 2), dtype=dtypes.float64)
    half = floats(rng, *shape_of(rng, 2), dtype=dtypes.float16)
    brain = floats(rng, *shape_of(rng, 2), dtype=dtypes.bfloat16)
    ints = integers(rng, 1000, *shape_of(rng, 2))
    long = integers(rng, 1000, *shape_of(rng, 1), dtype=dtypes.int64)
    pixels = integers(rng, 256, 4, sets.log_uniform(rng, 30, 200), 64, 3, dtype=dtypes.uint8)
    bias = floats(rng, y.shape[2])
    channel = floats(rng, y.shape[1], 1)
    vector = floats(rng, sets.log_uniform(rng, 3000, 1 << 19))
    return {
        "random numbers": lambda: [Tensor.rand(*x.shape)],
        "normal random numbers": lambda: [Tensor.randn(*x.shape)],
        "random integers": lambda: [Tensor.randint(*x.shape, low=0, high=10)],
        "dropout": lambda: [(Tensor.rand(*x.shape) > 0.1).where(x / 0.9, 0)],
        "float64": lambda: [(double * 2 + 1).relu() - double],
        "float64, exp": lambda: [double.exp()],
        "float64, sin": lambda: [double.sin()],
        "float16": lambda: [(half * 2 + 1).relu() - half],
        "float16, exp": lambda: [half.exp()],
        "bfloat16": lambda: [(brain * 2 + 1).relu() - brain],
        "bfloat16 from float32": lambda: [x.cast(dtypes.bfloat16)],
        "float32 from float16": lambda: [half.cast(dtypes.float32)],
        "int32": lambda: [(ints * 3 + 7) & 255],
        "int32, division": lambda: [ints // 7 + ints % 5],
        "int64": lambda: [(long * 3 + 7) ^ long],
        "int8 from float32": lambda: [(x * 12).round().clamp(-128, 127).cast(dtypes.int8)],
        "bool": lambda: [(x > 0) & (x < 1)],
        "float32 from bool": lambda: [(x > 0).cast(dtypes.float32)],
        "pixels, channels first": lambda: [
            (pixels.permute(0, 3, 1, 2).cast(dtypes.float32) / 255 - 0.5).contiguous()
        ],
        "pixels": lambda: [pixels.cast(dtypes.float32) / 255 - 0.5],
        "sin": lambda: [x.sin()],
        "log": lambda: [(x.abs() + 1).log()],
        "gelu": lambda: [(y + bias).gelu()],
        "erf": lambda: [x.erf()],
        "power": lambda: [(x.abs() + 0.1) ** 1.7],
        "scale and shift": lambda: [(y * channel + bias).silu()],
        "outer product": lambda: [bias.reshape(-1, 1) * floats(rng, 1, 300)],
        "clip": lambda: [vector.clamp(-0.5, 0.5)],
        "copy": lambda: [(vector * 2).contiguous()],
        "range": lambda: [Tensor.arange(vector.shape[0]) * 2],
        "SGD": lambda: optimizer_step(nn.optim.SGD, rng, momentum=0.9),
        "AdamW": lambda: optimizer_step(nn.optim.AdamW, rng),
        "LAMB": lambda: optimizer_step(nn.optim.LAMB, rng),
    }


def optimizer_step(kind: Any, rng: random.Random, **words: Any) -> list[Tensor]:
    """A step of an optimizer over a matrix and a vector."""
    params = [floats(rng, 100, 300), floats(rng, 300)]
    for p in params:
        p.requires_grad = True
    optimizer = kind(params, lr=0.01, **words)
    Tensor.realize(*nn.state.get_parameters(optimizer))
    for p in params:
        p.grad = floats(rng, *p.shape)
    with Tensor.train():
        return list(optimizer.schedule_step())


def of_sets(seed: int) -> Iterator[tuple[str, Work]]:
    """The first cases of each random set of `benchmarks`."""
    library = Drafting(1)
    counts = {"matmuls, float32": PRODUCTS, "convolutions": CONVOLUTIONS}
    counts |= {"reductions and norms": REDUCTIONS, "elementwise mixes": MIXES}
    counts |= {f"matmuls, {d}": 1 for d in sets.OTHER_DTYPES}
    for row in sets.rows(seed):
        left = counts[row.drawn]
        counts[row.drawn] -= 1
        if left > 0:
            build = drawn.CASES[row.case]
            name = row.name.split(": ", 1)[1]
            yield name, lambda build=build, row=row: [build(library, **row.params).run()]  # type: ignore[misc]


def of_networks() -> Iterator[tuple[str, Work]]:
    """A forward call of ResNet-18 and of GPT-2, training steps of the CNN and the MLP."""
    library = Aster(1)
    forward = {"ResNet-18": {"network": "ResNet18", "batch": 1}, "GPT-2": GPT2}
    for name, params in forward.items():
        yield name, lambda params=params: networks.build_forward(library, **params).value()  # type: ignore
    for name, (network, batch) in {
        "CNN step": ("DigitNet", 128),
        "MLP step": ("Perceptron", 256),
    }.items():
        yield name, lambda n=network, b=batch: networks.build_step(library, n, b).value()  # type: ignore


def groups(seed: int) -> Iterator[tuple[str, Work]]:
    """All work, by name."""
    for name, draw in {"reducing": reducing, "moving": moving, "computing": computing}.items():
        yield from draw(random.Random(f"{seed} {name}")).items()
    yield from of_sets(seed)
    yield from of_networks()


def kernels(seed: int, wanted: Callable[[str], bool]) -> dict[str, UOp]:
    """Kernels by name, `name` or `name, kernel 2`; each once."""
    found: dict[UOp, str] = {}
    for name, work in groups(seed):
        if wanted(name):
            asts = kernels_of(work())
            for i, ast in enumerate(asts):
                found.setdefault(ast, f"{name}, kernel {i + 1}" if len(asts) > 1 else name)
    return {name: ast for ast, name in found.items()}
