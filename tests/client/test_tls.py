"""Servers behind TLS: a certificate that is trusted, one that is not, and what is said then."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from omnilab import Sampling, Workload
from omnilab.client import Server, served_models, wait_ready
from omnilab.errors import BadInput, Error
from omnilab.workload import closed
from tests.client.scripted import answer, body, scripted

ONE = Workload.prompts(["Hello"], Sampling(temperature=0.0), arrivals=closed(1))
MODELS = b'HTTP/1.1 200 OK\r\ncontent-length: 25\r\n\r\n{"data": [{"id": "m-1"}]}'


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A certificate authority that only this test knows."""
    return trustme.CA()


@pytest.fixture(scope="module")
def context(authority: trustme.CA) -> ssl.SSLContext:
    """What a server of that authority shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


def test_a_server_that_is_trusted(
    authority: trustme.CA, context: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSL_CERT_FILE names its authority: models and answers come as without TLS, each event with a time."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with scripted(lambda number: [MODELS] if number == 0 else body(*answer()), context) as server:
        assert served_models(server.url) == ["m-1"]
        (record,) = Server(server.url, "m-1").run(ONE).records
    assert record.error is None and record.output_tokens == 2 and record.audio_s == 1.0
    assert record.text_times_s == sorted(record.text_times_s) and record.start_s < record.text_times_s[0]


def test_a_server_that_is_not(context: ssl.SSLContext) -> None:
    """What to do is said, wherever it is first asked; a request fails by itself."""
    with scripted(lambda _: [MODELS], context) as server:
        with pytest.raises(BadInput, match=r"certificate verify failed.*set SSL_CERT_FILE"):
            served_models(server.url)
        with pytest.raises(Error, match="set SSL_CERT_FILE"):
            wait_ready(server.url, timeout_s=0.1)
        (record,) = Server(server.url, "m-1").run(ONE).records
    assert record.error is not None and "certificate" in record.error
