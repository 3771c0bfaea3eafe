"""Normalisations beside PyTorch's, and the running statistics of BatchNorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes, nn
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.nn.state import get_state_dict

ATOL = 2e-5


def randomize(layer: Any) -> Any:
    """The layer with random scales and offsets that take gradients."""
    for name, t in get_state_dict(layer).items():
        if name in ("weight", "bias"):
            t.replace(Tensor(np.random.uniform(0.5, 1.5, t.shape).astype(np.float32)))
            t.requires_grad = True
    return layer


def assert_norm_equal(layer: Any, twin: Any, shape: tuple[int, ...], torch: Any) -> None:
    """Same output, and same gradients of the input and the weights."""
    state = {name: torch.tensor(t.numpy()) for name, t in get_state_dict(layer).items()}
    twin.load_state_dict(state)
    data = np.random.randn(*shape).astype(np.float32) * 2 + 1
    x, tx = Tensor(data, requires_grad=True), torch.tensor(data, requires_grad=True)
    out, tout = layer(x), twin(tx)
    cotangent = np.random.randn(*shape).astype(np.float32)
    (out * Tensor(cotangent)).sum().backward()
    (tout * torch.tensor(cotangent)).sum().backward()
    np.testing.assert_allclose(out.numpy(), tout.detach().numpy(), atol=ATOL, rtol=1e-4)
    np.testing.assert_allclose(x.grad.numpy(), tx.grad.numpy(), atol=ATOL, rtol=1e-3)
    for name, parameter in twin.named_parameters():
        np.testing.assert_allclose(
            get_state_dict(layer)[name].grad.numpy(), parameter.grad.numpy(), atol=1e-4, rtol=1e-4
        )


CASES: list[tuple[str, Callable[[], Any], Callable[[Any], Any], tuple[int, ...]]] = [
    ("layer", lambda: nn.LayerNorm(6), lambda t: t.LayerNorm(6), (4, 3, 6)),
    ("layer, two axes", lambda: nn.LayerNorm((3, 6)), lambda t: t.LayerNorm((3, 6)), (4, 3, 6)),
    (
        "layer, plain",
        lambda: nn.LayerNorm(6, eps=1e-3, elementwise_affine=False),
        lambda t: t.LayerNorm(6, eps=1e-3, elementwise_affine=False),
        (4, 6),
    ),
    ("group", lambda: nn.GroupNorm(2, 6), lambda t: t.GroupNorm(2, 6), (3, 6, 4, 5)),
    (
        "group, plain",
        lambda: nn.GroupNorm(3, 6, affine=False),
        lambda t: t.GroupNorm(3, 6, affine=False),
        (3, 6, 4),
    ),
    (
        "instance",
        lambda: nn.InstanceNorm(4),
        lambda t: t.InstanceNorm2d(4, affine=True),
        (3, 4, 5, 2),
    ),
    (
        "instance, plain",
        lambda: nn.InstanceNorm(4, affine=False),
        lambda t: t.InstanceNorm1d(4),
        (3, 4, 7),
    ),
    ("rms", lambda: nn.RMSNorm(6), lambda t: t.RMSNorm(6, eps=1e-6), (4, 3, 6)),
]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("ours", "theirs", "shape"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_beside_torch(
    ours: Callable[[], Any], theirs: Callable[[Any], Any], shape: tuple[int, ...]
) -> None:
    torch = pytest.importorskip("torch")
    assert_norm_equal(randomize(ours()), theirs(torch.nn), shape, torch)


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (4, 3, 5, 2), (2, 3, 2, 3, 2)])
def test_batchnorm_in_training_beside_torch(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    twin = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}.get(
        len(shape), torch.nn.BatchNorm3d
    )(3)
    layer = randomize(nn.BatchNorm(3))
    with Tensor.train():
        assert_norm_equal(layer, twin.train(), shape, torch)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        np.testing.assert_allclose(
            get_state_dict(layer)[name].numpy(), twin.state_dict()[name].numpy(), atol=1e-5
        )
    assert_norm_equal(layer, twin.eval(), shape, torch)


@pytest.mark.torch
def test_batchnorm_over_several_steps_beside_torch() -> None:
    torch = pytest.importorskip("torch")
    layer, twin = nn.BatchNorm2d(3, momentum=0.3), torch.nn.BatchNorm2d(3, momentum=0.3)
    with Tensor.train():
        for _ in range(4):
            data = np.random.randn(2, 3, 4, 4).astype(np.float32) * 3 + 2
            out, tout = layer(Tensor(data)), twin(torch.tensor(data))
            np.testing.assert_allclose(out.numpy(), tout.detach().numpy(), atol=ATOL)
    np.testing.assert_allclose(layer.running_mean.numpy(), twin.running_mean.numpy(), atol=1e-5)
    np.testing.assert_allclose(layer.running_var.numpy(), twin.running_var.numpy(), rtol=1e-5)
    assert layer.num_batches_tracked.item() == 4


@pytest.mark.torch
def test_batchnorm_second_derivative_beside_torch() -> None:
    torch = pytest.importorskip("torch")
    layer, twin = nn.BatchNorm(2, affine=False), torch.nn.BatchNorm1d(2, affine=False)
    data = np.random.randn(5, 2).astype(np.float32)
    weights = np.random.randn(5, 2).astype(np.float32)
    x, tx = Tensor(data, requires_grad=True), torch.tensor(data, requires_grad=True)
    with Tensor.train():
        (first,) = (layer(x).sigmoid() * Tensor(weights)).sum().gradient(x)
    (tfirst,) = torch.autograd.grad(
        (twin(tx).sigmoid() * torch.tensor(weights)).sum(), tx, create_graph=True
    )
    (second,) = first.square().sum().gradient(x)
    (tsecond,) = torch.autograd.grad(tfirst.square().sum(), tx)
    np.testing.assert_allclose(second.numpy(), tsecond.numpy(), atol=1e-4, rtol=1e-3)


def test_batchnorm_without_training_uses_and_keeps_running_statistics() -> None:
    layer = nn.BatchNorm(2)
    layer.running_mean.replace(Tensor([1.0, -1.0]))
    layer.running_var.replace(Tensor([4.0, 0.25]))
    out = layer(Tensor([[3.0, 0.0], [1.0, -1.0]])).numpy()
    np.testing.assert_allclose(out, [[1.0, 2.0], [0.0, 0.0]], atol=1e-4)
    assert layer.running_mean.tolist() == [1.0, -1.0]
    assert layer.num_batches_tracked.item() == 0


def test_batchnorm_that_tracks_nothing_always_uses_the_batch() -> None:
    layer = nn.BatchNorm(2, affine=False, track_running_stats=False)
    assert list(get_state_dict(layer)) == ["num_batches_tracked"]
    out = layer(Tensor(np.random.randn(64, 2).astype(np.float32) * 5 + 3)).numpy()
    np.testing.assert_allclose(out.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(out.std(0), 1, atol=1e-4)


def test_batchnorm_state_names_and_which_take_gradients() -> None:
    state = get_state_dict(nn.BatchNorm(3))
    assert set(state) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert state[name].requires_grad is False
    assert state["num_batches_tracked"].dtype == dtypes.int64
    assert nn.BatchNorm2d is nn.BatchNorm
    assert nn.BatchNorm3d is nn.BatchNorm


def test_layernorm2d_normalizes_channels() -> None:
    layer = randomize(nn.LayerNorm2d(4))
    data = np.random.randn(2, 4, 3, 5).astype(np.float32)
    out = layer(Tensor(data)).numpy()
    centred = data - data.mean(1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    scale, offset = (t.numpy().reshape(1, 4, 1, 1) for t in (layer.weight, layer.bias))
    np.testing.assert_allclose(out, want * scale + offset, atol=ATOL)


def test_rmsnorm_in_half_precision_squares_in_single() -> None:
    x = Tensor([300.0, -400.0], dtype=dtypes.float16)
    out = nn.RMSNorm(2, elementwise_affine=False)(x)
    assert out.dtype == dtypes.float16
    np.testing.assert_allclose(out.numpy(), np.array([300, -400]) / np.sqrt(125000), rtol=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.BatchNorm(3)(Tensor.ones(2, 4, 5)), r"x is \[2, 4, 5\], \[n, 3, ...\]"),
        (lambda: nn.GroupNorm(2, 4)(Tensor.ones(2, 6)), r"x is \[2, 6\], \[n, 4, ...\]"),
        (lambda: nn.InstanceNorm(3)(Tensor.ones(2, 3)), r"x is \[2, 3\].*at least one axis"),
        (lambda: nn.LayerNorm((3, 4))(Tensor.ones(2, 4)), r"x \[2, 4\] must be \[3, 4\]"),
        (lambda: nn.RMSNorm(3)(Tensor.ones(2, 4)), r"last axis of x is 4, dim is 3"),
    ],
)
def test_shapes_that_do_not_fit_are_named(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call()


def test_batchnorm_refuses_to_train_on_one_value_a_channel() -> None:
    with (
        Tensor.train(),
        pytest.raises(ShapeError, match=r"more than one value a channel, x is \[1, 3\]"),
    ):
        nn.BatchNorm(3)(Tensor.ones(1, 3))


def test_more_groups_than_channels() -> None:
    x = np.random.default_rng(0).standard_normal((2, 8, 4, 4)).astype(np.float32)
    grouped = x.reshape(2, 32, -1)
    off = grouped - grouped.mean(-1, keepdims=True)
    want = off / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    got = nn.GroupNorm(32, 8)(Tensor(x)).numpy()
    np.testing.assert_allclose(got, want.reshape(x.shape), rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match="0 groups"):
        nn.GroupNorm(0, 8)
    with pytest.raises(ArgumentError, match="normalized_shape is empty"):
        nn.LayerNorm(())
