"""The chat page in headless Chromium, served with a small random model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("starlette")
pytest.importorskip("llguidance")
pytest.importorskip("uvicorn")

from aster_ml.apps.llm.loading import load_language
from aster_ml.apps.llm.server import Rules
from tests.programs.llm.random_models import write_model
from tests.programs.llm.test_server import Running
from tests.programs.viz.conftest import Opened, browser

__all__ = ["browser"]
pytestmark = [pytest.mark.slow, pytest.mark.viz]
KEY = "a secret"
IDLE = "!document.getElementById('send').hidden"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that wants a key."""
    path = tmp_path_factory.mktemp("page") / "x.gguf"
    write_model(path, "llama", more={"context_length": 2048})
    server = Running(load_language(path, "f32", slots=2), Rules((KEY,)))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def page(running: Running, browser: Any) -> Iterator[Any]:
    """The page, by somebody who knows the key."""
    opened = browser.new_page()
    opened.on("dialog", lambda dialog: dialog.accept(KEY))
    opened.goto(running.url)
    yield opened
    opened.close()


def ask(page: Any, text: str) -> None:
    """Types a message and sends it."""
    page.fill("#text", text)
    page.press("#text", "Enter")


def test_a_conversation(page: Any, running: Running) -> None:
    seen = Opened(page)
    ask(page, "without a key")
    seen.wait_until(f"{IDLE} && document.querySelector('.assistant.error') !== null")
    assert "key" in seen.texts(".assistant")[0].lower()
    page.click("#reset")
    assert seen.texts(".message") == []
    # What is typed is shown as text, and no part of the page.
    hostile = "<img src=x onerror=document.title='gone'> & \u0416"
    ask(page, hostile)
    seen.wait_until(f"{IDLE} || document.querySelector('.assistant').textContent.length > 40", 60)
    page.click("#stop") if not page.evaluate(IDLE) else None
    seen.wait_until(IDLE)
    assert seen.texts(".user") == [hostile]
    assert page.title() == "Aster"
    assert len(seen.texts(".assistant")[0]) > 0
    assert page.query_selector("#chat img") is None
    assert all([url.startswith(running.url) for url in seen.asked])
    page.reload()
    seen.wait_until("document.getElementById('title').textContent === 'random'")
    assert seen.texts(".message") == []


def test_a_message_of_several_lines_and_an_empty_one(page: Any) -> None:
    seen = Opened(page)
    page.fill("#text", "   ")
    page.press("#text", "Enter")
    assert seen.texts(".message") == []
    page.type("#text", "a")
    page.press("#text", "Shift+Enter")
    page.type("#text", "b")
    assert page.input_value("#text").strip() == "a\nb"
    assert seen.texts(".message") == []


def test_stop_ends_an_answer(page: Any, running: Running) -> None:
    """An answer that is stopped ends at the server too."""
    page.evaluate(f"key = '{KEY}'")
    seen = Opened(page)
    ask(page, "go on")
    seen.wait_until("document.querySelector('.assistant')?.textContent.length > 0", 60)
    if not page.evaluate(IDLE):
        page.click("#stop")
    seen.wait_until(IDLE)
    engine = running.service.language.engine
    for _ in range(200):
        if not any([slot.answer for slot in engine.slots]):
            break
        page.wait_for_timeout(50)
    assert not any([slot.answer for slot in engine.slots])
