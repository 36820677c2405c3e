"""Steps in fixed buffers, against eager ones. No GPU is needed: a tape stands in for the graph, as strict as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from omnilab.engine.talker_runner import TalkerRunner
from omnilab.engine.thinker_runner import ThinkerRunner
from omnilab.errors import ToggleUnavailable
from omnilab.model.folder import resolve
from omnilab.model.talker import Talker
from omnilab.model.thinker import EmbeddedPrompt, Thinker
from omnilab.model.weights import load_config, load_stage
from omnilab.pipeline import Pipeline
from omnilab.recipe import Recipe
from omnilab.recipes import BEFORE_1378
from omnilab.seams import Draws
from omnilab.toggles.fused_predictor import FusedPredictor
from omnilab.toggles.graphed_step import TOGGLE, FixedStep, Run, graphed_step

MAX_BATCH = 5  # buckets 1, 2, 4, 5
SYNCHRONIZING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero"}


class Tape(TorchDispatchMode):
    """Stands in for a CUDA graph: records operations and does them again on the very same tensors; never reads back.

    What Python decided while it was recorded stays decided, and a tensor that was replaced since is read as it was.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func._schema.name
        indices = args[1] if name in ("aten::index", "aten::index_put_") else ()
        if name in SYNCHRONIZING or any(index is not None and index.dtype is torch.bool for index in indices):
            raise RuntimeError(f"{name} waits for the device: a graph cannot hold it")
        results = func(*args, **kwargs)
        aliases = [returned.alias_info for returned in func._schema.returns]
        if any(alias is not None and not alias.is_write for alias in aliases):
            return results  # a view: the tensor it made goes on showing the same memory

        def again() -> None:
            new = func(*args, **kwargs)
            if not any(alias is not None for alias in aliases):
                for old, fresh in zip(_tensors(results), _tensors(new), strict=True):
                    old.copy_(fresh)

        self.steps.append(again)
        return results


def _tensors(results: Any) -> list[Tensor]:
    several = results if isinstance(results, (tuple, list)) else [results]
    return [result for result in several if isinstance(result, Tensor)]


class TapeCapture:
    """Captures tapes, after warm-up runs as CUDA needs them. `captured` counts them."""

    def __init__(self) -> None:
        self.captured = 0

    def __call__(self, function: Run) -> Run:
        self.captured += 1
        for _ in range(2):
            function()
        with Tape() as tape:
            outputs = function()

        def replay() -> tuple[Tensor, ...]:
            for again in tape.steps:
                again()
            return outputs

        return replay


@cache
def module(size: str, stage: str) -> Any:
    """Load a stage's module once; each network over it has a cache of its own."""
    torch.set_num_threads(1)
    return load_stage(resolve(size), stage, device="cpu", dtype=torch.float32)


def networks(stage: str, count: int = 2) -> list[Any]:
    """Return networks of a stage over the same weights."""
    kind = Thinker if stage == "thinker" else Talker
    config = load_config(resolve("tiny"))
    return [kind(module("tiny", stage), config, max_num_seqs=MAX_BATCH, max_model_len=512) for _ in range(count)]


def tail(network: Any, recipe: Recipe) -> Any:
    """Return the real tail of a stage's runner."""
    if isinstance(network, Thinker):
        return ThinkerRunner(network, recipe, max_num_seqs=MAX_BATCH, edge_dtype=torch.float32)._tail
    runner = TalkerRunner(network, recipe, max_num_seqs=MAX_BATCH, lookup=lambda token: network.never_asked)
    return runner._tail


class Request:
    """Somebody who comes at a step, decodes so many more, and goes. Every number of it is its own."""

    def __init__(self, number: int, start: int, prompt: int, steps: int, temperature: float) -> None:
        self.number, self.start, self.prompt, self.steps, self.temperature = number, start, prompt, steps, temperature
        self.slot, self.done = -1, 0

    def draw(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.number + self.done)
        return torch.empty(shape).exponential_(generator=generator)


# number, first step, prompt, steps, temperature: slots are reused, the batch shrinks and grows, 128 and 192 are passed,
# and there are steps of greedy rows alone, of sampled rows alone and of both
SCHEDULE = [
    (0, 0, 20, 9, 0.0),
    (1, 0, 125, 12, 0.0),
    (2, 2, 7, 5, 0.8),
    (3, 3, 60, 4, 0.0),
    (4, 4, 186, 14, 1.1),
    (5, 5, 9, 3, 0.7),
    (6, 10, 3, 12, 0.0),
    (7, 12, 40, 3, 0.0),
    (8, 34, 11, 4, 0.0),  # alone, in slot 0
]


def draws_of(requests: list[Request], vocab: int, residual: tuple[int, int] | None) -> Draws:
    """Make the draws of one step, as the engine does."""
    rows, none = [r.temperature for r in requests], torch.empty(0)
    first = residuals = none
    if any(rows):
        first = torch.stack([r.draw(vocab) for r in requests])
        if residual:
            residuals = torch.stack([r.draw(*residual) for r in requests], dim=1)
    return Draws(
        all_greedy=not any(rows),
        first=first,
        residual=residuals,
        temperature=torch.tensor(rows),
        top_k=torch.tensor([20 * (r.number % 3) for r in requests]),
        top_p=torch.tensor([0.9 if r.number % 2 else 1.0 for r in requests]),
        repetition_penalty=torch.tensor([1.0 + 0.3 * r.number for r in requests]),
        no_end=torch.tensor([r.number % 4 != 3 for r in requests]),
    )


def prefill(network: Any, request: Request) -> Tensor:
    """Run a request's prompt; return the input [H] of its first decode step."""
    generator = torch.Generator().manual_seed(request.number)
    rows = torch.randn(request.prompt + 1, network.hidden_size, generator=generator)
    positions = torch.arange(request.prompt).expand(3, -1)
    if isinstance(network, Thinker):
        prompt = EmbeddedPrompt(rows[:-1], positions, 0, (), ())
        network.prefill(request.slot, prompt, 0, request.prompt)
    else:
        network.prefill(request.slot, rows[:-1], positions)
    return rows[-1]


def serve(network: Any, step: Any) -> Iterator[tuple[Tensor, ...]]:
    """Drive the schedule through a step; yield its outputs. What a request decodes is its next input.

    Now and then a request sits a step out, as one does that waits for its chunk: its slot is held but not in the batch.
    """
    waiting, running, inputs = [Request(*line) for line in SCHEDULE], [], {}
    residual = None
    if not isinstance(network, Thinker):
        residual = (network.num_code_groups - 1, network.codebook_size)
    for now in range(60):
        for request in [r for r in waiting if r.start <= now][: MAX_BATCH - len(running)]:
            waiting.remove(request)
            running.insert(request.number % 2 * len(running), request)  # rows are in no order of slots
            request.slot = network.join()
            inputs[request.number] = prefill(network, request)
        batch = [request for request in running if (now + request.number) % 4]
        if batch:
            outputs = step(
                torch.stack([inputs[r.number] for r in batch]),
                torch.tensor([r.prompt + r.done for r in batch]),
                torch.tensor([r.slot for r in batch]),
                draws_of(batch, network.vocab_size, residual),
            )
            yield outputs
            given = network.embed_tokens(outputs[0]) if residual is None else outputs[1]
            for request, row in zip(batch, given, strict=True):
                inputs[request.number] = row
                request.done += 1
                if request.done == request.steps:
                    running.remove(request)
                    network.leave(request.slot)


@pytest.mark.parametrize("stage", ["thinker", "talker"])
@torch.no_grad()
def test_fixed_steps_equal_eager_ones(stage: str) -> None:
    """Discipline: stale padding, a wrong slot or column, limits not reset, a warm-up that counts, outputs reused."""
    eager_network, network = networks(stage)
    capture = TapeCapture()
    recipe = Recipe(predict_codes=FusedPredictor)
    eager = TOGGLE.baseline(eager_network, eager_network.cache, tail(eager_network, Recipe()), MAX_BATCH)
    fixed = FixedStep(network, network.cache, tail(network, recipe), MAX_BATCH, capture)
    kept: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
    for wanted, found in zip(serve(eager_network, eager), serve(network, fixed), strict=True):
        assert torch.equal(found[0], wanted[0])
        torch.testing.assert_close(found[1], wanted[1], atol=1e-4, rtol=1e-4)
        kept.append((found, tuple(output.clone() for output in found)))
    assert all(torch.equal(a, b) for found, copies in kept for a, b in zip(found, copies, strict=True))
    assert eager_network.cache.lengths[:MAX_BATCH] == network.cache.lengths[:MAX_BATCH]
    shapes = {(bucket, length, greedy) for bucket, length, greedy in fixed._replays}
    assert {bucket for bucket, _, _ in shapes} == {1, 2, 4, 5}
    assert {length for _, length, _ in shapes} == {128, 192, 256}
    assert {greedy for _, _, greedy in shapes} == {True, False}
    assert capture.captured == len(shapes) < len(kept)


@torch.no_grad()
def test_the_loop_can_be_held_too() -> None:
    """Capturability: transformers' predictor in the tail must not read back either."""
    eager_network, network = networks("talker")
    eager = TOGGLE.baseline(eager_network, eager_network.cache, tail(eager_network, Recipe()), MAX_BATCH)
    fixed = FixedStep(network, network.cache, tail(network, Recipe()), MAX_BATCH, TapeCapture())
    for count, (wanted, found) in enumerate(zip(serve(eager_network, eager), serve(network, fixed), strict=True)):
        assert torch.equal(found[0], wanted[0])
        if count == 5:
            break


def test_a_tail_that_reads_back_is_refused() -> None:
    """The tape itself: it must see what a CUDA capture would refuse, and read buffers, not values."""
    buffer = torch.ones(3)
    for bad in (lambda: (buffer * buffer.sum().item(),), lambda: (buffer[buffer > 0],)):
        with pytest.raises(RuntimeError, match="graph cannot hold"):
            TapeCapture()(bad)
    replay = TapeCapture()(lambda: ((buffer * 2).view(1, 3)[:, 1:],))
    buffer.fill_(4)
    assert replay()[0].tolist() == [[8, 8]]


@torch.no_grad()
def test_buffers_never_move() -> None:
    """Growth: a cache that grows under a graph leaves it writing to memory that is no longer the cache's."""
    (network,) = networks("thinker", 1)
    step = FixedStep(network, network.cache, tail(network, Recipe()), MAX_BATCH, TapeCapture())
    before = [side.data_ptr() for side in network.cache.keys + network.cache.values]
    for _ in serve(network, step):
        pass
    assert [side.data_ptr() for side in network.cache.keys + network.cache.values] == before


@torch.no_grad()
def test_a_step_too_long_is_refused_as_eager_refuses_it() -> None:
    """Overflow: a column outside the buffers, or a length that was counted although the step did not run."""
    (network,) = networks("thinker", 1)
    step = FixedStep(network, network.cache, tail(network, Recipe()), MAX_BATCH, TapeCapture())
    slot = network.join()
    network.cache.lengths[slot] = 512
    request = Request(0, 0, 512, 1, 0.0)
    with pytest.raises(Exception, match="max_model_len"):
        step(
            torch.zeros(1, network.hidden_size),
            torch.tensor([512]),
            torch.tensor([slot]),
            draws_of([request], network.vocab_size, None),
        )
    assert network.cache.lengths[slot] == 512


def test_graphs_need_cuda() -> None:
    """Fallback: on a CPU it says what it needs instead of running something else under its name."""
    (network,) = networks("thinker", 1)
    with pytest.raises(ToggleUnavailable, match="needs cuda"):
        graphed_step(network, network.cache, tail(network, Recipe()), MAX_BATCH)


@pytest.mark.gpu
@pytest.mark.parametrize("predict_codes", [Recipe().predict_codes, FusedPredictor], ids=["loop", "fused"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_graphs_on_cuda(temperature: float, predict_codes: Any) -> None:
    """The real capture: what the tape cannot see, such as a copy from unpinned memory, or a library that waits."""
    from dataclasses import replace

    say = {"max_text_tokens": 40, "max_frames": 60, "seed": 4, "ignore_eos": True, "temperature": temperature}
    eager = replace(BEFORE_1378, predict_codes=predict_codes)
    with Pipeline.open("thin", device="cuda", recipe=eager) as pipeline:
        wanted = pipeline.speak("Where do rivers begin?", **say)
        pipeline.apply(replace(eager, decode_step=graphed_step))
        for _ in range(2):
            found = pipeline.speak("Where do rivers begin?", **say)
            assert found.token_ids == wanted.token_ids
            assert (found.codes == wanted.codes).all()
