"""Devices that are at home outside of the package."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace
from typing import Any

import pytest

from aster_ml import Device, Tensor
from aster_ml.errors import ArgumentError, DeviceError
from aster_ml.runtime import python


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other test sees what one registers."""
    from aster_ml import device

    monkeypatch.setattr(device, "BROUGHT", {})
    device.canonicalize.cache_clear()
    device.load_runtime.cache_clear()


def runtime(**more: Any) -> Any:
    """A runtime that is the interpreter's under another name."""
    given = {"DOC": "ours", "missing": lambda: None, "open_backend": python.open_backend, **more}
    return SimpleNamespace(**given)


def test_a_registered_device_computes() -> None:
    Device.register("outside", runtime())
    t = Tensor([1.0, 2.0], device="outside:1")
    assert t.device == "OUTSIDE:1"
    assert (t * 2).tolist() == [2.0, 4.0]
    assert "OUTSIDE" in Device.get_available_devices()
    assert Device.describe()[-1] == ("OUTSIDE", True, "ours")


def test_what_it_lacks_is_told() -> None:
    Device.register("OUTSIDE", runtime(missing=lambda: "a cable is not plugged in"))
    with pytest.raises(DeviceError, match="OUTSIDE does not work here: a cable"):
        Tensor([1.0], device="OUTSIDE").realize()


def test_registered_again_it_opens_anew() -> None:
    opened = []
    for number in (1, 2):

        def open_backend(name: str, number: int = number) -> Any:
            opened.append(number)
            return python.open_backend(name)

        Device.register("OUTSIDE", runtime(open_backend=open_backend))
        Device["OUTSIDE"].synchronize()
    assert opened == [1, 2]


@pytest.mark.parametrize("name", ["CPU", "cl", "", "MY-DEVICE", "A:1"])
def test_a_name_that_is_taken_or_none_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="is taken, or no word"):
        Device.register(name, runtime())


def test_a_runtime_that_lacks_something_is_refused() -> None:
    with pytest.raises(ArgumentError, match="of OUTSIDE has no missing, open_backend"):
        Device.register("OUTSIDE", SimpleNamespace(DOC="half a device"))


def test_an_installed_package_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    point = SimpleNamespace(name="outside", load=runtime)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    assert (Tensor([3.0], device="OUTSIDE") + 1).tolist() == [4.0]
    with pytest.raises(DeviceError, match="'NOBODY' is unknown"):
        Tensor([3.0], device="NOBODY").realize()
