"""`python -m omnilab.ablate`: which toggle pays, on this workload and machine, and is the output still the same?"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Annotated, Any

import cloudpickle
import typer
from rich.console import Console

from omnilab.command import run_typer
from omnilab.errors import BadInput
from omnilab.experiment.arms import Arm
from omnilab.experiment.experiment import Experiment
from omnilab.experiment.given import arms_asked, changed, chosen, counts_of, engine_asked, share_of, sized
from omnilab.experiment.perf_file import entry_asked
from omnilab.experiment.plan import EXPERIMENTS, Plan
from omnilab.experiment.progress import progress_to_stderr
from omnilab.experiment.results import check_folder, strict_json
from omnilab.experiment.sizing import Noise, plan_lines
from omnilab.experiment.sweep import Sweep

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
    workload: Annotated[
        Path | None, typer.Option(help="JSON of vLLM-Omni's tests/dfx/perf: its lengths and points in place of these")
    ] = None,
    entry: Annotated[str | None, typer.Option(help="which of the workload file: TEST_NAME or TEST_NAME:N")] = None,
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
    gate_prompts: Annotated[
        str | None, typer.Option(help="file of prompts that every variant must answer alike first; none for no gate")
    ] = None,
    exact: Annotated[
        str | None, typer.Option(help="what arms' outputs must keep: tokens,samples (default), tokens, or work")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="folder, for the random prompts of arms")] = None,
    extra_body: Annotated[str | None, typer.Option(help="JSON that goes into every request to an arm")] = None,
    start_s: Annotated[float | None, typer.Option(help="seconds that a server may take until it is ready")] = None,
    subject: Annotated[str | None, typer.Option(help="lab, or vllm-omni: its toggles on its own server")] = None,
    vllm_omni_python: Annotated[
        Path | None, typer.Option(help="Python of an environment with vLLM-Omni; default that of `make vllm-omni`")
    ] = None,
    deploy: Annotated[Path | None, typer.Option(help="vLLM-Omni's deploy file; default: its stages on a CPU")] = None,
    out: Annotated[Path | None, typer.Option(help="new run folder; default runs/NAME-TIME")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the interrupted run in --out")] = False,
    seed: Annotated[int | None, typer.Option(help="of orders and requests")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check and print the plan, start nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON on standard output")] = False,
) -> int:
    """Measure toggles one at a time or together; what is not given here comes from the experiment's file.

    Exit: 0 done, 1 a trial or the output gate failed, 2 bad input (nothing started), 130 interrupted.
    """
    default = "servers.py" if arm else "vllm_omni.py" if subject == "vllm-omni" else "quick.py"
    ours = load_experiment(Path(experiment) if experiment else EXPERIMENTS / default)
    engine = engine_asked(subject, vllm_omni_python, deploy, model, start_s, ours)
    together = [] if max_concurrency is None else counts_of("max_concurrency", max_concurrency)
    named = {
        "model": None if arm or engine else model, "subject": engine, "device": device, "base": base, "seed": seed,
        "design": design, "primary": primary, "noise_from": noise_from,
        "margin": None if margin is None else share_of("margin", margin), "pilot": pilot or None,
    }  # fmt: skip
    changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    changes |= sized(blocks, budget, detect, looks)
    if resume and out is None:
        raise BadInput("resume: name the run to go on with: --out RUN")
    changes |= chosen(toggles, design, gate_prompts)
    of_arms = {"tokenizer": tokenizer, "extra_body": extra_body, "start_s": None if engine else start_s}
    changes |= arms_asked(arm, exact, {"model": model, **of_arms}, ours)
    lengths = {"num_prompts": num_prompts, "input_len": input_len, "output_len": output_len}
    theirs = entry_asked(workload, entry, {**lengths, "max_concurrency": max_concurrency})
    ours = changed(ours, changes, {**lengths, "frames": None if theirs else frames}, together)
    if theirs is not None:
        ours = theirs.applied(ours, frames)
        for line in theirs.instead:
            print(f"omnilab ablate: {theirs.name}: not taken from the file: {line}", file=sys.stderr)
    if dry_run:
        if out is not None:
            check_folder(out)
        several = list(ours.experiments.values()) if isinstance(ours, Sweep) else [ours]
        shared = isinstance(ours, Sweep) and ours.shares_servers
        for number, one in enumerate(several):
            _print_plan(*one.planned(), as_json, starts=number == 0 or not shared)
        return 0
    report = ours.run(out=out, progress=progress_to_stderr(), resume=resume)
    if as_json:
        print(strict_json(report.to_dict(), indent=1))
    else:
        report.print()
    return 1 if report.failed else 0


class _Uncached(SourceFileLoader):
    """Neither reads nor writes bytecode: nothing appears beside a user's file, an edit within a second is seen."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 (the loader's)
        return self.source_to_code(self.get_data(self.path), self.path)


def load_experiment(path: Path) -> Experiment | Sweep:
    """Return the EXPERIMENT of a file; BadInput says what is wrong and at which line."""
    if not path.is_file():
        files = [file for file in EXPERIMENTS.glob("*.py") if "EXPERIMENT = " in file.read_text(encoding="utf-8")]
        known = ", ".join(sorted(file.stem for file in files)) or "none"
        raise BadInput(f"{path}: no such experiment file; in {EXPERIMENTS} there are: {known}")
    if path.suffix != ".py":
        raise BadInput(f"{path}: is no Python file")
    name = f"experiment_{path.stem}"
    loader = _Uncached(name, str(path.resolve()))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    cloudpickle.register_pickle_by_value(module)  # the stage processes cannot import the file: its toggles travel whole
    try:
        loader.exec_module(module)
    except Exception as error:
        raise BadInput(f"{path}, line {_line_of(error, path)}: {type(error).__name__}: {error}") from error
    found = getattr(module, "EXPERIMENT", None)
    if not isinstance(found, Experiment | Sweep):
        raise BadInput(f"{path}: must define EXPERIMENT = Experiment(...) or Sweep(...), has {type(found).__name__}")
    if isinstance(found, Experiment) and not found.question and module.__doc__:
        return replace(found, question=module.__doc__.split("\n\n")[0].strip())
    return found


def _print_plan(plan: Plan, noise: Noise | None, as_json: bool, starts: bool) -> None:
    if as_json:
        print(strict_json(plan.to_dict(), indent=1))
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for line in plan_lines(plan, noise, starts):
        console.print(line)
    for variant in plan.variants:
        names = ", ".join(toggle.name for toggle in variant.toggles) or "no toggle"
        if (setting := plan.settings[variant.name]) and isinstance(setting, Arm):
            names = setting.line
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
