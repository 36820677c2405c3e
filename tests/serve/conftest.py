"""One pipeline and one server for all tests of this room: processes take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from omnilab.pipeline import Pipeline
from tests.serve.served import Running, serving, tiny_pipe


@pytest.fixture(scope="package")
def pipe() -> Iterator[Pipeline]:
    """`tiny` in processes."""
    with tiny_pipe() as opened:
        yield opened


@pytest.fixture(scope="package")
def server(pipe: Pipeline) -> Iterator[Running]:
    """Its server, without a key."""
    with serving(pipe) as running:
        yield running


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    """A client; after the test no request is left anywhere, and the server answers."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
        assert client.get("/health").status_code == 200
    assert not any(server.pipe.tables().values())
