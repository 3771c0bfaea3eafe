"""The digits of the demo in each form of export, compared with the CPU device; `make export`.

Trains the network in a folder unless it has been, exports it there, compiles and runs what was
exported on held-out digits, and prints how far the results are from Aster's own. Exit code 1 where
one is further than asked, 2 where a form could not be tried.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

from aster_ml import Tensor
from aster_ml.apps import demo
from aster_ml.apps.digits import digits, digits_inputs
from aster_ml.export.write import export
from tests.programs.export.compiled import FLAGS, Library
from tests.programs.export.pages import CALL, find_browser, served
from tests.programs.export.pages import FLAGS as BROWSER_FLAGS
from tests.programs.export.test_pages import in_node

IMAGES = 50
Array = np.ndarray[Any, Any]
# Each form, and by how much its results may differ.
FORMS = {"c": 1e-5, "c plain": 1e-5, "c avx2": 1e-5, "wasm": 1e-5, "web": 1e-4}


def run_c(folder: Path, images: Array, flags: tuple[str, ...] = ()) -> Array:
    """By a library that cc compiles."""
    library = Library(folder, "digits", (*FLAGS, *flags))
    blank = np.zeros(10, np.float32)
    found = np.array([library([image], [blank])[0] for image in images])
    library.close()
    return found


def run_wasm(folder: Path, images: Array) -> Array:
    """In Node."""
    rows = [{"image": image.reshape(-1).tolist()} for image in images]
    return np.array([row["result"] for row in in_node(folder, "digits", rows)])


def run_web(folder: Path, images: Array) -> Array:
    """In Chromium."""
    rows = [{"image": image.reshape(-1).tolist()} for image in images]
    with sync_playwright() as playwright, served(folder) as address:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=BROWSER_FLAGS)
        page = browser.new_page()
        page.goto(f"{address}/page.js")
        found = page.evaluate(CALL, {"name": "digits", "rows": rows})
        browser.close()
    return np.array([row["result"] for row in found])


RUNS: dict[str, Callable[..., Array]] = {
    "c": run_c, "c plain": run_c, "wasm": run_wasm, "web": run_web,
    "c avx2": lambda folder, images: run_c(folder, images, ("-mavx2", "-mfma")),
}  # fmt: skip


def lacking(form: str) -> str | None:
    """What a form needs to be tried and is not there."""
    if form == "web":
        return None if find_browser() else "Chromium"
    wanted = ("clang", "wasm-ld", "node") if form == "wasm" else ("cc",)
    return next((name for name in wanted if shutil.which(name) is None), None)


def main() -> int:
    """All forms; the exit code."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/export")
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "demo.safetensors"
    if not weights.exists() and demo.main(["--folder", str(folder)]):
        return 1
    os.environ["DIGITS"] = str(weights)
    split = demo.load_digits()
    chosen = np.random.default_rng(1).permutation(len(split.x_held_out))[:IMAGES]
    images, labels = split.x_held_out[chosen][:, 0], split.y_held_out[chosen]
    wanted = np.array([digits(Tensor(image)).numpy() for image in images])
    print(f"digits  {IMAGES} held-out images; the CPU device reads "
          f"{int((wanted.argmax(1) == labels).sum())} rightly")  # fmt: skip
    code = 0
    for form, limit in FORMS.items():
        out = folder / form.replace(" ", "-")
        shutil.rmtree(out, ignore_errors=True)
        kind, _, isa = form.partition(" ")
        absent = lacking(form)
        if absent is not None:
            print(f"{form:8}not tried: {absent} is not on PATH")
            code = max(code, 2)
            continue
        export(digits, digits_inputs(), out, kind, isa=isa or "baseline", inside=isa == "plain")
        nbytes = sum([path.stat().st_size for path in out.iterdir()])
        found = RUNS[form](out, images)
        differs = float(np.abs(found - wanted).max())
        right = int((found.argmax(1) == labels).sum())
        print(f"{form:8}{right} rightly, differs by at most {differs:.2g} (asked {limit:g}), "
              f"{nbytes:,} bytes in {out}")  # fmt: skip
        if not differs <= limit:
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
