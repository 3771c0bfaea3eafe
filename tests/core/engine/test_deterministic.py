"""DETERMINISTIC=1: every number of threads gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor, nn
from aster_ml.codegen.passes import schedule_kernel
from aster_ml.config import stage_key
from aster_ml.target import Target

THREADS = (1, 2, 4, 3)


def draw(*shape: int) -> Tensor:
    rng = np.random.default_rng(sum(shape))
    return Tensor(rng.standard_normal(shape).astype(np.float32))


def grads_of(f: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    for t in inputs:
        t.requires_grad = True
    f(*inputs).backward()
    return [t.grad for t in inputs if t.grad is not None]


def train_step() -> list[Tensor]:
    """The parameters after a step of a small network."""
    layers = [nn.Linear(64, 96), nn.LayerNorm(96), nn.Linear(96, 10)]
    state = nn.state.get_state_dict(layers)
    for i, (_, t) in enumerate(state.items()):
        t.assign(draw(*t.shape) * 0.1 + float(i == 2)).realize()
    optimizer = nn.optim.Adam(list(state.values()), lr=0.01)
    labels = Tensor(np.arange(128, dtype=np.int32) % 10)
    with Tensor.train():
        optimizer.zero_grad()
        draw(128, 64).sequential(layers).sparse_categorical_crossentropy(labels).backward()
        optimizer.step()
    return list(state.values())


CASES: dict[str, Callable[[], Any]] = {
    "matmul": lambda: draw(130, 300) @ draw(300, 170),
    "matmul, large": lambda: draw(256, 512) @ draw(512, 384),
    "matmul, deep": lambda: draw(8, 6000) @ draw(6000, 8),
    "matmul, batched": lambda: draw(6, 40, 200) @ draw(6, 200, 33),
    "matmul, transposed": lambda: draw(300, 130).T @ draw(170, 300).T,
    "vector x matrix": lambda: draw(1, 1024) @ draw(1024, 1000),
    "matrix x vector": lambda: draw(1000, 1024) @ draw(1024, 1),
    "dot": lambda: draw(1 << 17) @ draw(1 << 17),
    "sum": lambda: draw(1 << 18).sum(),
    "sum, odd": lambda: draw(100_003).sum(),
    "sum over the first axis": lambda: draw(1200, 500).sum(0),
    "sum over the last axis": lambda: draw(500, 1200).sum(1),
    "sum of few rows": lambda: draw(3, 70_000).sum(1),
    "mean and variance": lambda: [draw(64, 3000).mean(1), draw(64, 3000).var(1)],
    "max": lambda: draw(64, 4000).max(0),
    "cumsum": lambda: draw(8, 5000).cumsum(1),
    "softmax": lambda: draw(300, 700).softmax(-1),
    "softmax over the first axis": lambda: draw(700, 300).softmax(0),
    "logsumexp": lambda: draw(40, 9000).logsumexp(1),
    "layernorm": lambda: draw(256, 768).layernorm(),
    "batchnorm statistics": lambda: draw(16, 8, 30, 30).mean((0, 2, 3)),
    "elementwise": lambda: ((draw(400, 500) * 2 + 1).relu() * 0.5).sigmoid(),
    "conv": lambda: draw(2, 16, 28, 28).conv2d(draw(24, 16, 3, 3), padding=1),
    "conv, strided": lambda: draw(1, 8, 40, 40).conv2d(draw(12, 8, 5, 5), stride=2),
    "conv, depthwise": lambda: draw(2, 32, 20, 20).conv2d(draw(32, 1, 3, 3), groups=32),
    "pool": lambda: draw(4, 16, 32, 32).avg_pool2d((3, 3)),
    "attention": lambda: draw(2, 4, 64, 32).scaled_dot_product_attention(
        draw(2, 4, 64, 32), draw(2, 4, 64, 32)
    ),
    "gradient of attention": lambda: grads_of(
        lambda q, k, v: q.scaled_dot_product_attention(k, v).square().sum(),
        draw(1, 4, 64, 32), draw(1, 4, 64, 32), draw(1, 4, 64, 32),
    ),
    "gradient of a convolution": lambda: grads_of(
        lambda x, w: x.conv2d(w, padding=1).square().sum(), draw(2, 8, 20, 20), draw(12, 8, 3, 3)
    ),
    "gradient of an embedding": lambda: grads_of(
        lambda w: w[Tensor(np.arange(3000, dtype=np.int32) % 50)].square().sum(), draw(50, 16)
    ),
    "training step": train_step,
}  # fmt: skip


def results(case: Callable[[], Any], threads: int) -> list[bytes]:
    """The bits of all results."""
    with Context(DETERMINISTIC=1, THREADS=threads):
        found = case()
        tensors = found if isinstance(found, list) else [found]
        return [t.numpy().tobytes() for t in tensors]


@pytest.mark.parametrize("name", CASES)
def test_threads_do_not_change_a_bit(name: str) -> None:
    wanted = results(CASES[name], THREADS[0])
    assert wanted
    for threads in THREADS[1:]:
        assert results(CASES[name], threads) == wanted, f"THREADS={threads}"


def target_with(threads: int) -> Target:
    return Target("CPU", "llvm", vector_bits=256, vector_registers=16, threads=threads)


@pytest.mark.parametrize("name", ["matmul, large", "sum over the first axis", "softmax"])
def test_schedules_are_the_same_for_any_number_of_threads(name: str) -> None:
    asts = [s.ast for s in CASES[name]().schedule() if s.ast is not None]
    assert asts
    for ast in asts:
        with Context(DETERMINISTIC=1):
            found = {tuple(schedule_kernel(ast, target_with(n)).applied) for n in (1, 2, 4, 7)}
        assert len(found) == 1


def test_without_it_schedules_follow_the_threads() -> None:
    [ast] = [s.ast for s in CASES["matmul, large"]().schedule() if s.ast is not None]
    found = {tuple(schedule_kernel(ast, target_with(n)).applied) for n in (1, 2)}
    assert len(found) == 2


def test_setting_is_part_of_the_keys_of_kernels() -> None:
    before = stage_key("codegen")
    with Context(DETERMINISTIC=1):
        assert stage_key("codegen") != before
