"""Our tab in a real TensorBoard and browser: what it shows, by text and by pixel, and that it asks nobody else."""

from __future__ import annotations

import base64
import gzip
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from omnilab import trace
from tests.board.scripted_run import BASELINE, FASTEST, VARIANTS, make_run, spans

STARTS_S = 90
MANY = 300_000  # spans of a trial: more than any page should get
FORWARD = (0, 114, 178)  # its colour in the bars
DIST_INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: omnilab-board\nVersion: 0\n",
    "entry_points.txt": "[tensorboard_plugins]\nomnilab = omnilab.board.plugin:OmnilabPlugin\n",
}


@pytest.fixture(scope="module")
def logdir(tmp_path_factory) -> Path:
    """Four run folders: a whole one with traces and summaries, a large one, a damaged one."""
    root = tmp_path_factory.mktemp("logs")
    make_run(root / "planted")
    shutil.copytree(root / "planted", root / "large")
    _enlarge(root / "large")
    assert trace.main([str(root / "planted"), "--tensorboard"]) == 0
    (root / "bad").mkdir()
    (root / "bad" / "run.json").write_text('{"schema_version": 2')
    return root


def _enlarge(run: Path) -> None:
    """Give a trial MANY spans, and the run a trace file of 107 MB."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    line = next(one for one in lines if (one["kind"], one["block"], one["variant"]) == ("trial", 0, BASELINE))
    file = run / next(name for name in line["files"] if name.startswith("spans"))
    few = pq.read_table(file, partitioning=None)
    many = few.take(pa.array(np.zeros(MANY, dtype=np.int64)))
    starts = pa.array(np.arange(MANY, dtype=np.int64) * 1_000)
    for name, values in (("start_ns", starts), ("end_ns", pa.compute.add(starts, 600))):
        many = many.set_column(many.schema.get_field_index(name), name, values)
    pq.write_table(many, file)
    (run / "traces").mkdir()
    with open(run / "traces" / "merged.json.gz", "wb") as large:
        large.truncate(107_000_000)


@pytest.fixture(scope="module")
def server(logdir, tmp_path_factory) -> Iterator[str]:
    """A `tensorboard` of its own process, which finds our tab by its entry point; yields its address."""
    paths = [str(Path(__file__).resolve().parents[2])]
    if not importlib.metadata.entry_points(
        group="tensorboard_plugins", name="omnilab"
    ):  # not installed, only on the path
        site = tmp_path_factory.mktemp("site")
        (site / "omnilab_board-0.dist-info").mkdir()
        for name, text in DIST_INFO.items():
            (site / "omnilab_board-0.dist-info" / name).write_text(text)
        paths.append(str(site))
    said = tmp_path_factory.mktemp("server") / "said"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0"]
    with open(said, "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield _address(process, said)
    finally:
        process.terminate()
        process.wait(20)


def _address(process: subprocess.Popen[bytes], said: Path) -> str:
    until = time.monotonic() + STARTS_S
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+", said.read_text()):
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"tensorboard did not start:\n{said.read_text()}")


@pytest.fixture
def tab(page, server):
    """Open a view of our tab, in a page of its own."""
    # a browser asks for it where our page is not in TensorBoard's frame
    page.route("**/favicon.ico", lambda route: route.fulfill(status=204))

    def opened(view: str, run: str = "planted") -> Page:
        page.goto("about:blank")
        page.goto(f"{server}/data/plugin_entry.html?name=omnilab#run={run}&view={view}")
        page.locator("body[data-ready='1']").wait_for()
        return page

    return opened


def pixel(page: Page, locator) -> tuple[int, ...]:
    """Return the colour in the middle of an element."""
    box = locator.bounding_box()
    clip = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "width": 1, "height": 1}
    shot = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
    return shot.getpixel((0, 0))


def test_the_verdicts_are_there_as_in_the_report(tab):
    page = tab("verdicts")
    rows = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in page.locator("tbody tr").all()
    }
    assert set(rows) == set(VARIANTS) - {f"{BASELINE} (A/A)"}
    assert (rows[BASELINE][0], rows[FASTEST][0]) == ("baseline", "faster")
    good = page.locator("td.good").first
    assert good.evaluate("cell => getComputedStyle(cell).color") == "rgb(0, 90, 140)"
    expect(page.locator("section[aria-busy=false] h2", has_text="What this does not show")).to_be_visible(
        timeout=30_000
    )


def test_bars_have_the_known_lengths_and_colours(tab):
    page = tab("stages")
    talker = page.locator("[data-stage=talker]")
    assert talker.locator("span:not(.value)").all_inner_texts()[0] == BASELINE
    forward = talker.locator("[data-name=forward]").all()
    widths = [bar.bounding_box()["width"] for bar in forward]
    assert widths[0] / widths[1] == pytest.approx(2, rel=0.02)  # the baseline's spans take twice the time
    assert pixel(page, forward[0]) == FORWARD
    assert forward[0].get_attribute("title") == "forward: 180 ms"
    page.get_by_text("As a table").click()
    assert page.locator("details tbody tr", has_text=f"talker, {BASELINE}").locator("td").first.inner_text() == "180 ms"


def test_the_timeline_shows_two_variants_and_then_one(tab):
    page = tab("timeline")
    home = page.locator("#timeline")
    home.locator("canvas").first.wait_for()
    assert page.locator("#timeline[data-ready='1']").count() == 1
    shot = Image.open(io.BytesIO(home.locator("canvas").first.screenshot())).convert("RGB")
    colours = {colour for count, colour in shot.getcolors(1 << 24) if count > 100}
    assert len(colours) > 3, "the canvas is empty"
    home.get_by_role("button", name="Table").click()
    table = home.locator("table")
    for name in (BASELINE, FASTEST):
        expect(table).to_contain_text(f"{name}, block 0")
    forward = table.locator("tr", has_text="talker/runner").filter(has_text="forward")
    assert forward.locator("td").all_inner_texts()[:4] == ["1", "180.000", "1", "90.000"]
    page.get_by_label("variant below").select_option("")
    expect(table).not_to_contain_text(FASTEST)
    page.get_by_label("variant", exact=True).select_option("idle_skip")
    page.get_by_label("block", exact=True).select_option("3")
    expect(table).to_contain_text("idle_skip, block 3")


def test_a_trial_of_many_spans_and_a_large_trace_do_not_hang_the_page(tab):
    asked: list[str] = []
    sizes: dict[str, int] = {}
    page = tab("verdicts", "large")
    page.on("request", lambda request: asked.append(request.url))
    page.on(
        "response", lambda response: sizes.__setitem__(response.url, int(response.headers.get("content-length", 0)))
    )
    page = tab("timeline", "large")
    page.locator("#timeline[data-ready='1']").wait_for()
    assert float(page.locator("#timeline").get_attribute("data-draw-ms")) < 1_000
    said = page.locator("#timeline canvas").first.get_attribute("aria-label")
    assert f"{MANY + 8:,} spans in " in said  # and those of the other variant
    assert int(said.split(" spans in ")[1].split(" ")[0].replace(",", "")) <= 20_008
    page = tab("traces", "large")
    assert "102 MiB" in page.locator("tr", has_text="merged.json.gz").inner_text()
    assert max(sizes.values()) < 3_000_000  # gzipped
    assert not [url for url in asked if "/file?" in url or "/trace?" in url]


def test_sounds_can_be_played(tab):
    page = tab("sounds")
    assert page.locator("tbody th").all_inner_texts()[:2] == VARIANTS[:2]
    seconds = page.locator("audio").first.evaluate(
        "player => new Promise((resolve, reject) => { player.onloadedmetadata = () => resolve(player.duration);"
        " player.onerror = () => reject(player.error.message); player.load(); player.preload = 'auto'; })"
    )
    assert seconds == pytest.approx(30 * 40 / 24_000, abs=0.001)


def test_in_the_dark_it_is_dark(tab):
    page = tab("verdicts")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 26)"


def test_a_damaged_run_shows_its_reason_and_others_open(tab):
    page = tab("verdicts", "bad")
    expect(page.get_by_role("alert")).to_contain_text("bad: is not a run folder")
    runs = page.get_by_label("run", exact=True)
    assert runs.locator("option").all_inner_texts() == ["bad (damaged)", "large", "planted"]
    runs.select_option("planted")
    expect(page.locator("tbody tr")).to_have_count(5)


@pytest.fixture
def context(chromium):
    """Pages that may ask for more than those of `page`."""
    context = chromium.new_context(viewport={"width": 1300, "height": 900})
    yield context
    context.close()


PERFETTO = """<!doctype html><title>stand-in</title><script>
addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else {
    const bytes = new Uint8Array(event.data.perfetto.buffer);
    document.title = event.data.perfetto.title;
    document.body.textContent = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  }
});
</script><body></body>"""


def test_perfetto_is_asked_on_a_click_alone_and_given_the_trace(context, server):
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    context.route("https://ui.perfetto.dev/**", lambda route: route.fulfill(body=PERFETTO, content_type="text/html"))
    page = context.new_page()
    page.goto(f"{server}/data/plugin_entry.html?name=omnilab#run=planted&view=traces")
    page.locator("body[data-ready='1']").wait_for()
    page.get_by_label("variant", exact=True).select_option(FASTEST)
    page.get_by_label("block", exact=True).select_option("2")
    assert not [url for url in asked if not url.startswith(server)]
    with page.expect_popup() as popup:
        page.get_by_role("button", name="open in Perfetto").first.click()
    expect(page.get_by_role("status")).to_contain_text("opened in Perfetto")
    other = popup.value
    expect(other).to_have_title(f"planted: {FASTEST}, block 2")
    given = json.loads(gzip.decompress(base64.b64decode(other.locator("body").inner_text())))
    assert given["metadata"]["trial"] == f"{FASTEST}, block 2"
    assert given["metadata"]["spans"] == len(spans()) + 1


def test_in_tensorboard_itself_the_tab_shows_the_run_and_nothing_is_asked_of_others(context, server):
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.goto(f"{server}/#omnilab")
    frame = page.frame_locator("iframe[src*='name=omnilab']")
    frame.get_by_label("run", exact=True).select_option("planted")
    expect(frame.locator("td.good").first).to_have_text("faster")
    outside = {url for url in asked if not url.startswith((server, "data:", "blob:", "about:"))}
    assert not outside


def test_other_tabs_are_as_they_were_and_show_our_summaries(context, server):
    asked = context.request
    listed = asked.get(f"{server}/data/plugins_listing").json()
    assert listed["omnilab"]["enabled"] and listed["scalars"]["enabled"] and listed["text"]["enabled"]
    assert listed["audio"]["enabled"]
    tags = asked.get(f"{server}/data/plugin/scalars/tags").json()
    assert {run.rpartition("/")[2] for run in tags} == {re.sub(r"[^\w.+-]+", "_", name) for name in VARIANTS}
    assert all("metrics/wall_s" in found for found in tags.values())
    if "pytorch_profiler" in listed:
        assert asked.get(f"{server}/data/plugin/pytorch_profiler/runs").ok
