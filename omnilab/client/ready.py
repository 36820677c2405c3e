"""Is a server there, and what does it serve? Plain requests, before anything is timed."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable, Mapping
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from omnilab.client.wire import Address
from omnilab.errors import BadInput, Error

POLL_S = 0.2
ASK_WITHIN_S = 10.0


def served_models(
    url: str, *, api_key: str | None = None, headers: Mapping[str, str] | None = None, timeout_s: float = ASK_WITHIN_S
) -> list[str]:
    """Return the names in GET /v1/models. BadInput when the server is not there or has no such list."""
    where = f"{Address.of(url).url}/v1/models"
    try:
        found = msgspec.json.decode(_get(where, timeout_s, api_key, headers))
        return [str(model["id"]) for model in found["data"]]
    except HTTPError as error:
        error.close()
        said = "give --api-key" if error.code in (401, 403) else "give --model, or another --url"
        raise BadInput(f"{where}: status {error.code}: {said}") from None
    except (OSError, http.client.HTTPException) as error:
        raise BadInput(f"{where}: {_why(error)}: start the server, or give another --url") from None
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise BadInput(f"{where}: no list of models came: give --model, or another --url") from None


def wait_ready(
    url: str,
    path: str = "/health",
    *,
    timeout_s: float = 600.0,
    alive: Callable[[], str | None] | None = None,
    api_key: str | None = None,
) -> None:
    """Ask `path` until it answers with status 200. `alive` says why to give up early, None to go on.

    Raises Error with what was last seen and what to do.
    """
    where = f"{Address.of(url).url}{path}"
    end, seen = time.monotonic() + timeout_s, "nothing"
    while True:
        left = end - time.monotonic()
        try:
            _get(where, max(0.1, min(left, ASK_WITHIN_S)), api_key, None)
            return
        except HTTPError as error:
            error.close()
            seen = f"status {error.code}"
        except (OSError, http.client.HTTPException) as error:
            seen = _why(error)
        if alive is not None and (reason := alive()) is not None:
            raise Error(f"{where}: the server will not be ready: {reason}")
        if left <= POLL_S:
            raise Error(f"{where}: not ready within {timeout_s:g} s (last: {seen}): see its log, or give it more time")
        time.sleep(POLL_S)


def _get(where: str, within_s: float, api_key: str | None, headers: Mapping[str, str] | None) -> bytes:
    named = dict(headers or {}) | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    with build_opener(ProxyHandler({})).open(Request(where, headers=named), timeout=within_s) as answer:
        return answer.read()


def _why(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"{reason} (for a certificate of your own, set SSL_CERT_FILE to its file)"
    return str(reason) or type(error).__name__
