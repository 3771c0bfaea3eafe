"""Settings that programs of tinygrad give: what they do here, and what is said of the others."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from aster_ml import Context, Device, Tensor, TinyJit, config, dtypes
from aster_ml.compat import settings
from aster_ml.errors import ArgumentError, DTypeError


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "WARNED", set())


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program with this environment, and no other settings of Aster's but the cache folder."""
    own = {"CACHEDIR", *environment}
    rest = {k: v for k, v in os.environ.items() if k in own or k not in config.SETTINGS}
    return subprocess.run(
        [sys.executable, "-c", "from aster_ml import *\nfrom aster_ml.helpers import *\n" + code],
        env={**rest, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", settings.WITHOUT_EFFECT)
def test_a_setting_without_effect_is_accepted_with_one_warning(name: str) -> None:
    default, reason = settings.WITHOUT_EFFECT[name]
    value = "x" if isinstance(default, str) else 3
    setting = config.FOREIGN[name]
    with pytest.warns(UserWarning, match=f"without effect in Aster: {name} ") as said:
        with Context(**{name: value}):
            assert setting == value
    assert len(said) == 1
    assert reason in str(said[0].message)
    assert said[0].filename == __file__
    assert setting == default
    with Context(**{name: value}):  # a second warning would be an error
        assert Tensor([1.0, 2.0]).sum().item() == 3


def test_several_at_once_are_one_warning() -> None:
    with pytest.warns(UserWarning, match=r"FUSE_OPTIM .*; USE_ATOMICS ") as said:
        with Context(FUSE_OPTIM=1, USE_ATOMICS=1, DEBUG=0):
            pass
    assert len(said) == 1


@pytest.mark.parametrize(
    "given, own",
    [
        ({"CPU_COUNT": 3}, {"THREADS": 3}),
        ({"SPLIT_REDUCEOP": 0}, {"SPLIT_REDUCE": 0}),
        ({"CCACHE": 0}, {"CACHE": 0}),
        ({"CACHELEVEL": 0}, {"CACHE": 0}),
        ({"PCONTIG": 2}, {"FUSE": 2}),
    ],
)
def test_a_setting_under_another_name(given: dict[str, int], own: dict[str, int]) -> None:
    before = {name: config.SETTINGS[name].value for name in own}
    with Context(**given):
        assert {name: config.SETTINGS[name].value for name in own} == own
        assert {name: config.FOREIGN[name].value for name in given} == given
    assert {name: config.SETTINGS[name].value for name in own} == before
    code = f"print({[*own][0]!r}, config.SETTINGS[{[*own][0]!r}].value)"
    done = run(f"from aster_ml import config\n{code}", **{n: str(v) for n, v in given.items()})
    assert done.stdout.split() == [str(word) for pair in own.items() for word in pair]
    assert done.stderr == ""


def test_names_that_are_no_settings() -> None:
    with pytest.raises(KeyError, match="no setting is named NO_SUCH_SETTING"):
        Context(NO_SUCH_SETTING=1).__enter__()
    with pytest.raises(ArgumentError, match="setting IMAGE is a number, given 'x'"):
        Context(IMAGE="x").__enter__()


def test_a_setting_without_effect_in_the_environment() -> None:
    done = run(
        "print(FUSE_OPTIM.value, PROFILE.value, LRU.value)", FUSE_OPTIM="1", PROFILE="0", LRU="1"
    )
    assert done.stdout == "1 0 1\n"
    assert done.stderr.count("without effect in Aster: FUSE_OPTIM (") == 1
    assert "PROFILE" not in done.stderr


def test_settings_act_as_numbers() -> None:
    with Context(DEBUG=0, BEAM=2):
        beam = config.BEAM
        assert (beam == 2, beam != 2, beam > 1, beam >= 2, beam < 3, beam <= 1) == (
            True, False, True, True, True, False,
        )  # fmt: skip
        assert int(beam) == 2
        assert [10, 11, 12][beam] == 12
        assert beam
        assert not config.DEBUG
        assert beam.key == "BEAM"


@pytest.mark.parametrize(
    "name, dtype",
    [("HALF", dtypes.half), ("bfloat16", dtypes.bfloat16), ("DOUBLE", dtypes.double)],
)
def test_default_float(name: str, dtype: object) -> None:
    with Context(DEFAULT_FLOAT=name):
        assert Tensor([1.5]).dtype is dtype
        assert Tensor.rand(2).dtype is dtype
        assert (Tensor([1]) / 2).dtype is dtype
    assert Tensor([1.5]).dtype is dtypes.float32
    done = run("print(Tensor([1.5]).dtype.name, Tensor.ones(2).dtype.name)", DEFAULT_FLOAT=name)
    assert done.stdout.split() == [dtype.name] * 2  # type: ignore[attr-defined]


def test_default_float_is_that_of_a_thread() -> None:
    seen = []

    def ask() -> None:
        seen.append(Tensor([1.5]).dtype)
        with Context(DEFAULT_FLOAT="DOUBLE"):
            seen.append(Tensor([1.5]).dtype)

    def run_apart() -> None:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    with Context(DEFAULT_FLOAT="HALF"):
        run_apart()
        assert Tensor([1.5]).dtype is dtypes.half
    dtypes.default_float = dtypes.bfloat16
    try:
        run_apart()
        assert Tensor([1.5]).dtype is dtypes.bfloat16
    finally:
        del dtypes.default_float
    assert Tensor([1.5]).dtype is dtypes.float32
    assert seen == [dtypes.float32, dtypes.double, dtypes.bfloat16, dtypes.double]


def test_default_float_that_is_none() -> None:
    with pytest.raises(DTypeError, match=r"DEFAULT_FLOAT=INT is no float dtype; .*HALF"):
        Context(DEFAULT_FLOAT="INT").__enter__()
    assert Tensor([1.5]).dtype is dtypes.float32
    assert "DEFAULT_FLOAT=WHAT is no float dtype" in run("", DEFAULT_FLOAT="WHAT").stderr


@pytest.mark.parametrize(
    "environment, device",
    [
        ({"CPU": "1"}, "CPU"),
        ({"PYTHON": "1"}, "PYTHON"),
        ({"NULL": "1"}, "NULL"),
        ({"CL": "1"}, "OPENCL"),
        ({"DEV": "CL"}, "OPENCL"),
        ({"PYTHON": "0"}, "CPU"),
        ({"PYTHON": "/usr/bin/python"}, "CPU"),
        ({"PYTHON": "1", "DEV": "NULL"}, "NULL"),
    ],
)
def test_devices_by_environment(environment: dict[str, str], device: str) -> None:
    assert run("print(Device.DEFAULT)", **environment).stdout == device + "\n"


def test_a_device_that_is_not_here() -> None:
    done = run("Tensor([1.0]).realize()", AMD="1")
    assert "DeviceError: device 'AMD' is unknown; there are CPU, CUDA" in done.stderr


def test_other_names_of_devices() -> None:
    assert Device.canonicalize("cl:1") == "OPENCL:1"
    assert Device.canonicalize("llvm") == "CPU"


@pytest.mark.parametrize("jit, calls", [(0, 4), (1, 2), (2, 2)])
def test_levels_of_jit(jit: int, calls: int) -> None:
    count = 0

    def body(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return (x * 2).realize()

    with Context(JIT=jit):
        double = TinyJit(body)
        for i in range(4):
            assert double(Tensor([float(i)]).realize()).tolist() == [2.0 * i]
    assert count == calls
