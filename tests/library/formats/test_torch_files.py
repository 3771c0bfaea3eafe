"""Checkpoints that PyTorch itself writes, in both of its forms, read back element by element."""

from __future__ import annotations

import io
import pathlib
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.errors import FormatError
from aster_ml.nn.state import torch_load

torch = pytest.importorskip("torch", reason="PyTorch writes the files")
pytestmark = pytest.mark.torch


def written(value: Any, is_zip: bool = True) -> Tensor:
    """The bytes that torch.save writes."""
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=is_zip)
    return Tensor(file.getvalue())


def raw(t: Any) -> bytes:
    """The elements of a tensor of PyTorch's, row-major."""
    flat = t.detach().resolve_neg().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def read_again(value: Any, is_zip: bool) -> tuple[tuple[int, ...], bytes]:
    """Shape and elements of one tensor that was written and read."""
    found: Any = torch_load(written({"t": value}, is_zip))["t"]
    if 0 in found.shape:
        return found.shape, b""
    kept = found.to("CPU").contiguous().realize()._memory()
    return found.shape, bytes(kept.as_memoryview(copy=True))


@pytest.mark.parametrize("is_zip", [True, False])
def test_views_that_do_not_lie_densely(is_zip: bool) -> None:
    x = torch.arange(60, dtype=torch.float32).reshape(5, 12)
    views = [
        x[:, ::2], x[:, 1:4], x[1:, 3::4], x.diagonal(), x.T[::3], x.unfold(1, 4, 3), x[::2].T,
        x.reshape(5, 3, 4)[:, 1, :], x[:, 5], x[2:3, ::5].expand(4, 3),
        x.as_strided((3, 4), (1, 1)),
        x[0:0, ::2], torch.view_as_real(torch.randn(3, dtype=torch.complex64))[:, 1],
    ]  # fmt: skip
    for view in views:
        assert read_again(view, is_zip) == (tuple(view.shape), raw(view))


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize(
    "name", ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "bfloat16", "bool"]
)
def test_dtypes_without_a_storage_of_their_own(name: str, is_zip: bool) -> None:
    values = torch.arange(24).reshape(4, 6).to(getattr(torch, name))
    for t in (values, values.T, values[1:, 2:5], values[:0]):
        assert read_again(t, is_zip) == (tuple(t.shape), raw(t))


def test_turned_signs() -> None:
    turned = torch.randn(4, dtype=torch.complex64).conj().imag
    assert turned.is_neg()
    wanted = turned.resolve_neg().numpy()
    for is_zip in (True, False):
        found = torch_load(written({"t": turned}, is_zip))["t"]
        np.testing.assert_array_equal(found.numpy(), wanted)


class Whole(torch.nn.Module):
    """A module that is saved as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)


def refused() -> list[tuple[Any, str]]:
    """Values that are none here, and what has to be said of them."""
    eye = torch.eye(3)
    return [
        (torch.zeros(2, dtype=torch.complex64), "complex numbers; save torch.view_as_real"),
        (torch.zeros(2, dtype=torch.complex128), "complex numbers"),
        (eye.to_sparse(), "a sparse tensor; save tensor.to_dense"),
        (torch.empty(3, device="meta"), "a meta tensor"),
        (torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8), "quantised|QInt8"),
        (Whole(), r"the whole module .*Whole"),
        ({"epoch": 3, "model": [Whole()]}, r"the whole module .*Whole"),
        (torch.zeros(2).to(torch.float8_e4m3fnuz), "float8_e4m3fnuz"),
    ]


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quantiz.*:DeprecationWarning")
@pytest.mark.parametrize("number", range(8))
def test_what_there_is_none_of_is_named(number: int) -> None:
    value, message = refused()[number]
    for is_zip in (True, False):
        with pytest.raises(FormatError, match=message):
            torch_load(written(value, is_zip))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f.pt"
    torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(str(path))
    with pytest.raises(FormatError, match="a TorchScript archive, which is a program"):
        torch_load(path)


@pytest.mark.parametrize("is_zip", [True, False])
def test_parameters_buffers_and_tensors_with_attributes(is_zip: bool) -> None:
    marked = torch.arange(3.0)
    marked.origin = "here"
    value = {
        "p": torch.nn.Parameter(torch.ones(2)),
        "b": torch.nn.Buffer(torch.ones(2)),
        "m": marked,
    }
    found = torch_load(written(value, is_zip))
    assert {k: t.tolist() for k, t in found.items()} == {"p": [1, 1], "b": [1, 1], "m": [0, 1, 2]}
