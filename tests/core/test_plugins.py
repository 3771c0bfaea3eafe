"""Plug-ins: what the core asks of them, and that a program that asks nothing loads none."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from aster_ml import Context, Device, Tensor, helpers, plugins
from aster_ml.compat import settings
from aster_ml.errors import UnsupportedError
from aster_ml.plugged import SETTINGS
from aster_ml.schedule.handwritten import as_kernel
from aster_ml.uop.dialect import DialectOps
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

PLUG_IN = "tests_plug_in"


def printed(code: str, **environment: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**plugins.os.environ, **environment},
    )  # fmt: skip
    return done.stdout + done.stderr


LOADED = "print(sorted(m for m in sys.modules if m.startswith('aster_ml.compat')))"


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A plug-in without any function, alone."""
    made = ModuleType(PLUG_IN)
    monkeypatch.setitem(sys.modules, PLUG_IN, made)
    monkeypatch.setattr(plugins, "PLUGGED", {})
    return made


def test_a_program_that_asks_nothing_loads_no_plug_in() -> None:
    code = (
        "import sys; from aster_ml import Tensor; x = Tensor([1.0, 2.0]); "
        f"print(((x + 1).exp() @ x).item() > 0, hasattr(x.uop, '_nothing')); {LOADED}"
    )
    assert printed(code) == "True False\n[]\n"


@pytest.mark.parametrize(
    "asked",
    [
        "from aster_ml.helpers import ContextVar",
        "from aster_ml.codegen.opt.kernel import Opt",
        "import aster_ml.engine.jit",
        "from aster_ml.uop.ops import UPat",
        "import aster_ml; aster_ml.Context(PCONTIG=0).__enter__()",
        "import aster_ml; aster_ml.Tensor([1]).uop.is_realized",
        "import aster_ml; aster_ml.Device['CPU'].renderer",
    ],
)
def test_a_name_that_is_asked_for_loads_it(asked: str) -> None:
    assert "aster_ml.compat.names" in printed(f"import sys; {asked}; {LOADED}")


def test_a_setting_in_the_environment_is_followed() -> None:
    code = "import aster_ml; from aster_ml.config import THREADS; print(THREADS.value)"
    assert printed(code, CPU_COUNT="3") == "3\n"
    assert "without effect in Aster: NOLOCALS" in printed(code, NOLOCALS="1")


def test_the_settings_that_are_named_are_those_declared() -> None:
    assert sorted(SETTINGS.split()) == sorted([*settings.MEANS, *settings.WITHOUT_EFFECT])


def test_names_of_a_plug_in(plugged: ModuleType) -> None:
    plugins.plug_in(PLUG_IN, "find_name")
    plugged.find_name = lambda module, name: (  # type: ignore[attr-defined]
        f"{module}.{name}" if name == "there" else plugins.MISSING
    )
    assert helpers.there == "helpers.there"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'aster_ml\.helpers' has no attribute 'not_there'"):
        _ = helpers.not_there  # type: ignore[attr-defined]


def test_attributes_of_a_plug_in(plugged: ModuleType) -> None:
    plugins.plug_in(PLUG_IN, "find_attribute")
    plugged.find_attribute = lambda owner, name: (  # type: ignore[attr-defined]
        (owner, name) if name == "there" else plugins.MISSING
    )
    node, device = Tensor([1]).uop, Device["CPU"]
    assert node.there == (node, "there")  # type: ignore[attr-defined]
    assert device.there == (device, "there")  # type: ignore[attr-defined]
    assert not hasattr(node, "not_there")
    assert not hasattr(device, "_there")


def test_paths_of_a_plug_in(plugged: ModuleType) -> None:
    made = ModuleType("anything")
    made.number = 3  # type: ignore[attr-defined]
    plugins.plug_in(PLUG_IN, "find_module")
    plugged.find_module = lambda path: (  # type: ignore[attr-defined]
        made if path == "engine.no_file" else plugins.MISSING
    )
    space: dict[str, object] = {}
    exec("from aster_ml.engine.no_file import number", space)
    assert space["number"] == 3
    with pytest.raises(ModuleNotFoundError, match=r"aster_ml\.engine\.no_other_file"):
        exec("import aster_ml.engine.no_other_file")
    del sys.modules["aster_ml.engine.no_file"]


def test_a_module_that_is_awaited(
    plugged: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    told: list[ModuleType] = []
    plugged.imported = told.append  # type: ignore[attr-defined]
    (tmp_path / "awaited_one.py").write_text("x = 5\n")  # type: ignore[operator]
    monkeypatch.syspath_prepend(tmp_path)
    plugins.plug_in(PLUG_IN, awaits={"awaited_one": PLUG_IN})
    assert not told
    space: dict[str, object] = {}
    exec("import awaited_one", space)
    assert told == [space["awaited_one"]]
    assert told[0].x == 5
    # One that is there already is handed over at once.
    plugins.plug_in(PLUG_IN, awaits={"awaited_one": PLUG_IN})
    assert told == [space["awaited_one"]] * 2
    del sys.modules["awaited_one"]


def test_without_plug_ins_the_core_says_what_it_lacks(plugged: ModuleType) -> None:
    memory = UOp.placeholder((4,), "float", 0)
    i = UOp.special(4, "gidx0")
    kernel = memory[i].store(memory[i] * 2).sink()
    with pytest.raises(UnsupportedError, match="no plug-in translates"):
        as_kernel(kernel)
    with pytest.raises(KeyError, match="no setting is named NO_SUCH"), Context(NO_SUCH_SETTING=1):
        pass  # pragma: no cover
    with pytest.raises(UnsupportedError, match="complex: no plug-in has it"):
        _ = Tensor([1.0]) * 1j
    with pytest.raises(UnsupportedError, match="array_api: no plug-in has it"):
        Tensor([1.0]).__array_namespace__()


def test_ops_of_hand_written_kernels_are_attributes_and_no_members() -> None:
    assert all(getattr(Ops, op.name) is op for op in DialectOps)
    assert not {op.name for op in DialectOps} & set(Ops.__members__)
