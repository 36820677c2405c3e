"""The panel, driven by code as a browser would: press, run, read, stop, compare, copy; on the real `tiny` network."""

from __future__ import annotations

import gc
import json
import re
import shlex
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import comm
import psutil
import pytest

from omnilab import ablate, errors, recipes
from omnilab.notebook.choice import Asked, Choice
from omnilab.notebook.controls import AGAINST_BASE, AGAINST_LAST, AGAINST_PINNED, Menu, Switch
from omnilab.notebook.panel import Panel
from omnilab.notebook.session import measuring
from omnilab.pipeline import Pipeline
from omnilab.recipe import recipe_with
from omnilab.seams import Payload
from omnilab.toggle import Toggle
from omnilab.toggles import TOGGLES
from omnilab.toggles.async_save import SaveInline
from omnilab.toggles.shallow_merge import merge_elementwise, merge_shallow
from omnilab.toggles.wake_on_chunk import spin

LONG_S = 100


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipeline]:
    """One inline pipeline: panels that are given one leave it open."""
    with Pipeline.open("tiny", topology="inline", connector="memory", recipe=recipes.BEFORE_1378) as pipeline:
        yield pipeline


@pytest.fixture
def panel(pipe: Pipeline) -> Iterator[Panel]:
    """A panel of small work, ready."""
    made = small(Panel(pipe))
    yield made
    made.stop()
    assert made.wait(LONG_S)
    made.close()


def small(panel: Panel, pairs: int = 1) -> Panel:
    for name, value in {"input_len": 20, "output_len": 3, "pairs": pairs}.items():
        panel.controls.numbers[name].value = value
    return panel


def press(panel: Panel, toggle: str) -> None:
    """Press a toggle's button."""
    listed = next(t for t in TOGGLES if t.name == toggle)
    panel.controls.seams[listed.seam].show(listed.optimized)


def run(panel: Panel) -> None:
    panel.layout.run.click()
    assert panel.wait(LONG_S)


def news(panel: Panel) -> str:
    return re.sub("<[^>]+>", "", panel.layout.news.value)


def test_a_control_for_every_seam_with_its_claim(panel: Panel) -> None:
    """A button where there is one toggle, several where there are more; what needs a GPU cannot be pressed without."""
    seams = panel.controls.seams
    assert list(seams) == list(recipes.BEFORE_1378.occupants())
    for toggle in TOGGLES:
        control = seams[toggle.seam]
        said = control.widget.tooltip if isinstance(control, Switch) else " ".join(control.widget.tooltips)
        assert toggle.claim in said
    menus = {seam for seam, control in seams.items() if isinstance(control, Menu)}
    assert menus == {"save", "thinker_payload", "receive_wait", "attach"}
    assert SaveInline in [occupant for _, occupant in seams["save"].widget.options]
    panel.controls.base.value = "BEST"
    assert panel.controls.chosen() == Choice("BEST", {}, ())
    assert panel.controls.chosen().recipe() == recipes.BEST


def test_press_run_and_see(panel: Panel) -> None:
    """Live text and audio, then stages, edges and timeline of both sides, then the result; and all is kept."""
    press(panel, "shallow_merge")
    run(panel)
    assert news(panel).startswith("#1 done in") and "shallow_merge over BEFORE_1378: wall time" in news(panel)
    assert panel.layout.bar.value == 1.0
    assert panel.live.first_s is not None
    assert {"audio", "svg"} <= set(re.findall(r"<(\w+)", panel.live.speech.value))
    assert "talker · base" in panel.live.stages.value and "talker · other" in panel.live.stages.value
    assert re.search(r"thinker-&gt;talker · base.*?kB", panel.live.edges.value, re.S)
    assert panel.live.timeline is not None
    assert [p["label"] for p in panel.live.timeline.panels] == ["base, pair 1", "other, pair 1"]
    assert panel.runs.results.value.count("<audio") == 2
    assert "elements_visited" in panel.runs.results.value
    assert not panel.layout.run.disabled and panel.layout.stop.disabled
    press(panel, "idle_skip")
    run(panel)
    assert [kept.asked.chosen.name() for kept in panel.runs.kept] == ["shallow_merge", "idle_skip + shallow_merge"]
    first, last = ([len(t.span_rows) for t in (kept.result.trials or {}).values()] for kept in panel.runs.kept)
    assert first == [0, 0] and min(last) > 0  # old runs keep no spans
    panel.runs.beside.value = 1
    assert panel.runs.results.value.count("<audio") == 4
    text = panel._repr_mimebundle_()["text/plain"]
    assert "2 runs" in text and "idle_skip + shallow_merge" in text


def test_the_live_request_hears_the_chosen_recipe(
    panel: Panel, pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short, before the timed pairs, and the prompt is the one that was typed."""
    applied, heard, apply, stream = [], [], pipe.apply, pipe.stream
    monkeypatch.setattr(pipe, "apply", lambda recipe: (applied.append(recipe), apply(recipe)))
    monkeypatch.setattr(
        pipe, "stream", lambda *given, **how: (heard.append((applied[-1], *given)), stream(*given, **how))[1]
    )
    press(panel, "shallow_merge")
    panel.controls.prompt.value = "Sing."
    run(panel)
    assert heard == [(recipe_with("shallow_merge"), "Sing.")]


def test_no_update_is_sent_while_a_trial_runs(panel: Panel, pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a widget would send to the front end is recorded: something around the trials, nothing within one."""
    happened: list[str] = []
    run_trial = pipe.run

    def recorded(*given: Any, **how: Any) -> Any:
        happened.append("start")
        trial = run_trial(*given, **how)
        happened.append("end")
        return trial

    monkeypatch.setattr(pipe, "run", recorded)
    monkeypatch.setattr(comm.DummyComm, "publish_msg", lambda *_, **__: happened.append("message"))
    press(panel, "shallow_merge")
    panel.controls.numbers["pairs"].value = 2
    run(panel)
    starts = [place for place, what in enumerate(happened) if what == "start"]
    assert len(starts) >= 4, "two pairs"
    assert [happened[place + 1] for place in starts] == ["end"] * len(starts)
    assert "message" in happened[starts[-1] :] and "message" in happened[starts[-2] : starts[-1]]
    assert "timed trials run without updates of this panel" in str([box.value for box in every_html(panel)])


def every_html(panel: Panel) -> list[Any]:
    """Return the panel's lines of HTML."""
    import ipywidgets as widgets

    return [child for child in panel.layout.view.children if isinstance(child, widgets.HTML)]


def test_the_code_it_gives_does_the_same(panel: Panel) -> None:
    """Also where a seam is filled by what is no toggle: equal recipes, workload and outputs."""
    press(panel, "shallow_merge")
    panel.controls.seams["receive_wait"].show(spin)
    run(panel)
    there: dict[str, object] = {}
    exec(panel.layout.code.text, there)  # what a reader pastes into a cell
    ours, again = panel.runs.kept[0].result, there["result"]
    assert (again.base, again.other, again.workload, again.planned) == (ours.base, ours.other, ours.workload, 1)
    shas = [[record.audio_sha for record in result.trials["other"].records] for result in (ours, again)]
    assert shas[0] == shas[1]
    assert panel.layout.command.text.startswith("# no command line: spin is no listed toggle")


def test_the_command_line_it_gives_asks_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Parsed by ablate itself: the same recipes, lengths and seed, two variants."""
    chosen = Choice("LIKE_0_16", {"first_chunk": recipes.BEST.first_chunk, "accumulate": recipes.BEST.accumulate})
    asked = Asked(against=Choice("LIKE_0_16"), chosen=chosen, input_len=9, output_len=4, num_prompts=3,
                  max_concurrency=2, seed=5, pairs=6)  # fmt: skip
    words = shlex.split(asked.command({"model": "tiny", "device": "cpu"}))
    assert words[:3] == ["python", "-m", "omnilab.ablate"]
    assert ablate.main([*words[3:], "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [v["name"] for v in plan["variants"]] == ["LIKE_0_16", "override_rows + small_first_chunk"]
    assert plan["variants"][1]["occupants"] == asked.chosen.recipe().occupants()
    workload = asked.workload()
    assert len(plan["workload"]["requests"]) == 3 and plan["workload"]["arrivals"]["max_concurrency"] == 2
    assert plan["workload"]["requests"][0]["prompt"]["random_tokens"] == 9
    assert plan["workload"]["requests"][0]["sampling"] | {"seed": 0} == (
        workload.to_dict()["requests"][0]["sampling"] | {"seed": 0}
    )
    assert (plan["seed"], plan["rule"]["first"], plan["model"]) == (5, 6, "tiny")


def test_how_long_one_waits_is_no_part_of_the_question() -> None:
    """As in the tour, whose pipeline has a time limit of its own; what would change the trials has no command line."""
    asked = Asked(against=Choice(), chosen=Choice(seams={"merge": merge_shallow}), input_len=9, output_len=4,
                  num_prompts=1, max_concurrency=1, seed=0, pairs=5)  # fmt: skip
    assert asked.command({"model": "tiny", "timeout_s": 120}).startswith("python -m omnilab.ablate --model tiny")
    assert "no option for connector='memory'" in asked.command({"model": "tiny", "connector": "memory"})


@pytest.mark.parametrize(
    ("against", "chosen", "why"),
    [
        (Choice(seams={"merge": merge_shallow}), Choice(), "shallow_merge is no named recipe"),
        (Choice(), Choice(), "both sides are the same recipe"),
        (Choice("AFTER_1378"), Choice("BEFORE_1378"), "no listed toggle"),
    ],
)
def test_what_has_no_command_line_says_why(against: Choice, chosen: Choice, why: str) -> None:
    asked = Asked(against=against, chosen=chosen, input_len=9, output_len=4, num_prompts=1, max_concurrency=1, seed=0,
                  pairs=5)  # fmt: skip
    assert asked.command({"model": "tiny"}).startswith("# no command line: ")
    assert why in asked.command({"model": "tiny"})


def test_a_wrong_value_is_refused_where_it_is_typed(panel: Panel) -> None:
    """Beside the field, and Run waits; what fits no model too; a right value takes it back."""
    number = panel.controls.numbers["input_len"]
    number.field.value = -3
    assert "must lie between 1 and 4,000, not -3" in number.message.value and number.message.layout.display == ""
    assert panel.layout.run.disabled
    panel.run()
    assert not panel.running and "input tokens" in news(panel)
    number.field.value = 20
    assert number.message.value == "" and not panel.layout.run.disabled
    panel.controls.numbers["max_concurrency"].field.value = 4
    assert panel.layout.run.disabled and "more than there are requests" in news(panel)
    panel.controls.numbers["max_concurrency"].field.value = 1
    number.field.value, panel.controls.numbers["output_len"].field.value = 4000, 2000
    assert panel.layout.run.disabled and "do not fit" in news(panel)
    panel.controls.numbers["output_len"].field.value, number.field.value = 3, 20
    panel.controls.prompt.value = " "
    assert panel.layout.run.disabled and "live prompt" in news(panel)
    panel.controls.prompt.value = "Hello."
    assert not panel.layout.run.disabled
    assert not panel.runs.kept


def test_slider_and_field_are_one_value(panel: Panel) -> None:
    number = panel.controls.numbers["pairs"]
    number.slider.value = 7
    assert number.value == number.field.value == 7
    number.field.value = 3
    assert number.slider.value == 3


def test_stop_in_the_middle_and_run_again(panel: Panel) -> None:
    """The whole pairs so far are kept; the next run is as good as any."""
    panel.controls.numbers["pairs"].value = 20
    press(panel, "shallow_merge")
    panel.layout.run.click()
    wait_for(lambda: panel.layout.bar.value >= 0.15)
    assert "about" in news(panel) and "left" in news(panel)
    assert panel.controls.base.disabled and panel.controls.numbers["pairs"].field.disabled
    began = time.monotonic()
    panel.layout.stop.click()
    assert panel.wait(LONG_S) and time.monotonic() - began < 20
    assert 1 <= panel.runs.kept[0].result.pairs < 20
    assert f"stopped after {panel.runs.kept[0].result.pairs} of 20 pairs" in news(panel)
    panel.controls.numbers["pairs"].value = 1
    run(panel)
    assert "#2 done" in news(panel) and not panel.controls.base.disabled


def test_against_the_last_and_the_pinned_run(panel: Panel) -> None:
    """What is compared is measured anew, in turn; a pinned run stays where it is until another is pinned."""
    assert list(panel.controls.against.options) == [AGAINST_BASE]
    press(panel, "shallow_merge")
    run(panel)
    assert list(panel.controls.against.options) == [AGAINST_BASE, AGAINST_LAST]
    panel.layout.pin.click()
    assert "#1 pinned" in panel.runs.table.value
    press(panel, "idle_skip")
    panel.controls.against.value = AGAINST_LAST
    run(panel)
    assert panel.runs.kept[1].result.base == recipe_with("shallow_merge")
    panel.controls.seams["merge"].show(merge_elementwise)
    panel.controls.against.value = AGAINST_PINNED
    run(panel)
    result = panel.runs.kept[2].result
    assert (result.base, result.other) == (recipe_with("shallow_merge"), recipe_with("idle_skip"))
    panel.layout.pin.click()  # the third is shown now
    assert "#3 pinned" in panel.runs.table.value and "#1 pinned" not in panel.runs.table.value


def test_a_toggle_of_ones_own(pipe: Pipeline) -> None:
    """It stands beside the listed ones, and its code names it."""

    def merge_mine(state: Payload | None, payload: Payload) -> Payload:
        return merge_shallow(state, payload)

    merge_mine.__module__ = "__main__"  # as if typed into a cell
    mine = Toggle(name="merge_mine", seam="merge", baseline=merge_elementwise, optimized=merge_mine, claim="my claim")
    panel = small(Panel(pipe, toggles=[mine]))
    control = panel.controls.seams["merge"]
    assert isinstance(control, Menu) and "my claim" in control.widget.tooltips
    control.show(merge_mine)
    run(panel)
    assert panel.runs.kept[0].result.other.merge is merge_mine, news(panel)
    assert "other = recipe_with(merge_mine, base=recipes.BEFORE_1378)" in panel.layout.code.text
    assert panel.layout.code.text.startswith("# merge_mine is your Toggle")
    panel.close()


def test_a_second_panel_waits_and_does_not_disturb(panel: Panel) -> None:
    """One measures at a time; who waits says so and can be stopped."""
    held = threading.Event()
    with measuring(held.is_set, lambda: None):
        panel.run()
        wait_for(lambda: "another panel of this kernel is measuring" in news(panel))
        panel.stop()
        assert panel.wait(LONG_S) and "stopped" in news(panel)
        panel.run()
    assert panel.wait(LONG_S) and "#1 done" in news(panel)


def test_a_failed_stage_is_said_and_the_panel_goes_on(nothing_left: None) -> None:
    """In processes: killed in the middle, the message says what to do; the next run has new stages; close ends all."""
    panel = small(Panel("tiny"))
    try:
        wait_for(lambda: "ready" in news(panel))
        press(panel, "shallow_merge")
        panel.controls.numbers["pairs"].value = 20
        panel.run()
        wait_for(lambda: panel.layout.bar.value > 0)
        ours = panel._session.pipe()._topology.pids()  # not another pipeline's of this process
        psutil.Process(ours["talker"]).kill()
        assert panel.wait(LONG_S)
        assert "process has ended" in news(panel) and "The next run starts new stages." in news(panel)
        assert 'role="alert"' in panel.layout.news.value
        panel.controls.numbers["pairs"].value = 1
        run(panel)
        assert "#1 done" in news(panel)
    finally:
        panel.close()
    assert "closed" in news(panel) and panel.layout.run.disabled
    panel.run()
    assert not panel.running


def test_a_model_that_is_not_there_is_said(nothing_left: None) -> None:
    panel = Panel("no-such-size")
    wait_for(lambda: 'role="alert"' in panel.layout.news.value)
    assert "no-such-size" in news(panel)
    panel.close()


def test_a_given_pipeline_stays_open(pipe: Pipeline) -> None:
    Panel(pipe).close()
    pipe.speak("Still there?", max_text_tokens=2, max_frames=2)


def test_a_panel_that_is_dropped_is_gone(pipe: Pipeline) -> None:
    """Widgets live as long as the kernel; they do not keep the panel, whose end closes its stages."""
    panel = small(Panel(pipe))
    run(panel)
    gone = weakref.ref(panel)
    del panel
    gc.collect()
    assert gone() is None


def test_without_widgets_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    import omnilab.notebook

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ipywidgets" else found(name, *rest)
    )
    with pytest.raises(ImportError, match=re.escape("pip install 'omnilab[notebook]'")):
        omnilab.notebook.Panel  # noqa: B018


def test_a_stopped_trial_is_aborted(pipe: Pipeline) -> None:
    """Pipeline.run asks `stop` while it runs, and is quiet afterwards."""
    from omnilab.workload import Workload

    asked = iter([False] * 5)
    with pytest.raises(errors.Aborted, match="stopped"):
        pipe.run(Workload.random(num_prompts=1, input_len=10, output_len=50), stop=lambda: next(asked, True))
    assert not any(pipe.tables().values())


def wait_for(true: object, within_s: float = LONG_S) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
