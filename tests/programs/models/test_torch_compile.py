"""Models that people have, compiled by Aster: outputs, gradients, losses beside eager PyTorch."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aster_ml.torch_backend import aster

torch = pytest.importorskip("torch", reason="torch.compile is PyTorch's")
pytestmark = [pytest.mark.torch, pytest.mark.slow]
nn = torch.nn
# Where float32 does not carry what is asked, Aster may lie so many times as far from float64 as
# eager PyTorch does: another order of the same sums.
TIMES = 4
SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing that was compiled before; warnings of other packages are not ours."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


class Recurrent(nn.Module):
    """Two layers of LSTM and a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 7, 2, batch_first=True)
        self.head = nn.Linear(7, 3)

    def forward(self, x: Any) -> Any:
        """[b, t, 5] -> [b, 3]."""
        return self.head(self.lstm(x)[0][:, -1])


def transformer(kind: str, **sizes: Any) -> Any:
    """A model of the package transformers, small, with random weights, without dropout."""
    package = pytest.importorskip("transformers", reason="pip install transformers")
    config = getattr(package, f"{kind.removesuffix('Model').removesuffix('LMHead')}Config", None)
    if config is None:
        config = getattr(package, kind.removesuffix("ForCausalLM") + "Config")
    return getattr(package, kind)(config(**sizes))


def benchmarked(name: str, *sizes: int) -> Any:
    """A model that is measured, too."""
    where = "benchmarks.compiled_models" if name in ("UNet", "ViT") else "benchmarks.torch_models"
    return getattr(importlib.import_module(where), name)(*sizes)


def tokens() -> Any:
    """Two rows of tokens."""
    return torch.randint(0, 50, (2, 9))


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "resnet18": (lambda: benchmarked("ResNet18"), lambda: torch.randn(2, 3, 64, 64)),
    "unet": (lambda: benchmarked("UNet"), lambda: torch.randn(2, 3, 16, 16)),
    "encoder": (lambda: benchmarked("ViT"), lambda: torch.randn(2, 3, 32, 32)),
    "lstm": (Recurrent, lambda: torch.randn(3, 6, 5)),
    "gpt2": (
        lambda: transformer(
            "GPT2LMHeadModel", vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32,
            use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        ),
        tokens,
    ),
    "llama": (
        lambda: transformer(
            "LlamaForCausalLM", **SMALL, intermediate_size=48, num_key_value_heads=2,
            use_cache=False,
        ),
        tokens,
    ),
    "vit": (
        lambda: transformer(
            "ViTModel", **{**SMALL, "image_size": 32}, patch_size=8, intermediate_size=48,
            **NO_DROPOUT,
        ),
        lambda: torch.randn(2, 3, 32, 32),
    ),
    "bert": (
        lambda: transformer("BertModel", **SMALL, intermediate_size=48, **NO_DROPOUT), tokens,
    ),
}  # fmt: skip


def main_output(found: Any) -> Any:
    """The tensor that a loss is made of."""
    for name in ("logits", "last_hidden_state"):
        if hasattr(found, name):
            return getattr(found, name)
    return found


def error(found: Any, wanted: Any) -> float:
    """The greatest difference, relative to the greatest value."""
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))


@pytest.mark.parametrize("name", MODELS)
@torch._dynamo.config.patch(allow_rnn=True)
def test_model(name: str) -> None:
    torch.manual_seed(0)
    make, make_input = MODELS[name]
    model, x = make(), make_input()
    other = copy.deepcopy(model)
    compiled = torch.compile(model, backend=aster)
    model.eval(), other.eval()
    with torch.no_grad():
        for _ in range(4):
            assert error(main_output(compiled(x)), main_output(other(x))) < 1e-5
    plain = copy.deepcopy(other)
    exact, exact_x = copy.deepcopy(other).double(), x.double() if x.is_floating_point() else x
    runs = [(compiled, model, x, []), (other, other, x, []), (exact, exact, exact_x, [])]
    optimizers = [torch.optim.SGD(m.parameters(), 0.02) for _, m, _, _ in runs]
    for step in range(5):
        for (run, m, given, losses), optimizer in zip(runs, optimizers, strict=True):
            m.train()
            optimizer.zero_grad()
            loss = main_output(run(given)).square().mean()
            loss.backward()
            losses.append(loss.item())
        if step < 2:
            check_gradients(model, other, exact)
        for optimizer in optimizers:
            optimizer.step()
    found, eager, true = [losses for *_, losses in runs]
    # How far rounding takes float32 from float64 within these steps: that of eager PyTorch, and of
    # its own kernels in the place of oneDNN's.
    with torch.backends.mkldnn.flags(enabled=False):
        others = [eager, losses_of(plain, x, len(true))]
    away = TIMES * max(abs(b / c - 1) for seen in others for b, c in zip(seen, true, strict=True))
    assert found == pytest.approx(true, rel=max(1e-4, away))


def losses_of(model: Any, x: Any, count: int) -> list[float]:
    """Losses of so many steps of training."""
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.02), []
    model.train()
    for _ in range(count):
        optimizer.zero_grad()
        loss = main_output(model(x)).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses


def check_gradients(model: Any, other: Any, exact: Any) -> None:
    """Those of a parameter, relative to its greatest, or to the greatest of all where it has next
    to none. They are as near to those of float64 as is asked, or about as near as eager PyTorch's.
    """
    triples = list(zip(model.parameters(), other.parameters(), exact.parameters(), strict=True))
    least = 1e-3 * max(float(c.grad.abs().max()) for _, _, c in triples if c.grad is not None)
    for p, q, r in triples:
        a, b, true = p.grad, q.grad, r.grad
        if b is None:
            # AOTAutograd, under any backend, gives zeros to a parameter of the graph that the loss
            # does not depend on (poolers), where eager PyTorch gives None.
            assert a is None or not a.any()
            continue
        scale = max(float(true.abs().max()), least)
        own = float((b - true).abs().max())
        assert float((a - true).abs().max()) < max(1e-4 * scale, TIMES * own)
