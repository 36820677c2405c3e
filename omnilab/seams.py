"""The seams: the named places where an implementation may be swapped. Protocols and data types only.

Threads: E the engine's, S the sender's, R the receiver's, W the runner's (in the engine's process or in its own).
Shapes: B rows of a batch, P prompt tokens, H Thinker width, T Talker width, G code groups, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

# What crosses an edge or a worker link: flat, of tensors on the CPU, lists of ints, ints and bools.
Payload: TypeAlias = dict[str, Any]

# Keys of a payload on the edge Thinker -> Talker ...
EMBEDDINGS = "embeddings"  # [n, H] layer-0 rows
HIDDEN_STATES = "hidden_states"  # [n, H] accept-layer rows
SEQUENCES = "sequences"  # list of ids: prompt and output with the prefill, all output so far in later chunks
PROMPT_IDS = "prompt_ids"  # list of ids
TTS_ROWS = "tts_rows"  # [3, H] layer-0 rows of tts bos, eos, pad
FIRST_ROW = "first_row"  # position in the sequence of the first row of EMBEDDINGS
# ... on the edge Talker -> Code2Wav ...
CODES = "codes"  # list of G * n ints, codebook by codebook
NEW_FRAMES = "new_frames"  # the last so many of the n frames are new; those before are left context
# ... and on both: set by the stage, not by an occupant.
FINISHED = "finished"
NUM_OUTPUTS = "num_outputs"  # tokens (Thinker) or frames (Talker) there were when the chunk was made


class Phase(StrEnum):
    """What a step did for a request. Always said, never guessed from a length."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True)
class Outbox:
    """What the sending side keeps for one request. Chunk ids are taken by one thread at a time, in emission order."""

    request_id: str
    state: dict[str, Any] = field(default_factory=dict)  # the builder's
    next_chunk_id: int = 0
    closed: bool = False  # nothing more may leave: ended, aborted, or the consumer has closed
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while a chunk leaves: no put after a close

    def take_id(self) -> int:
        """Return the next chunk id: 0..n-1 without gaps."""
        self.next_chunk_id += 1
        return self.next_chunk_id - 1


class LiveRequest(Protocol):
    """A request as its engine sees it: it goes on changing after `save` has returned."""

    output_ids: list[int]  # only grows
    finished: bool
    outbox: Outbox

    @property
    def request_id(self) -> str:
        """Id, unique in the pipeline's life."""
        ...

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt; they never change."""
        ...


@dataclass(frozen=True, slots=True)
class ThinkerRows:
    """Rows of one Thinker step for one request: on the CPU, owned, never a reused buffer."""

    phase: Phase
    embeddings: Tensor  # [n, H]
    hidden_states: Tensor  # [n, H]; [0, H] from a Thinker that hands none out
    tts_rows: Tensor  # [3, H]


@dataclass(frozen=True, slots=True)
class TalkerRows:
    """One Talker step for one request: the G codes of its frame; empty when the step gave no frame."""

    codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A request as it was when a step ended. `output_ids` is shared and only grows: read its first `num_outputs`."""

    outbox: Outbox
    rows: Any  # ThinkerRows or TalkerRows
    prompt_ids: list[int]
    output_ids: list[int]
    num_outputs: int
    finished: bool

    @classmethod
    def of(cls, live: LiveRequest, rows: Any) -> Snapshot:
        """Freeze what a builder reads, in constant time."""
        return cls(live.outbox, rows, live.prompt_ids, live.output_ids, len(live.output_ids), live.finished)


# save --------------------------------------------------------------------------------------------------------------
# The stage gives both; they count and time what happens and blame the request when it fails.
BuildChunk: TypeAlias = Callable[[Snapshot], Payload | None]  # None: nothing to send yet
PutChunk: TypeAlias = Callable[[Snapshot, int, Payload], None]  # (snapshot, chunk id, payload): encode, put, ring


class Save(Protocol):
    """Takes what a step produced; E calls `save`, S calls `drain`. Owns its queue; keeps each request's order."""

    def save(self, live: LiveRequest, rows: Any) -> None:
        """Take the rows of one step, which are owned; `live` may change as soon as this returns."""
        ...

    def drain(self) -> bool:
        """Send at most one chunk; return whether there was work. Never waits."""
        ...


MakeSave: TypeAlias = Callable[[BuildChunk, PutChunk], Save]


# thinker_payload ---------------------------------------------------------------------------------------------------
Lookup: TypeAlias = Callable[[int], Tensor]  # token id -> layer-0 row [H]


class ThinkerPayload(Protocol):
    """Both ends of the edge Thinker -> Talker."""

    def build(self, state: dict[str, Any], snapshot: Snapshot) -> Payload | None:
        """Make the chunk of a step (under `save`: E or S); `state` is the request's own. None: nothing to send yet."""
        ...

    def read(self, state: Payload, position: int, lookup: Lookup) -> Tensor | None:
        """Return the layer-0 row [H] at a position of the sequence (W); None when it is not there."""
        ...


# accumulate, attach, merge -----------------------------------------------------------------------------------------
Accumulate: TypeAlias = Callable[[Payload | None, Payload], Payload]  # (held, chunk) -> held; R
Attach: TypeAlias = Callable[[Payload, bool, bool], Payload | None]  # (held, fresh, finished) -> attached; E
Merge: TypeAlias = Callable[[Payload | None, Payload], Payload]  # (state, payload) -> state; W


# idle_step ---------------------------------------------------------------------------------------------------------
class RequestBatch(Protocol):
    """Code2Wav's batch of requests. Counts its own updates."""

    def ids(self) -> set[str]:
        """Ids of the requests in the batch."""
        ...

    def park(self, request_id: str) -> None:
        """Take a request out of the batch and keep its state."""
        ...

    def refresh(self, request_id: str, payload: Payload) -> None:
        """Give a request its new codes and put it into the batch anew."""
        ...

    def free(self, request_id: str) -> None:
        """Forget a request."""
        ...


IdleStep: TypeAlias = Callable[[RequestBatch, Mapping[str, Payload], Iterable[str]], None]
# (batch, scheduled, finished); W; called on every step, also when nothing is scheduled


# receive_wait, engine_wait -----------------------------------------------------------------------------------------
class Bell(Protocol):
    """Something to sleep on."""

    def wait(self, deadline: float) -> bool:
        """Sleep until rung or until `deadline` (time.monotonic()); return whether it was rung."""
        ...


Pause: TypeAlias = Callable[[bool, bool, Bell, float], None]
# (worked, pending, doorbell, deadline): did the last step work; are there requests that wait; R and E, live topologies


# worker_link -------------------------------------------------------------------------------------------------------
class Runner(Protocol):
    """Per-request state and one batched step."""

    def call(self, message: Any) -> Any:
        """Answer one message: a step's work, a new recipe, a collection of counters."""
        ...

    def close(self) -> None:
        """Free what the runner holds."""
        ...


class Channel(Protocol):
    """Bytes to a runner and back; an answer per message, in order."""

    def send_bytes(self, data: bytes) -> None:
        """Hand a message over."""
        ...

    def recv_bytes(self) -> bytes:
        """Take the next answer; EOFError when the worker has ended."""
        ...

    def poll(self) -> bool:
        """Is an answer (or the end) there?"""
        ...

    def fileno(self) -> int | None:
        """Descriptor that becomes readable with an answer; None where answers are there at once."""
        ...

    def close(self) -> None:
        """End the worker."""
        ...


class RunnerFactory(Protocol):
    """How a runner comes to be; the topology decides what `spawn` means."""

    def build(self) -> Runner:
        """Make the runner in this process."""
        ...

    def spawn(self) -> Channel:
        """Make the runner behind a channel of bytes: in a process of its own, or in place where there is but one."""
        ...


class WorkerLink(Protocol):
    """What crosses between engine and runner; E. One message at a time: `poll` answers the last `submit`."""

    def submit(self, message: Any) -> None:
        """Hand a message to the runner."""
        ...

    def poll(self) -> Any | None:
        """Return the answer, or None while there is none."""
        ...

    def fileno(self) -> int | None:
        """Descriptor that becomes readable with an answer; None where it is there at once."""
        ...

    def close(self) -> None:
        """End the runner."""
        ...


MakeWorkerLink: TypeAlias = Callable[[RunnerFactory], WorkerLink]


# first_chunk, vocode -----------------------------------------------------------------------------------------------
FirstChunk: TypeAlias = Callable[[int, int], int]  # (chunk id, chunk_frames) -> frames of that chunk


class WindowDecoder(Protocol):
    """The network of Code2Wav: a causal transformer of a sliding window over frames, then convolutions."""

    samples_per_frame: int
    lost_samples: int  # at the end of any window: they depend on the frame to come
    convolution_context: int  # frames that the convolutions look back
    num_code_groups: int

    def decode_window(self, codes: Tensor) -> Tensor:
        """Decode codes [B, G, n] to samples [B, n * samples_per_frame - lost_samples]."""
        ...

    def attend(self, codes: Tensor, start: int, past: Any) -> tuple[Tensor, Any]:
        """Run the transformer on codes [1, G, n] of the frames from `start` on, after what `past` holds.

        A past of None holds nothing. Returns hidden states [1, n, C] and the past of the next call, which never grows
        beyond the window and shares nothing with the one given.
        """
        ...

    def synthesize(self, hidden: Tensor) -> Tensor:
        """Run the convolutions on hidden states [B, n, C]; samples [B, n * samples_per_frame - lost_samples]."""
        ...


class Vocode(Protocol):
    """Both ends of the edge Talker -> Code2Wav."""

    def build(self, frames: Sequence[tuple[int, ...]], start: int, end: int) -> Payload:
        """Make the chunk that brings frames start..end-1 (E or S); `frames` are all the request's so far."""
        ...

    def decode(self, network: WindowDecoder, state: Any, payload: Payload) -> tuple[Tensor, Any]:
        """Return the new samples [n] and the next state; the first state is None (W)."""
        ...


MakeVocode: TypeAlias = Callable[[int], Vocode]  # left context frames -> occupant


# decode_step, predict_codes ----------------------------------------------------------------------------------------
@dataclass(slots=True)
class Draws:
    """Random numbers and limits of one batched step, on the model's device. A temperature of 0 is greedy."""

    all_greedy: bool  # known on the host: the tensors of draws are then empty
    first: Tensor  # [B, V] Exp(1) draws for the sampled token or first code
    residual: Tensor  # [G - 1, B, Vc] for the residual codes
    temperature: Tensor  # [B]
    top_k: Tensor  # [B]; 0 is no limit
    top_p: Tensor  # [B]
    repetition_penalty: Tensor  # [B]; 1 is none
    no_end: Tensor  # [B] bool: never sample the end code


class DecodeModel(Protocol):
    """A Thinker or Talker that decodes one token a row. `planned` is what its cache plans or holds still."""

    device: torch.device
    dtype: torch.dtype
    hidden_size: int

    def decode(self, inputs: Tensor, positions: Tensor, slots: Tensor) -> Any:
        """Run inputs [B, width] at positions [B] in cache rows slots [B], which are on the host."""
        ...

    def decode_planned(self, inputs: Tensor, positions: Tensor, planned: Any) -> Any:
        """Run a step that is planned already, all on the device; a graph can hold it."""
        ...


class StepCache(Protocol):
    """The key-value cache of a DecodeModel: a row of columns a slot, and one slot that nobody reads."""

    max_len: int
    junk_slot: int

    def reserve(self, columns: int) -> None:
        """Make room for so many columns a slot. Growing moves the buffers, and no graph may hold them then."""
        ...

    def advance(self, slots: Sequence[int], new_tokens: int = 1) -> tuple[list[int], int]:
        """Count new tokens of each slot; return the columns they begin at and the attention length to run with."""
        ...

    def hold(self, slots: Tensor, columns: Tensor, length: int) -> Any:
        """Plan a step of rows 0..B-1 over given tensors: row i reads slot i and writes to slots[i] at columns[i]."""
        ...


Tail: TypeAlias = Callable[[Any, Tensor, Draws], Any]  # (what decode returned, slots, draws) -> outputs of the step
Step: TypeAlias = Callable[[Tensor, Tensor, Tensor, Draws], Any]  # (inputs, positions, slots, draws); W
MakeDecodeStep: TypeAlias = Callable[[DecodeModel, StepCache, Tail, int], Step]  # (model, cache, tail, max batch)


@dataclass(frozen=True, slots=True)
class PredictorLayer:
    """Weights of one decoder layer of the code predictor: D is its head size, F the width inside its feed-forward."""

    query: Tensor  # [heads * D, T]
    key: Tensor  # [kv heads * D, T]
    value: Tensor  # [kv heads * D, T]
    output: Tensor  # [T, heads * D]
    gate: Tensor  # [F, T]
    up: Tensor  # [F, T]
    down: Tensor  # [T, F]
    input_norm: Tensor  # [T]
    query_norm: Tensor  # [D]
    key_norm: Tensor  # [D]
    feed_forward_norm: Tensor  # [T]


@dataclass(frozen=True, slots=True)
class PredictorWeights:
    """All that a predictor's frame is computed from. Tensors are the module's own: fuse copies, change nothing."""

    layers: tuple[PredictorLayer, ...]
    norm: Tensor  # [T]
    heads: tuple[Tensor, ...]  # [Vc, T] a residual group
    embeddings: tuple[Tensor, ...]  # [Vc, T] a residual group
    cosines: Tensor  # [G, D] of the rotary embedding of positions 0..G-1
    sines: Tensor  # [G, D]
    head_dim: int
    epsilon: float  # of the norms


class CodePredictor(Protocol):
    """The residual codes' network, one position at a time."""

    num_code_groups: int
    top_k: int  # of every residual code that is sampled
    top_p: float

    def weights(self) -> PredictorWeights:
        """Return the network's weights."""
        ...

    def new_cache(self) -> Any:
        """Return an empty key-value cache."""
        ...

    def step(self, inputs: Tensor, cache: Any) -> Tensor:
        """Run inputs [B, n, T]; return hidden states [B, n, T]."""
        ...

    def head(self, group: int, hidden: Tensor) -> Tensor:
        """Logits [B, Vc] in float32 of residual group 0..G-2 from hidden [B, T]."""
        ...

    def choose(self, group: int, logits: Tensor, draws: Draws) -> Tensor:
        """Codes [B] of a group from its logits [B, Vc] and draws."""
        ...

    def embed(self, group: int, codes: Tensor) -> Tensor:
        """Embedding [B, T] of residual codes [B] of a group."""
        ...

    def embed_first(self, codes: Tensor) -> Tensor:
        """Embedding [B, T] of first codes [B]."""
        ...


PredictCodes: TypeAlias = Callable[[Tensor, Tensor, Draws], tuple[Tensor, Tensor]]
# (hidden [B, T], code0 [B], draws) -> (codes [B, G], embedding_sum [B, T]); W; no host synchronization
MakePredictCodes: TypeAlias = Callable[[CodePredictor, int], PredictCodes]  # (predictor, max batch)
