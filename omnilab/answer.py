"""One answer as its caller takes it: the stages' news made into events, and in the end the whole."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from omnilab.engine import messages as m
from omnilab.engine.tracker import Tracked
from omnilab.intake import Intake
from omnilab.speech import AudioChunk, Event, Speech, TextDelta
from omnilab.trial import RequestRecord


class Answer:
    """Of one request."""

    def __init__(self, intake: Intake) -> None:
        """Detokenize as the model of `intake` does."""
        self._sample_rate, self._num_code_groups = intake.sample_rate, intake.num_code_groups
        self._text = intake.text_stream()
        self._said: list[str] = []

    def take(self, tracked: Tracked) -> Iterator[Event]:
        """Yield what has come since the last call. A torn character at the text's end comes with its last tokens."""
        while tracked.news:
            news = tracked.news.popleft()
            if isinstance(news, m.Tokens):
                rest = self._text.flush if news.finish_reason is not None else str
                self._said.append(self._text.push(news.token_ids) + rest())
                yield TextDelta(self._said[-1], news.token_ids)
            else:
                yield AudioChunk(news.samples.copy(), self._sample_rate)

    def speech(self, record: RequestRecord) -> Speech:
        """Return the whole of an answer that succeeded; one that was not spoken has no codes and no samples."""
        assert record.audio is not None and record.finish_reason is not None
        codes = np.zeros((0, self._num_code_groups), dtype=np.int64) if record.codes is None else record.codes
        text = "".join(self._said)
        return Speech(text, record.token_ids, codes, record.audio, self._sample_rate, record.finish_reason)
