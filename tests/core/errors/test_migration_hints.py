"""Names and forms of PyTorch and NumPy: what is said of them, and that they hide nothing."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from aster_ml import Tensor, nn
from aster_ml.errors import ArgumentError, DeviceError
from aster_ml.migration_hints import TENSOR
from aster_ml.nn.elsewhere import LAYERS


def test_a_name_of_another_package_says_what_does_it_here() -> None:
    x = Tensor.ones(2, 3)
    with pytest.raises(AttributeError, match=r"a Tensor has no attribute 'mm'; here it is a @ b"):
        x.mm(x.T)
    with pytest.raises(AttributeError, match=r"'from_numpy'; here it is Tensor\(array\)"):
        Tensor.from_numpy(x)
    with pytest.raises(AttributeError, match=r"nn' has no attribute 'ReLU'; here it is x\.relu"):
        nn.ReLU()


def test_other_names_are_missing_as_ever() -> None:
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'reluu'"):
        Tensor.ones(2).reluu()
    with pytest.raises(AttributeError, match="type object 'Tensor' has no attribute 'onez'"):
        Tensor.onez(2)
    with pytest.raises(AttributeError, match=r"module 'aster_ml.nn' has no attribute 'Linar'"):
        nn.Linar(2, 3)
    assert not hasattr(Tensor.ones(2), "mm")
    assert copy.deepcopy(Tensor.ones(2)).tolist() == [1, 1]


def test_what_a_property_raises_is_not_hidden() -> None:
    class Odd(Tensor):
        @property
        def broken(self) -> int:
            return self.nothing_of_this_name

    with pytest.raises(AttributeError, match="'nothing_of_this_name'"):
        _ = Odd([1.0]).broken


def test_no_name_of_the_tables_is_there() -> None:
    """A method that has come to be is not said to be missing."""
    assert [name for name in TENSOR if hasattr(Tensor, name)] == []
    assert [name for name in LAYERS if hasattr(nn, name)] == []


def test_cat_takes_a_list_as_stack_does() -> None:
    parts = [Tensor([1, 2]), Tensor([3]), Tensor([4])]
    assert Tensor.cat(parts).tolist() == [1, 2, 3, 4]
    assert Tensor.cat((parts[1], parts[2]), dim=-1).tolist() == [3, 4]
    assert Tensor.cat(parts[:1]).tolist() == [1, 2]
    with pytest.raises(ArgumentError, match="cat: an empty list; one tensor at least"):
        Tensor.cat([])


def test_files_are_moved_to_where_kernels_are(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(8)))
    file, memory = Tensor(path), Tensor.arange(8).cast("uint8").realize()
    for call in (lambda: file + memory, lambda: memory + file):
        with pytest.raises(DeviceError, match=r"\.to\('CPU.*'\) moves it"):
            call()
