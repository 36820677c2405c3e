"""Critical paths and what-ifs: known ones of scripted spans, and what must hold of any pipeline's."""

from __future__ import annotations

from itertools import pairwise

import pytest

from omnilab.errors import BadInput
from omnilab.pipeline import Pipeline
from omnilab.profile.order import pieces_of
from omnilab.profile.path import Segment, critical_path, in_words, shares
from omnilab.profile.whatif import factors_of, own_ns, what_if
from omnilab.prompt import Prompt, Sampling
from omnilab.record import SpanRow
from omnilab.workload import Workload, closed

MS = 1_000_000


def row(loop: str, name: str, start: int, end: int, request: str = "r", chunk: int = -1) -> SpanRow:
    """Make a span of the loop "stage.thread"."""
    stage, thread = loop.split(".")
    return SpanRow(stage, thread, name, request, chunk, start, end)


def told(path: list[Segment]) -> list[tuple[str, int, int]]:
    """Write a path as (key, start, end)."""
    return [(segment.key, segment.start_ns, segment.end_ns) for segment in path]


def check(path: list[Segment], start: int, end: int) -> None:
    """A path covers its time once."""
    assert (path[0].start_ns, path[-1].end_ns) == (start, end)
    assert all(segment.start_ns < segment.end_ns for segment in path)
    assert all(one.end_ns == other.start_ns for one, other in pairwise(path))
    assert sum(shares(path).values()) == pytest.approx(1)


def thinker(length: int, chunks: int = 3) -> list[SpanRow]:
    """Forward after forward; each chunk is put, in 2, while the next is made."""
    rows = [row("thinker.runner", "forward", k * length, (k + 1) * length) for k in range(chunks)]
    return rows + [row("thinker.send", "put", r.end_ns, r.end_ns + 2, chunk=k) for k, r in enumerate(rows)]


BUSY_TALKER = [
    *thinker(10),
    row("talker.receive", "get", 13, 14, chunk=0),
    row("talker.runner", "forward", 14, 39),
    row("talker.receive", "get", 39, 40, chunk=1),
    row("talker.runner", "forward", 40, 65, ""),
    row("talker.receive", "get", 65, 66, chunk=2),
    row("talker.runner", "forward", 66, 91, ""),
    row("talker.send", "put", 91, 93, chunk=0),
    row("code2wav.receive", "get", 95, 96, chunk=0),
    row("code2wav.runner", "vocode", 96, 100),
    row("code2wav.runner", "vocode", 104, 110),
]


def test_the_busiest_stage_holds_the_path() -> None:
    """Chunks that lie waiting cost nothing: the path stays in the Talker until its first chunk."""
    path = critical_path(BUSY_TALKER, "r", "first audio")
    assert told(path) == [
        ("thinker/forward", 0, 10), ("thinker/put", 10, 12), ("thinker->talker", 12, 13), ("talker/get", 13, 14),
        ("talker/forward", 14, 39), ("talker/get", 39, 40), ("talker/forward", 40, 65), ("talker/get", 65, 66),
        ("talker/forward", 66, 91), ("talker/put", 91, 93), ("talker->code2wav", 93, 95), ("code2wav/get", 95, 96),
        ("code2wav/vocode", 96, 100),
    ]  # fmt: skip
    assert path[2].name == "thinker->talker wait"
    check(path, 0, 100)
    assert list(shares(path))[:2] == ["talker/forward", "thinker/forward"]
    assert shares(path)["talker/forward"] == pytest.approx(0.75)
    end = critical_path(BUSY_TALKER, "r")
    check(end, 0, 110)
    assert told(end)[-2:] == [("code2wav/between spans", 100, 104), ("code2wav/vocode", 104, 110)]
    assert in_words(end, path) == (
        "The first audio was held by talker (80%, most of it forward), the end by talker (73%, most of it forward)."
    )
    assert in_words(end) == "The end was held by talker (73%, most of it forward)."


@pytest.mark.parametrize(
    ("place", "factor", "change"),
    [
        ("talker", 1, 0),
        ("talker/forward", 2, 75),
        ("talker/forward", 0.8, -15),
        ("talker/forward", 0.2, -53),  # not -60, the path scaled: its gets now wait for the Thinker
        ("talker/forward", 0, -58),
        ("thinker", 0.5, -6),  # its first forward and put only
        ("thinker/forward", 3, 27),  # more than its part of the path: the Talker waits for all three puts
        ("code2wav", 2, 11),
        ("thinker->talker", 3, 2),
        ("talker->code2wav", 0, -2),
    ],
)
def test_what_if_times_the_recorded_order_anew(place: str, factor: float, change: int) -> None:
    """Predictions that were worked out by hand."""
    until = "end" if place == "code2wav" else "first audio"
    assert what_if(BUSY_TALKER, {place: factor}, request="r", until=until) == change


def test_several_places_at_once() -> None:
    """Worked out by hand: not the sum of each alone, for the path moves. A span goes before its stage."""
    alone = [what_if(BUSY_TALKER, {place: 0}, until="first audio") for place in ("talker/forward", "thinker/forward")]
    assert alone == [-58, -10]
    both = {"talker/forward": 0.0, "thinker/forward": 0.0}
    assert what_if(BUSY_TALKER, both, until="first audio") == -84  # the last of three puts holds it
    assert what_if(BUSY_TALKER, {"talker": 0.0, "talker/forward": 1.0}, until="first audio") == -5  # gets and put only
    assert what_if(BUSY_TALKER, {}) == 0


def test_factors_between_two_trials() -> None:
    """Own time over own time; idle steps do not count, and what no factor can say is said."""
    before = [
        *(row("thinker.engine", "schedule", start, start + 1, "") for start in (0, 100, 200)),
        row("thinker.runner", "forward", 101, 111),
        row("thinker.engine", "save", 111, 131),
        row("thinker.engine", "build", 113, 129, chunk=0),
    ]
    after = [
        row("thinker.engine", "schedule", 100, 103, ""),
        row("thinker.runner", "forward", 103, 118),
        row("thinker.engine", "save", 118, 120),
        row("thinker.send", "build", 121, 129, chunk=0),
        row("thinker.runner", "copy", 130, 137),
    ]
    own = [own_ns(pieces_of([r._replace(start_ns=r.start_ns * MS, end_ns=r.end_ns * MS) for r in several]))
           for several in (before, after)]  # fmt: skip
    factors, limits = factors_of(*own)
    assert factors == {"thinker/schedule": 3, "thinker/forward": 1.5, "thinker/save": 0.5, "thinker/build": 0.5}
    assert limits == {"thinker/copy is new (7.0 ms a trial)", "thinker/build moved from the loop engine to send"}


WAITING_TALKER = [
    *thinker(20),
    row("talker.receive", "get", 24, 25, chunk=0),
    row("talker.runner", "forward", 25, 28),
    row("talker.receive", "get", 44, 45, chunk=1),
    row("talker.runner", "forward", 45, 48, ""),
    row("talker.receive", "get", 64, 65, chunk=2),
    row("talker.runner", "forward", 65, 68, ""),
    row("talker.send", "put", 68, 69, chunk=0),
    row("code2wav.receive", "get", 70, 71, chunk=0),
    row("code2wav.runner", "vocode", 71, 75),
]


def test_a_talker_that_waits_for_every_chunk_is_not_on_the_path() -> None:
    """The path stays with the Thinker until its last chunk."""
    path = critical_path(WAITING_TALKER, "r")
    assert told(path) == [
        ("thinker/forward", 0, 20), ("thinker/forward", 20, 40), ("thinker/forward", 40, 60), ("thinker/put", 60, 62),
        ("thinker->talker", 62, 64), ("talker/get", 64, 65), ("talker/forward", 65, 68), ("talker/put", 68, 69),
        ("talker->code2wav", 69, 70), ("code2wav/get", 70, 71), ("code2wav/vocode", 71, 75),
    ]  # fmt: skip
    assert shares(path)["thinker/forward"] == pytest.approx(0.8)
    assert what_if(WAITING_TALKER, {"talker/forward": 0}) == -3
    assert what_if(WAITING_TALKER, {"thinker->talker": 0}) == -2
    assert what_if(WAITING_TALKER, {"thinker/forward": 0.5}) == -30
    assert what_if(WAITING_TALKER, {"thinker/forward": 0.1}) == -50  # not -54: the path moves to the Talker


BATCHES = [
    row("thinker.engine", "schedule", 0, 1, ""),
    row("thinker.runner", "forward", 1, 5, "one"),
    row("thinker.engine", "events", 5, 6, "one"),
    row("thinker.engine", "schedule", 6, 7, ""),
    row("thinker.runner", "forward", 7, 13, "two"),
    row("thinker.engine", "events", 13, 14, "two"),
    row("thinker.engine", "schedule", 14, 15, ""),
    row("thinker.runner", "forward", 15, 21, ""),
    row("thinker.engine", "events", 21, 22, "one"),
    row("thinker.engine", "events", 22, 23, "two"),
    row("thinker.engine", "schedule", 23, 24, ""),
    row("thinker.runner", "forward", 24, 30, ""),
    row("thinker.engine", "events", 30, 31, "two"),
    row("thinker.engine", "schedule", 31, 32, ""),
]


def test_two_requests_share_forwards() -> None:
    """A batched step belongs to those it names; a request waits for the steps of others. Text only, one stage."""
    assert told(critical_path(BATCHES, "one")) == [
        ("thinker/forward", 1, 5), ("thinker/events", 5, 6), ("thinker/other steps", 6, 7),
        ("thinker/other steps", 7, 13), ("thinker/other steps", 13, 14), ("thinker/schedule", 14, 15),
        ("thinker/forward", 15, 21), ("thinker/events", 21, 22),
    ]  # fmt: skip
    path = critical_path(BATCHES, "two")
    check(path, 7, 31)
    assert [segment.name for segment in path] == [
        "forward", "events", "schedule", "forward", "events", "events", "schedule", "forward", "events",
    ]  # fmt: skip
    assert what_if(BATCHES, {"thinker/forward": 0.5}, request="two") == -9
    assert what_if(BATCHES, {"thinker/forward": 0.5}) == -11  # "two" also begins 2 sooner
    assert in_words(path) == "The end was held by thinker (100%, most of it forward)."
    with pytest.raises(BadInput, match="no vocode span"):
        critical_path(BATCHES, "one", "first audio")


def test_idle_steps_hold_only_what_comes_while_they_run() -> None:
    """What is left of an idle step counts; the ones before the chunk came do not, and need not be as many."""
    idle = [row("code2wav.engine", "schedule", start, start + 1, "") for start in (1, 4, 7, 10)]
    idle += [row("code2wav.runner", "update_states", start, start + 1, "") for start in (2, 5, 8, 11)]
    rows = [
        *idle,
        row("talker.runner", "forward", 0, 8),
        row("talker.send", "put", 8, 9, chunk=0),
        row("code2wav.receive", "get", 10, 11, chunk=0),
        row("code2wav.engine", "schedule", 13, 14, ""),
        row("code2wav.runner", "vocode", 14, 20),
    ]
    assert told(critical_path(rows, "r")) == [
        ("talker/forward", 0, 8), ("talker/put", 8, 9), ("talker->code2wav", 9, 10), ("code2wav/get", 10, 11),
        ("code2wav/other steps", 11, 12), ("code2wav/between spans", 12, 13), ("code2wav/schedule", 13, 14),
        ("code2wav/vocode", 14, 20),
    ]  # fmt: skip
    assert what_if(rows, {"talker/forward": 0.5}) == -4


SENDER = [
    row("thinker.runner", "forward", 0, 10),
    row("thinker.engine", "save", 10, 12),
    row("thinker.send", "build", 11, 15, chunk=0),
    row("thinker.send", "encode", 15, 17, chunk=0),
    row("thinker.send", "put", 17, 19, chunk=0),
    row("talker.receive", "get", 20, 21, chunk=0),
    row("talker.runner", "forward", 21, 24),
    row("thinker.runner", "forward", 12, 30),
    row("thinker.engine", "save", 30, 31),
    row("thinker.send", "build", 31, 33, chunk=1),
    row("thinker.send", "encode", 33, 35, chunk=1),
    row("thinker.send", "put", 35, 37, chunk=1),
    row("talker.receive", "get", 38, 39, chunk=1),
    row("talker.runner", "forward", 39, 42),
]


def test_a_sender_is_handed_its_work() -> None:
    """It follows the save that handed it over, and holds up only itself."""
    assert told(critical_path(SENDER, "r")) == [
        ("thinker/forward", 0, 10), ("thinker/save", 10, 12), ("thinker/forward", 12, 30), ("thinker/save", 30, 31),
        ("thinker/build", 31, 33), ("thinker/encode", 33, 35), ("thinker/put", 35, 37), ("thinker->talker", 37, 38),
        ("talker/get", 38, 39), ("talker/forward", 39, 42),
    ]  # fmt: skip
    assert told(critical_path([r for r in SENDER if r.end_ns <= 24], "r"))[:3] == [
        ("thinker/forward", 0, 10), ("thinker/save", 10, 12), ("thinker/build", 12, 15),
    ]  # fmt: skip
    assert what_if(SENDER, {"thinker/build": 3}) == 4
    assert what_if(SENDER, {"thinker/put": 10}) == 24  # now the sender is busy when the second save comes


def test_what_is_inside_a_span_is_not_counted_twice() -> None:
    """A build inside a save on the engine's thread."""
    rows = [
        row("thinker.engine", "save", 0, 10),
        row("thinker.engine", "build", 2, 8, chunk=0),
        row("thinker.send", "encode", 11, 12, chunk=0),
        row("thinker.send", "put", 12, 14, chunk=0),
        row("talker.receive", "get", 14, 15, chunk=0),
    ]
    assert told(critical_path(rows, "r")) == [
        ("thinker/save", 0, 2), ("thinker/build", 2, 8), ("thinker/between spans", 8, 11), ("thinker/encode", 11, 12),
        ("thinker/put", 12, 14), ("talker/get", 14, 15),
    ]  # fmt: skip
    assert what_if(rows, {"thinker": 2}) == 11


@pytest.mark.parametrize(("get", "segments"), [((12, 15), [(10, 14), (14, 15)]), ((11, 12), [(10, 12)])])
def test_a_get_that_overlaps_its_put(get: tuple[int, int], segments: list[tuple[int, int]]) -> None:
    """The chunk is there before the put's span has ended, or two clocks disagree: still no overlap on the path."""
    rows = [
        row("thinker.runner", "forward", 0, 10),
        row("thinker.send", "put", 10, 14, chunk=0),
        row("talker.receive", "get", *get, chunk=0),
        row("talker.runner", "forward", get[1], 20),
    ]
    path = critical_path(rows, "r")
    check(path, 0, 20)
    assert [(s.start_ns, s.end_ns) for s in path[1:-1]] == segments
    assert what_if(rows, {"thinker/forward": 0.5}) == -5


def test_a_chunk_whose_put_was_lost() -> None:
    """A ring that wrapped around leaves time that no span covers."""
    rows = [
        row("thinker.runner", "forward", 0, 3),
        row("talker.receive", "get", 5, 6, chunk=0),
        row("talker.runner", "forward", 6, 9),
    ]
    assert told(critical_path(rows, "r"))[0] == ("talker/between spans", 0, 5)


def test_one_request_after_the_other() -> None:
    """The second waits for the first: what the first saves, the second is early."""
    rows = [
        row(loop, name, at + start, at + end, request, chunk)
        for request, at in (("one", 0), ("two", 25))
        for loop, name, start, end, chunk in [
            ("talker.runner", "forward", 0, 10, -1),
            ("talker.send", "put", 10, 11, 0),
            ("code2wav.receive", "get", 11, 12, 0),
            ("code2wav.runner", "vocode", 12, 20, -1),
        ]
    ]
    assert what_if(rows, {"code2wav/vocode": 0.5}) == -8
    assert what_if(rows, {"code2wav/vocode": 0.5}, request="two") == -4
    check(critical_path(rows, "two"), 25, 45)


def test_bad_input() -> None:
    """Says what there is."""
    with pytest.raises(BadInput, match="other: no spans"):
        critical_path(BUSY_TALKER, "other")
    with pytest.raises(BadInput, match="no spans of this request"):
        what_if(BUSY_TALKER, {"talker": 2}, request="other")
    with pytest.raises(BadInput, match=r"no 'speaker'.* talker->code2wav"):
        what_if(BUSY_TALKER, {"speaker": 2})
    with pytest.raises(BadInput, match="0 or more"):
        what_if(BUSY_TALKER, {"talker": -1})


def test_of_a_real_pipeline() -> None:
    """Whatever was recorded, the path covers its time once, and at factor 1 nothing changes."""
    prompts = [Prompt(text=text) for text in ("One.", "Where do rivers begin?", "Count to three.")]
    sampling = Sampling(max_text_tokens=6, max_frames=30, ignore_eos=True)
    with Pipeline.open("tiny", topology="inline", connector="memory", timeout_s=20) as pipeline:
        rows = pipeline.run(Workload.prompts(prompts, sampling, arrivals=closed(2))).span_rows
    for request in sorted({row.request for row in rows if row.request}):
        own = [row for row in rows if row.request == request]
        heard = [row.end_ns for row in own if row.name == "vocode"]
        start = min(row.start_ns for row in own)
        check(first := critical_path(rows, request, "first audio"), start, min(heard))
        check(end := critical_path(rows, request), start, max(heard))
        assert {segment.where for segment in end} >= {"thinker", "talker", "code2wav"}
        assert in_words(end, first).startswith("The first audio was held by ")
        assert what_if(rows, {"talker": 1}, request=request) == 0
        assert what_if(rows, {"talker": 0.5}, request=request) < 0 < what_if(rows, {"talker": 2}, request=request)
