"""A request inside one stage's engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from omnilab.engine.messages import StageRequest
from omnilab.seams import Outbox, Payload
from omnilab.transfer.receiver import Inlet


@dataclass(slots=True, eq=False)
class Live:
    """What the engine knows of a request it runs. Satisfies seams.LiveRequest."""

    request: StageRequest
    outbox: Outbox
    inlet: Inlet
    output_ids: list[int] = field(default_factory=list)
    codes: list[tuple[int, ...]] = field(default_factory=list)
    num_computed: int = 0  # prompt tokens that have been through the runner
    finished: bool = False
    finish_reason: str = ""
    known_to_runner: bool = False
    waiting: bool = False  # for a chunk
    fresh: bool = False  # a chunk has come that no step has taken yet
    held: Payload | None = None  # what the receiver has accumulated

    @classmethod
    def of(cls, request: StageRequest) -> Live:
        """Start a request."""
        return cls(request, Outbox(request.request_id), Inlet(request.request_id))

    @property
    def request_id(self) -> str:
        """Id, unique in the pipeline's life."""
        return self.request.request_id

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt."""
        return self.request.prompt_ids

    @property
    def prefilled(self) -> bool:
        """Has the whole prompt been through the runner?"""
        return self.num_computed >= self.request.num_prompt_tokens
