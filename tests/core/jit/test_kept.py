"""Recordings as bytes: names of memory in place of its content."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit
from aster_ml.errors import JitError
from aster_ml.jit.kept import dump_recordings, load_recordings, named_memory


def test_only_memory_with_a_name_is_kept() -> None:
    weight, bias = (Tensor(np.random.randn(50).astype(np.float32)).realize() for _ in range(2))

    def step(x: Tensor) -> Tensor:
        return (x * weight + bias + Tensor(np.arange(50, dtype=np.float32))).realize()

    jit = TinyJit(step)
    x = Tensor.ones(50).contiguous().realize()
    want = [jit(x).numpy() for _ in range(3)][-1]
    with pytest.raises(JitError, match="reads 200 bytes of memory that has no name"):
        dump_recordings({"step": jit}, named_memory({"weight": weight}))
    tensors = {"weight": weight, "bias": bias}
    data = dump_recordings({"step": jit}, named_memory(tensors))
    # What the function makes itself goes along.
    assert np.arange(50, dtype=np.float32).tobytes() in data
    for t in tensors.values():
        assert t.numpy().tobytes() not in data
    others = {name: (t * 2).contiguous().realize() for name, t in tensors.items()}
    again = TinyJit(lambda x: x)
    load_recordings(data, {"step": again}, named_memory(others))
    ramp = np.arange(50, dtype=np.float32)
    np.testing.assert_allclose(again(x).numpy(), 2 * (want - ramp) + ramp, rtol=1e-5)
