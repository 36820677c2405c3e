"""Errors as OpenAI's clients read them: {"error": {"message", "type", "param", "code"}}, `code` the HTTP status."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from omnilab.errors import BadInput, Error

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class ApiError(Exception):
    """A refusal or a failure as the client is told of it."""

    def __init__(
        self, status: int, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """`param` names the field of the body that is wrong."""
        super().__init__(message)
        self.status, self.message, self.param, self.headers = status, message, param, dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return what the client is sent, as an answer's body or as an event of a stream."""
        kind = TYPES.get(self.status, "BadRequestError" if self.status < 500 else "InternalServerError")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}

    def response(self) -> Response:
        """Return it as a whole answer."""
        return Response(msgspec.json.encode(self.body()), self.status, self.headers, "application/json")


class ClientGone(Exception):
    """The client has closed its connection, or has read nothing for too long."""


def told(error: Exception, *, ended: bool = False) -> ApiError:
    """Return what a client is told of an error; `ended`: the pipeline cannot go on.

    Of an error that is none of ours its text stays in the server's log.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BadInput):
        return ApiError(400, str(error))
    if isinstance(error, Error):
        return ApiError(503 if ended else 500, str(error))
    logging.getLogger("omnilab.serve").error("a request failed", exc_info=error)
    return ApiError(500, f"the server failed ({type(error).__name__}); its log says more")
