"""Headless Chromium for the tests of the page; what it needs and where it is looked for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aster_ml.viz.page import page_of
from tests.programs.viz.runs import record_net

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests; CHROMIUM names it where it is not on PATH."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is absent")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium on PATH")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page, with what it has said on its console and asked of a network."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda m: self.said.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: self.said.append(f"error: {e}"))
        page.on("dialog", lambda d: self.said.append(f"dialog: {d.message}"))
        page.on("request", lambda r: self.asked.append(r.url))

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements of a selector."""
        return self.page.eval_on_selector_all(selector, "all => all.map(e => e.textContent)")

    def wait_until(self, condition: str, seconds: float = 20) -> None:
        """Waits until an expression holds; the page's policy bars Playwright's own way."""
        for _ in range(int(seconds * 20)):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never so: {condition}")

    def ids(self, selector: str) -> set[str]:
        """The places that elements stand for."""
        found = self.page.eval_on_selector_all(selector, "all => all.map(e => e.dataset.id)")
        return set(found)


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens data as a page, from its file; at the end nothing was said and nothing asked for."""
    made: list[Opened] = []

    def open_page(
        data: dict[str, Any],
        other: dict[str, Any] | None = None,
        size: tuple[int, int] = (1400, 850),
    ) -> Opened:
        path = tmp_path / f"page{len(made)}.html"
        path.write_text(page_of(data, other), encoding="utf-8")
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        page.set_default_timeout(20_000)
        result = Opened(page)
        made.append(result)
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]", timeout=60_000)
        return result

    yield open_page
    for one in made:
        one.page.close()
        assert one.said == []
        outside = [url for url in one.asked if not url.startswith(("file:", "data:", "blob:"))]
        assert outside == []


@pytest.fixture(scope="session")
def net() -> dict[str, Any]:
    """Two layers that were run, as the data reads back."""
    return json.loads(json.dumps(record_net()))
