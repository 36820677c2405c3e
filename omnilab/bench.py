"""`python -m omnilab.bench`: measure a server that speaks the OpenAI omni protocol, or the pipeline in process."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnilab.command import FAILED, INTERRUPTED, run_typer
from omnilab.errors import Aborted, BadInput, Error
from omnilab.prompt import FRAMES_PER_TOKEN, Sampling, at_least
from omnilab.trial import Trial
from omnilab.workload import Workload, closed

if TYPE_CHECKING:
    from omnilab.client.summary import Setting

NEED = "pip install 'omnilab[bench]'"
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
BACKEND = "openai-chat-omni"
IN_PROCESS = "in-process"


@app.command()
def bench(
    url: Annotated[str | None, typer.Option(help="server; default: the pipeline in this process")] = None,
    model: Annotated[str | None, typer.Option(help="default: the server's first; in process thin")] = None,
    recipe: Annotated[str, typer.Option(help="a named recipe, in process")] = "BEST",
    dataset: Annotated[
        str, typer.Option(help="random, random-audio, or a file of prompts or conversations")
    ] = "random",
    tokenizer: Annotated[Path | None, typer.Option(help="folder of a tokenizer, for random texts as vLLM's")] = None,
    input_len: Annotated[int, typer.Option(help="tokens of a random prompt")] = 2500,
    output_len: Annotated[int, typer.Option(help="most text tokens; of random prompts exactly so many")] = 900,
    frames: Annotated[int | None, typer.Option(help="audio frames of 80 ms; default the server's choice")] = None,
    audio_s: Annotated[float, typer.Option(help="seconds of each sound of random-audio")] = 2.0,
    num_prompts: Annotated[int | None, typer.Option(help="requests; default 10, or all of a file")] = None,
    max_concurrency: Annotated[int | None, typer.Option(help="most requests at once")] = None,
    request_rate: Annotated[str, typer.Option(help="requests a second, or inf: all at once")] = "inf",
    burstiness: Annotated[float, typer.Option(help="shape of the gaps: 1 Poisson, less in bursts")] = 1.0,
    ramp: Annotated[str | None, typer.Option(help="FROM:TO, a rate that changes from request to request")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="file of start times in seconds, one a line or a JSON list")
    ] = None,
    num_warmups: Annotated[int | None, typer.Option(help="unmeasured requests before; default the concurrency")] = None,
    percentiles: Annotated[str, typer.Option(help="p,q,r")] = "50,90,99",
    goodput: Annotated[list[str] | None, typer.Option(help="METRIC:MOST, such as ttft_ms:500; may be repeated")] = None,
    modalities: Annotated[str, typer.Option(help="text, audio or both")] = "text,audio",
    temperature: Annotated[float, typer.Option(help="0: greedy")] = 0.0,
    extra_body: Annotated[str | None, typer.Option(help="JSON object over every request's body")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="sent as a bearer token")] = None,
    seed: Annotated[int, typer.Option(help="of prompts, sampling and arrivals")] = 0,
    timeout: Annotated[float, typer.Option(help="seconds for a request")] = 900.0,
    out: Annotated[Path | None, typer.Option(help="file for the result, JSON")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON, not as a report")] = False,
) -> None:
    """Measure text and speech of many requests; the report is laid out as vLLM-Omni prints its own.

    Exit: 0 done, 1 a request failed (the result is there), 2 bad input (nothing was asked), 130 interrupted (what a
    server had finished is reported).
    """
    _need(tokenizer)
    from omnilab.client.datasets import Dataset
    from omnilab.client.goodput import Goals
    from omnilab.client.summary import Setting, summary
    from omnilab.client.values import read_arrivals, read_modalities, read_object, read_percentiles

    goals, shares = Goals.read(goodput or ()), read_percentiles(percentiles)
    random = dataset in ("random", "random-audio")
    sampling = Sampling(
        max_text_tokens=at_least("--output-len", output_len, 1), max_frames=frames, ignore_eos=random,
        temperature=temperature,
    )  # fmt: skip
    if url is None and random and frames is None:
        sampling = replace(sampling, max_frames=max(1, round(FRAMES_PER_TOKEN * output_len)))
    asked = Dataset(
        name=dataset, num_prompts=num_prompts, input_len=input_len, audio_s=audio_s, tokenizer=tokenizer,
        seed=at_least("--seed", seed, 0),
    ).workload(sampling)  # fmt: skip
    arrivals = read_arrivals(request_rate, burstiness, ramp, trace, max_concurrency, len(asked.requests))
    workload = replace(asked, arrivals=arrivals)
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise BadInput(f"--out {out}: name a file in a folder that exists")
    warm = at_least("--num-warmups", _together(workload) if num_warmups is None else num_warmups, 0)
    if url is None:
        _refuse_served_only(modalities, extra_body)
        subject = _in_process(model or "thin", recipe, workload)
    else:
        subject = _served(
            url,
            model,
            api_key,
            read_object("--extra-body", extra_body),
            read_modalities(modalities),
            timeout,
            tokenizer,
        )
    setting = Setting(
        backend=IN_PROCESS if url is None else BACKEND, model="",
        tokenizer=None if tokenizer is None else str(tokenizer),
        num_prompts=len(workload.requests), request_rate=arrivals.rate, burstiness=arrivals.burstiness,
        max_concurrency=max_concurrency, percentiles=shares, goals=goals,
        more={"dataset": dataset, "seed": seed, "num_warmups": warm, "arrivals": arrivals.kind},
    )  # fmt: skip
    trial, stopped, name = _measured(subject, workload, warm)
    result = summary(trial, replace(setting, model=name))
    _show(result, setting, out, as_json)
    if stopped:
        raise typer.Exit(INTERRUPTED)
    if result["failed"]:
        raise typer.Exit(FAILED)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: its name, and a way to run a workload on it until `stop` says yes."""

    name: str
    run: Callable[[Workload, Callable[[], bool]], Trial]


@contextmanager
def _served(
    url: str, model: str | None, api_key: str | None, extra_body: dict[str, Any], modalities: list[str],
    timeout_s: float, tokenizer: Path | None,
) -> Iterator[Subject]:  # fmt: skip
    from omnilab.client import Server, served_models

    named = Server(
        url, model or "?", api_key=api_key, extra_body=extra_body, modalities=modalities, timeout_s=timeout_s,
        tokenizer=tokenizer,
    )  # fmt: skip
    if model is None:
        names = served_models(url, api_key=api_key)
        if not names:
            raise BadInput(f"--url {url}: the server names no model: give --model")
        named.model = names[0]
    yield Subject(named.model, lambda workload, stop: named.run(workload, stop=stop))


@contextmanager
def _in_process(model: str, recipe: str, workload: Workload) -> Iterator[Subject]:
    from omnilab.pipeline import Pipeline
    from omnilab.recipes import recipe_named

    most = max(8, _together(workload))
    with Pipeline.open(model, recipe=recipe_named(recipe), max_num_seqs=most) as pipe:
        pipe.check(workload)
        yield Subject(model, lambda asked, stop: pipe.run(asked, stop=stop))


def _measured(subject: Any, workload: Workload, warm: int) -> tuple[Trial, bool, str]:
    """Warm up, then run; return the trial, whether it was interrupted, and the model's name."""
    from omnilab.client import Stopped
    from omnilab.client.datasets import warm_up

    began = False
    with subject as found, _interruptible() as stop:
        try:
            if warm:
                most = closed(workload.arrivals.max_concurrency or warm)
                _say_warm(found.run(replace(warm_up(workload, warm), arrivals=most), stop))
            began = True
            return found.run(workload, stop), False, found.name
        except Stopped as ended:
            if began:
                return ended.trial, True, found.name
            raise typer.Exit(INTERRUPTED) from None
        except Aborted:
            if stop():
                print("omnilab bench: interrupted; nothing of a trial in process is kept", file=sys.stderr)
                raise typer.Exit(INTERRUPTED) from None
            raise


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Yield what says whether Ctrl-C was pressed; the second time it interrupts as it does elsewhere."""
    asked = threading.Event()

    def on_signal(number: int, frame: Any) -> None:
        if asked.is_set():
            signal.default_int_handler(number, frame)
        asked.set()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _need(tokenizer: Path | None) -> None:
    names = ["h11", "soundfile", *(["tokenizers"] if tokenizer is not None else [])]
    if missing := [name for name in names if find_spec(name) is None]:
        raise BadInput(f"{', '.join(missing)}: not installed: {NEED}")


def _say_warm(trial: Trial) -> None:
    if failed := [record for record in trial.records if record.error is not None]:
        said = f"{len(failed)} of {len(trial.records)} warm-up requests failed: {failed[0].error}"
        print(f"omnilab bench: {said}", file=sys.stderr)


def _show(result: dict[str, Any], setting: Setting, out: Path | None, as_json: bool) -> None:
    from omnilab.client.printed import lines_of

    text = json.dumps(result, allow_nan=False, ensure_ascii=False)
    print(text if as_json else "\n".join(lines_of(result, setting.percentiles)))
    if out is None:
        return
    try:
        out.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise Error(f"--out {out}: cannot be written ({error.strerror}): the result is above only") from None
    if not as_json:
        print(f"saved: {out}")


def _together(workload: Workload) -> int:
    """Return how many requests may run at once."""
    return min(len(workload.requests), workload.arrivals.max_concurrency or len(workload.requests))


def _refuse_served_only(modalities: str, extra_body: str | None) -> None:
    from omnilab.client.values import read_modalities

    if extra_body is not None or sorted(read_modalities(modalities)) != ["audio", "text"]:
        raise BadInput("--extra-body and --modalities are of a server: give --url, or leave them away")


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_typer(app, argv, "bench")


if __name__ == "__main__":
    sys.exit(main())
