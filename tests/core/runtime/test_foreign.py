"""What arrays of other packages keep beside their bytes: carried out, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, fft
from aster_ml.complex import ComplexTensor
from aster_ml.errors import ArgumentError, AsterError, DTypeError

torch = pytest.importorskip("torch", reason="pip install torch")
Z = torch.tensor([1 + 2j, 3 - 4j])


@pytest.mark.parametrize("take", [Tensor, Tensor.from_dlpack, lambda x: Tensor([x])[0]])
def test_marks_are_carried_out(take: Callable[[Any], Tensor]) -> None:
    assert take(Z.conj().imag).tolist() == [-2, 4]
    assert take(torch._neg_view(torch.tensor([1, 2]))).tolist() == [-1, -2]
    assert take(torch._efficientzerotensor((3,))).tolist() == [0, 0, 0]


def test_marks_of_complex_numbers() -> None:
    assert ComplexTensor(torch._neg_view(Z.conj())).numpy().tolist() == [-1 + 2j, -3 - 4j]
    assert fft.fftshift(Z.conj().imag).tolist() == [4, -2]
    with pytest.raises(ArgumentError, match="1 of 2 elements of the NumPy array are masked"):
        ComplexTensor(np.ma.array([1j, 2], mask=[0, 1]))


def test_a_mark_is_no_shared_memory() -> None:
    with pytest.raises(BufferError, match="the array is marked"):
        Tensor.from_dlpack(Z.conj().imag, copy=False)
    assert Tensor.from_dlpack(torch.tensor([1.0, 3.0]), copy=False).tolist() == [1, 3]


def masked() -> Any:
    """A tensor of PyTorch with a mask beside it."""
    from torch.masked import masked_tensor

    return masked_tensor(torch.tensor([1.0, 2.0]), torch.tensor([True, False]))


def fake() -> Any:
    """A tensor of PyTorch without numbers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2)


REFUSED = [
    (lambda: torch.eye(2).to_sparse(), "layout torch.sparse_coo; x.to_dense"),
    (lambda: torch.empty(2, device="meta"), "on the device meta"),
    (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 3, torch.qint8), "quantised"),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    (masked, "a MaskedTensor"), (fake, "a FakeTensor"),
    (lambda: torch.ones(2).to(torch.float8_e4m3fnuz), "type float8_e4m3fnuz"),
    (lambda: torch.ones(2, dtype=torch.uint8).view(torch.uint4), "type uint4"),
    (lambda: np.ma.array([1, 2], mask=[0, 1]), "1 of 2 elements"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make, said", REFUSED)
def test_what_has_no_numbers_is_named(make: Callable[[], Any], said: str) -> None:
    data = make()
    for take in (Tensor, Tensor.from_dlpack):
        with pytest.raises(AsterError, match=said):
            take(data)


def test_numbers_inside_of_a_transform() -> None:
    with pytest.raises(ArgumentError, match=r"inside of a transform \(vmap, grad\)"):
        torch.vmap(lambda x: (Tensor(x), x)[1])(torch.ones(2, 3))


class Column:
    """A column as polars and Arrow have it, of which some elements are missing."""

    def __init__(self, missing: Any) -> None:
        self.null_count = missing

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array([1.0, np.nan])


def test_columns_with_elements_that_are_missing() -> None:
    for missing in (1, lambda: 1):
        with pytest.raises(ArgumentError, match="1 elements of a Column are missing"):
            Tensor(Column(missing))
    assert np.isnan(Tensor(Column(0)).numpy()).tolist() == [False, True]


def test_errors_of_others_are_ours() -> None:
    class Broken:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            raise RuntimeError("no numbers today")

    with pytest.raises(DTypeError, match="a Broken gives no array of numbers: no numbers today"):
        Tensor(Broken())


def test_memory_of_python() -> None:
    assert Tensor(memoryview(b"\xff\x01").cast("b")).tolist() == [-1, 1]
    assert Tensor(memoryview(np.arange(6, dtype=np.uint8).reshape(2, 3))).shape == (2, 3)
    assert Tensor(memoryview(b"abcdef")[::-2]).tolist() == [102, 100, 98]
    assert Tensor(memoryview(np.arange(3.0)), dtype="int32").dtype.name == "int32"
    assert Tensor(memoryview(b"\0\0\x80\x3f"), dtype="float32").tolist() == [1.0]
