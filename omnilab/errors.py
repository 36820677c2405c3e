"""Everything omnilab raises on purpose. Each message says what to do."""


class Error(Exception):
    """Base of omnilab's errors."""


class BadInput(Error):
    """An argument that cannot be used: nothing was started."""


class ModelNotFound(BadInput):
    """No such size, folder or hub model, or a folder of another model."""


class PromptTooLong(BadInput):
    """The prompt and the requested output do not fit; names the limit and the length."""


class ToggleConflict(BadInput):
    """Two toggles fill one seam."""


class ToggleUnavailable(BadInput):
    """A toggle, or what it needs, is not there; says what is."""


class RunFolderError(BadInput):
    """A run folder that cannot be written, or is not one."""


class RequestFailed(Error):
    """Base of what ends one request."""

    def __init__(self, message: str, *, stage: str = "", request: str = "") -> None:
        super().__init__(message)
        self.stage = stage
        self.request = request

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args[0], self.stage, self.request))


class StageFailed(RequestFailed):
    """A stage could not go on with a request; names both."""


class Timeout(RequestFailed):
    """A wait met its deadline; names the stage and what it waited for."""


class Aborted(RequestFailed):
    """The request was given up by its caller."""


def _rebuild(kind: type[RequestFailed], message: str, stage: str, request: str) -> RequestFailed:
    return kind(message, stage=stage, request=request)
