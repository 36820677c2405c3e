"""The TensorBoard plugin "omnilab": routes over `Board`, found through the entry point `tensorboard_plugins`."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.resources import files
from typing import Any, TypeAlias

from tensorboard.backend.http_util import Respond
from tensorboard.plugins.base_plugin import FrontendMetadata, TBContext, TBPlugin
from werkzeug import Request, Response
from werkzeug.utils import send_file

from omnilab.board.data import Board
from omnilab.board.folders import find_runs
from omnilab.errors import BadInput
from omnilab.experiment.results import strict_json

Answer: TypeAlias = Callable[[Request], Response]
SCRIPTS = ("index", "page", "verdicts", "spans", "listings")
SAFE = [("X-Content-Type-Options", "nosniff")]


class OmnilabPlugin(TBPlugin):
    """The tab "omnilab"."""

    plugin_name = "omnilab"

    def __init__(self, context: TBContext) -> None:
        self._logdir = context.logdir or ""
        self._board = Board(self._logdir)

    def is_active(self) -> bool:
        """Is there a run, damaged or not?"""
        return bool(find_runs(self._logdir))

    def frontend_metadata(self) -> FrontendMetadata:
        """Say where our page begins; it asks for itself what is new."""
        return FrontendMetadata(es_module_path="/index.js", tab_name="omnilab", disable_reload=True)

    def get_plugin_apps(self) -> dict[str, Any]:
        """Return the routes, below /data/plugin/omnilab."""
        scripts = {f"/{name}.js": "omnilab.board" for name in SCRIPTS} | {"/timeline.js": "omnilab.profile"}
        static = {route: _static(package, route[1:], "text/javascript") for route, package in scripts.items()}
        static["/style.css"] = _static("omnilab.board", "style.css", "text/css")
        asked: dict[str, Answer] = {
            "/runs": self._runs,
            "/run": self._run,
            "/sections": self._sections,
            "/timeline": self._timeline,
            "/trace": self._trace,
            "/file": self._file,
            "/audio": self._audio,
        }
        return {route: Request.application(_guarded(answer)) for route, answer in {**static, **asked}.items()}

    def _runs(self, request: Request) -> Response:
        return _json(request, {"logdir": self._logdir, "runs": self._board.runs()})

    def _run(self, request: Request) -> Response:
        return _json(request, self._board.run(_word(request, "run")))

    def _sections(self, request: Request) -> Response:
        return _json(request, self._board.sections(_word(request, "run")))

    def _timeline(self, request: Request) -> Response:
        window = None
        if "from" in request.args or "to" in request.args:
            window = _number(request, "from"), _number(request, "to")
            if window[0] >= window[1]:
                raise BadInput(f"the window from {window[0]:g} to {window[1]:g} us is empty")
        asked = request.args.get("request") or None
        return _json(request, self._board.timeline(*_trial(request), window, asked))

    def _trace(self, request: Request) -> Response:
        name, variant, block = _trial(request)
        data = self._board.trace(name, variant, block)
        return _gzip(data, f"{variant}-{block}.json.gz")

    def _file(self, request: Request) -> Response:
        found = self._board.file(_word(request, "run"), _word(request, "file"))
        return _sent(request, found.path, "application/octet-stream", found.path.name)

    def _audio(self, request: Request) -> Response:
        path = self._board.sound(_word(request, "run"), _word(request, "variant"), _whole(request, "request"))
        return _sent(request, path, "audio/wav")


def _guarded(answer: Answer) -> Answer:
    """Answer what is not there, or is damaged, with 404 and the reason as JSON."""

    def answered(request: Request) -> Response:
        try:
            return answer(request)
        except BadInput as error:
            return _json(request, {"error": str(error)}, 404)

    return answered


def _static(package: str, name: str, kind: str) -> Answer:
    return lambda request: Respond(request, (files(package) / name).read_text("utf-8"), kind)


def _json(request: Request, value: Any, code: int = 200) -> Response:
    return Respond(request, strict_json(value), "application/json", code=code)


def _gzip(data: bytes, name: str) -> Response:
    response = Response(data, headers=SAFE, content_type="application/gzip")
    response.headers.set("Content-Disposition", "attachment", filename=name)
    return response


def _sent(request: Request, path: Any, kind: str, download: str | None = None) -> Response:
    """Send a file; parts of it where a player asks for them."""
    named = {} if download is None else {"as_attachment": True, "download_name": download}
    response = send_file(path, request.environ, mimetype=kind, conditional=True, **named)
    response.headers.extend(SAFE)
    return response


def _trial(request: Request) -> tuple[str, str, int]:
    return _word(request, "run"), _word(request, "variant"), _whole(request, "block")


def _word(request: Request, name: str) -> str:
    if not (value := request.args.get(name)):
        raise BadInput(f"{request.path}: name a {name}: ?{name}=...")
    return value


def _whole(request: Request, name: str) -> int:
    value = _word(request, name)
    if not value.isdecimal() or len(value) > 9:
        raise BadInput(f"{name} must be a whole number, not {value!r}")
    return int(value)


def _number(request: Request, name: str) -> float:
    value = _word(request, name)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadInput(f"{name} must be a number of microseconds, not {value!r}")
    return number
