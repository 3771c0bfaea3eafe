"""The page for users of tinygrad lists what the package declares."""

from __future__ import annotations

from aster_ml.compat.names import NOT_HERE
from aster_ml.compat.settings import MEANS, NO_SUCH_DEVICE, WITHOUT_EFFECT
from aster_ml.device import ALSO_KNOWN, KINDS
from tools.make_compat_doc import PAGE, page_of, tables


def test_committed_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_of(text), "run: make docs"


def test_every_declaration_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [n for n in (*MEANS, *WITHOUT_EFFECT, *NOT_HERE) if f"`{n}`" not in text]
    assert not missing
    assert all(f"<!-- generated: {name} -->" in text for name in tables())


def test_what_is_said_of_devices_is_true() -> None:
    known = {*KINDS, *ALSO_KNOWN}
    devices = {n.rpartition("ops_")[2].upper(): n for n in NOT_HERE if n.startswith("runtime.ops_")}
    assert {"CUDA", "METAL", "WEBGPU", "NV"} <= devices.keys() & known
    for device, name in devices.items():
        own = ALSO_KNOWN.get(device, device)
        said = f"Device[{own!r}]" if device in known else f"no device {device}"
        assert said in NOT_HERE[name]
    absent = {
        n.partition("_")[0] for n, (_, why) in WITHOUT_EFFECT.items() if why == NO_SUCH_DEVICE
    }
    assert absent
    assert not absent & known
