"""Pictures of the visualiser's page for docs/how-to/visualiser.md, at three sizes.

`python -m tools.make_viz_shots FOLDER` records a small network, opens its page in headless Chromium
(CHROMIUM names it where it is not on PATH; playwright drives it) and writes PNG files.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from aster_ml import Tensor, nn
from aster_ml.viz.model import make_data
from aster_ml.viz.page import page_of
from aster_ml.viz.session import recorded

# Name of a picture -> size of the window, light or dark, and the keys that lead to what it shows.
SHOTS: dict[str, tuple[tuple[int, int], str, tuple[str, ...]]] = {
    "columns": ((2000, 760), "light", ("1", "LIGHT")),
    "steps": ((1400, 850), "light", ("2", *["ArrowRight"] * 4)),
    "graph": ((1400, 850), "light", ("3", "LAYOUT")),
    "access": ((1000, 720), "dark", ("5",)),
    "timeline": ((1000, 720), "light", ("6",)),
    "narrow": ((390, 800), "light", ("4",)),
}


class Net:
    """A convolution and a layer, as many a first network has."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(1, 8, 3)
        self.out = nn.Linear(8, 10)

    def __call__(self, x: Tensor) -> Tensor:
        """[b, 1, h, w] -> [b, 10]."""
        return self.out(self.conv(x).relu().mean((2, 3))).softmax()


def recorded_net() -> dict[str, Any]:
    """The data of a run of it."""
    net, x = Net(), Tensor.rand(16, 1, 28, 28).realize()
    for t in nn.state.get_parameters(net):
        t.realize()
    with recorded() as recorder:
        net(x).realize()
    data = make_data(recorder)
    data["made"]["script"] = "net.py"
    for file in data["files"]:
        file["path"] = Path(file["path"]).name
    return data


def light_a_product(page: Any) -> None:
    """Lights the product of the longest kernel."""
    page.evaluate(
        """() => {
            const steps = currentSchedule().steps;
            const sizes = steps.map(s => app.data.kernels[s.kernel].ops);
            choose(app.realize, sizes.indexOf(Math.max(...sizes)));
            const line = [...document.querySelectorAll(".lines[data-hop='ast'] .line")]
                .find(l => l.textContent.includes("= MUL float"));
            light(line.dataset.id);
        }"""
    )


def take(page: Any, keys: tuple[str, ...]) -> None:
    """Goes to what a picture shows."""
    for key in keys:
        if key == "LIGHT":
            light_a_product(page)
        elif key == "LAYOUT":
            page.wait_for_selector("body[data-layout]", timeout=60_000)
        else:
            page.keyboard.press(key)
    page.wait_for_timeout(400)


def main() -> int:
    """Entry point."""
    from playwright.sync_api import sync_playwright

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        path = Path(place) / "net.html"
        path.write_text(page_of(json.loads(json.dumps(recorded_net()))), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, ((width, height), theme, keys) in SHOTS.items():
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme=theme
            )  # fmt: skip
            page.goto(path.as_uri())
            page.wait_for_selector("body[data-ready]", timeout=60_000)
            take(page, keys)
            page.screenshot(path=folder / f"{name}.png")
            page.close()
            print(folder / f"{name}.png")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
