"""The server's page in a real browser: text and sound as they stream, and the numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from omnilab.pipeline import Pipeline
from tests.serve.served import Running, serving, tiny_pipe

# What the page says while it streams, each time that it changes.
WATCH = """() => {
  window.seen = [];
  const look = () => seen.push([document.getElementById("status").dataset.state,
    document.getElementById("text").textContent, document.getElementById("seconds").textContent]);
  new MutationObserver(look).observe(document.body, {subtree: true, childList: true, attributes: true,
    characterData: true});
}"""


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipeline]:
    """`tiny` in processes."""
    with tiny_pipe() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(pipe: Pipeline) -> Iterator[Running]:
    """Its server."""
    with serving(pipe) as running:
        yield running


def opened(page: Any, url: str) -> Any:
    """Open the page and wait until it knows the model."""
    page.goto(url)
    page.wait_for_selector("#model[data-ready=yes]")
    return page


def until(page: Any, expression: str, within_s: float = 30) -> None:
    """Wait until an expression holds; the page's own policy forbids what wait_for_function does."""
    deadline = time.monotonic() + within_s
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def ask(page: Any, **fields: str) -> None:
    """Fill the form in, send it, wait for the end."""
    for name, value in fields.items():
        page.fill(f"#{name.replace('_', '-')}", value)
    page.click("#send")
    page.wait_for_selector("#status[data-state=done]", timeout=60_000)


def test_text_and_sound_come_before_the_end(page: Any, server: Running, pipe: Pipeline) -> None:
    """Text is there while sound still comes; the player has all samples of the answer, and plays them."""
    opened(page, server.url)
    assert page.inner_text("#model") == "tiny" and "recipe BEST" in page.inner_text("#recipe")
    page.select_option("#voice", "aiden")
    page.evaluate(WATCH)
    ask(page, prompt="Where do rivers begin?", max_tokens="24", seed="7")
    speech = pipe.speak("Where do rivers begin?", max_text_tokens=24, seed=7, speaker="aiden")
    assert page.text_content("#text") == speech.text
    streaming = [seen for seen in page.evaluate("seen") if seen[0] == "streaming"]
    texts, seconds = {text for _, text, _ in streaming}, {said for _, _, said in streaming}
    assert len(texts - {""}) > 5 and len(seconds) > 2
    assert any(text and said == "\u2013" for _, text, said in streaming)  # text before any sound
    until(page, "document.getElementById('sound').duration > 0")
    duration = page.evaluate("document.getElementById('sound').duration")
    assert duration == pytest.approx(len(speech.audio) / 24_000, abs=0.001)
    assert page.inner_text("#seconds") == f"{duration:.2f} s"
    page.evaluate("document.getElementById('sound').play()")
    until(page, "document.getElementById('sound').currentTime > 0.1")
    until(page, "parseFloat(document.getElementById('played').textContent) > 0.2")  # as it streamed


def test_the_numbers_of_an_answer(page: Any, server: Running) -> None:
    """Each is filled in, with its unit; what was not asked for stays empty."""
    opened(page, server.url)
    ask(page, max_tokens="6", seed="1")
    said = {name: page.inner_text(f"#{name}") for name in ("ttft", "ttfp", "rtf", "underruns", "queue", "tokens")}
    assert said["ttft"].endswith(" ms") and said["ttfp"].endswith(" ms") and said["queue"].endswith(" ms")
    assert float(said["ttft"][:-3]) < float(said["ttfp"][:-3])
    assert float(said["rtf"]) > 0 and said["underruns"].endswith(" s") and said["tokens"] == "6"
    page.uncheck("#wants-audio")
    ask(page)
    assert page.inner_text("#ttfp") == page.inner_text("#rtf") == "\u2013" and page.inner_text("#ttft") != "\u2013"
    assert page.get_attribute("#sound", "src") is None


def test_stopping_aborts_the_request(page: Any, server: Running, pipe: Pipeline) -> None:
    """Stop ends it in the pipeline too, and the page can ask again."""
    opened(page, server.url)
    page.fill("#max-tokens", "900")
    page.click("#send")
    until(page, "document.getElementById('text').textContent.length > 3")
    page.click("#stop")
    page.wait_for_selector("#status[data-state=stopped]")
    assert not any(pipe.tables().values())
    ask(page, max_tokens="2")


def test_what_is_refused_is_said(open_page: Any, server: Running) -> None:
    """The server's message stands in the page."""
    page = open_page()
    opened(page, server.url)
    page.uncheck("#wants-audio")
    page.uncheck("#wants-text")
    page.evaluate(
        'window.fetch = () => Promise.resolve(new Response(\'{"error": {"message": "no place"}}\', {status: 429}))'
    )
    page.click("#send")
    page.wait_for_selector("#status[data-state=failed]")
    assert page.inner_text("#status") == "no place"


def test_the_page_with_a_key(open_page: Any, pipe: Pipeline) -> None:
    """The browser asks for the key once; the page's own requests bear it."""
    with serving(pipe, api_key="s3cret") as running:
        page = open_page(http_credentials={"username": "any", "password": "s3cret"})
        opened(page, running.url)
        page.uncheck("#wants-audio")
        ask(page, max_tokens="2")
        assert page.inner_text("#tokens") == "2"
