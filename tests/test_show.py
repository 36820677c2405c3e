"""Results show themselves: as HTML that is escaped and has no script, and as one line of text."""

from __future__ import annotations

import base64
import io
import re
import wave
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from omnilab import recipes, show
from omnilab.metrics import METRICS
from omnilab.recipe import recipe_with
from omnilab.record import CounterRow, LostRow, SpanRow
from omnilab.speech import Speech
from omnilab.toggle import Toggle
from omnilab.toggles import TOGGLES
from omnilab.trial import RequestRecord, Trial

EVIL = '<script>alert(1)</script> & "quoted" \''
TONE = (np.sin(np.arange(4800) / 9) * 0.5).astype(np.float32)


class Parsed(HTMLParser):
    """Tags that are opened and closed, and the text."""

    VOID = frozenset({"br", "line", "path", "source", "img"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.open, self.text, self.attributes = [], [], "", []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def speech(text: str = "Rivers.") -> Speech:
    return Speech(text, [1, 2], np.zeros((3, 16), dtype=np.int64), TONE, 24_000, "length")


def trial(error: str | None = None) -> Trial:
    record = RequestRecord(index=0, request_id="r0", start_s=0.0, end_s=2.0, text_times_s=[0.5], text_token_counts=[4],
                           audio_times_s=[1.0], audio_samples=[4800], output_tokens=4, frames=3, audio_s=0.2,
                           audio=TONE, error=error)  # fmt: skip
    spans = [SpanRow("talker", "runner", "merge", "r0", -1, 0, 3_000_000)]
    spans += [SpanRow("thinker", "runner", "forward", "r0", -1, 0, 8_000_000)] * 2
    lost = [LostRow("talker", "runner", "merge", 5, 2_000_000), LostRow("talker", "engine", "merge", 1, 1_000_000)]
    return Trial([record], spans, [CounterRow("talker", "engine", "steps", 10)], lost=lost, wall_s=2.0)


def test_a_player_holds_the_samples():
    """What is played is what was spoken: 16 bits, the right rate; what is out of range is clipped, no number is 0."""
    loud = np.array([0.0, 0.5, -2.0, np.nan, np.inf], dtype=np.float32)
    found = re.search(r'src="data:audio/wav;base64,([^"]+)"', show.player(loud, 24_000, EVIL))
    assert found is not None
    with wave.open(io.BytesIO(base64.b64decode(found[1]))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        assert np.frombuffer(file.readframes(9), "<i2").tolist() == [0, 16384, -32767, 0, 32767]


def test_a_long_answer_is_cut_and_says_so():
    html = show.player(np.zeros(24_000 * 200, dtype=np.float32), 24_000)
    assert "the first 120 s of 200.0 s" in html
    assert len(html) < 8_000_000
    assert "no audio" in show.player(np.zeros(0, dtype=np.float32), 24_000)


@pytest.mark.parametrize("samples", [1, 3, 480, 100_000])
def test_a_waveform_is_drawn_of_any_length(samples):
    drawn = show.waveform(np.sin(np.arange(samples) / 5).astype(np.float32), 24_000)
    path = re.search(r'd="M([^"]+)Z"', drawn)
    assert path is not None
    heights = [float(point.split(",")[1]) for point in path[1].split("L")]
    assert len(heights) == 2 * min(samples, show.POINTS)
    assert min(heights) >= 0 and max(heights) <= 64
    assert show.waveform(np.zeros(0, dtype=np.float32), 24_000) == ""
    assert "nan" not in show.waveform(np.full(9, np.nan, dtype=np.float32), 24_000)


def test_bars_are_on_one_scale_and_have_the_timelines_colours():
    html = show.bars([("a", {"forward": 30.0, "merge": 10.0}), ("b", {"forward": 20.0})], "ms")
    assert re.findall(r"flex:0 0 ([\d.]+)%", html) == ["75.00", "25.00", "50.00"]
    script = (Path(show.__file__).parent / "profile" / "timeline.js").read_text(encoding="utf-8")
    families = script[script.index("const FAMILIES") : script.index("};")]
    assert dict(re.findall(r'(\w+): "(#\w+)"', families)) == show.SPAN_COLOURS


SHOWN = {
    "speech": speech(EVIL),
    "trial": trial(EVIL),
    "toggle": Toggle(name=EVIL, seam="merge", baseline=len, optimized=sum, claim=EVIL),
    "recipe": recipe_with("shallow_merge"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_shown_as_html_and_as_a_line(name):
    """Well-formed, escaped, no script, nothing from outside; and a repr that fits a screen."""
    html = SHOWN[name]._repr_html_()
    parsed = Parsed(html)
    assert "script" not in parsed.tags
    assert not [key for key, _ in parsed.attributes if key.startswith("on")]
    assert "http" not in html
    if name != "recipe":
        assert EVIL in parsed.text
    assert len(repr(SHOWN[name])) < 200
    assert "\n" not in repr(SHOWN[name])


def test_speech_shows_text_player_and_waveform():
    parsed = Parsed(speech()._repr_html_())
    assert {"audio", "svg"} <= set(parsed.tags)
    assert "Rivers." in parsed.text and "3 frames, 0.20 s" in parsed.text


def test_a_trial_shows_metrics_with_units_and_meaning_and_spans_by_stage():
    html = trial()._repr_html_()
    text = Parsed(html).text
    assert "wall_s2 s" in text and "ttft_ms500 ms" in text and "audio_throughput0.1 /s" in text
    assert "undefined here: tpot_ms" in text
    assert METRICS["wall_s"] in html
    assert "thinkerforward216 mstalkermerge76 ms" in text  # as data flows; what full rings overwrote counts


def test_a_recipe_shows_what_differs():
    assert repr(recipes.BEFORE_1378) == "<Recipe BEFORE_1378>"
    assert repr(recipe_with("shallow_merge")) == "<Recipe BEFORE_1378 with merge=merge_shallow>"
    text = Parsed(recipe_with("shallow_merge")._repr_html_()).text
    assert "mergemerge_shallowmerge_elementwise" in text and "1 of 13 seams differ" in text


def test_a_toggle_shows_claim_seam_and_both_sides():
    for toggle in TOGGLES:
        text = Parsed(toggle._repr_html_()).text
        assert toggle.claim in text and toggle.seam in text and toggle.name in text


def test_numbers_of_a_table_stay_whole_and_words_wrap():
    """Beside wide numbers a sentence is wrapped to a column of some width; without, the last columns are cut off."""
    found = show.table(
        ["variant", "wall time", "carries over"], [["mine", "0.99 [0.93, 1.06]", "counts, host ms in kind"]]
    )
    style = {text: look for look, text in re.findall(r'<td style="([^"]*)">([^<]*)<', found)}
    assert "nowrap" in style["0.99 [0.93, 1.06]"] and "right" in style["0.99 [0.93, 1.06]"]
    words = style["counts, host ms in kind"]
    assert "nowrap" not in words and "left" in words and "min-width" in words


def test_a_table_as_text_is_aligned():
    assert show.plain_table(["a", "bb"], [["long", "1"]]).splitlines() == ["a     bb", "----  --", "long  1"]
