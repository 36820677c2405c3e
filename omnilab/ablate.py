"""`python -m omnilab.ablate`: which toggle pays, on this workload and machine, and is the output still the same?"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import cloudpickle
import typer
from rich.console import Console

from omnilab.command import run_typer
from omnilab.errors import BadInput
from omnilab.experiment.arms import Arm
from omnilab.experiment.experiment import Experiment
from omnilab.experiment.plan import EXPERIMENTS, Plan
from omnilab.experiment.progress import progress_to_stderr
from omnilab.experiment.results import check_folder, strict_json
from omnilab.experiment.sizing import Noise, plan_lines
from omnilab.experiment.sweep import Sweep, at_concurrencies, refuse_lengths
from omnilab.workload import Workload

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def ablate(
    experiment: Annotated[str | None, typer.Argument(help="file; default experiments/quick.py")] = None,
    model: Annotated[str | None, typer.Option(help="size name, folder or hub id")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:0")] = None,
    toggles: Annotated[str | None, typer.Option(help="names with commas between; replaces the file's variants")] = None,
    design: Annotated[
        str | None, typer.Option(help="one-at-a-time, leave-one-out, factorial, half-fraction, ladder, together")
    ] = None,
    base: Annotated[str | None, typer.Option(help="named recipe that toggles are put on")] = None,
    input_len: Annotated[int | None, typer.Option(help="random prompt tokens a request")] = None,
    output_len: Annotated[int | None, typer.Option(help="text tokens a request")] = None,
    frames: Annotated[int | None, typer.Option(help="audio frames a request; default 2.94 a text token")] = None,
    num_prompts: Annotated[int | None, typer.Option(help="requests a trial")] = None,
    max_concurrency: Annotated[
        str | None, typer.Option(help="requests in flight; several with commas between: a run each")
    ] = None,
    blocks: Annotated[int | None, typer.Option(help="fresh sets of stage processes; 5 or more for a verdict")] = None,
    budget: Annotated[str | None, typer.Option(help="as many blocks as fit: 90s, 5m, 2h; after a short pilot")] = None,
    detect: Annotated[str | None, typer.Option(help="as many blocks as an effect of this size needs: 3%")] = None,
    looks: Annotated[bool, typer.Option("--looks", help="stop early: look after 5, 7 and 10 blocks")] = False,
    noise_from: Annotated[Path | None, typer.Option(help="run folder whose noise and times plan this one")] = None,
    pilot: Annotated[
        bool, typer.Option("--pilot", help="three baseline trials first, to plan from their noise")
    ] = False,
    primary: Annotated[str | None, typer.Option(help="metric of the verdicts; default wall_s")] = None,
    margin: Annotated[str | None, typer.Option(help="a difference within it is none; default 2%")] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(help="NAME=COMMAND: a server to compare, {port} in it becomes a free port; give two or more"),
    ] = None,
    exact: Annotated[
        str | None, typer.Option(help="what arms' outputs must keep: tokens,samples (default), tokens, or work")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="folder, for the random prompts of arms")] = None,
    extra_body: Annotated[str | None, typer.Option(help="JSON that goes into every request to an arm")] = None,
    out: Annotated[Path | None, typer.Option(help="new run folder; default runs/NAME-TIME")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the interrupted run in --out")] = False,
    seed: Annotated[int | None, typer.Option(help="of orders and requests")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check and print the plan, start nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON on standard output")] = False,
) -> int:
    """Measure toggles one at a time or together; what is not given here comes from the experiment's file.

    Exit: 0 done, 1 a trial or the output gate failed, 2 bad input (nothing started), 130 interrupted.
    """
    ours = load_experiment(Path(experiment) if experiment else EXPERIMENTS / ("servers.py" if arm else "quick.py"))
    together = [] if max_concurrency is None else counts_of("max_concurrency", max_concurrency)
    named = {
        "model": None if arm else model, "device": device, "base": base, "seed": seed, "design": design,
        "primary": primary, "noise_from": noise_from, "margin": None if margin is None else share_of("margin", margin),
        "pilot": pilot or None,
    }  # fmt: skip
    changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    changes |= sized(blocks, budget, detect, looks)
    if resume and out is None:
        raise BadInput("resume: name the run to go on with: --out RUN")
    if toggles is not None:
        changes["toggles"] = tuple(name.strip() for name in toggles.split(",") if name.strip())
    if toggles is not None or design is not None:
        changes["variants"] = None
    changes |= arms_asked(arm, exact, {"model": model, "tokenizer": tokenizer, "extra_body": extra_body}, ours)
    lengths = {
        "num_prompts": num_prompts, "input_len": input_len, "output_len": output_len, "frames": frames,
        "max_concurrency": together[0] if together else None,
    }  # fmt: skip
    if isinstance(ours, Sweep):
        refuse_lengths(lengths)
        ours = ours.changed(**changes)
    else:
        if any(value is not None for value in lengths.values()):
            changes["workload"] = resized(ours.workload, lengths)
        ours = replace(ours, **changes)
        ours = at_concurrencies(ours, together) if len(together) > 1 else ours
    if dry_run:
        if out is not None:
            check_folder(out)
        for one in ours.experiments.values() if isinstance(ours, Sweep) else [ours]:
            _print_plan(*one.planned(), as_json)
        return 0
    report = ours.run(out=out, progress=progress_to_stderr(), resume=resume)
    if as_json:
        print(strict_json(report.to_dict(), indent=1))
    else:
        report.print()
    return 1 if report.failed else 0


def load_experiment(path: Path) -> Experiment | Sweep:
    """Return the EXPERIMENT of a file; BadInput says what is wrong and at which line."""
    if not path.is_file():
        files = [file for file in EXPERIMENTS.glob("*.py") if "EXPERIMENT = " in file.read_text(encoding="utf-8")]
        known = ", ".join(sorted(file.stem for file in files)) or "none"
        raise BadInput(f"{path}: no such experiment file; in {EXPERIMENTS} there are: {known}")
    spec = importlib.util.spec_from_file_location(f"experiment_{path.stem}", path.resolve())
    if spec is None or spec.loader is None:
        raise BadInput(f"{path}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    cloudpickle.register_pickle_by_value(module)  # the stage processes cannot import the file: its toggles travel whole
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadInput(f"{path}, line {_line_of(error, path)}: {type(error).__name__}: {error}") from error
    found = getattr(module, "EXPERIMENT", None)
    if not isinstance(found, Experiment | Sweep):
        raise BadInput(f"{path}: must define EXPERIMENT = Experiment(...) or Sweep(...), has {type(found).__name__}")
    if isinstance(found, Experiment) and not found.question and module.__doc__:
        return replace(found, question=module.__doc__.split("\n\n")[0].strip())
    return found


def sized(blocks: int | None, budget: str | None, detect: str | None, looks: bool) -> dict[str, Any]:
    """Return what says how many blocks there are, instead of what the file says; nothing when nothing is given."""
    if blocks is None and budget is None and detect is None and not looks:
        return {}
    share = None if detect is None else share_of("detect", detect)
    return {"blocks": blocks, "budget": budget, "detect": share, "looks": looks}


def arms_asked(
    given: Sequence[str] | None, exact: str | None, settings: Mapping[str, Any], ours: Experiment | Sweep
) -> dict[str, Any]:
    """Return what `--arm` and its companions change; nothing when none is given. BadInput says what is wrong."""
    if given is None:
        has_arms = isinstance(ours, Experiment) and ours.arms is not None
        alone = [name for name in ("tokenizer", "extra_body") if settings[name] is not None]
        if alone or (exact is not None and not has_arms):
            raise BadInput(f"{(alone or ['exact'])[0]}: is for arms: give --arm NAME=COMMAND, twice or more")
        if has_arms and settings["model"] is not None:
            raise BadInput("model: the file's arms name their own")
        return {} if exact is None else {"exact": exact_of(exact)}
    fields = {name: value for name, value in settings.items() if value is not None}
    if "extra_body" in fields:
        fields["extra_body"] = json_object("extra_body", fields["extra_body"])
    arms = dict[str, Arm]()
    for text in given:
        name, equals, command = text.partition("=")
        if not equals or not command.strip():
            raise BadInput(f"arm: must be NAME=COMMAND, not {text!r}")
        if name.strip() in arms:
            raise BadInput(f"arm: {name.strip()} is there twice")
        arms[name.strip()] = Arm(command=command, **fields)
    return {"arms": arms, **({} if exact is None else {"exact": exact_of(exact)})}


def exact_of(text: str) -> frozenset[str]:
    """Return what must stay equal; "work" is nothing but the work."""
    names = {name.strip() for name in text.split(",")} - {""}
    return frozenset() if names == {"work"} else frozenset(names)


def json_object(name: str, text: str) -> dict[str, Any]:
    """Return a JSON object; BadInput for anything else."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{name}: is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{name}: must be a JSON object, not {text!r}")
    return found


def counts_of(name: str, text: str) -> list[int]:
    """Return "1,4,16" as numbers; BadInput for anything else."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{name}: must be a number, or several with commas between, not {text!r}") from None


def share_of(name: str, text: str) -> float:
    """Return "3%" or "0.03" as 0.03; BadInput for anything else."""
    number = text.strip()
    try:
        return float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        raise BadInput(f"{name}: must be like 3%, not {text!r}") from None


def resized(workload: Workload, lengths: dict[str, int | None]) -> Workload:
    """Return a random workload of the given lengths, the rest as the first request's; BadInput where there are none."""
    first = workload.requests[0]
    if first.prompt.random_tokens is None:
        raise BadInput("the experiment's requests are not random: change their lengths in its file")
    frames = lengths["frames"]
    if frames is None and lengths["output_len"] is None:
        frames = first.sampling.max_frames
    given = {name: value for name, value in lengths.items() if value is not None and name != "frames"}
    kept = {
        "num_prompts": len(workload.requests),
        "input_len": first.prompt.random_tokens,
        "output_len": first.sampling.max_text_tokens,
        "max_concurrency": workload.arrivals.max_concurrency or len(workload.requests),
        "temperature": first.sampling.temperature,
        "seed": workload.seed,
    }
    return Workload.random(**{**kept, **given}, frames=frames)


def _print_plan(plan: Plan, noise: Noise | None, as_json: bool) -> None:
    if as_json:
        print(strict_json(plan.to_dict(), indent=1))
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for line in plan_lines(plan, noise):
        console.print(line)
    for variant in plan.variants:
        names = ", ".join(toggle.name for toggle in variant.toggles) or "no toggle"
        if (setting := plan.settings[variant.name]) and isinstance(setting, Arm):
            names = " ".join(setting.words)
        console.print(f"- {variant.name}: {names}; against {variant.against or 'itself (A/A)'}")
    for block, order in enumerate(plan.orders):
        console.print(f"block {block + 1}, seed {plan.workloads[block].seed}: {' | '.join(order)}")


def _line_of(error: BaseException, path: Path) -> int | str:
    if isinstance(error, SyntaxError) and error.filename == str(path.resolve()):
        return error.lineno or "?"
    name = str(path.resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    return lines[-1] if lines and lines[-1] else "?"


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_typer(app, argv, "ablate")


if __name__ == "__main__":
    sys.exit(main())
