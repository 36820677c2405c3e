"""The gate names the first thing that differs: request, what, position."""

import numpy as np
import pytest

from omnilab.experiment.gate import first_difference
from omnilab.toggle import EXACT_ALL
from omnilab.trial import RequestRecord, Trial


def record(index=0, **changes):
    random = np.random.default_rng(index)
    given = {
        "index": index,
        "request_id": f"r{index}",
        "start_s": 0.0,
        "token_ids": [5, 6, 7],
        "output_tokens": 3,
        "frames": 4,
        "audio_s": 0.32,
        "codes": np.arange(64).reshape(4, 16),
        "audio": random.normal(0, 0.1, 200).astype(np.float32),
    }
    return RequestRecord(**{**given, **changes})


def found(changed, exact=EXACT_ALL, tolerance=90.0):
    return first_difference(Trial([record(0), changed]), Trial([record(0), record(1)]), exact, tolerance)


def test_equal_passes():
    assert found(record(1)) is None


def test_first_differing_token():
    difference = found(record(1, token_ids=[5, 9, 8]))
    assert (difference.request, difference.what, difference.position) == (1, "tokens", 1)
    assert str(difference) == "request 1: tokens at 1: 9, not 6"


def test_one_code_of_one_frame():
    codes = np.arange(64).reshape(4, 16)
    codes[2, 7] = 0
    difference = found(record(1, codes=codes))
    assert (difference.what, difference.position) == ("codes", 2)


def test_missing_frames_are_where_the_shorter_ends():
    difference = found(record(1, codes=np.arange(48).reshape(3, 16)))
    assert (difference.what, difference.position, difference.detail) == ("codes", 3, "3 of them, not 4")


def test_samples_bit_equal_or_close_enough():
    audio = record(1).audio
    close, far = audio.copy(), audio.copy()
    close[3] += 1e-6
    far[3] += 0.01
    assert found(record(1, audio=close)) is None
    difference = found(record(1, audio=far))
    assert (difference.what, difference.position) == ("samples", 3)
    assert found(record(1, audio=far), tolerance=30.0) is None
    assert found(record(1, audio=audio[:-1])).position == 199


def test_not_a_number_and_silence_never_pass():
    broken = record(1).audio.copy()
    broken[7] = np.nan
    assert found(record(1, audio=broken)).position == 7
    assert found(record(1, audio=np.zeros(200, dtype=np.float32))).what == "samples"


def test_only_what_a_toggle_promises_is_compared_but_work_always():
    codes = np.zeros((4, 16))
    assert found(record(1, codes=codes), exact=frozenset({"tokens"})) is None
    difference = found(record(1, frames=5, codes=codes), exact=frozenset({"tokens"}))
    assert (difference.what, difference.detail) == ("work (frames)", "5, not 4")


@pytest.mark.parametrize("nothing", [frozenset(), EXACT_ALL])
def test_a_failed_request_is_a_difference(nothing):
    assert found(record(1, error="Timeout: talker"), exact=nothing).what == "error"
    base = Trial([record(0, error="StageFailed")])
    assert "of the baseline" in first_difference(Trial([record(0)]), base, nothing, 90.0).detail


def test_lost_requests_are_a_difference():
    assert first_difference(Trial([]), Trial([record()]), EXACT_ALL, 90.0).what == "requests"
