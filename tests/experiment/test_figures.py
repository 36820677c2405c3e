"""Figures and the page: valid, the same twice, readable in any colour scheme, and true to the findings."""

import re
import warnings
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from omnilab.experiment.analysis.findings import (
    BASELINE,
    EQUIVALENT,
    FAILED_GATE,
    FASTER,
    INCONCLUSIVE,
    NO_EFFECT,
    OTHER_OUTPUT,
    SAME,
    SLOWER,
    Attribution,
    Effect,
    Findings,
    Interaction,
    Main,
    Moved,
    Share,
    Variant,
)
from omnilab.experiment.reports import drawing, figures, words
from omnilab.experiment.reports.page import page

BASE = "BEFORE_1378"
NASTY = 'a<b&"c"$x_1$ id="point-0" #010203'
LONG = "prefill_only_hidden_states and shallow_merge and idle_skip and async_save and many more besides"
METRICS = ("wall_s", "ttft_ms", "host_ms_per_step")


def effect(ratio, low=None, high=None, p_adjusted=0.03):
    return Effect(ratio, low, high, 8, p=0.01, p_adjusted=p_adjusted, mde=0.02)


def around(ratio, percent=4):
    return effect(ratio, ratio * (1 - percent / 100), ratio * (1 + percent / 100))


def variant(name, verdict=FASTER, found=None, against=BASE, **changes):
    effects = dict.fromkeys(METRICS, found) if found else {}
    given = {
        "toggles": (name,), "output": SAME, "difference": None, "errors": (), "trials": 8,
        "primary": True, "growth": None, "spans": (), "predicted": None, "carries": "", "carries_short": "",
        "counters": (Moved("talker/runner/elements_visited", 3_211_000.0, 0.0, exact=True),),
    }  # fmt: skip
    return Variant(name=name, verdict=verdict, effects=effects, against=against, **{**given, **changes})


def findings(*variants, **changes):
    given = {
        "baseline_name": BASE, "primary": "wall_s", "margin": 0.02, "metrics": METRICS, "blocks": 8,
        "baseline": {"wall_s": 72.8, "ttft_ms": 812.0, "host_ms_per_step": 9.6},
        "same": dict.fromkeys(METRICS, effect(1.0, 0.98, 1.02)),
    }  # fmt: skip
    base = variant(BASE, BASELINE, against=None)
    return Findings(variants=(base, *variants), **{**given, **changes})


def realistic(**changes):
    """What is planted: two toggles that bring much and share most of it, two that bring nothing, one that is wrong."""
    prefill, merge = "prefill_only_hidden_states", "shallow_merge"
    ours = [
        variant("async_save", INCONCLUSIVE, effect(0.99, 0.96, 1.02), more_blocks=11),
        variant(prefill, FASTER, effect(0.42, 0.40, 0.44)),
        variant("idle_skip", EQUIVALENT, effect(1.0, 0.99, 1.01)),
        variant(merge, FASTER, effect(0.84, 0.80, 0.88)),
        variant("both", FASTER, effect(0.41, 0.39, 0.43)),
        variant("all four", FASTER, effect(0.40, 0.38, 0.42)),
        variant("direct_worker", SLOWER, effect(1.12, 1.07, 1.17)),
        variant("drops_last_chunk", FAILED_GATE, output=OTHER_OUTPUT, difference="request 2: tokens at 41: 7, not 9"),
        variant("wake_on_chunk", NO_EFFECT, effect(1.0, 0.98, 1.02)),
    ]
    given = {
        "interactions": (interaction(prefill, merge),),
        "attribution": Attribution(
            total=effect(0.40, 0.38, 0.42),
            shares=(
                share("async_save", 0.985, 0.97, 1.0, 0.02),
                share(prefill, 0.46, 0.42, 0.50, 0.85),
                share("idle_skip", 1.0, 0.99, 1.01, 0.0),
                share(merge, 0.885, 0.82, 0.98, 0.13),
            ),
            noise_range=0.045,
        ),
        "per_stage": {v.name: spans(v.name) for v in ours},
    }
    return findings(*ours, **{**given, "per_stage": {BASE: spans(BASE), **given["per_stage"]}, **changes})


def share(toggle, ratio, least, greatest, part):
    return Share(
        toggle=toggle, main=around(ratio), shapley=around(ratio, 1), least=least, greatest=greatest,
        share=(part, part - 0.02, part + 0.02),
    )  # fmt: skip


def interaction(first, second, effect_found=None):
    return Interaction(
        first=first, second=second, first_alone=0.42, second_alone=0.84, together=0.41, expected=0.353,
        effect=effect_found or effect(1.16, 1.09, 1.24), metric="wall_s",
        words=f"{second} alone takes 16 % off wall time, but only 2 % once {first} is on: both cut the same lists.",
    )  # fmt: skip


def spans(name):
    lists = 0.1 if name in ("prefill_only_hidden_states", "both", "all four") else 1.0
    merge = lists * (0.2 if name in ("shallow_merge", "both", "all four") else 1.0)
    names = {"get": 900, "pickle": 5200 * lists, "unpickle": 4100 * lists, "merge": 11400 * merge, "forward": 9800}
    talker = {f"talker/{key}": value for key, value in names.items()}
    talker |= {"talker/accumulate": 21000 * lists, "talker/sample": 2100, "talker/embed": 300, "talker/schedule": 120}
    thinker = {"thinker/forward": 6200.0, "thinker/build": 1300 * lists, "thinker/encode": 2200 * lists}
    return {**talker, **thinker, "code2wav/vocode": 12900.0, "code2wav/get": 210.0, "thinker/put": 400 * lists}


def all_figures(given):
    points = [("short", 500, given), ("long", 8000, given)]
    drawings = {
        "effects": figures.effects(given, given.primary),
        **{f"effects-{m}": figures.effects(given, m) for m in given.metrics if m != given.primary},
        "two-by-two": figures.two_by_two(given.interactions[0], "wall time") if given.interactions else None,
        "waterfall": figures.waterfall(given),
        "per-stage": figures.per_stage(given),
        "prompt": figures.against_length(points, "prompt tokens"),
        "load": figures.against_length(points, "concurrency"),
    }
    return {name: svg for name, svg in drawings.items() if svg is not None}


def texts(svg):
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def ids(text):
    return re.findall(r'<[^<>]*?\bid="([^"]*)"', text)


class Outline(HTMLParser):
    """Which elements stay open, and the text outside of style."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.text = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def written(given, drawings=None):
    rows = [[v.name, v.output, "", words.verdict_text(v)] for v in given.variants]
    return page(
        "quick on thin",
        "Which of the four pays?",
        ["8 of 8 blocks; a machine & its cores", "A/A: 1.00 [0.98, 1.02]"],
        given,
        ["variant", "output", "wall time", "verdict on wall time"],
        rows,
        {
            "What moved": ["merge: 36 -> 5 ms <less>"],
            "How to reproduce": ["**now**: `omnilab ablate quick.py && ls`"],
            "Definitions": ["mine"],
        },
        all_figures(given) if drawings is None else drawings,
    )


@pytest.fixture(scope="module")
def drawn():
    return all_figures(realistic())


def test_all_figures_are_drawn_and_valid(drawn):
    assert len(drawn) == 8
    for svg in drawn.values():
        root = ElementTree.fromstring(svg)
        title = root.find("{http://www.w3.org/2000/svg}title")
        assert title is not None
        assert title.text
        assert root.get("role") == "img"


def test_figures_are_the_same_twice_whatever_the_user_has_set(drawn):
    import matplotlib

    with matplotlib.rc_context({"font.size": 31, "axes.facecolor": "pink", "svg.hashsalt": None}):
        assert all_figures(realistic()) == drawn


def test_figures_take_the_colours_of_the_page(drawn):
    for svg in drawn.values():
        assert "@media (prefers-color-scheme: dark)" in svg
        assert "currentColor" in svg
        assert drawing.INK not in svg
        assert not re.search(r"(fill|stroke): #(000000|ffffff)", svg)  # seen on one kind of page only
        assert "DejaVu" not in svg


def test_a_page_may_hold_all_figures(drawn):
    found = Counter(ids("".join(drawn.values())))
    assert found
    assert max(found.values()) == 1
    for svg in drawn.values():
        known = set(ids(svg))
        assert set(re.findall(r"url\(#([^)]*)\)", svg)) <= known
        assert set(re.findall(r'href="#([^"]*)"', svg)) <= known


def test_effects_name_variants_and_verdicts_of_the_primary_metric(drawn):
    said = texts(drawn["effects"])
    for one in realistic().variants[1:]:
        assert one.name in said
        assert words.verdict_text(one) in said
    assert "inconclusive (about 11 more blocks)" in said
    assert "0.42 [0.40, 0.44]" in said
    assert "← faster (log axis) slower →" in said


def test_exploratory_effects_have_no_verdict(drawn):
    said = " ".join(texts(drawn["effects-ttft_ms"]))
    assert "0.42 [0.40, 0.44]" in said
    assert "failed the gate" in said
    for word in (INCONCLUSIVE, EQUIVALENT, NO_EFFECT, "verdict"):
        assert word not in said
    assert drawing.BLUE not in drawn["effects-ttft_ms"]


def test_what_failed_the_gate_has_no_point_even_with_a_number():
    given = findings(variant("right", FASTER, around(0.5)), variant("wrong", FAILED_GATE, around(0.25)))
    svg = figures.effects(given, "wall_s")
    points = [name.rsplit("-", 2)[-2:] for name in ids(svg) if "-point-" in name]
    assert points == [["point", "0"]]
    assert "failed the gate" in texts(svg)
    assert not [text for text in texts(svg) if "0.25" in text]


def test_the_band_is_the_noise():
    assert "-noise" in figures.effects(findings(variant("a", FASTER, around(0.5))), "wall_s")
    alone = findings(variant("a", FASTER, around(0.5)), same={})
    assert "-noise" not in figures.effects(alone, "wall_s")


def test_more_of_a_throughput_is_faster():
    given = findings(
        replace(variant("a"), effects={"output_throughput": around(1.5)}),
        primary="output_throughput",
        metrics=("output_throughput",),
        baseline={"output_throughput": 40.0},
        same={},
    )
    assert "← slower (log axis) faster →" in texts(figures.effects(given, "output_throughput"))


def test_main_effects_have_the_verdicts_where_there_are_any():
    cells = [
        replace(variant(name, verdict, found), primary=False)
        for name, verdict, found in (("a", "one cell: see the main effects", around(0.5)), ("b", FAILED_GATE, None))
    ]
    given = findings(*cells, mains=(Main(toggle="a", effect=around(0.6), verdict=FASTER),))
    said = texts(figures.effects(given, "wall_s"))
    assert said.index("a, main effect") < said.index("a") < said.index("b")
    assert [text for text in said if text in (FASTER, "one cell", FAILED_GATE)] == [FASTER, "one cell", FAILED_GATE]
    assert "a, main effect" not in texts(figures.effects(given, "ttft_ms"))
    said = " ".join(Outline(written(given, {})).text)
    assert "a, main effect  0.60 [0.58, 0.62]" in said
    assert "a  0.50" not in said


@pytest.mark.parametrize("count", [0, 1, 17])
def test_any_number_of_variants(count):
    toggles = [variant(f"variant {n}", FASTER, around(0.5 + n / 20)) for n in range(count)]
    given = findings(*toggles, per_stage={v.name: spans(v.name) for v in toggles})
    svg = figures.effects(given, "wall_s")
    assert {v.name for v in toggles} <= set(texts(svg))
    points = [("a", 1, given), ("b", 10, given)]
    assert {v.name for v in toggles} <= set(texts(figures.against_length(points, "prompt tokens")))
    bars = figures.per_stage(given)
    assert (bars is None) == (count == 0)
    assert Outline(written(given)).open == []


def test_without_intervals_or_values():
    bare = {"same": {"wall_s": effect(1.0)}, "baseline": {"wall_s": None}, "blocks": 2}
    given = findings(variant("a", "no verdict below 5 blocks", effect(0.5)), variant("b", "not measured"), **bare)
    said = texts(figures.effects(given, "wall_s"))
    assert "0.50" in said
    assert "not measured" in said
    assert figures.waterfall(given) is None
    assert figures.per_stage(given) is None
    assert "a" in texts(figures.against_length([("here", 5, given)]))
    assert list(all_figures(given)) == ["effects", "effects-ttft_ms", "effects-host_ms_per_step", "prompt", "load"]
    assert Outline(written(given)).open == []


def test_an_interval_as_wide_as_the_sky_leaves_the_points_apart():
    low, high = drawing.reach([effect(0.5, 1e-9, 1e9), effect(0.9, 0.8, 1.0)])
    assert (low, high) == (pytest.approx(0.22, abs=0.03), pytest.approx(2.2, abs=0.3))


@pytest.mark.parametrize("name", [NASTY, LONG, "文字の名前", "_hidden", "two\nlines\x00"])
def test_odd_names(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = findings(
            variant(name, FASTER, around(0.5), against=name),
            variant("child", FASTER, around(0.5), against=name),
            baseline_name=name,
            interactions=(interaction(name, name),),
            attribution=Attribution(total=around(0.5), shares=(share(name, 0.5, 0.4, 0.6, 1.0),), noise_range=0.02),
            per_stage={name: {f"talker/{name}": 2.0, "talker/forward": 1.0}},
        )
        drawings = all_figures(given)
    assert drawing.cut(name, drawing.LONGEST) in " ".join(texts(drawings["effects"]))
    for svg in drawings.values():
        ElementTree.fromstring(svg)
    html = Outline(written(given, drawings))
    assert html.open == []
    assert max(Counter(html.ids).values()) == 1


def test_names_that_are_long_lose_their_middle():
    assert drawing.cut(LONG) == "prefill_only_hidde…ore besides" and drawing.cut(LONG[:30]) == LONG[:30]
    assert len(drawing.cut(LONG, drawing.LONGEST)) == drawing.LONGEST


def test_cells_of_a_factorial_keep_names_apart():
    names = [
        " + ".join((*rest, "shallow_merge")) for rest in (("async_save", "idle_skip"), ("prefill_only_hidden_states",))
    ]
    names.append("async_save + prefill_only_hidden_states + idle_skip + shallow_merge")
    svg = figures.effects(findings(*(variant(name, FASTER, around(0.5)) for name in names)), "wall_s")
    assert set(names) <= set(texts(svg))
    assert float(ElementTree.fromstring(svg).get("width").removesuffix("pt")) > drawing.WIDTH * drawing.POINTS


def test_waterfall_goes_from_the_baseline_to_all_on(drawn):
    said = texts(drawn["waterfall"])
    assert {
        f"{BASE}: 72.8 s",
        "all together: 29.1 s",
        "0.40 [0.38, 0.42]",
        "×0.42 to ×0.50",
        "85 %",
        "×1.05 wide",
        "noise alone",
    } <= set(said)
    assert figures._ends(realistic(), realistic().attribution)[-1] == pytest.approx(72.8 * 0.985 * 0.46 * 0.885)


@pytest.mark.parametrize(
    ("found", "metric", "said", "coloured"),
    [
        (effect(1.16, 1.09, 1.24), "wall_s", "sub-additive", True),
        (effect(0.9, 0.85, 0.95), "wall_s", "super-additive", True),
        (effect(0.9, 0.85, 0.95), "audio_throughput", "sub-additive", True),  # worth less together
        (effect(1.16, 1.01, 1.3, p_adjusted=0.2), "wall_s", "no interaction shown", False),  # clear before adjusting
        (effect(1.16, p_adjusted=None), "wall_s", "no interaction shown", False),
    ],
)
def test_two_by_two_says_what_the_gap_is(found, metric, said, coloured):
    cells = interaction("first", "second", found)
    svg = figures.two_by_two(
        Interaction(**{name: getattr(cells, name) for name in cells.__slots__} | {"metric": metric}), "CPU time"
    )
    assert said in " ".join(texts(svg))
    assert (drawing.VERMILION in svg) == coloured
    assert "-expected" in svg
    assert {"first: 0.42", "second: 0.84", "both: 0.41", "neither: 1.00", "CPU time: first and second"} <= set(
        texts(svg)
    )


def test_per_stage_keeps_the_largest_and_adds_the_rest(drawn):
    said = texts(drawn["per-stage"])
    assert [text for text in said if text in figures.STAGES] == list(figures.STAGES)
    assert {"accumulate", "vocode", "merge", "forward", drawing.OTHER} <= set(said)
    assert not {"schedule", "drops_last_chunk"} & set(said)
    table = figures._table(realistic())
    total = sum(spans(BASE).values())
    assert table.xs(BASE, level="variant").to_numpy().sum() == pytest.approx(total)


def test_per_stage_joins_threads_and_writes_ms_when_small():
    given = findings(per_stage={BASE: {"talker/receive/get": 2.0, "talker/engine/get": 3.0}})
    assert figures._table(given).loc[("talker", BASE), "get"] == 5.0
    assert "5 ms" in texts(figures.per_stage(given))


def test_against_length_has_a_gap_where_the_gate_failed():
    right = findings(variant("a", FASTER, around(0.5)))
    wrong = findings(variant("a", FAILED_GATE, around(0.5)), variant("b", FAILED_GATE))
    said = texts(figures.against_length([("long", 900, wrong), ("short", 60, right)], "answer tokens"))
    assert "answer tokens (log axis); grey: A/A noise; failed the gate somewhere: a, b" in said
    assert "b" not in said
    assert {"60", "900"} <= set(said)
    assert figures._lines([("long", 900, wrong), ("short", 60, right)]) == {"a": [(60, around(0.5))]}


def test_places_that_lie_together_share_a_label():
    assert drawing.spaced([500, 500, 520, 2500, 8000]) == [500, 2500, 8000]
    assert drawing.spaced([4.0]) == [4.0]


def test_labels_move_apart_as_little_as_it_takes():
    assert drawing._apart([5.0, 1.0], 1.0) == pytest.approx([5.0, 1.0])
    assert drawing._apart([1.0, 1.0, 9.0], 2.0) == pytest.approx([0.0, 2.0, 9.0])
    assert drawing._apart([], 2.0) == []


@pytest.mark.parametrize(("low", "high"), [(0.97, 1.03), (0.3, 1.1), (0.9, 40.0), (28.0, 76.0), (1e-5, 2e3)])
def test_ticks_are_round_and_few(low, high):
    ticks = drawing._round(low, high)
    assert 2 <= len(ticks) <= 30
    assert all(len(f"{tick:g}") <= 6 and low <= tick <= high for tick in ticks)


def test_page_answers_the_question_first(drawn):
    html = Outline(written(realistic(), drawn))
    said = " ".join(html.text)
    assert html.open == []
    places = [said.index(text) for text in (
        "Which of the four pays?", "faster", "a machine & its cores", "A/A: 1.00 [0.98, 1.02]", "Verdicts",
        "takes 16 % off wall time", "Every variant", "What each toggle brings", "Where time goes", "What moved",
        "merge: 36 -> 5 ms <less>", "omnilab ablate quick.py && ls", "Definitions",
    )]  # fmt: skip
    assert places == sorted(places)


def test_page_needs_nothing_from_outside(drawn):
    html = written(realistic(), drawn)
    assert "http" not in re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", html)
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\((?!#)", html)
    assert max(Counter(Outline(html).ids).values()) == 1
    assert "prefers-color-scheme: dark" in re.sub("<svg.*?</svg>", "", html, flags=re.S)
    assert html == written(realistic(), drawn)


def test_page_says_and_colours_verdicts(drawn):
    html = written(realistic(), drawn)
    for kind, verdict in (("good", "faster"), ("bad", "slower"), ("bad", "failed the gate"), ("plain", "equivalent")):
        assert f'<td class="{kind}">{verdict}</td>' in html
    assert html.index(">verdict on wall time<") < html.index(">output<")
    assert '<td class="open long">inconclusive (about 11 more blocks)</td>' in html


def test_page_notes_what_limits_it():
    given = findings(
        variant("a", FASTER, around(0.5)), unfinished=True, notes=("A/A: p < 0.05 & so on", "merge: 36 -> 5 ms <less>")
    )
    html = written(given, {})
    assert "The run was not finished" in html
    assert "<li>A/A: p &lt; 0.05 &amp; so on</li>" in html
    assert html.count("merge: 36 -&gt; 5 ms &lt;less&gt;") == 1  # a note that a section holds is not said twice
    assert "<b>now</b>: <code>omnilab ablate quick.py &amp;&amp; ls</code>" in html
    assert "mine" not in html  # the page defines its terms itself
    assert "<svg" not in html
    assert "margin: 2 %" in html
