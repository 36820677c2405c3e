"""Stages without a model: the real runners around scripted networks that check all that they are given.

Row of position p of request number r: [r, p, 0, 0] at layer 0 and [r, p, 24, 0] at layer 24. Answer token at position
p: r * SPAN + p. Codes of frame k: (k, k, r). Samples of frame k: k + 1000 r. So the waveform proves order, loss,
repetition and mix-up; what a network finds wrong in its inputs is written into `faults`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omnilab.engine import messages as m
from omnilab.engine.code2wav_runner import Code2WavRunner
from omnilab.engine.spec import STAGES, StageSpec
from omnilab.engine.talker_runner import TalkerPrompt, TalkerRunner
from omnilab.engine.thinker_runner import ThinkerRunner
from omnilab.engine.topology import SteppedStages
from omnilab.engine.tracker import Tracked
from omnilab.errors import Aborted
from omnilab.model.thinker import EmbeddedPrompt
from omnilab.pipeline import Pipeline
from omnilab.prompt import Prompt, Sampling
from omnilab.recipe import Recipe
from omnilab.seams import FINISHED, NUM_OUTPUTS, Draws, Payload, RunnerFactory
from omnilab.speech import Event
from omnilab.transfer.connector import Connector
from omnilab.transfer.encoding import Buffer, decode

SPAN = 128  # positions a request may have
WIDTH = 4  # of the Thinker
GROUPS = 3
CODES = 160  # vocabulary of first codes
SPEECH_END = CODES - 1
TEXT_END = 0  # numbers start at 1, so no other token is below SPAN
SAMPLES = 4  # a frame
TTS = (-1.0, -2.0, -3.0)  # every element of the rows of tts bos, eos and pad


@dataclass(frozen=True, slots=True)
class Said:
    """The script of one request. `frames` before the end code, or up to the limit; `text` tokens with the end token."""

    number: int
    prompt: int = 5
    text: int = 4
    frames: int = 3
    text_ends: bool = True  # by the end token; else by length
    speech_ends: bool = True  # by the end code; else by length
    temperature: float = 0.0
    raises: str = ""  # where: embed, text_row, window

    @property
    def talker_prompt(self) -> int:
        """Tokens the Talker prefills."""
        return self.prompt + 2

    @property
    def position_delta(self) -> int:
        """Between the index and the rotary position of what follows the prompt."""
        return self.number

    @property
    def prompt_ids(self) -> list[int]:
        """Ids of the prompt."""
        return [self.number * SPAN + p for p in range(self.prompt)]

    @property
    def token_ids(self) -> list[int]:
        """Ids of the answer."""
        ids = [self.number * SPAN + self.prompt + i for i in range(self.text)]
        return [*ids[:-1], TEXT_END] if self.text_ends else ids

    @property
    def spoken(self) -> int:
        """Frames that come out: an answer of one token has nothing to say."""
        return self.frames if self.text > 1 else 0

    @property
    def codes(self) -> list[list[int]]:
        """Codes [frames, GROUPS]."""
        return [[k, k, self.number] for k in range(self.spoken)]

    @property
    def audio(self) -> NDArray[np.float32]:
        """Samples."""
        return np.repeat(np.arange(self.spoken, dtype=np.float32) + 1000 * self.number, SAMPLES)

    @property
    def finish_reason(self) -> str:
        """Length wins over stop."""
        cut_speech = self.text > 1 and not self.speech_ends
        return "length" if cut_speech or not self.text_ends else "stop"

    @property
    def text_is_heard_out(self) -> bool:
        """Does the Talker need the chunk that ends the text?"""
        steps = self.frames if self.speech_ends else self.frames - 1
        return self.text == 1 or steps >= self.text - 2

    def text_row(self, frame: int) -> list[float]:
        """What is added to frame - 1 before frame is made: the next token's row, then tts eos once, then pad."""
        if frame <= self.text - 2:
            return [self.number, self.prompt + frame, 0, 0]
        return [TTS[1 if frame == max(self.text - 1, 1) else 2]] * WIDTH


class Faults(list[str]):
    """What the networks found wrong in their inputs."""

    def expect(self, what: str, found: Any, right: Any) -> None:
        """Write down a difference."""
        if found != right:
            self.append(f"{what}: {found} instead of {right}")


@dataclass(slots=True)
class _Seat:
    """One slot of a network's cache."""

    said: Said | None = None
    length: int = 0
    frame: int = 0


class _Slots:
    """Slots as the networks have them."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))
        self.seats: dict[int, _Seat] = {}

    def join(self) -> int:
        """Take the lowest free slot; IndexError when none is left."""
        slot = heapq.heappop(self._free)
        self.seats[slot] = _Seat()
        return slot

    def leave(self, slot: int) -> None:
        """Give a slot back; KeyError when it is free."""
        del self.seats[slot]
        heapq.heappush(self._free, slot)


class _Reused:
    """Hands out the same memory again and again, or fresh memory."""

    def __init__(self, *, reuse: bool) -> None:
        self._kept: Tensor | None = torch.zeros(SPAN * SPAN * WIDTH) if reuse else None

    def rows(self, values: Any) -> Tensor:
        """Return values as a float tensor."""
        made = torch.tensor(values, dtype=torch.float32)
        if self._kept is None:
            return made
        place = self._kept[: made.numel()].view(made.shape)
        return place.copy_(made)


def _row_of(token: int) -> Tensor:
    """Layer-0 row of a token: what a Talker that is sent ids looks up."""
    return torch.tensor([token // SPAN, token % SPAN, 0, 0], dtype=torch.float32)


def _certain(ids: Sequence[int], size: int) -> Tensor:
    logits = torch.full((len(ids), size), -torch.inf)
    logits[range(len(ids)), list(ids)] = 0.0
    return logits


class ScriptedThinker(_Slots):
    """Stands in for omnilab.model.thinker.Thinker."""

    def __init__(self, script: dict[int, Said], faults: Faults, *, slots: int, reuse_buffer: bool) -> None:
        super().__init__(slots)
        self._script, self._faults = script, faults
        self._inputs, self._accepted = _Reused(reuse=reuse_buffer), _Reused(reuse=reuse_buffer)
        self.device, self.cache = torch.device("cpu"), None
        self.vocab_size = (max(script) + 1) * SPAN  # the largest number stays the largest

    def tts_rows(self) -> Tensor:
        return torch.tensor([[value] * WIDTH for value in TTS])

    def embed(self, said: Said) -> EmbeddedPrompt:
        if said.raises == "embed":
            raise ValueError("scripted: no rows for this prompt")
        rows = torch.tensor([[said.number, p, 0, 0] for p in range(said.prompt)], dtype=torch.float32)
        return EmbeddedPrompt(rows, torch.zeros(3, said.prompt), said.position_delta, (), ())

    def prefill(self, slot: int, prompt: EmbeddedPrompt, start: int, end: int) -> tuple[Tensor, Tensor]:
        seat = self.seats[slot]
        self._faults.expect("Thinker: prefill from", start, seat.length)
        seat.said, seat.length = self._script[int(prompt.embeddings[0, 0])], end
        rows = [[seat.said.number, p, 24, 0] for p in range(start, end)]
        return torch.tensor(rows[-1], dtype=torch.float32), self._accepted.rows(rows)

    def embed_tokens(self, ids: list[int]) -> Tensor:
        return self._inputs.rows([[token // SPAN, token % SPAN, 0, 0] for token in ids])

    def decode(self, inputs: Tensor, positions: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        accepted: list[list[int]] = []
        for row, position, slot in zip(inputs.tolist(), positions.tolist(), slots.tolist(), strict=True):
            seat = self.seats[slot]
            assert seat.said is not None
            self._faults.expect("Thinker: input", row, [seat.said.number, seat.length, 0, 0])
            self._faults.expect("Thinker: position", position, seat.length + seat.said.position_delta)
            accepted.append([seat.said.number, seat.length, 24, 0])
            seat.length += 1
        rows = self._accepted.rows(accepted)
        return rows.clone(), rows

    def logits(self, hidden: Tensor) -> Tensor:
        ids: list[int] = []
        for number, position, *_ in hidden.int().tolist():
            said = self._script[number]
            ids.append(said.token_ids[position + 1 - said.prompt])
        return _certain(ids, self.vocab_size)


class ScriptedPredictor:
    """Stands in for omnilab.model.predictor.CodePredictor."""

    num_code_groups = GROUPS

    def new_cache(self) -> list[Tensor]:
        return []

    def step(self, inputs: Tensor, cache: list[Tensor]) -> Tensor:
        cache.append(inputs[:, 0])
        return cache[0][:, None]

    def head(self, group: int, hidden: Tensor) -> Tensor:
        return hidden[:, 1 if group == GROUPS - 2 else 0]

    def choose(self, group: int, logits: Tensor, draws: Draws) -> Tensor:
        return logits.long()

    def embed(self, group: int, codes: Tensor) -> Tensor:
        return _column(codes, 2 if group == GROUPS - 2 else 1)

    def embed_first(self, codes: Tensor) -> Tensor:
        return _column(codes, 0)


def _column(values: Tensor, column: int) -> Tensor:
    rows = torch.zeros(len(values), 2 * WIDTH)
    rows[:, column] = values
    return rows


class ScriptedTalker(_Slots):
    """Stands in for omnilab.model.talker.Talker. Width 8: code, code, number, 0 of the last frame; the text row."""

    num_code_groups, codebook_size, vocab_size, eos_id = GROUPS, CODES, CODES, SPEECH_END

    def __init__(self, script: dict[int, Said], faults: Faults, *, slots: int) -> None:
        super().__init__(slots)
        self._script, self._faults = script, faults
        self.device, self.cache = torch.device("cpu"), None
        self.predictor = ScriptedPredictor()
        self.suppressed_ids = torch.empty(0, dtype=torch.int64)
        self.hidden_rows: dict[int, int] = {}  # by number: accept-layer rows that came with the prompt

    def prompt_inputs(
        self, prompt_ids: list[int], embeddings: Tensor, hidden_states: Tensor, tts_rows: Tensor, speaker: str
    ) -> Tensor:
        said, expect = self._script[int(speaker)], self._faults.expect
        number, num_hidden = said.number, len(hidden_states)
        self.hidden_rows[number] = num_hidden
        expect("Talker: prompt ids", prompt_ids, said.prompt_ids)
        expect("Talker: prompt rows", embeddings.tolist(), [[number, p, 0, 0] for p in range(said.prompt + 1)])
        expect("Talker: layer-24 rows", hidden_states.tolist(), [[number, p, 24, 0] for p in range(num_hidden)])
        expect("Talker: enough layer-24 rows", num_hidden in (said.prompt, said.prompt + 1), True)
        expect("Talker: tts rows", tts_rows[:, 0].tolist(), list(TTS))
        rows = [[i, 0, number, 0] + [0] * WIDTH for i in range(said.talker_prompt)]
        return torch.tensor(rows, dtype=torch.float32)

    def project_text(self, rows: Tensor) -> Tensor:
        number, position = (int(value) for value in rows[0, :2].tolist())
        said = self._script.get(number)
        if said is not None and said.raises == "text_row" and position == said.prompt + 1:
            raise ValueError("scripted: this row cannot be projected")
        return torch.cat([torch.zeros(len(rows), WIDTH), rows.float()], dim=1)

    def prefill(self, slot: int, inputs: Tensor, positions: Tensor) -> Tensor:
        seat = self.seats[slot]
        rows = inputs.tolist()
        said = seat.said = self._script[int(rows[0][2])]
        end = seat.length + len(rows)
        expected = [[i, 0, said.number, 0] + [0] * WIDTH for i in range(seat.length, end)]
        self._faults.expect("Talker: prefill rows", rows, expected)
        self._faults.expect("Talker: prefill positions", positions[0].tolist(), list(range(seat.length, end)))
        seat.length, seat.frame = end, 1
        first = 0 if end == said.talker_prompt else SPEECH_END - 1  # no prompt is half read
        return torch.tensor([first, said.number] + [0] * (2 * WIDTH - 2), dtype=torch.float32)

    def decode(self, inputs: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
        hidden: list[list[int]] = []
        for row, position, slot in zip(inputs.tolist(), positions.tolist(), slots.tolist(), strict=True):
            seat = self.seats[slot]
            assert seat.said is not None
            said, k = seat.said, seat.frame
            last = [k - 1, (GROUPS - 2) * (k - 1), said.number, 0]
            self._faults.expect(f"Talker: conditioning of frame {k} of {said.number}", row, last + said.text_row(k))
            self._faults.expect("Talker: position", position, said.talker_prompt + said.position_delta + k - 1)
            seat.frame += 1
            hidden.append([k, said.number] + [0] * (2 * WIDTH - 2))
        return torch.tensor(hidden, dtype=torch.float32)

    def logits(self, hidden: Tensor) -> Tensor:
        ids: list[int] = []
        for frame, number, *_ in hidden.int().tolist():
            said = self._script[number]
            ids.append(SPEECH_END if said.speech_ends and frame == said.frames else frame)
        return _certain(ids, CODES)


class ScriptedCode2Wav:
    """Stands in for omnilab.model.code2wav.Code2Wav. `windows` has the frames of each window it has decoded."""

    samples_per_frame, num_code_groups = SAMPLES, GROUPS

    def __init__(self, script: dict[int, Said], faults: Faults, *, lost_samples: int, reuse_buffer: bool) -> None:
        self._script, self._faults, self._lost = script, faults, lost_samples
        self._samples = _Reused(reuse=reuse_buffer)
        self.windows: list[list[int]] = []

    def decode_window(self, codes: Tensor) -> Tensor:
        firsts, seconds, numbers = codes[0].tolist()
        self._faults.expect("Code2Wav: second codes", seconds, firsts)
        self._faults.expect("Code2Wav: requests in one window", len(set(numbers)), 1)
        self._faults.expect("Code2Wav: window", firsts, list(range(firsts[0], firsts[0] + len(firsts))))
        if self._script[numbers[0]].raises == "window":
            raise ValueError("scripted: this window cannot be decoded")
        self.windows.append(firsts)
        samples = [k + 1000 * r for k, r in zip(firsts, numbers, strict=True) for _ in range(SAMPLES)]
        return self._samples.rows([samples[: len(samples) - self._lost]])


class DirectLink:
    """A worker link that passes objects: whatever is not owned shows. It answers at the last of some polls."""

    def __init__(self, factory: RunnerFactory, polls: int = 1) -> None:
        self._runner, self._polls = factory.build(), polls
        self._message: Any = None
        self._left = 0

    def submit(self, message: Any) -> None:
        self._message, self._left = message, self._polls

    def poll(self) -> Any | None:
        self._left -= 1
        if self._left:
            return None
        try:
            return self._runner.call(self._message)
        except Exception as error:
            return RuntimeError(repr(error))

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        self._runner.close()


@dataclass(slots=True)
class Crossing:
    """One chunk that was put or got."""

    request_id: str
    chunk_id: int
    payload: Payload

    @property
    def finished(self) -> bool:
        """Does it say that it is the last?"""
        return self.payload[FINISHED]

    @property
    def num_outputs(self) -> int:
        """Tokens or frames there were when it was made."""
        return self.payload[NUM_OUTPUTS]


@dataclass(slots=True)
class EdgeLog:
    """What crossed one edge, in order."""

    puts: list[Crossing] = field(default_factory=list)
    gets: list[Crossing] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def put_of(self, request_id: str) -> list[Crossing]:
        """Chunks put for a request."""
        return [crossing for crossing in self.puts if crossing.request_id == request_id]

    def got_of(self, request_id: str) -> list[Crossing]:
        """Chunks got for a request."""
        return [crossing for crossing in self.gets if crossing.request_id == request_id]


class Watched:
    """A connector that writes down what crosses it. `before_put` and `before_get` may raise, or say no."""

    def __init__(
        self,
        inner: Connector,
        log: EdgeLog,
        before_put: Callable[[str, int], None] | None = None,
        before_get: Callable[[str, int], bool] | None = None,
    ) -> None:
        self._inner, self._log, self.bell = inner, log, inner.bell
        self._before_put, self._before_get = before_put, before_get

    def put(self, request_id: str, chunk_id: int, buffers: Sequence[Buffer]) -> bool:
        if self._before_put is not None:
            self._before_put(request_id, chunk_id)
        taken = self._inner.put(request_id, chunk_id, buffers)
        if taken:
            self._log.puts.append(Crossing(request_id, chunk_id, decode(b"".join(buffers))))
        return taken

    def get(self, request_id: str, chunk_id: int) -> Buffer | None:
        if self._before_get is not None and not self._before_get(request_id, chunk_id):
            return None
        chunk = self._inner.get(request_id, chunk_id)
        if chunk is not None:
            self._log.gets.append(Crossing(request_id, chunk_id, decode(bytes(chunk))))
        return chunk

    def close(self, request_id: str) -> None:
        self._log.closed.append(request_id)
        self._inner.close(request_id)

    def forget(self, request_id: str) -> None:
        self._inner.forget(request_id)

    def held(self) -> int:
        return self._inner.held()


class ScriptedIntake:
    """Stands in for omnilab.intake.Intake: a prompt's text is the number of a request of the script."""

    sample_rate, num_code_groups = 24_000, GROUPS

    def __init__(self, script: dict[int, Said]) -> None:
        self._script = script

    def text_stream(self) -> ScriptedIntake:
        return self

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join(f"{token} " for token in token_ids)

    def flush(self) -> str:
        return ""

    def stage_requests(
        self, request_id: str, prompt: Prompt, sampling: Sampling, seed: int, noise_key: str, *, spoken: bool = True
    ) -> tuple[dict[str, m.StageRequest], int]:
        assert spoken
        said = self._script[int(prompt.text or "")]
        text = _sampling(said, said.text + said.text_ends)
        speech = _sampling(said, said.frames + said.speech_ends)
        ids, positions = said.prompt_ids, torch.arange(said.talker_prompt).expand(3, -1)
        voiced = TalkerPrompt(positions, said.position_delta, str(said.number))
        requests = {
            "thinker": m.StageRequest(request_id, said.prompt, ids, said, text, frozenset({TEXT_END}), noise_key),
            "talker": m.StageRequest(
                request_id, said.talker_prompt, ids, voiced, speech, frozenset({SPEECH_END}), noise_key
            ),
            "code2wav": m.StageRequest(request_id, 0, [], None, speech),
        }
        return requests, said.prompt


def _sampling(said: Said, limit: int) -> m.StageSampling:
    return m.StageSampling(
        max_outputs=limit, temperature=said.temperature, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0,
        ignore_eos=False,
    )  # fmt: skip


class ScriptedPipeline(Pipeline):
    """A Pipeline, and what a test may look at."""

    topology: SteppedStages
    script: dict[int, Said]
    faults: Faults
    edges: dict[str, EdgeLog]  # by producing stage
    networks: dict[str, Any]  # by stage
    runners: dict[str, Any]  # by stage: those made last

    def __enter__(self) -> Self:
        return self

    def start(self, number: int) -> Tracked:
        """Submit a request of the script without waiting for anything."""
        return self._submit(Prompt(text=str(number)), Sampling())

    def abort(self, tracked: Tracked) -> None:
        """Give a request up, as leaving the loop over its stream does."""
        self._tracker.end(tracked, Aborted("the test gave the request up", request=tracked.request_id))

    def events(self, tracked: Tracked) -> Iterator[Event]:
        """What `stream` yields of a request that `start` has submitted."""
        return self._events(tracked)

    def play(self, script: Iterable[Said], seed: int) -> None:
        """Take another script and another order of the loops. Only while no request is live."""
        self.script.clear()
        self.script.update({said.number: said for said in script})
        self.faults.clear()
        for log in self.edges.values():
            log.puts.clear()
            log.gets.clear()
            log.closed.clear()
        assert self.topology._random is not None
        self.topology._random.seed(seed)

    def advance(self, times: int = 1) -> None:
        """Step the loops."""
        for _ in range(times):
            self.topology.advance(float("inf"))

    def finish(self, *started: Tracked) -> None:
        """Step until all of these are done; Timeout when nothing is said for too long."""
        while not all(tracked.done for tracked in started):
            self._advance(None)

    def settle(self) -> None:
        """Step until every stage has let go of every request."""
        self._settle()

    def ask_all(self, *numbers: int) -> list[Tracked]:
        """Run requests together to their ends, good or bad, and settle."""
        started = [self.start(number) for number in numbers]
        self.finish(*started)
        self.settle()
        return started

    def left(self) -> dict[str, int]:
        """What `tables` counts, where it is not 0, without asking the stages: that hashes sources, for 70 ms."""
        counts = {"pipeline": self._tracker.entries()}
        counts |= {f"{stage}/runner": runner.entries() for stage, runner in self.runners.items()}
        counts |= {f"{stage}/slots": len(self.networks[stage].seats) for stage in ("thinker", "talker")}
        for stage in self.topology.stages.values():
            counts |= stage.entries()
        return {name: count for name, count in counts.items() if count}

    def counters(self) -> dict[str, int]:
        """Counters since the last call, by "stage/thread/counter"."""
        rows = [row for recording in self._recordings() for row in recording.counters]
        return {f"{row.stage}/{row.thread}/{row.counter}": row.value for row in rows}


def heard(tracked: Tracked) -> NDArray[np.float32]:
    """Return the samples of a request that has ended."""
    assert tracked.record.audio is not None
    return tracked.record.audio


def open_scripted(
    recipe: Recipe,
    script: Iterable[Said],
    *,
    topology: str = "inline",
    seed: int = 0,
    connector: str = "memory",
    wrap: Callable[[Connector, str, EdgeLog], Connector] | None = None,
    reuse_buffer: bool = True,
    lost_samples: int = 0,
    max_num_seqs: int = 4,
    budget: int = 16,
    chunk_frames: int = 25,
    left_context: int = 25,
    timeout_s: float = 30.0,
) -> ScriptedPipeline:
    """Open a pipeline of scripted stages.

    `wrap(connector, producing stage, log)` puts a test's connector around each end of each edge.
    """
    by_number = {said.number: said for said in script}
    faults = Faults()
    edges = {"thinker": EdgeLog(), "talker": EdgeLog()}
    ends = iter(("thinker", "thinker", "talker", "talker"))
    networks = {
        "thinker": ScriptedThinker(by_number, faults, slots=max_num_seqs, reuse_buffer=reuse_buffer),
        "talker": ScriptedTalker(by_number, faults, slots=max_num_seqs),
        "code2wav": ScriptedCode2Wav(by_number, faults, lost_samples=lost_samples, reuse_buffer=reuse_buffer),
    }

    runners: dict[str, Any] = {}

    def wrapped(inner: Connector) -> Connector:
        producer = next(ends)
        return (wrap or _watched)(inner, producer, edges[producer])

    def make_runner(spec: StageSpec, recipe: Recipe) -> Any:
        network: Any = networks[spec.stage]
        if spec.stage == "thinker":
            runner = ThinkerRunner(network, recipe, max_num_seqs=max_num_seqs, edge_dtype=torch.float32)
        elif spec.stage == "talker":
            runner = TalkerRunner(network, recipe, max_num_seqs=max_num_seqs, lookup=_row_of)
        else:
            runner = Code2WavRunner(network, recipe, left_context=left_context)
        runners[spec.stage] = runner
        return runner

    specs = {
        stage: StageSpec(
            stage=stage, make_runner=make_runner, model="scripted", device="cpu", dtype=None, edge_dtype="float32",
            max_num_seqs=max_num_seqs, max_model_len=SPAN, max_num_batched_tokens=budget,
            codec_chunk_frames=chunk_frames, codec_left_context_frames=left_context, timeout_s=timeout_s, seed=0,
        )
        for stage in STAGES
    }  # fmt: skip

    def start(on_event: Callable[[str, Any], None]) -> SteppedStages:
        order = {"inline": None, "interleaved": seed}[topology]
        shared = {"memory": False, "shared_memory": True}[connector]
        return SteppedStages(specs, recipe, on_event, shared_memory=shared, interleave_seed=order, wrap=wrapped)

    intake: Any = ScriptedIntake(by_number)
    pipeline = ScriptedPipeline(intake, start, timeout_s=timeout_s, seed=0)
    stages = pipeline._topology
    assert isinstance(stages, SteppedStages)
    pipeline.topology, pipeline.script, pipeline.faults, pipeline.edges = stages, by_number, faults, edges
    pipeline.networks, pipeline.runners = networks, runners
    return pipeline


def _watched(inner: Connector, producer: str, log: EdgeLog) -> Connector:
    return Watched(inner, log)


def directly(recipe: Recipe, polls: int = 1) -> Recipe:
    """Return the recipe with runners that are called in place."""
    return replace(recipe, worker_link=_DirectLinks(polls))


@dataclass(frozen=True, slots=True)
class _DirectLinks:
    polls: int

    def __call__(self, factory: RunnerFactory) -> DirectLink:
        return DirectLink(factory, self.polls)
