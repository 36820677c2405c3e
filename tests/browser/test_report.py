"""The report of a scripted run in a real browser: its timeline is drawn from the page alone."""

from __future__ import annotations

import pytest

from tests.board.scripted_run import BASELINE, FASTEST, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("browser") / "run")


def test_the_report_shows_baseline_and_fastest_variant(page, run):
    page.goto((run / "report.html").as_uri())
    page.locator("#timeline[data-ready='1']").wait_for()
    page.locator("section.timeline").scroll_into_view_if_needed()
    page.get_by_role("button", name="Table").click()
    heads = page.locator("#timeline thead th[scope=colgroup]").all_inner_texts()
    assert heads == [f"{BASELINE}, block 0", f"{FASTEST}, block 0"]
    rows = [row.locator("th, td").all_inner_texts() for row in page.locator("#timeline tbody tr").all()]
    assert ["code2wav/runner", "vocode", "1", "80.000", "1", "40.000", "−40.000"] in rows
    assert ["thinker/send", "put", "1", "8.000", "1", "4.000", "−4.000"] in rows
    drawn = page.locator("#timeline canvas").first
    pixel = "canvas => [...canvas.getContext('2d').getImageData(160, 62, 1, 1).data]"
    assert drawn.evaluate(pixel)[:3] == [0, 114, 178]  # the Thinker's forward
    page.mouse.move(drawn.bounding_box()["x"] + 160, drawn.bounding_box()["y"] + 62)
    page.locator("#timeline .tip b", has_text="forward").wait_for()
    assert (run / "report.html").stat().st_size < 2_500_000


def test_without_script_the_rest_of_the_report_is_there(open_page, run):
    page = open_page(java_script_enabled=False)
    page.goto((run / "report.html").as_uri())
    assert "switched off" in page.locator("section.timeline noscript").inner_text()
    assert page.get_by_role("heading", name="Verdicts").is_visible()
