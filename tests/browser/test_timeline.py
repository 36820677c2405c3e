"""The timeline in a real browser: what it shows by text and by pixel, what pointer and keys do, and how fast."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np
import pytest

from omnilab.profile.columns import span_columns
from omnilab.profile.timeline import script, timeline_data
from omnilab.record import SpanRow

MS = 1_000_000
FORWARD, VOCODE, PUT = (0, 114, 178), (0, 158, 115), (213, 94, 0)
DARK_FORWARD = (46, 139, 192)
KNOWN = [
    ("thinker", "runner", "forward", "r0", -1, 0, 40, -1),
    ("thinker", "engine", "save", "r0", -1, 40, 50, -1),
    ("thinker", "engine", "build", "r0", 0, 42, 48, -1),  # within its save
    ("thinker", "send", "put", "r0", 0, 50, 60, 40_960),
    ("talker", "receive", "get", "r0", 0, 70, 80, 40_960),
    ("talker", "runner", "forward", "", -1, 80, 140, -1),
    ("talker", "send", "put", "r1", 3, 140, 150, 800),
    ("code2wav", "receive", "get", "r1", 3, 152, 156, 800),
    ("code2wav", "runner", "vocode", "r1", -1, 160, 200, -1),
]
PAGE = """<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'nonce-x'; style-src 'none'">
<body><div id="timeline"></div><script type="application/json" id="panels">{panels}</script>
<script type="module" nonce="x">{script}
window.bench = {{ mount, widget: render, loads: [] }};
const panels = JSON.parse(document.getElementById("panels").textContent);
const load = {load};
window.timeline = mount(document.getElementById("timeline"), {{ panels, load }});
</script>"""


def spans(stretch: float = 1) -> list[SpanRow]:
    """Return the known spans, with every time `stretch` times as long."""
    return [
        SpanRow(stage, loop, name, request, chunk, round(MS * start * stretch), round(MS * end * stretch), size)
        for stage, loop, name, request, chunk, start, end, size in KNOWN
    ]


def shown(page: Any, *panels: dict[str, Any], load: str = "null") -> Any:
    """Open the panels in a page whose policy forbids all but this script; wait until they are drawn."""
    page.set_content(PAGE.format(panels=json.dumps(panels), script=script(), load=load))
    page.wait_for_selector("#timeline[data-ready='1']", state="attached")
    return page


def canvas(page: Any) -> Any:
    return page.locator("#timeline canvas").first


def picture(page: Any) -> np.ndarray:
    """Return the drawing as [height, width, 3]; a canvas pixel is a CSS pixel here."""
    from PIL import Image

    page.mouse.move(640, 790)  # away from it
    settled(page)
    return np.asarray(Image.open(io.BytesIO(canvas(page).screenshot())).convert("RGB"))


def settled(page: Any) -> None:
    """Wait until what was asked for is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def where(page: Any, panel: int, span: int) -> dict[str, Any]:
    """Return a span's place in the drawing, x, y, width, height, and its colour; None where its row is left out."""
    settled(page)
    return page.evaluate("([panel, span]) => timeline.where(panel, span)", [panel, span])


def said(page: Any, pattern: str) -> None:
    """Wait until the line below the drawing says so; the page's policy leaves no other way to wait."""
    page.locator("#timeline p.said").first.filter(has_text=re.compile(pattern)).wait_for()


def view_ms(page: Any) -> list[float]:
    settled(page)
    return [round(us / 1000, 1) for us in page.evaluate("timeline.view()")]


def table(page: Any) -> list[list[str]]:
    """Return the cells of the table's body."""
    button = page.get_by_role("button", name="Table")
    if button.get_attribute("aria-expanded") == "false":
        button.click()
    settled(page)
    rows = page.locator("#timeline tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


def middle(page: Any, panel: int, span: int) -> tuple[float, float]:
    """Return where a span's middle is on the page."""
    box, at = canvas(page).bounding_box(), where(page, panel, span)
    return box["x"] + at["x"] + at["width"] / 2, box["y"] + at["y"] + at["height"] / 2


def color_at(page: Any, panel: int, span: int) -> tuple[int, ...]:
    """Return the colour inside a span's left end, below its name."""
    at = where(page, panel, span)
    return tuple(int(value) for value in picture(page)[round(at["y"] + at["height"] - 3), round(at["x"] + 3)])


# by track, as timeline_data orders them
SAVE, BUILD, THINKS, PUTS, GETS, TALKS, SENDS, TAKES, VOCODES = range(9)


def test_the_table_says_what_each_loop_did(page):
    shown(page, timeline_data(spans(), label="known"))
    assert table(page) == [
        ["thinker/engine", "build", "1", "6.000"],
        ["thinker/engine", "save", "1", "10.000"],
        ["thinker/runner", "forward", "1", "40.000"],
        ["thinker/send", "put", "1", "10.000"],
        ["talker/receive", "get", "1", "10.000"],
        ["talker/runner", "forward", "1", "60.000"],
        ["talker/send", "put", "1", "10.000"],
        ["code2wav/receive", "get", "1", "4.000"],
        ["code2wav/runner", "vocode", "1", "40.000"],
    ]
    page.evaluate("timeline.show(0, 60_000)")
    assert ["thinker/runner", "forward", "1", "40.000"] in table(page)
    page.evaluate("timeline.show(20_000, 45_000)")
    assert table(page) == [  # only what the window holds
        ["thinker/engine", "build", "1", "3.000"],
        ["thinker/engine", "save", "1", "5.000"],
        ["thinker/runner", "forward", "1", "20.000"],
    ]


def test_spans_are_drawn_in_their_colour_where_they_were(page):
    shown(page, timeline_data(spans(), label="known"))
    assert [color_at(page, 0, span) for span in (THINKS, TALKS, VOCODES, PUTS)] == [FORWARD, FORWARD, VOCODE, PUT]
    drawn, first, last = picture(page), where(page, 0, THINKS), where(page, 0, VOCODES)
    scale = (last["x"] + last["width"] - first["x"]) / 200  # pixels a ms
    assert first["width"] == pytest.approx(40 * scale, abs=0.5)
    row = drawn[round(first["y"] + 15)]
    blue = np.flatnonzero((row == FORWARD).all(axis=1))
    assert blue.min() == pytest.approx(first["x"], abs=1)
    assert blue.max() == pytest.approx(first["x"] + 40 * scale, abs=2)


def test_two_trials_stand_on_one_time_axis(page):
    shown(page, timeline_data(spans(2), label="before"), timeline_data(spans(), label="after"))
    slow, fast = where(page, 0, VOCODES), where(page, 1, VOCODES)
    left = where(page, 0, THINKS)["x"]
    assert fast["y"] > slow["y"] + slow["height"]
    assert where(page, 1, THINKS)["x"] == left
    assert fast["x"] - left == pytest.approx((slow["x"] - left) / 2, abs=0.5)
    assert ["talker/runner", "forward", "1", "120.000", "1", "60.000", "−60.000"] in table(page)
    heads = page.locator("#timeline thead th").all_inner_texts()
    assert heads == ["before", "after", "loop", "span", "spans", "ms", "spans", "ms", "change, ms"]


def test_the_pointer_says_what_it_is_on_and_a_click_keeps_it(page):
    shown(page, timeline_data(spans(), label="known"))
    page.mouse.move(*middle(page, 0, GETS))
    tip = page.locator("#timeline .tip")
    tip.wait_for()
    assert tip.inner_text().split("\n") == [
        "get", "talker/receive · r0", "chunk 0, 41.0 kB", "start 70 ms", "length 10 ms",
        "thinker → talker: sent to taken 10 ms",
    ]  # fmt: skip
    page.mouse.click(*middle(page, 0, GETS))
    page.mouse.move(*middle(page, 0, VOCODES))
    settled(page)
    assert "get" in tip.inner_text()
    page.keyboard.press("Escape")
    page.mouse.move(*middle(page, 0, TALKS))
    settled(page)
    assert tip.inner_text().split("\n")[:2] == ["forward", "talker/runner"]
    page.mouse.move(5, 5)
    tip.wait_for(state="hidden")


def test_the_inner_span_is_found_below_its_outer_one(page):
    shown(page, timeline_data(spans(), label="known"))
    page.mouse.move(*middle(page, 0, BUILD))
    settled(page)
    assert page.locator("#timeline .tip b").inner_text() == "build"
    page.mouse.move(*middle(page, 0, SAVE))
    settled(page)
    assert page.locator("#timeline .tip b").inner_text() == "save"


def test_a_hovered_chunk_is_marked_at_both_ends(page):
    shown(page, timeline_data(spans(), label="known"))
    over = page.locator("#timeline canvas").nth(1)
    accent = "(canvas, at) => [...canvas.getContext('2d').getImageData(at.x + 1, at.y - 2, 3, 2).data]"
    assert sum(over.evaluate(accent, where(page, 0, PUTS))) == 0
    page.mouse.move(*middle(page, 0, GETS))
    settled(page)
    assert over.evaluate(accent, where(page, 0, PUTS))[:3] == [179, 38, 30]


def test_wheel_keys_and_drags_move_the_window(page):
    shown(page, timeline_data(spans(), label="known"))
    assert view_ms(page) == [0, 200]
    x, y = middle(page, 0, TALKS)  # 110 ms
    page.mouse.move(x, y)
    page.mouse.wheel(0, -200)
    said(page, r"^(?!0 s)")
    low, high = view_ms(page)
    assert high - low == pytest.approx(200 * np.exp(-0.4), rel=0.01)
    assert (110 - low) / (high - low) == pytest.approx(110 / 200, abs=0.01)  # what is under the pointer stays there
    page.mouse.down()
    page.mouse.move(x + 100, y, steps=4)
    page.mouse.up()
    moved = view_ms(page)
    assert moved[0] < low
    assert moved[1] - moved[0] == pytest.approx(high - low, abs=0.2)
    page.keyboard.press("0")
    assert view_ms(page) == [0, 200]
    page.keyboard.press("+")
    assert view_ms(page) == [40, 160]
    page.keyboard.press("ArrowRight")
    assert view_ms(page) == [58, 178]
    page.keyboard.press("-")
    page.keyboard.press("-")
    assert view_ms(page) == [0, 200]
    left, right = where(page, 0, TALKS)["x"], where(page, 0, TALKS)["x"] + where(page, 0, TALKS)["width"]
    top, start = canvas(page).bounding_box()["y"] + 10, canvas(page).bounding_box()["x"]  # on the axis
    page.mouse.move(start + left, top)
    page.mouse.down()
    page.mouse.move(start + right, top, steps=3)
    page.mouse.up()
    assert view_ms(page) == pytest.approx([80, 140], abs=0.3)
    page.mouse.dblclick(x, y)
    assert view_ms(page) == [0, 200]
    page.get_by_role("button", name="+").click()
    assert view_ms(page) == [50, 150]


def test_filters_leave_out_spans_rows_and_chunks(page):
    shown(page, timeline_data(spans(), label="known"))
    full = picture(page)
    page.get_by_role("checkbox", name="forward").uncheck()
    assert color_at(page, 0, THINKS) != FORWARD
    assert "forward" not in {row[1] for row in table(page)}
    page.get_by_role("checkbox", name="forward").check()
    assert (picture(page) == full).all()
    page.get_by_role("checkbox", name="code2wav").uncheck()
    assert where(page, 0, VOCODES) is None
    assert picture(page).shape[0] < full.shape[0]
    page.get_by_role("checkbox", name="code2wav").check()
    page.get_by_role("combobox", name="Request").select_option(label="r1")
    kept = ["talker/runner", "talker/send", "code2wav/receive", "code2wav/runner"]  # the Talker's forward is a batch's
    assert [row[0] for row in table(page)] == kept
    page.get_by_role("combobox", name="Request").select_option(label="all requests")
    assert (picture(page) == full).all()
    page.get_by_role("checkbox", name="chunks").uncheck()
    assert (picture(page) != full).any()


def test_short_spans_show_the_share_of_time_that_was_busy(page):
    """2,000 spans of 25 us, one each 100 us: a quarter of the row's height, and not a full bar."""
    rows = [
        SpanRow("talker", "engine", "schedule", "", -1, 100_000 * n, 100_000 * n + 25_000, -1) for n in range(20_000)
    ]
    shown(page, timeline_data(rows, label="polls", most=1_000))
    at, drawn = where(page, 0, 0), picture(page)
    column = drawn[round(at["y"]) : round(at["y"] + at["height"]), 700]
    colored = (np.abs(column.astype(int) - (91, 112, 131)).sum(axis=1) < 40).sum()
    assert colored == pytest.approx(at["height"] / 4, abs=1)
    assert table(page) == [["talker/engine", "schedule", "20,000", "500.000"]]
    assert "20,000 spans in " in page.locator("#timeline .said").first.inner_text()


def test_finer_spans_come_as_one_zooms(page):
    rows = [SpanRow("talker", "engine", "schedule", "r1", -1, 100_000 * n, 100_000 * n + 50_000) for n in range(30_000)]
    columns = span_columns(rows)
    asked = []

    def finer(panel: int, low: float, high: float, request: str | None) -> dict[str, Any]:
        asked.append((panel, low, high, request))
        return timeline_data(columns, label="polls", window=(low, high), request=request, most=1_000)

    page.expose_function("finer", finer)
    shown(page, timeline_data(columns, label="polls", most=1_000), load="window.finer")
    assert "bars" in page.locator("#timeline .said").first.inner_text()
    page.evaluate("timeline.show(1_000_000, 1_010_000)")
    said(page, r"· 101 spans$")
    assert asked == [(0, 995_000.0, 1_015_000.0, None)]
    assert table(page) == [["talker/engine", "schedule", "101", "5.000"]]
    page.evaluate("timeline.show(1_002_000, 1_008_000)")  # within what is there, and that is exact
    page.wait_for_timeout(400)
    assert len(asked) == 1


def test_finer_spans_that_do_not_come_are_said(page):
    rows = [SpanRow("talker", "engine", "schedule", "", -1, 100_000 * n, 100_000 * n + 50_000) for n in range(3_000)]
    failing = "() => Promise.reject(new Error('gone'))"
    shown(page, timeline_data(rows, label="polls", most=100), load=failing)
    page.evaluate("timeline.show(0, 1_000)")
    page.locator("#timeline .said", has_text="finer data did not come: gone").wait_for()
    assert table(page)[0][:2] == ["talker/engine", "schedule"]  # what there was stays


def test_twenty_thousand_spans_are_drawn_in_time(page):
    draw = np.random.default_rng(1)
    rows = []
    for stage in ("thinker", "talker", "code2wav"):
        for loop in ("receive", "engine", "runner", "send"):
            starts = np.cumsum(draw.integers(1_000, 100_000, 1_667))
            names = draw.choice(["forward", "put", "get", "merge", "pickle"], len(starts))
            rows += [
                SpanRow(stage, loop, str(name), "r0", n, int(start), int(start) + 900)
                for n, (start, name) in enumerate(zip(starts, names, strict=True))
            ]
    shown(page, timeline_data(rows, label="many"))
    assert "20,004 spans" in page.locator("#timeline .said").first.inner_text()
    took = []
    for n in range(8):
        page.evaluate(f"timeline.show({n}, 90_000)")
        settled(page)
        took.append(float(page.locator("#timeline").get_attribute("data-draw-ms")))
    assert sorted(took)[2] < 50, took  # about 10 here; the machine may be busy now and then


def test_the_dark_has_colours_of_its_own(open_page):
    page = shown(open_page(color_scheme="dark"), timeline_data(spans(), label="known"))
    assert color_at(page, 0, THINKS) == DARK_FORWARD
    assert picture(page)[2, 2].max() < 60
    page.emulate_media(color_scheme="light")
    assert color_at(page, 0, THINKS) == FORWARD
    assert picture(page)[2, 2].min() > 240


def test_lost_spans_and_no_spans_are_said(page):
    data = timeline_data(spans(), label="known") | {"lost": 1234, "unmatched": 1}
    shown(page, data, timeline_data([], label="empty"))
    assert canvas(page).get_attribute("aria-label") == (
        "Timeline of known (200 ms · 9 spans · 1,234 more were lost: a ring was full, so the earliest are not here · "
        "1 chunk with one end only) and empty (no spans were recorded), shown from 0 s to 200 ms: 9 spans"
    )


def test_it_is_set_anew_and_goes_without_a_trace(page):
    shown(page, timeline_data(spans(), label="known"))
    page.evaluate("data => timeline.set(data)", [timeline_data(spans(3), label="other")])
    assert view_ms(page) == [0, 600]
    page.evaluate("timeline.destroy()")
    assert page.locator("#timeline").evaluate("element => element.outerHTML") == '<div id="timeline"></div>'


def test_the_notebook_widget_asks_its_kernel(page):
    """The Python side answers what the script sends: both halves, with the wire between them laid by hand."""
    pytest.importorskip("anywidget")
    from omnilab.notebook.timeline import Timeline

    rows = [SpanRow("talker", "engine", "schedule", "r1", -1, 100_000 * n, 100_000 * n + 50_000) for n in range(9_000)]
    widget, answers = Timeline.of(("polls", rows), most=500), []
    widget.send = answers.append

    def ask(message: dict[str, Any]) -> dict[str, Any]:
        widget._handle_custom_msg(message, [])
        return answers.pop()

    page.expose_function("kernel", ask)
    shown(page, timeline_data(spans(), label="unused"))
    page.evaluate("timeline.destroy()")
    page.evaluate(
        """(panels) => {
        const heard = {};
        const model = { get: () => panels, on: (kind, act) => (heard[kind] = act), off: (kind) => delete heard[kind],
          send: async (message) => heard["msg:custom"](await kernel(message)) };
        window.stop = bench.widget({ model, el: document.getElementById("timeline") });
        window.heard = heard;
        }""",
        widget.panels,
    )
    page.locator("#timeline[data-ready='1']").wait_for()
    for _ in range(12):
        page.get_by_role("button", name="+").click()
    said(page, r"· \d+ spans?$")
    page.evaluate("stop()")
    assert page.evaluate("Object.keys(heard)") == []
