"""`python -m omnilab.profile`: torch traces, a merged trace and flame graphs of variants; no times are taken here."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omnilab.ablate import load_experiment
from omnilab.command import run_typer
from omnilab.errors import BadInput
from omnilab.experiment.experiment import Experiment
from omnilab.experiment.given import resized
from omnilab.experiment.plan import uses_cuda
from omnilab.experiment.results import check_folder

if TYPE_CHECKING:
    from omnilab.profile.passes import Profiling
    from omnilab.profile.subjects import Subject
    from omnilab.profile.watched import ProfiledPipeline
    from omnilab.recipe import Recipe

PASSES = ("torch", "memory", "pyspy")
NEED = "pip install 'omnilab[trace]'"
MOST_STEPS = 1000
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def profile(
    experiment: Annotated[str | None, typer.Argument(help="file whose variants are profiled")] = None,
    recipe: Annotated[str | None, typer.Option(help="named recipes; default BEFORE_1378,AFTER_1378")] = None,
    run: Annotated[Path | None, typer.Option(help="run folder whose variants are profiled, into RUN/traces")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="of the file or the run; may be given again")] = None,
    model: Annotated[str | None, typer.Option(help="size name, folder or hub id; default thin")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:0")] = None,
    passes: Annotated[str, typer.Option(help="of torch, memory, pyspy")] = ",".join(PASSES),
    steps: Annotated[int, typer.Option(help="steps of each process that torch records")] = 4,
    native: Annotated[bool, typer.Option("--native", help="py-spy shows C++ frames too; slower")] = False,
    input_len: Annotated[int | None, typer.Option(help="random prompt tokens a request")] = None,
    output_len: Annotated[int | None, typer.Option(help="text tokens a request")] = None,
    frames: Annotated[int | None, typer.Option(help="audio frames a request")] = None,
    num_prompts: Annotated[int | None, typer.Option(help="requests")] = None,
    max_concurrency: Annotated[int | None, typer.Option(help="requests in flight")] = None,
    out: Annotated[Path | None, typer.Option(help="new folder; default runs/profile-TIME")] = None,
) -> int:
    """Run a workload once without a profiler, then once under each: torch, torch with memory, py-spy.

    Exit: 0 done, 1 something of a pass is missing, 2 bad input (nothing was started or written), 130 interrupted.
    """
    chosen = _passes(passes, native)
    if not 1 <= steps <= MOST_STEPS:
        raise BadInput(f"--steps: must lie between 1 and {MOST_STEPS}, not {steps}")
    root = _root(run, out)
    subject = _subject(experiment, recipe, run, variant)
    lengths = {
        "num_prompts": num_prompts, "input_len": input_len, "output_len": output_len, "frames": frames,
        "max_concurrency": max_concurrency,
    }  # fmt: skip
    workload = resized(subject.workload, lengths) if any(v is not None for v in lengths.values()) else subject.workload

    from omnilab.profile.passes import Profiling

    subject = replace(subject, model=model or subject.model, device=device or subject.device)
    asked = Profiling(
        root=root, workload=workload, passes=chosen, steps=steps, native=native, unavailable=_unavailable(chosen)
    )
    _refuse_what_cannot_run(subject, asked)
    profiles = [asked.profile(name, partial(_open, subject, one), _say) for name, one in subject.recipes.items()]
    for line in _how(root, chosen):
        print(line)
    return 1 if any(one.missing for one in profiles) else 0


def _passes(text: str, native: bool) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in PASSES]
    if unknown or not names:
        what = f"no pass {unknown[0]!r}" if unknown else "no pass is named"
        raise BadInput(f"--passes: {what}; there are {', '.join(PASSES)}")
    if native and "pyspy" not in names:
        raise BadInput("--native is for py-spy: add pyspy to --passes")
    if find_spec("torch") is None:
        raise BadInput(f"torch is not installed: {NEED}")
    return names


def _subject(experiment: str | None, recipe: str | None, run: Path | None, variant: list[str] | None) -> Subject:
    """Return what is asked for; only one way of asking at a time."""
    from omnilab.profile.subjects import RECIPES, of_experiment, of_recipes, of_run

    ways = {"a file": experiment, "--recipe": recipe, "--run": run}
    given = [way for way, value in ways.items() if value is not None]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} each say what is profiled: give one of them")
    if variant and given[:1] not in (["a file"], ["--run"]):
        raise BadInput("--variant chooses from an experiment's file or a --run; recipes are named by --recipe")
    if experiment is not None:
        loaded = load_experiment(Path(experiment))
        if not isinstance(loaded, Experiment):
            raise BadInput(f"{experiment}: is a sweep of several experiments; profile a file of one")
        found = of_experiment(loaded)
    elif run is not None:
        if not run.is_dir():
            raise BadInput(f"{run}: is no folder; a packed run is to be unpacked first")
        found = of_run(run)
    else:
        found = of_recipes([name.strip() for name in recipe.split(",")] if recipe is not None else RECIPES)
    return found.only(variant) if variant else found


def _root(run: Path | None, out: Path | None) -> Path:
    if run is not None and out is not None:
        raise BadInput("--run writes into RUN/traces: leave --out away")
    if run is not None:
        return run / "traces"
    root = out or Path("runs") / f"profile-{time.strftime('%Y%m%d-%H%M%S')}"
    check_folder(root)
    return root


def _unavailable(passes: tuple[str, ...]) -> dict[str, str]:
    """Say why py-spy cannot be had; BadInput when it is all that was asked for, or is not installed."""
    from omnilab.profile.sampling import program, refused

    if "pyspy" not in passes:
        return {}
    program()
    reason = refused()
    if reason is not None and passes == ("pyspy",):
        raise BadInput(reason)
    return {} if reason is None else {"pyspy": reason}


def _refuse_what_cannot_run(subject: Subject, asked: Profiling) -> None:
    import torch

    from omnilab.intake import Intake

    if uses_cuda(subject.device) and not torch.cuda.is_available():
        raise BadInput(f"device {subject.device}: torch sees no GPU here; give --device cpu")
    intake = Intake.of(subject.model, None)
    for item in asked.workload.requests:
        intake.stage_requests("check", item.prompt, item.sampling, item.sampling.seed or 0, "")
    for name in subject.recipes:
        if there := asked.there_already(name):
            raise BadInput(f"{there[0]}: {name} has a profile already; move it away, or choose another --variant")


def _open(subject: Subject, recipe: Recipe) -> ProfiledPipeline:
    from omnilab.profile.watched import ProfiledPipeline

    opened = ProfiledPipeline.open(subject.model, recipe=recipe, device=subject.device, timeout_s=120)
    assert isinstance(opened, ProfiledPipeline)
    return opened


def _say(line: str) -> None:
    print(line, flush=True)


def _how(root: Path, passes: tuple[str, ...]) -> list[str]:
    lines = []
    if "torch" in passes:
        lines += ["merged.json.gz: https://ui.perfetto.dev, 'Open trace file' (it stays on your machine)"]
    if "torch" in passes or "memory" in passes:
        lines += [f"torch-tb-profiler: tensorboard --logdir {root}"]
    if "pyspy" in passes:
        lines += ["*.speedscope.json: https://www.speedscope.app, or its page offline (npm speedscope)"]
    return [*lines, "costs are of one run each, with the profiler and without: no measurement"]


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_typer(app, argv, "profile")


if __name__ == "__main__":
    sys.exit(main())
