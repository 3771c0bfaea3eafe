"""Random functions of PyTorch tensors, made of operators that users write.

Receives a seed; returns a function and its arguments. What it is compared with stands in
`test_fuzz_torch_compile`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

SIZES = (1, 2, 3, 4, 5, 7, 8, 16)


class Function(NamedTuple):
    """A function of float tensors, and what it is called with; `text` says what it does."""

    run: Callable[..., Any]
    args: list[Any]
    text: str


class Maker:
    """Draws steps, each of the value so far and of earlier ones."""

    def __init__(self, seed: int, torch: Any) -> None:
        self.torch = torch
        self.draw = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.args: list[Any] = []
        self.steps: list[tuple[str, Callable[[Any, list[Any]], Any]]] = []

    def argument(self, *shape: int) -> int:
        """A new argument, in one layout or another; its place."""
        torch, draw = self.torch, self.draw
        layout = draw.choice(["plain", "plain", "turned", "strided", "offset"])
        if layout == "turned" and len(shape) >= 2:
            made = torch.randn(*shape[::-1], generator=self.generator).permute(
                *reversed(range(len(shape)))
            )
        elif layout == "strided" and shape:
            made = torch.randn(*shape[:-1], 2 * shape[-1], generator=self.generator)[..., ::2]
        elif layout == "offset" and shape:
            made = torch.randn(shape[0] + 1, *shape[1:], generator=self.generator)[1:]
        else:
            made = torch.randn(shape, generator=self.generator)
        self.args.append(made)
        return len(self.args) - 1

    def given(self, made: Any) -> int:
        """A tensor as another argument; its place."""
        self.args.append(made)
        return len(self.args) - 1

    def function(self) -> Function:
        """A function of one to six steps."""
        rank = self.draw.choice([1, 2, 2, 3, 3, 4])
        shape = [self.draw.choice(SIZES) for _ in range(rank)]
        self.argument(*shape)
        value = self.args[0]
        for _ in range(self.draw.randint(1, 6)):
            kind = self.draw.choice(KINDS)
            made = kind(self, value)
            if made is None:
                continue
            name, step = made
            value = step(value, self.args)
            self.steps.append((name, step))
            if value.numel() > 20_000:
                break
        steps = [step for _, step in self.steps]

        def run(*args: Any) -> Any:
            found = args[0]
            for step in steps:
                found = step(found, list(args))
            return found

        shapes = [(tuple(a.shape), a.stride()) for a in self.args]
        return Function(run, self.args, f"{' > '.join([n for n, _ in self.steps])} of {shapes}")


Step = tuple[str, Callable[[Any, list[Any]], Any]]


def unary(m: Maker, x: Any) -> Step:
    """A function of one number."""
    f = m.torch.nn.functional
    table: dict[str, Callable[[Any], Any]] = {
        "exp": lambda v: (v * 0.3).exp(),
        "sin": lambda v: v.sin(),
        "tanh": lambda v: v.tanh(),
        "sigmoid": lambda v: v.sigmoid(),
        "relu": lambda v: v.relu(),
        "abs": lambda v: v.abs(),
        "gelu": f.gelu,
        "gelu tanh": lambda v: f.gelu(v, approximate="tanh"),
        "silu": f.silu,
        "softplus": f.softplus,
        "elu": f.elu,
        "leaky": f.leaky_relu,
        "hardswish": f.hardswish,
        "mish": f.mish,
        "log": lambda v: (v.abs() + 0.1).log(),
        "sqrt": lambda v: (v * v + 1).sqrt(),
        "rsqrt": lambda v: (v * v + 1).rsqrt(),
        "erf": lambda v: v.erf(),
        "square": lambda v: v**2,
        "cube": lambda v: v**3,
        "power": lambda v: (v.abs() + 0.5) ** 1.5,
        "neg": lambda v: -v,
        "clamp": lambda v: v.clamp(-0.5, 0.7),
        "sign": lambda v: v.sign() * v,
        "logsigmoid": f.logsigmoid,
        "log1p": lambda v: v.abs().log1p(),
        "expm1": lambda v: (v * 0.1).expm1(),
        "reciprocal": lambda v: 1 / (v * v + 1),
        "double": lambda v: (v.double() * 3).to(v.dtype),
        "where": lambda v: m.torch.where(v > 0, v, v * 0.1),
        "trunc": lambda v: v - v.detach().trunc(),
        "int": lambda v: v * (v.detach() * 3).int(),
        "bool": lambda v: v * (v.detach() > 0),
        "floor": lambda v: v + v.detach().floor(),
        "round": lambda v: v - v.detach().round(),
        "half": lambda v: v + v.detach().half(),
        "hardtanh": f.hardtanh,
        "relu6": f.relu6,
    }
    name = m.draw.choice(sorted(table))
    return name, lambda v, args: table[name](v)


def binary(m: Maker, x: Any) -> Step:
    """Arithmetic with another argument, which is broadcast."""
    torch = m.torch
    shape = [s if m.draw.random() < 0.7 else 1 for s in x.shape]
    shape = shape[m.draw.randint(0, len(shape)) :] if m.draw.random() < 0.3 else shape
    place = m.argument(*shape)
    table: dict[str, Callable[[Any, Any], Any]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: b - a,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / (b.abs() + 0.5),
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "add alpha": lambda a, b: torch.add(a, b, alpha=0.5),
        "lerp": lambda a, b: torch.lerp(a, b, 0.3),
        "less": lambda a, b: a * (a.detach() < b),
        "addcmul": lambda a, b: torch.addcmul(a, a, b, value=2),
        "hypot": lambda a, b: (a * a + b * b + 1).sqrt(),
        "copysign": lambda a, b: torch.where(b > 0, a, -a),
    }
    name = m.draw.choice(sorted(table))
    return name, lambda v, args: table[name](v, args[place])


def reduction(m: Maker, x: Any) -> Step | None:
    """A fold over some axes, or along one."""
    torch = m.torch
    if not x.dim():
        return None
    axis = m.draw.randrange(-x.dim(), x.dim())
    axes = sorted({m.draw.randrange(x.dim()) for _ in range(2)})
    keep = m.draw.random() < 0.5
    table: dict[str, Callable[[Any], Any]] = {
        "sum": lambda v: v.sum(axes, keepdim=keep),
        "mean": lambda v: v.mean(axes, keepdim=keep),
        "sum all": lambda v: v.sum(),
        "amax": lambda v: v.amax(axes, keepdim=keep),
        "max": lambda v: v.max(axis, keepdim=keep)[0],
        "min": lambda v: v.min(axis, keepdim=keep)[0],
        "softmax": lambda v: v.softmax(axis),
        "log_softmax": lambda v: v.log_softmax(axis),
        "logsumexp": lambda v: v.logsumexp(axis),
        "cumsum": lambda v: v.cumsum(axis),
        "var": lambda v: v.var(axes, correction=0, keepdim=keep),
        "std": lambda v: (v * 2).std(axes, correction=0) + 1,
        "norm": lambda v: (v + 3).norm(dim=axis, keepdim=keep),
        "argmax": lambda v: v * v.detach().argmax(axis, keepdim=True),
        "sort": lambda v: v.sort(axis)[0],
        "any": lambda v: v * (v.detach() > 1).any(axis, keepdim=True),
        "prod": lambda v: (v * 0.5 + 1).prod(axis),
        "cumprod": lambda v: (v.detach() * 0.1 + 1).cumprod(axis) * v,
        "topk": lambda v: v.topk(min(2, v.shape[axis]), axis)[0],
        "var_mean": lambda v: torch.var_mean(v, axes, correction=0)[1],
    }
    name = m.draw.choice(sorted(table))
    return f"{name} {axis} {axes} {keep}", lambda v, args: table[name](v)


def movement(m: Maker, x: Any) -> Step | None:
    """Another shape or order."""
    torch, draw = m.torch, m.draw
    if not x.dim() or not x.numel():
        return None
    axis, other = draw.randrange(x.dim()), draw.randrange(x.dim())
    order = draw.sample(range(x.dim()), x.dim())
    low = draw.randrange(x.shape[axis])
    high = draw.randint(low + 1, x.shape[axis])
    step = draw.choice([1, 1, 2, 3])
    pads = [draw.choice([0, 1, 2]) for _ in range(2)]

    def put(v: Any) -> Any:
        made = v.clone()
        made.narrow(axis, low, high - low).mul_(2)
        return made

    table: dict[str, Callable[[Any], Any]] = {
        "permute": lambda v: v.permute(order),
        "transpose": lambda v: v.transpose(axis, other),
        "flatten": lambda v: v.flatten(),
        "reshape": lambda v: v.reshape(-1, v.shape[-1]),
        "slice": lambda v: v.narrow(axis, low, high - low),
        "steps": lambda v: v[(slice(None),) * axis + (slice(low, None, step),)],
        "select": lambda v: v.select(axis, low),
        "unsqueeze": lambda v: v.unsqueeze(axis),
        "cat": lambda v: torch.cat([v, v * 2], axis),
        "stack": lambda v: torch.stack([v, v + 1], axis),
        "flip": lambda v: v.flip(axis),
        "roll": lambda v: v.roll(low + 1, axis),
        "repeat": lambda v: v.repeat(*[2] * v.dim()),
        "pad": lambda v: torch.nn.functional.pad(v, pads, value=0.5),
        "tril": lambda v: v.tril() if v.dim() > 1 else v,
        "diagonal": lambda v: v.diagonal() if v.dim() > 1 else v,
        "expand": lambda v: v.unsqueeze(0).expand(3, *v.shape),
        "chunk": lambda v: v.chunk(2, axis)[0],
        "split": lambda v: v.split([low, v.shape[axis] - low], axis)[1],
        "put": put,
        "squeeze": lambda v: v.squeeze(),
        "movedim": lambda v: v.movedim(axis, other),
        "unfold": lambda v: v.unfold(axis, high - low, step),
        "meshed": lambda v: v * torch.arange(v.shape[-1]),
    }
    name = draw.choice(sorted(table))
    return f"{name} {axis} {other} {low}:{high}:{step}", lambda v, args: table[name](v)


def indexing(m: Maker, x: Any) -> Step | None:
    """Elements at places that a tensor names."""
    torch, draw = m.torch, m.draw
    if not x.dim() or not x.numel():
        return None
    axis = draw.randrange(x.dim())
    places = torch.tensor([draw.randrange(x.shape[axis]) for _ in range(draw.choice([1, 3, 5]))])
    whole = torch.randint(0, x.shape[axis], x.shape, generator=m.generator)
    lead = (slice(None),) * axis
    values = torch.randn(1, generator=m.generator)
    rows = torch.tensor([draw.randrange(x.shape[0]) for _ in range(3)])
    last = torch.tensor([draw.randrange(-x.shape[-1], x.shape[-1]) for _ in range(3)])
    named = {
        n: m.given(t)
        for n, t in (
            ("places", places), ("whole", whole), ("rows", rows), ("last", last),
            ("values", values),
        )
    }  # fmt: skip
    table: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
        "index": lambda v, g: v[(*lead, g["places"])],
        "index_select": lambda v, g: v.index_select(axis, g["places"]),
        "gather": lambda v, g: v.gather(axis, g["whole"]),
        "scatter_add": lambda v, g: v.scatter_add(axis, g["whole"], v * 2),
        "index_add": lambda v, g: v.index_add(axis, g["places"], v.index_select(axis, g["places"])),
        "scatter": lambda v, g: v.scatter(
            axis,
            g["places"].reshape([-1 if i == axis else 1 for i in range(v.dim())]),
            2.0,
        ),
        "index_put": lambda v, g: v.index_put((g["rows"],), g["values"], accumulate=True),
        "index_put 2": lambda v, g: (
            v.index_put((g["rows"], g["last"]), g["values"], accumulate=True) if v.dim() == 2 else v
        ),
        "index 2": lambda v, g: v[g["rows"], ..., g["last"]] if v.dim() > 1 else v,
        "masked_fill": lambda v, g: v.masked_fill(v.detach() > 0.5, 1.0),
        "take_along": lambda v, g: torch.take_along_dim(v, g["whole"], axis),
        "one_hot": lambda v, g: torch.nn.functional.one_hot(g["whole"], v.shape[axis]) * v.sum(),
    }
    name = draw.choice(sorted(table))
    return f"{name} {axis} {places.tolist()}", lambda v, args: table[name](
        v, {n: args[at] for n, at in named.items()}
    )


def product(m: Maker, x: Any) -> Step | None:
    """A product of matrices."""
    torch, n = m.torch, m.draw.choice(SIZES)
    if x.dim() < 2:
        return None
    kind = m.draw.choice(["linear", "matmul", "batched", "einsum", "gram"])
    if kind == "linear":
        w, b = m.argument(n, x.shape[-1]), m.argument(n)
        return kind, lambda v, args: torch.nn.functional.linear(v, args[w], args[b])
    if kind == "gram":
        return kind, lambda v, args: v @ v.transpose(-1, -2) / v.shape[-1]
    lead = x.shape[:-2] if kind == "batched" else ()
    w = m.argument(*lead, x.shape[-1], n)
    if kind == "einsum":
        return kind, lambda v, args: torch.einsum("...ij,jk->...ki", v, args[w])
    return kind, lambda v, args: v @ args[w]


def layer(m: Maker, x: Any) -> Step | None:
    """A layer of a network, on axes that it fits."""
    f, draw = m.torch.nn.functional, m.draw
    kind = draw.choice(
        [
            "layer_norm",
            "conv",
            "pool",
            "batch_norm",
            "group_norm",
            "attention",
            "adapt",
            "resize",
        ]
    )
    if kind == "layer_norm" and x.dim() and x.shape[-1] > 1:
        w, b = m.argument(x.shape[-1]), m.argument(x.shape[-1])
        return kind, lambda v, args: f.layer_norm(v, v.shape[-1:], args[w], args[b])
    if kind == "attention" and x.dim() in (3, 4):
        causal = draw.random() < 0.5
        k, u = m.argument(*x.shape), m.argument(*x.shape)
        return f"{kind} {causal}", lambda v, args: f.scaled_dot_product_attention(
            v, args[k], args[u], is_causal=causal
        )
    if x.dim() != 4:
        return None
    channels, height, width = x.shape[1:]
    if kind == "conv":
        out, size = draw.choice([1, 2, 4]), draw.choice([1, 3])
        groups = channels if draw.random() < 0.3 else 1
        stride, pad, hole = (
            draw.choice([1, 2]),
            draw.choice([1, 2]),
            draw.choice([1, 1, 2]),
        )
        if min(height, width) + 2 * pad < hole * (size - 1) + 1:
            return None
        w, b = (
            m.argument(out * groups, channels // groups, size, size),
            m.argument(out * groups),
        )
        if draw.random() < 0.3:
            w = m.argument(channels, out, size, size)
            b = m.argument(out * groups)
            return (
                f"conv_transpose {stride} {pad} {groups}",
                lambda v, args: f.conv_transpose2d(
                    v, args[w], args[b], stride, 0, stride - 1, groups
                ),
            )
        return f"conv {size} {stride} {pad} {hole} {groups}", lambda v, args: f.conv2d(
            v, args[w], args[b], stride, pad, hole, groups
        )
    if kind == "pool" and min(height, width) >= 2:
        size, stride, ceil = (
            draw.choice([2, 3]),
            draw.choice([1, 2]),
            draw.random() < 0.3,
        )
        if draw.random() < 0.5:
            return f"max_pool {size} {stride} {ceil}", lambda v, args: f.max_pool2d(
                v, size, stride, 1, 1, ceil
            )
        counted = draw.random() < 0.5
        return (
            f"avg_pool {size} {stride} {ceil} {counted}",
            lambda v, args: f.avg_pool2d(v, size, stride, 1, ceil, counted),
        )
    if kind == "batch_norm" and x.shape[0] * height * width > 2:
        w, b = m.argument(channels), m.argument(channels)
        return kind, lambda v, args: f.batch_norm(v, None, None, args[w], args[b], training=True)
    if kind == "group_norm" and height * width > 2:
        w, b = m.argument(channels), m.argument(channels)
        return kind, lambda v, args: f.group_norm(
            v, channels if channels < 3 else 1, args[w], args[b]
        )
    if kind == "adapt":
        size = draw.choice([1, 2, 3]), draw.choice([1, 2, 3])
        return f"{kind} {size}", lambda v, args: f.adaptive_avg_pool2d(v, size)
    if kind == "resize":
        mode = draw.choice(["nearest", "bilinear"])
        return f"{kind} {mode}", lambda v, args: f.interpolate(v, scale_factor=2, mode=mode)
    return None


KINDS = (
    unary,
    unary,
    binary,
    binary,
    reduction,
    movement,
    movement,
    indexing,
    product,
    layer,
    layer,
)
