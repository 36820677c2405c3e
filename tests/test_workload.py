"""Prompts, lengths, seeds, arrivals and what is refused."""

import json

import numpy as np
import pytest

from omnilab.errors import BadInput
from omnilab.prompt import Prompt, Sampling
from omnilab.workload import Arrivals, Workload, closed, gamma, poisson, ramp, trace


def test_text_becomes_one_user_turn():
    assert Prompt("Hello").as_messages() == [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]


def test_system_comes_first_and_media_before_the_last_text():
    prompt = Prompt(text="What is it?", system="Be brief.", audio="a.wav", image="b.png")
    system, user = prompt.as_messages()
    assert system == {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    assert [part["type"] for part in user["content"]] == ["audio", "image", "text"]


def test_turns_keep_their_order_and_media_go_to_the_last():
    turns = [
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": [{"type": "text", "text": "Three."}]},
    ]
    messages = Prompt(messages=turns, image="b.png").as_messages()
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert [part["type"] for part in messages[2]["content"]] == ["image", "text"]
    assert turns[2]["content"] == [{"type": "text", "text": "Three."}]  # what the caller holds has not changed


def test_audio_alone_is_a_prompt():
    samples = (np.zeros(160, dtype=np.float32), 16000)
    assert Prompt(audio=samples).as_messages()[0]["content"] == [{"type": "audio", "audio": samples}]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "empty"),
        ({"text": "  \n"}, "empty text"),
        ({"text": "a", "random_tokens": 3}, "text and random_tokens"),
        ({"random_tokens": 0}, "random_tokens"),
        ({"random_tokens": 2.5}, "random_tokens"),
        ({"random_tokens": 3, "image": "b.png"}, "neither"),
        ({"messages": []}, "empty messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "content"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "last message"),
    ],
)
def test_prompts_that_cannot_be_asked(arguments, named):
    with pytest.raises(BadInput, match=named):
        Prompt(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_text_tokens": 0}, {"max_text_tokens": -1}, {"max_frames": 0}, {"max_frames": -5}, {"top_k": -1},
        {"temperature": -0.1}, {"temperature": float("nan")}, {"seed": -1}, {"speaker": ""}, {"max_text_tokens": True},
    ],
)  # fmt: skip
def test_sampling_names_the_field_it_refuses(arguments):
    with pytest.raises(BadInput, match=next(iter(arguments))):
        Sampling(**arguments)


def test_frame_limit_follows_the_text_unless_given():
    assert Sampling(max_text_tokens=900).frame_limit == 2646 + 25
    assert Sampling(max_text_tokens=1).frame_limit == 28  # ceil(2.94) + 25
    assert Sampling(max_text_tokens=900, max_frames=7).frame_limit == 7


def test_random_fixes_both_ends_as_in_the_public_run():
    workload = Workload.random(num_prompts=2, input_len=2500, output_len=900)
    assert len(workload.requests) == 2
    for item in workload.requests:
        assert item.prompt.random_tokens == 2500
        assert (item.sampling.max_text_tokens, item.sampling.max_frames) == (900, 2646)
        assert item.sampling.ignore_eos


def test_same_seed_same_prompts_other_seed_disjoint_prompts():
    def ids(seed):
        return [tuple(item.prompt.random_ids(30000)) for item in Workload.random(8, 50, 5, seed=seed).requests]

    assert ids(3) == ids(3)
    assert len({*ids(3), *ids(4)}) == 16


def test_with_seed_changes_ids_and_sampling_seeds_but_no_length():
    first = Workload.random(3, 20, 5, frames=9)
    second = first.with_seed(77)
    assert second == Workload.random(3, 20, 5, frames=9, seed=77)
    pairs = list(zip(first.requests, second.requests, strict=True))
    assert all(a.sampling.seed != b.sampling.seed for a, b in pairs)
    assert all(a.sampling.max_frames == b.sampling.max_frames == 9 for a, b in pairs)


def test_random_ids_stay_in_what_is_allowed():
    assert set(Prompt(random_tokens=200, random_seed=1).random_ids([5, 7, 11])) == {5, 7, 11}


@pytest.mark.parametrize("name", ["num_prompts", "input_len", "output_len", "frames", "max_concurrency"])
@pytest.mark.parametrize("value", [-1, 0])
def test_random_names_the_length_it_refuses(name, value):
    with pytest.raises(BadInput, match=name):
        Workload.random(**{name: value})


def test_prompts_share_sampling_and_get_seeds_of_their_own():
    workload = Workload.prompts(["One?", Prompt(text="Two?")], Sampling(max_text_tokens=9))
    assert [item.sampling.max_text_tokens for item in workload.requests] == [9, 9]
    assert len({item.sampling.seed for item in workload.requests}) == 2
    assert Workload.prompts(["One?"], Sampling(seed=5)).requests[0].sampling.seed == 5


def test_arrivals():
    assert closed(3).start_times(4, 0) == [0.0] * 4
    assert closed(3).max_concurrency == 3
    times = poisson(4.0).start_times(2000, 1)
    assert times == poisson(4.0).start_times(2000, 1) != poisson(4.0).start_times(2000, 2)
    assert times == sorted(times)
    assert times[-1] / 2000 == pytest.approx(0.25, rel=0.1)
    assert trace([0, 0.5, 2]).start_times(3, 0) == [0, 0.5, 2]


def gaps(arrivals, count=4000):
    return np.diff(arrivals.start_times(count, 1))


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_arrivals_have_the_rate_and_the_spread(burstiness):
    found = gaps(gamma(10.0, burstiness))
    assert found.mean() == pytest.approx(0.1, rel=0.1)
    assert found.std() / found.mean() == pytest.approx(burstiness**-0.5, rel=0.15)
    assert gamma(10.0, burstiness, max_concurrency=3).max_concurrency == 3


def test_a_ramp_goes_from_one_rate_to_the_other():
    found = gaps(ramp(10.0, 100.0))
    assert found[:400].mean() == pytest.approx(1 / 14.5, rel=0.2)
    assert found[-400:].mean() == pytest.approx(1 / 95.5, rel=0.2)
    assert gaps(ramp(5.0, 5.0, 2.0)).tolist() == gaps(gamma(5.0, 2.0)).tolist()


def test_a_rate_may_have_a_most_of_requests_at_once():
    for arrivals in (poisson(3.0, max_concurrency=2), trace([0.0, 0.1], max_concurrency=2)):
        assert arrivals.max_concurrency == 2
    assert poisson(3.0).max_concurrency is None
    assert poisson(3.0, max_concurrency=2).start_times(5, 4) == poisson(3.0).start_times(5, 4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: closed(0),
        lambda: poisson(0),
        lambda: poisson(float("inf")),
        lambda: poisson(1, max_concurrency=0),
        lambda: gamma(1, 0),
        lambda: gamma(1, float("inf")),
        lambda: ramp(0, 1),
        lambda: ramp(1, float("nan")),
        lambda: trace([2, 1]),
        lambda: trace([0], max_concurrency=0),
    ],
)
def test_arrivals_that_cannot_be(make):
    with pytest.raises(BadInput):
        make()


def test_a_trace_must_fit_the_requests():
    with pytest.raises(BadInput, match="2 for 1"):
        Workload.prompts(["One?"], arrivals=trace([0, 1]))


def test_from_jsonl_reads_lengths_seeds_and_files_beside_it(tmp_path):
    (tmp_path / "clip.wav").write_bytes(b"RIFF")
    lines = [
        {"text": "Où est la gare ?", "max_text_tokens": 12, "seed": 3},
        {"text": "Listen.", "audio": "clip.wav", "max_frames": 30},
        {"messages": [{"role": "user", "content": "你好"}], "system": "Kurz."},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    first, second, third = Workload.from_jsonl(path, Sampling(max_text_tokens=99)).requests
    assert (first.prompt.text, first.sampling.max_text_tokens, first.sampling.seed) == ("Où est la gare ?", 12, 3)
    assert second.prompt.audio == tmp_path / "clip.wav"
    assert (second.sampling.max_text_tokens, second.sampling.max_frames) == (99, 30)
    assert third.prompt.as_messages()[0]["role"] == "system"
    assert second.sampling.seed != third.sampling.seed


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{not json", "Expecting"), ("[1]", "object"), ('{"text": ""}', "empty"), ('{"txt": "a"}', "unknown txt"),
        ('{"text": "a", "audio": "none.wav"}', "no file"), ('{"text": "a", "max_text_tokens": -1}', "max_text_tokens"),
        ("{}", "empty"), ('{"text": "a", "audio": 3}', "TypeError|unsupported"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_with_its_number(tmp_path, line, named):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(BadInput, match="line 2") as caught:
        Workload.from_jsonl(path)
    assert str(path) in str(caught.value)
    assert any(word in str(caught.value) for word in named.split("|"))


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        Workload.from_jsonl(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(BadInput, match="no prompts"):
        Workload.from_jsonl(tmp_path / "empty.jsonl")


def test_to_dict_is_strict_json_with_arrays_as_hashes():
    prompt = Prompt(text="a", audio=(np.ones(8, dtype=np.float32), 16000), image=np.zeros((2, 2, 3), dtype=np.uint8))
    workload = Workload.prompts([prompt])
    text = json.dumps(workload.to_dict(), allow_nan=False)
    assert "sha256" in text
    assert json.loads(text)["arrivals"] == {"kind": "closed", "max_concurrency": 1}
    assert isinstance(workload.arrivals, Arrivals)
