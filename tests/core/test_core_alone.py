"""The core without library and programs: it imports, computes, and loads nothing of theirs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.lint.sources import ROOT

# Refuses modules of the other rings, as if they were not installed.
CLOSED = """
import importlib.abc, sys
from tests.lint.test_layers import read_table
from tests.lint.test_rings import ring_of, ring_rows

RINGS = ring_rows(read_table())

class Closed(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        own = name.removeprefix("aster_ml.")
        if name != own and ring_of(own, RINGS) in ("library", "programs"):
            raise ImportError(f"{name} is closed")

sys.meta_path.insert(0, Closed())
import numpy as np
import aster_ml
from aster_ml import Context, Device, Tensor, TinyJit, dtypes, plugins
plugins.PLUGGED.clear()
"""
PROGRAMS = {
    "products": """
a, b = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(4, 5) - 7
np.testing.assert_allclose((Tensor(a) @ Tensor(b)).relu().sum(0).numpy(), (a @ b).clip(0).sum(0))
""",
    "a gradient": """
x = Tensor([0.5, -1.5, 2.0], requires_grad=True)
(x.exp() * x).sum().backward()
v = np.array([0.5, -1.5, 2.0])
np.testing.assert_allclose(x.grad.numpy(), np.exp(v) * (1 + v), rtol=1e-5)
""",
    "training": """
Tensor.manual_seed(3)
w, data = Tensor.zeros(4, 1).contiguous().realize(), Tensor.randn(64, 4).realize()
wanted = (data @ Tensor([[1.0], [2.0], [3.0], [4.0]])).realize()
w.requires_grad = True
@TinyJit
def step():
    loss = ((data @ w) - wanted).square().mean()
    w.assign((w.detach() - 0.3 * loss.gradient(w)[0])).realize()
    return loss.realize()
for _ in range(60):
    loss = step()
assert loss.item() < 1e-3, loss.item()
""",
    "moving and ordering": """
a = np.random.default_rng(0).permutation(60).reshape(3, 4, 5)
t = Tensor(a)
values, places = t.flatten().sort()
assert values.tolist() == list(range(60))
np.testing.assert_array_equal(t.permute(2, 0, 1)[1:, ::-1].pad(((1, 0), (0, 0), (0, 2))).numpy(),
    np.pad(a.transpose(2, 0, 1)[1:, ::-1], ((1, 0), (0, 0), (0, 2))))
t[1] = 7
assert (t.numpy()[1] == 7).all() and (t.numpy()[0] == a[0]).all()
""",
    "matrices": """
a = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)
q, r = Tensor(a).qr()
np.testing.assert_allclose((q @ r).numpy(), a, atol=1e-4)
np.testing.assert_allclose(Tensor(a).cumsum(1).numpy(), a.cumsum(1), atol=1e-5)
""",
    "windows": """
x, w = np.ones((1, 2, 6, 6), np.float32), np.ones((3, 2, 3, 3), np.float32)
for wino in (0, 1):
    with Context(WINO=wino):
        out = Tensor(x).conv2d(Tensor(w), padding=1)
        assert out.shape == (1, 3, 6, 6) and abs(out[0, 0, 2, 2].item() - 18) < 1e-3
assert Tensor(x).max_pool2d(2).sum().item() == 18
assert Tensor(x).conv_transpose2d(Tensor(w).permute(1, 0, 2, 3)).shape == (1, 3, 8, 8)
""",
    "other devices and settings": """
assert (Tensor([1, 2], device="PYTHON") + 1).tolist() == [2, 3]
with Context(NOOPT=1, SPEC=1):
    assert (Tensor([1, 2]) * 5).sum().item() == 15
assert "kernel" in (Tensor([1.0, 2.0]) + 1).explain()
items = (Tensor([1.0, 2.0]) * 3).schedule()
assert all(item.ast is not None for item in items)
assert Device["CPU"].target.language in ("llvm", "c")
""",
    "what it lacks": """
from aster_ml import helpers
assert not hasattr(helpers, "ContextVar")
assert not hasattr(Tensor([1]).uop, "is_realized")
try:
    Tensor([1.0]) * 1j
except aster_ml.errors.UnsupportedError as error:
    assert "no plug-in" in str(error)
else:
    raise AssertionError("complex numbers without a plug-in")
""",
}
LOADED = """
print(sorted(m for m in sys.modules if m.startswith("aster_ml.") and
    ring_of(m.removeprefix("aster_ml."), RINGS) in ("library", "programs")))
"""


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_core_alone(program: str) -> None:
    code = CLOSED + PROGRAMS[program] + LOADED
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_the_others_are_closed() -> None:
    for name in ("nn", "apps.run", "compat.names", "nn.onnx", "viz.session", "fft"):
        code = f"{CLOSED}import aster_ml.{name}"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
        )
        assert f"ImportError: aster_ml.{name.partition('.')[0]}" in done.stderr
