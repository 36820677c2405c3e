"""Known spans give a known panel; however few bars are wanted, no time and no chunk goes missing."""

from __future__ import annotations

import json
import random
import time

import numpy as np
import pandas as pd
import pytest

from omnilab.errors import BadInput
from omnilab.profile.columns import span_columns
from omnilab.profile.timeline import script, timeline_data
from omnilab.record import SpanRow

US = 1000
FIRST = 7_000_000_123  # ns: some time of the host's clock


def at(stage, thread, name, start_us, end_us, request="", chunk=-1, size=-1) -> SpanRow:
    """Return a span, in microseconds from FIRST."""
    return SpanRow(stage, thread, name, request, chunk, FIRST + round(start_us * US), FIRST + round(end_us * US), size)


KNOWN = [
    at("talker", "engine", "schedule", 0, 10),
    at("thinker", "engine", "save", 10, 40, "r0"),
    at("thinker", "engine", "build", 15, 35, "r0", 0),  # within its save
    at("thinker", "send", "put", 40, 60.5, "r0", 0, 4096),
    at("talker", "receive", "get", 80, 90, "r0", 0, 4096),
    at("talker", "runner", "forward", 90, 190, "r1"),
    at("talker", "send", "put", 190, 200, "r1", 0, 100),  # never taken
]


def many(number: int, seed: int = 1) -> pd.DataFrame:
    """Return the spans of a busy trial: short ones on two loops, of two requests and of none; some long ones."""
    draw = np.random.default_rng(seed)
    starts = np.sort(draw.integers(0, 10_000_000_000, number))
    frame = pd.DataFrame(
        {
            "stage": "talker",
            "thread": draw.choice(["engine", "runner"], number),
            "name": draw.choice(["schedule", "pickle", "forward"], number),
            "request": draw.choice(["", "r1", "r2"], number),
            "chunk": -1,
            "start_ns": starts,
            "end_ns": starts + draw.integers(100, 20_000, number),
            "num_bytes": draw.choice([-1, 10], number),
        }
    )
    long = pd.DataFrame([at("talker", "runner", "forward", 1e6 * n, 1e6 * n + 500_000, "r1") for n in range(8)])
    return pd.concat([frame, long.assign(start_ns=long.start_ns - FIRST, end_ns=long.end_ns - FIRST)])


def test_known_spans_give_known_columns():
    data = timeline_data(random.sample(KNOWN, len(KNOWN)), label="mine")
    assert (data["label"], data["start_ns"], data["length_us"], data["window_us"]) == (
        "mine",
        FIRST,
        200.0,
        [0.0, 200.0],
    )
    assert data["tracks"] == ["thinker/engine", "thinker/send", "talker/receive", "talker/engine", "talker/runner",
                              "talker/send"]  # fmt: skip
    assert data["requests"] == ["", "r0", "r1"]
    shown = data["spans"]
    rows = [
        (data["tracks"][track], data["names"][name], data["requests"][request], *others)
        for track, name, request, *others in zip(*shown.values(), strict=True)
    ]
    assert list(shown) == ["track", "name", "request", "chunk", "start_us", "length_us", "busy_us", "bytes", "count",
                           "depth"]  # fmt: skip
    assert rows == [
        ("thinker/engine", "save", "r0", -1, 10.0, 30.0, 30.0, -1, 1, 0),
        ("thinker/engine", "build", "r0", 0, 15.0, 20.0, 20.0, -1, 1, 1),
        ("thinker/send", "put", "r0", 0, 40.0, 20.5, 20.5, 4096, 1, 0),
        ("talker/receive", "get", "r0", 0, 80.0, 10.0, 10.0, 4096, 1, 0),
        ("talker/engine", "schedule", "", -1, 0.0, 10.0, 10.0, -1, 1, 0),
        ("talker/runner", "forward", "r1", -1, 90.0, 100.0, 100.0, -1, 1, 0),
        ("talker/send", "put", "r1", 0, 190.0, 10.0, 10.0, 100, 1, 0),
    ]
    assert data["arrows"] == {
        "from": [2], "to": [3], "at_us": [60.499], "to_us": [80.0], "edge": ["thinker->talker"], "count": [1],
    }  # fmt: skip
    assert (data["total"], data["merged"], data["lost"], data["unmatched"]) == (7, 0, 0, 1)
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_a_window_keeps_what_touches_it_and_all_rows():
    data = timeline_data(KNOWN, label="", window=(85, 95))
    assert [data["names"][name] for name in data["spans"]["name"]] == ["get", "forward"]
    assert data["spans"]["start_us"] == [80.0, 90.0]  # from the trial's start
    assert len(data["tracks"]) == 6
    assert (data["length_us"], data["total"]) == (200.0, 2)
    assert data["arrows"]["from"] == [-1]  # its put is not in the window
    assert data["arrows"]["to"] == [0]


def test_a_request_is_its_spans_and_those_of_none_in_its_time():
    data = timeline_data([*KNOWN, at("talker", "engine", "schedule", 100, 110)], label="", request="r1")
    assert data["window_us"] == [90.0, 200.0]
    assert {data["requests"][code] for code in data["spans"]["request"]} == {"r1", ""}
    assert data["total"] == 3


def test_requests_count():
    spans = [at("talker", "runner", "merge", n, n + 1, f"request-{n}") for n in (10, 9, 100)]
    assert timeline_data(spans, label="")["requests"] == ["", "request-9", "request-10", "request-100"]


@pytest.mark.parametrize("most", [1_000, 5_000, 20_000])
def test_merging_keeps_every_loops_time_number_and_bytes(most):
    spans = many(60_000)
    data = timeline_data(spans, label="", most=most)
    shown = pd.DataFrame(data["spans"])
    assert 0.5 * most < len(shown) <= most
    assert data["total"] == shown["count"].sum() == len(spans)
    assert data["merged"] == (shown["count"] > 1).sum() > 0
    spans = spans.assign(busy=spans.end_ns - spans.start_ns, size=spans.num_bytes.clip(lower=0), one=1)
    keys = ["thread", "name", "request"]
    shown = shown.assign(
        thread=[data["tracks"][code].split("/")[1] for code in shown["track"]],
        name=[data["names"][code] for code in shown["name"]],
        request=[data["requests"][code] for code in shown["request"]],
        bytes=shown["bytes"].clip(lower=0),
    )
    expected, got = (
        spans.groupby(keys)[["busy", "one", "size"]].sum(),
        shown.groupby(keys)[["busy_us", "count", "bytes"]].sum(),
    )
    assert (got["busy_us"] * US).round().astype(int).tolist() == expected["busy"].tolist()
    assert got["count"].tolist() == expected["one"].tolist()
    assert got["bytes"].tolist() == expected["size"].tolist()
    assert (shown["busy_us"] <= shown["length_us"] + 1e-6).mean() > 0.99  # spans of one kind overlap here and there
    assert (shown.loc[shown["length_us"] >= 500_000, "count"] == 1).sum() == 8  # long ones stay by themselves


def test_kinds_of_few_spans_keep_them_all():
    puts = [at("thinker", "send", "put", 10_000 * n, 10_000 * n + 5, "r1", n) for n in range(100)]
    data = timeline_data(pd.concat([many(50_000), pd.DataFrame(puts)]), label="", most=5_000)
    put = data["names"].index("put")
    assert [
        count for name, count in zip(data["spans"]["name"], data["spans"]["count"], strict=True) if name == put
    ] == [1] * 100


def test_merged_ends_keep_every_chunk_and_its_arrow():
    spans = []
    for n in range(3_000):
        spans += [at("thinker", "send", "put", 100 * n, 100 * n + 5, "r1", n),
                  at("talker", "receive", "get", 100 * n + 20, 100 * n + 25, "r1", n)]  # fmt: skip
    data = timeline_data(spans, label="", most=500)
    arrows, shown = data["arrows"], data["spans"]
    assert len(arrows["from"]) <= 500
    assert sum(arrows["count"]) == 3_000
    for end, name, when in (("from", "put", "at_us"), ("to", "get", "to_us")):
        for span, moment in zip(arrows[end], arrows[when], strict=True):
            assert data["names"][shown["name"][span]] == name
            assert shown["start_us"][span] <= moment <= shown["start_us"][span] + shown["length_us"][span]


def test_several_requests_on_one_bar_are_said_to_be_several():
    spans = [at("talker", "runner", "merge", n, n + 0.5, f"r{n}") for n in range(2_000)]
    data = timeline_data(spans, label="", most=100)
    assert set(data["spans"]["request"]) == {-1}
    assert sum(data["spans"]["count"]) == 2_000


def test_equal_spans_give_equal_panels_in_any_order():
    spans = many(5_000)
    shuffled = spans.sample(frac=1, random_state=3)
    assert timeline_data(spans, label="", most=400) == timeline_data(shuffled, label="", most=400)


def test_offsets_put_the_stages_on_one_clock():
    data = timeline_data(KNOWN, label="", offsets={"talker": 1_000_000})
    assert data["arrows"]["to_us"] == [1070.0]
    assert data["length_us"] == 1190.0  # from the first span, which is now the Thinker's


def test_spans_of_older_runs_have_no_bytes():
    frame = pd.DataFrame(KNOWN).drop(columns="num_bytes")
    frame.attrs["spans_lost"] = 12
    data = timeline_data(frame, label="")
    assert set(data["spans"]["bytes"]) == {-1}
    assert data["lost"] == 12


def test_no_spans_are_an_empty_panel():
    data = timeline_data([], label="none")
    assert (data["total"], data["tracks"], data["length_us"]) == (0, [], 0.0)
    assert json.loads(json.dumps(data, allow_nan=False)) == data


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"request": "r9"}, "no request 'r9' in the spans; there are r0, r1"),
        ({"window": (5, 5)}, "no window"),
        ({"window": (float("nan"), 5)}, "no window"),
        ({"most": 3}, "100 or more"),
    ],
)
def test_what_cannot_be_shown_is_said(asked, said):
    with pytest.raises(BadInput, match=said):
        timeline_data(KNOWN, label="", **asked)
    with pytest.raises(BadInput, match="lack the columns stage, start_ns"):
        timeline_data(pd.DataFrame(KNOWN).drop(columns=["stage", "start_ns"]), label="")


def test_a_large_trial_takes_a_second_at_most():
    spans = many(800_000)
    began = time.process_time()
    columns = span_columns(spans)
    timeline_data(columns, label="")
    assert time.process_time() - began < 4  # about 0.5 s here


def test_the_script_is_in_the_package_and_asks_nobody():
    text = script()
    assert "export function mount" in text
    for outside in ("http:", "https:", "import ", "eval(", "</script", "<svg"):
        assert outside not in text
