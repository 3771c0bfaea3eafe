"""Small runs that the tests of the visualiser record, and scripts that they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from aster_ml import Tensor, nn
from aster_ml.viz.model import make_data
from aster_ml.viz.session import recorded

ROOT = Path(__file__).resolve().parents[3]


class Net:
    """Two layers."""

    def __init__(self) -> None:
        self.first = nn.Linear(24, 16)
        self.second = nn.Linear(16, 5)

    def __call__(self, x: Tensor) -> Tensor:
        """[b, 24] -> [b, 5]."""
        return self.second(self.first(x).relu())


def record_net() -> dict[str, Any]:
    """The data of two layers that are run once."""
    net, x = Net(), Tensor.rand(8, 24).realize()
    for t in nn.state.get_parameters(net):
        t.realize()
    with recorded() as recorder:
        net(x).softmax().realize()
    return make_data(recorder)


def run_script(folder: Path, text: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own, in a folder."""
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": paths, **settings}, check=False,
    )  # fmt: skip
