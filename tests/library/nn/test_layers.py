"""Linear, convolutions, embedding and LSTM beside PyTorch: forward, gradients, first values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes, nn
from aster_ml.errors import ArgumentError, DTypeError, ShapeError
from aster_ml.nn.state import get_state_dict

ATOL = 2e-5


def copy_weights(layer: Any, twin: Any, torch: Any) -> None:
    """Gives the PyTorch layer the values of ours, tensor by tensor, names alike."""
    state = {name: torch.tensor(t.numpy()) for name, t in get_state_dict(layer).items()}
    assert state.keys() == twin.state_dict().keys()
    twin.load_state_dict(state)


def assert_layer_equal(
    layer: Any, twin: Any, shape: tuple[int, ...], torch: Any, atol: float = ATOL
) -> None:
    """Same output, same gradient of the input and of every weight, for a random cotangent."""
    copy_weights(layer, twin, torch)
    data = np.random.randn(*shape).astype(np.float32)
    x, tx = Tensor(data, requires_grad=True), torch.tensor(data, requires_grad=True)
    out, tout = layer(x), twin(tx)
    assert out.shape == tuple(tout.shape)
    cotangent = np.random.randn(*out.shape).astype(np.float32)
    (out * Tensor(cotangent)).sum().backward()
    (tout * torch.tensor(cotangent)).sum().backward()
    np.testing.assert_allclose(out.numpy(), tout.detach().numpy(), atol=atol, rtol=1e-4)
    np.testing.assert_allclose(x.grad.numpy(), tx.grad.numpy(), atol=atol, rtol=1e-4)
    ours = get_state_dict(layer)
    for name, parameter in twin.named_parameters():
        np.testing.assert_allclose(
            ours[name].grad.numpy(), parameter.grad.numpy(), atol=atol * 5, rtol=1e-4, err_msg=name
        )


def requiring_gradients(layer: Any) -> Any:
    """The layer, its weights told to take gradients, as an optimiser would."""
    for t in get_state_dict(layer).values():
        t.requires_grad = True if t.requires_grad is None else t.requires_grad
    return layer


CASES: list[tuple[str, Callable[[], Any], Callable[[Any], Any], tuple[int, ...]]] = [
    ("linear", lambda: nn.Linear(5, 3), lambda t: t.Linear(5, 3), (4, 5)),
    ("linear 3d", lambda: nn.Linear(5, 3), lambda t: t.Linear(5, 3), (2, 4, 5)),
    (
        "linear no bias",
        lambda: nn.Linear(5, 3, bias=False),
        lambda t: t.Linear(5, 3, bias=False),
        (4, 5),
    ),
    ("conv2d", lambda: nn.Conv2d(3, 4, 3), lambda t: t.Conv2d(3, 4, 3), (2, 3, 6, 7)),
    (
        "conv2d strided, padded",
        lambda: nn.Conv2d(3, 4, (3, 2), stride=2, padding=(1, 0)),
        lambda t: t.Conv2d(3, 4, (3, 2), stride=2, padding=(1, 0)),
        (2, 3, 7, 6),
    ),
    (
        "conv2d dilated, groups",
        lambda: nn.Conv2d(4, 6, 3, dilation=2, groups=2, bias=False),
        lambda t: t.Conv2d(4, 6, 3, dilation=2, groups=2, bias=False),
        (2, 4, 7, 7),
    ),
    (
        "conv2d same, even kernel",
        lambda: nn.Conv2d(2, 3, (4, 3), padding="same", dilation=(1, 2)),
        lambda t: t.Conv2d(2, 3, (4, 3), padding="same", dilation=(1, 2)),
        (1, 2, 6, 7),
    ),
    (
        "conv1d",
        lambda: nn.Conv1d(3, 4, 5, stride=2, padding=2),
        lambda t: t.Conv1d(3, 4, 5, stride=2, padding=2),
        (2, 3, 11),
    ),
    (
        "conv3d",
        lambda: nn.Conv2d(2, 3, (2, 3, 2), padding=1),
        lambda t: t.Conv3d(2, 3, (2, 3, 2), padding=1),
        (1, 2, 3, 4, 3),
    ),
    (
        "conv transpose 2d",
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        lambda t: t.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        (2, 4, 4, 5),
    ),
    (
        "conv transpose 1d",
        lambda: nn.ConvTranspose1d(3, 2, 4, stride=3, dilation=2),
        lambda t: t.ConvTranspose1d(3, 2, 4, stride=3, dilation=2),
        (2, 3, 5),
    ),
]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("ours", "theirs", "shape"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_beside_torch(
    ours: Callable[[], Any], theirs: Callable[[Any], Any], shape: tuple[int, ...]
) -> None:
    torch = pytest.importorskip("torch")
    assert_layer_equal(requiring_gradients(ours()), theirs(torch.nn), shape, torch)


@pytest.mark.torch
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("with_state", [True, False])
def test_lstm_cell_beside_torch(bias: bool, with_state: bool) -> None:
    torch = pytest.importorskip("torch")
    cell = requiring_gradients(nn.LSTMCell(3, 5, bias=bias))
    twin = torch.nn.LSTMCell(3, 5, bias=bias)
    if bias:
        cell.bias_ih.assign(Tensor.randn(20)).realize()
        cell.bias_hh.assign(Tensor.randn(20)).realize()
    copy_weights(cell, twin, torch)
    x = np.random.randn(2, 3).astype(np.float32)
    hc = [np.random.randn(2, 5).astype(np.float32) for _ in range(2)] if with_state else None
    h, c = cell(Tensor(x), hc and tuple(Tensor(part) for part in hc))
    h2, c2 = cell(Tensor(x), (h, c))
    th, tc = twin(torch.tensor(x), hc and tuple(torch.tensor(part) for part in hc))
    th2, tc2 = twin(torch.tensor(x), (th, tc))
    (h2.sum() + c2.square().sum()).backward()
    (th2.sum() + tc2.square().sum()).backward()
    for ours, theirs in [(h, th), (c, tc), (h2, th2), (c2, tc2)]:
        np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), atol=ATOL)
    for name, parameter in twin.named_parameters():
        np.testing.assert_allclose(
            get_state_dict(cell)[name].grad.numpy(), parameter.grad.numpy(), atol=1e-4
        )


def test_embedding_reads_rows() -> None:
    layer = nn.Embedding(7, 3)
    idx = np.array([[0, 6, 2], [2, 2, 5]], dtype=np.int32)
    out = layer(Tensor(idx))
    assert out.shape == (2, 3, 3)
    np.testing.assert_array_equal(out.numpy(), layer.weight.numpy()[idx])


def test_embedding_gradient_adds_up_over_repeated_rows() -> None:
    layer = nn.Embedding(7, 3)
    layer.weight.requires_grad = True
    idx = np.array([[0, 6, 2], [2, 2, 5]], dtype=np.int32)
    cotangent = np.random.randn(2, 3, 3).astype(np.float32)
    (layer(Tensor(idx)) * Tensor(cotangent)).sum().backward()
    want = np.zeros((7, 3), np.float32)
    np.add.at(want, idx, cotangent)
    np.testing.assert_allclose(layer.weight.grad.numpy(), want, atol=1e-6)


def test_embedding_of_a_single_index() -> None:
    layer = nn.Embedding(7, 3)
    np.testing.assert_array_equal(layer(Tensor(4)).numpy(), layer.weight.numpy()[4])


def test_embedding_refuses_floats() -> None:
    with pytest.raises(DTypeError, match=r"index has dtype .*float.*integer dtype is wanted"):
        nn.Embedding(7, 3)(Tensor([1.0, 2.0]))


# What the reference has after Tensor.manual_seed(3).
SEEDED: list[tuple[Callable[[], Any], list[float], list[float]]] = [
    (lambda: nn.Conv2d(4, 6, 3), [-0.13209641, 0.11588236], [-0.14237389, -0.11164789]),
    (lambda: nn.Conv2d(4, 6, 3, groups=2), [0.01653647, 0.06057759], [-0.16624801, 0.0570465]),
    (lambda: nn.ConvTranspose2d(4, 6, 3), [-0.05243317, 0.15674913], [-0.14237389, -0.11164789]),
    (
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
        [-0.1494513, -0.07043561],
        [-0.16624801, 0.0570465],
    ),
    (lambda: nn.ConvTranspose2d(4, 6, 3, bias=False), [0.05711123, -0.08251071], []),
]


@pytest.mark.parametrize(("layer", "weight", "bias"), SEEDED)
def test_a_seed_gives_the_weights_of_the_reference(
    layer: Callable[[], Any], weight: list[float], bias: list[float]
) -> None:
    Tensor.manual_seed(3)
    made = layer()
    np.testing.assert_allclose(made.weight.numpy().ravel()[:2], weight, rtol=1e-5)
    assert (made.bias is None) == (not bias)
    if bias:
        np.testing.assert_allclose(made.bias.numpy()[:2], bias, rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "bound"),
    [
        (lambda: nn.Linear(64, 50), 1 / 8),
        (lambda: nn.Conv2d(16, 20, 3), 1 / 12),
        (lambda: nn.Conv2d(64, 64, 3, groups=64), 1 / 24),
        (lambda: nn.ConvTranspose2d(64, 64, 3, groups=64), 1 / 24),
        (lambda: nn.Conv1d(4, 64, 4), 1 / 4),
        (lambda: nn.ConvTranspose2d(16, 20, 3), 1 / 12),
        (lambda: nn.LSTMCell(10, 16), 1 / 4),
    ],
)
def test_weights_start_uniform_within_the_bound(layer: Callable[[], Any], bound: float) -> None:
    for name, t in get_state_dict(layer()).items():
        if name in ("bias_ih", "bias_hh"):
            assert not t.numpy().any()
            continue
        values = t.numpy() / bound
        assert np.abs(values).max() <= 1.0
        if values.size > 500:
            # Mean and deviation of a uniform variable, with room for a sample of this size.
            assert abs(values.mean()) < 5 / math.sqrt(3 * values.size)
            assert abs(values.std() - 1 / math.sqrt(3)) < 0.05
            assert np.abs(values).max() > 0.97


def test_attributes_are_those_of_checkpoints() -> None:
    assert list(get_state_dict(nn.Conv2d(2, 4, 3))) == ["weight", "bias"]
    assert nn.Conv2d(2, 4, 3, bias=False).bias is None
    assert nn.Conv2d(2, 4, 3).weight.shape == (4, 2, 3, 3)
    assert nn.Conv1d(2, 4, 3).weight.shape == (4, 2, 3)
    assert nn.ConvTranspose2d(2, 4, 3, groups=2).weight.shape == (2, 2, 3, 3)
    assert nn.Conv2d(2, 4, 3).kernel_size == (3, 3)
    assert nn.Embedding(5, 3).vocab_sz == 5


def test_half_precision_linear_keeps_its_dtype() -> None:
    layer = nn.Linear(4, 3)
    for t in get_state_dict(layer).values():
        t.replace(t.half())
    assert layer(Tensor.ones(2, 4, dtype=dtypes.float16)).dtype == dtypes.float16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), r"groups=2 must divide in_channels=3"),
        (lambda: nn.Conv2d(2, 4, 3, padding="valid"), r"padding='valid'.*'same' is wanted"),
        (lambda: nn.Conv2d(2, 4, 3, stride=2, padding="same"), r"strided .*stride=2.*numbers"),
        (lambda: nn.ConvTranspose2d(2, 4, 3, padding="same"), r"padding='same' is a word"),
    ],
)
def test_impossible_convolutions_say_why(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_lstm_cell_names_both_sizes() -> None:
    with pytest.raises(ShapeError, match="last axis of x is 4, input_size is 3"):
        nn.LSTMCell(3, 5)(Tensor.ones(2, 4))


def test_an_lstm_cell_without_a_state_has_all_gradients() -> None:
    cell, x = nn.LSTMCell(3, 4), Tensor(np.random.rand(1, 3).astype(np.float32))
    weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
    for w in weights:
        w.requires_grad = True
    zeros = Tensor.zeros(1, 4)
    for new, want in zip(cell(x), cell(x, (zeros, zeros))):
        np.testing.assert_array_equal(new.numpy(), want.numpy())
    cell(x)[0].sum().backward()
    assert not cell.weight_hh.grad.numpy().any()
    assert all(w.grad.numpy().any() for w in (cell.weight_ih, cell.bias_ih, cell.bias_hh))
