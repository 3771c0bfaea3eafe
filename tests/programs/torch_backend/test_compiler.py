"""torch.compile(model, backend="aster") against eager PyTorch: results, gradients, state."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aster_ml.errors import ArgumentError
from aster_ml.torch_backend import aster

torch = pytest.importorskip("torch", reason="torch.compile is PyTorch's")
pytestmark = pytest.mark.torch
nn = torch.nn


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing that was compiled before, and the same weights each time."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def error(found: Any, wanted: Any) -> float:
    """The greatest difference, relative to the greatest value."""
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    scale = max(wanted.abs().max().item(), 1e-3)
    return float((found - wanted).abs().max() / scale)


def train(model: Any, x: Any, compiled: Any = None, steps: int = 4) -> tuple[list[float], Any]:
    """Losses of a few steps, and the last gradients."""
    run = model if compiled is None else compiled
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = run(x).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses, [p.grad for p in model.parameters()]


def convolutional() -> Any:
    """A convolution, statistics of batches, a pool with ties, a linear layer."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Flatten(), nn.Linear(4 * 16, 3),
    )  # fmt: skip


def test_it_is_found_by_its_name() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    group = project["project"]["entry-points"]["torch_dynamo_backends"]
    assert group == {"aster": "aster_ml.torch_backend:aster"}
    if "aster" not in torch._dynamo.list_backends():
        torch._dynamo.register_backend(aster, name="aster")
    compiled = torch.compile(lambda x: x * 2 + 1, backend="aster")
    assert compiled(torch.ones(3)).tolist() == [3, 3, 3]


def test_inference_and_its_replay() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 3)).eval()
    compiled = torch.compile(copy.deepcopy(model), backend=aster)
    with torch.no_grad():
        results = []
        for _ in range(4):
            x = torch.randn(6, 5)
            results.append((compiled(x), model(x)))
    # Results of earlier calls stay what they were.
    assert max(error(a, b) for a, b in results) < 1e-5


def test_training_with_buffers_that_change() -> None:
    model, x = convolutional(), torch.randn(3, 2, 8, 8)
    other = copy.deepcopy(model)
    losses, grads = train(model, x, torch.compile(model, backend=aster))
    wanted, wanted_grads = train(other, x)
    assert losses == pytest.approx(wanted, rel=1e-5)
    pairs = zip(grads, wanted_grads, strict=True)
    assert max(error(a, b) for a, b in pairs) < 1e-4
    assert other[1].num_batches_tracked == model[1].num_batches_tracked == 4
    assert error(model[1].running_mean, other[1].running_mean) < 1e-5
    assert error(model[1].running_var, other[1].running_var) < 1e-5


def test_parameters_are_read_where_they_are() -> None:
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend=aster)
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        model.weight.fill_(0.5)
        model.bias.zero_()
        assert error(compiled(x), model(x)) < 1e-6


def test_sizes_of_batches_that_change() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    compiled = torch.compile(copy.deepcopy(model), backend=aster, dynamic=True)
    for n in (2, 5, 7, 5, 2, 5, 1, 64):
        x = torch.randn(n, 3, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        compiled(x).square().sum().backward()
        model(y).square().sum().backward()
        assert error(x.grad, y.grad) < 1e-4


def test_what_is_not_there_is_left_to_pytorch() -> None:
    def function(x: Any) -> Any:
        return torch.special.bessel_j0(x * 2) + torch.linalg.inv(x @ x.T + torch.eye(3)).sum()

    x = torch.rand(3, 3)
    compiled = torch.compile(function, backend=aster)
    with pytest.warns(UserWarning, match=r"left to PyTorch: .*bessel_j0.*is not there"):
        first = compiled(x)
    for y in (first, compiled(x), compiled(x)):
        assert error(y, function(x)) < 1e-5


def test_complex_numbers_are_left_to_pytorch() -> None:
    def function(x: Any) -> Any:
        return torch.view_as_real(torch.fft.rfft(x * 3)).square().sum(-1) + 1

    x = torch.randn(16)
    compiled = torch.compile(function, backend=aster)
    with pytest.warns(UserWarning, match=r"_fft_r2c.*view_as_real"):
        found = compiled(x)
    assert error(found, function(x)) < 1e-5


def test_random_numbers_follow_the_seed() -> None:
    layer = nn.Dropout(0.25)
    compiled = torch.compile(layer, backend=aster)
    x = torch.ones(20_000)
    draws = []
    for seed in (1, 2, 1, 1):
        torch.manual_seed(seed)
        draws.append(compiled(x))
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[0], draws[3])
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(compiled(x), compiled(x))
    for y in draws:
        assert y.unique().tolist() == pytest.approx([0, 4 / 3])
        assert abs((y == 0).float().mean().item() - 0.25) < 0.02


def test_gradients_see_the_elements_that_were_dropped() -> None:
    compiled = torch.compile(nn.Dropout(0.5), backend=aster)
    for _ in range(4):
        x = torch.ones(64, requires_grad=True)
        y = compiled(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())


def test_views_arguments_and_constants_come_back() -> None:
    def function(x: Any, y: Any) -> Any:
        return x, x.T, y[0], torch.zeros(2), (x * 2).T, x.shape[0]

    x, y = torch.randn(3, 4), torch.randn(2, 5)
    compiled = torch.compile(function, backend=aster)
    for _ in range(4):
        found = compiled(x, y)
        for a, b in zip(found, function(x, y), strict=True):
            assert (
                a == b if isinstance(b, int) else (torch.equal(a, b) and a.stride() == b.stride())
            )
    assert compiled(x, y)[1].data_ptr() == x.data_ptr()


def test_arguments_in_any_layout() -> None:
    compiled = torch.compile(lambda x: (x * 2 + 1).sum(0), backend=aster)
    for _ in range(3):
        for x in (
            torch.randn(4, 6), torch.randn(6, 4).T, torch.randn(8, 12)[::2, ::2],
            torch.randn(6).expand(4, 6), torch.randn(5, 6)[1:], torch.zeros(4, 0),
            torch.randn(0, 6),
        ):  # fmt: skip
            wanted = (x * 2 + 1).sum(0)
            assert compiled(x).shape == wanted.shape
            assert torch.allclose(compiled(x), wanted, atol=1e-5)


def test_arguments_that_change_in_place() -> None:
    def function(x: Any) -> Any:
        x.add_(1)
        return x * 2

    compiled = torch.compile(function, backend=aster)
    x = torch.zeros(5)
    for n in range(1, 5):
        assert compiled(x).tolist() == [2.0 * n] * 5
    assert x.tolist() == [4.0] * 5


def test_one_memory_as_two_arguments() -> None:
    compiled = torch.compile(lambda x, y: x + 2 * y, backend=aster)
    x, y = torch.randn(4), torch.randn(4)
    for a, b in ((x, x), (x, y), (x, x), (y, x), (y, y), (x, y)):
        assert torch.allclose(compiled(a, b), a + 2 * b)


def test_options_are_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"options \['speed'\] given; the backend aster has none"
    ):
        aster(None, [], speed=1)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float64", "int64", "uint8", "bool"])
def test_other_dtypes(name: str) -> None:
    dtype = getattr(torch, name)
    x = (torch.arange(12).reshape(3, 4) % 5).to(dtype)
    function = (lambda x: x.T.logical_not()) if name == "bool" else (lambda x: (x * 2 + 1).T)
    compiled = torch.compile(function, backend=aster)
    for _ in range(4):
        assert torch.equal(compiled(x), function(x))
