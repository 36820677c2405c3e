"""The routes: what they answer, that nothing outside of the logdir is, and that bad questions get a reason."""

import gzip
import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from werkzeug.test import Client

from omnilab.board.plugin import OmnilabPlugin
from tests.board.scripted_run import BASELINE, FASTEST

ROOT = Path(__file__).resolve().parents[2]


def plugin_of(logdir):
    return OmnilabPlugin(SimpleNamespace(logdir=str(logdir)))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def get(logdir):
    """Ask a route; the path may hold a query. Every answer must forbid the browser to guess its type."""
    apps = plugin_of(logdir).get_plugin_apps()

    def asked(path, **headers):
        route = path.partition("?")[0]
        answer = Client(apps[route]).get(path, headers=headers, buffered=True)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        return answer

    return asked


def test_the_entry_point_is_named_in_the_project_file():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["tensorboard_plugins"] == {"omnilab": "omnilab.board.plugin:OmnilabPlugin"}


def test_the_tab_is_there_when_a_run_is(logdir, tmp_path):
    plugin = plugin_of(logdir)
    assert plugin.is_active()
    metadata = plugin.frontend_metadata()
    assert (metadata.tab_name, metadata.es_module_path) == ("omnilab", "/index.js")
    assert metadata.es_module_path in plugin.get_plugin_apps()
    (tmp_path / "empty").mkdir()
    assert not plugin_of(tmp_path / "empty").is_active()
    assert not OmnilabPlugin(SimpleNamespace(logdir=None)).is_active()  # pyright: ignore[reportArgumentType]


def test_scripts_name_only_scripts_that_are_served(get, logdir):
    served = {route for route in plugin_of(logdir).get_plugin_apps() if route.endswith(".js")}
    for route in served:
        answer = get(route)
        assert answer.mimetype == "text/javascript"
        named = {line.split('"')[1] for line in answer.text.splitlines() if line.startswith("import ")}
        assert {f"/{name.removeprefix('./')}" for name in named} <= served
    assert get("/style.css").mimetype == "text/css"


def test_answers_are_strict_json(get):
    def refuse(name):
        raise ValueError(name)

    for path in ("/runs", "/run?run=mine", "/sections?run=mine", f"/timeline?run=mine&variant={BASELINE}&block=0"):
        answer = get(path)
        assert (answer.status_code, answer.mimetype) == (200, "application/json")
        assert json.loads(answer.text, parse_constant=refuse)
    assert get("/runs").json["runs"] == [{"name": "mine", "damaged": ""}]


def test_a_window_a_trace_a_file_and_a_sound(get, logdir):
    window = get(f"/timeline?run=mine&variant={FASTEST}&block=1&from=60000&to=100000&request=r0").json
    assert (window["window_us"], window["label"]) == ([60_000, 100_000], f"{FASTEST}, block 1")
    trace = get(f"/trace?run=mine&variant={quote(BASELINE + ' (A/A)')}&block=2")
    assert trace.headers["Content-Disposition"].startswith("attachment")
    assert json.loads(gzip.decompress(trace.data))["metadata"]["trial"] == f"{BASELINE} (A/A), block 2"
    (logdir / "mine" / "traces").mkdir()
    (logdir / "mine" / "traces" / "x.speedscope.json").write_text("{}")
    assert get("/file?run=mine&file=x.speedscope.json").data == b"{}"
    whole = (logdir / "mine" / "audio" / f"{BASELINE}-0.wav").read_bytes()
    sound = get(f"/audio?run=mine&variant={BASELINE}&request=0")
    assert (sound.mimetype, sound.data) == ("audio/wav", whole)
    part = get(f"/audio?run=mine&variant={BASELINE}&request=0", Range="bytes=4-7")
    assert (part.status_code, part.data) == (206, whole[4:8])


OUTSIDE = ("..", "../secret", "/etc/passwd", "..%2Fsecret", "%2e%2e%2fsecret", "..%5csecret", "mine%2F..%2F..%2Fsecret",
           "mine%00", ".", "%252e%252e%252fsecret", "file:///etc/passwd", "mine/../mine")  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_outside_of_the_logdir_is_answered(get, logdir, name):
    """The secret is a run beside the logdir: reading it by any name would be an answer."""
    import shutil

    shutil.copytree(logdir / "mine", logdir.parent / "secret")
    asked = [f"/{route}?run={name}" for route in ("run", "sections")]
    asked += [f"/{route}?run={name}&variant={BASELINE}&block=0" for route in ("timeline", "trace")]
    asked += [f"/audio?run={name}&variant={BASELINE}&request=0", f"/file?run={name}&file=x.json.gz"]
    asked += [f"/file?run=mine&file={name}", f"/audio?run=mine&variant={name}&request=0"]
    asked += [f"/timeline?run=mine&variant={name}&block=0", f"/trace?run=mine&variant={name}&block=0"]
    for path in asked:
        answer = get(path)
        assert answer.status_code == 404 and set(answer.json) == {"error"}, path


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/run", r"name a run: \?run="),
        ("/run?run=nope", "no run 'nope' below the logdir; there are mine"),
        ("/timeline?run=mine&variant=nope&block=0", "has no variant 'nope'; there are"),
        (f"/timeline?run=mine&variant={BASELINE}&block=9", "was not measured in block 9"),
        (f"/timeline?run=mine&variant={BASELINE}&block=-1", "must be a whole number, not '-1'"),
        (f"/timeline?run=mine&variant={BASELINE}&block=1e9", "must be a whole number"),
        (f"/timeline?run=mine&variant={BASELINE}&block={'9' * 5000}", "must be a whole number"),
        (f"/timeline?run=mine&variant={BASELINE}&block=0&from=nan&to=1", "number of microseconds"),
        (f"/timeline?run=mine&variant={BASELINE}&block=0&from=5", "name a to"),
        (f"/timeline?run=mine&variant={BASELINE}&block=0&from=5&to=5", "is empty"),
        (f"/timeline?run=mine&variant={BASELINE}&block=0&request=nobody", "nobody"),
        (f"/audio?run=mine&variant={BASELINE}&request=5", "keeps no sound of request 5"),
        ("/file?run=mine&file=merged.json.gz", "has no trace file"),
    ],
)
def test_a_bad_question_is_answered_with_the_reason(get, path, said):
    import re

    answer = get(path)
    assert answer.status_code == 404
    assert re.search(said, answer.json["error"])


def test_a_damaged_run_is_told_and_the_list_still_works(get, logdir):
    (logdir / "bad").mkdir()
    (logdir / "bad" / "run.json").write_text("{")
    bad, mine = get("/runs").json["runs"]
    assert "is not a run folder" in bad["damaged"] and mine == {"name": "mine", "damaged": ""}
    answer = get("/run?run=bad")
    assert answer.status_code == 404 and "is not a run folder" in answer.json["error"]
    assert get("/run?run=mine").status_code == 200
