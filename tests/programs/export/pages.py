"""Exported modules and pages in headless Chromium, whose WebGPU runs on the CPU (SwiftShader)."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
# Outputs of a module for each of some rows of inputs.
CALL = """async ({ name, rows }) => {
  const { load } = await import(`./${name}.js`);
  const model = await load();
  const plain = x => typeof x === "bigint" ? x.toString() : x;
  const all = [];
  for (const given of rows) {
    const found = await model.run(given);
    all.push(Object.fromEntries(
      Object.entries(found).map(([k, v]) => [k, Array.from(v, plain)])));
  }
  model.free();
  return all;
}"""


def find_browser() -> str | None:
    """The path of Chromium; CHROMIUM names it where it is not on PATH."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is absent")
    found = find_browser()
    if found is None:
        pytest.skip("no Chromium on PATH")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield started
        started.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def do_GET(self) -> None:
        """Files; of the picture that a browser asks for by itself, that there is none."""
        if self.path != "/favicon.ico":
            super().do_GET()
            return
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder while it is served."""
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def listen(page: Any) -> list[str]:
    """What a page says on its console from now on."""
    said: list[str] = []
    page.on("console", lambda m: said.append(f"{m.type}: {m.text}"))
    page.on("pageerror", lambda e: said.append(f"error: {e}"))
    return said


def call_module(
    browser: Any, address: str, name: str, given: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], list[str]]:
    """The outputs of a module for these inputs, and what was said on the console."""
    page = browser.new_page()
    said = listen(page)
    page.goto(f"{address}/page.js")
    (found,) = page.evaluate(CALL, {"name": name, "rows": [dict(given)]})
    page.close()
    return found, said
