"""A real Chromium without a window. A page fails its test on a script error and on a request to another machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

ALLOWED = ("http://127.0.0.1:", "ws://127.0.0.1:", "file:", "data:", "blob:", "about:")


@pytest.fixture(scope="module")  # not longer: its event loop counts as running on this thread as long as it is open
def chromium() -> Iterator[Any]:
    """Start the browser once a module. Where OMNILAB_BROWSER is set, as .ci/run does, it must be there."""
    path = shutil.which("chromium")
    if path is None:
        message = "no chromium: apt-get install chromium"
        pytest.fail(message) if os.environ.get("OMNILAB_BROWSER") else pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open pages, with keywords of `Browser.new_context` such as color_scheme. What goes wrong there fails the test."""
    contexts, wrong = [], list[str]()

    def opened(**context: Any) -> Any:
        contexts.append(chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **context}))
        contexts[-1].on("request", lambda request: _look(request.url, wrong))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
        page.on("console", lambda said: wrong.append(f"console: {said.text}") if said.type == "error" else None)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture
def page(open_page: Callable[..., Any]) -> Any:
    """A page of 1280 x 800 pixels, in light colours."""
    return open_page(color_scheme="light")


def _look(url: str, wrong: list[str]) -> None:
    if not url.startswith(ALLOWED):
        wrong.append(f"asked outside: {url}")
