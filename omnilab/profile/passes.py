"""The passes of a profile: the same workload under one profiler after the other, and once under none.

Nothing here is a measurement: a pass says what it cost. One that fails leaves the trial's result and the other passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omnilab.clock import ENGINE, RUNNER
from omnilab.engine import messages as m
from omnilab.engine.profiling import MakeProfiler
from omnilab.engine.spec import STAGES
from omnilab.errors import Error
from omnilab.experiment.plan import warm_up
from omnilab.experiment.results import strict_json
from omnilab.profile.files import MERGED, trace_folder
from omnilab.profile.merge import merged_trace, write_merged
from omnilab.profile.sampling import sampled
from omnilab.profile.torch_trace import ENDING, LIMIT_BYTES, STEPS, TorchTrace
from omnilab.profile.watched import ProfiledPipeline
from omnilab.trial import Trial
from omnilab.workload import Workload

PASSES = ("torch", "memory", "pyspy")
MEMORY, FLAME = "memory", "flame"


OpenProfiled = Callable[[], ProfiledPipeline]


@dataclass(slots=True, kw_only=True)
class Pass:
    """One pass over a variant: wall times with and without its profiler, what it wrote, what is missing."""

    name: str
    wall_s: float | None = None
    plain_s: float | None = None
    took_s: float = 0.0  # the whole pass: profilers started and ended, files written
    files: list[dict[str, Any]] = field(default_factory=list)  # path below the folder, bytes, and what it holds
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def cost(self) -> float | None:
        """Wall time with the profiler over that without: one run each, so a rough figure."""
        return self.wall_s / self.plain_s if self.wall_s and self.plain_s else None


@dataclass(slots=True, kw_only=True)
class Profile:
    """What the passes over one variant gave; `trials` by pass, "plain" for that without a profiler."""

    variant: str
    passes: list[Pass] = field(default_factory=list)
    trials: dict[str, Trial] = field(default_factory=dict)

    @property
    def missing(self) -> bool:
        """Is anything of a pass missing?"""
        return any(one.missing for one in self.passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """What is asked: which passes, on which workload, into which folder (a folder a variant, and `flame`)."""

    root: Path
    workload: Workload
    passes: tuple[str, ...] = PASSES
    steps: int = STEPS
    limit_bytes: int = LIMIT_BYTES
    native: bool = False
    unavailable: Mapping[str, str] = field(default_factory=dict)  # passes that cannot be had here, and why
    make: Callable[[TorchTrace], MakeProfiler] = lambda wanted: wanted

    def folder(self, variant: str) -> Path:
        """Return where a variant's traces go."""
        return self.root / trace_folder(self.root, variant).name

    def flame(self, variant: str, worker: str) -> Path:
        """Return where py-spy's file of one process goes."""
        return self.root / FLAME / f"{self.folder(variant).name}-{worker}.speedscope.json"

    def there_already(self, variant: str) -> list[Path]:
        """Return the files of an earlier profile of a variant."""
        flames = [self.flame(variant, worker) for stage in STAGES for worker in (stage, f"{stage}.engine")]
        return [*self.folder(variant).glob(f"**/*{ENDING}"), *(path for path in flames if path.exists())]

    def profile(self, variant: str, open_pipeline: OpenProfiled, say: Callable[[str], None]) -> Profile:
        """Run the passes over one variant and write what they give, with profile.json of what it cost."""
        profile = Profile(variant=variant)
        stages = _Stages(open_pipeline, self.workload)
        try:
            say(f"{variant}: once without a profiler, then {', '.join(self.passes)}")
            profile.trials["plain"] = plain = stages.ready().run(self.workload)
            for name in self.passes:
                one = Pass(name=name, plain_s=plain.wall_s)
                profile.passes.append(one)
                began = time.monotonic()
                self._run(one, profile, stages)
                one.took_s = time.monotonic() - began
                for line in lines_of(variant, one, self.root):
                    say(line)
        finally:
            stages.close()
            if profile.trials:
                self._keep(profile)
        return profile

    def _run(self, one: Pass, profile: Profile, stages: _Stages) -> None:
        if one.name in self.unavailable:
            one.missing.append(self.unavailable[one.name])
            return
        run = self._sample if one.name == "pyspy" else self._record
        try:
            trial = run(one, profile.variant, stages.ready())
        except Error as error:
            one.missing.append(f"{type(error).__name__}: {error}")
        else:
            one.wall_s = trial.wall_s
            one.notes += [f"request {r.request_id} failed: {r.error}" for r in trial.records if r.error]
            profile.trials[one.name] = trial
            if one.name == "torch":
                self._try_to_merge(one, profile.variant, trial)
        if one.missing:
            stages.close()  # what is left of a profiler that failed is not to be in the next pass

    def _try_to_merge(self, one: Pass, variant: str, trial: Trial) -> None:
        """Merge, or say what is missing: the stages' own traces are there."""
        try:
            self._merge(one, variant, trial)
        except (Error, OSError) as error:
            one.missing.append(f"{MERGED}: {type(error).__name__}: {error}")

    def _record(self, one: Pass, variant: str, pipeline: ProfiledPipeline) -> Trial:
        memory = one.name == MEMORY
        folder = self.folder(variant) / (MEMORY if memory else "")
        wanted = TorchTrace(folder=str(folder), steps=self.steps, memory=memory, limit_bytes=self.limit_bytes)
        with pipeline.profiled(self.make(wanted)) as answers:
            trial = pipeline.run(self.workload)
        for answer in answers:
            self._take(one, answer)
        return trial

    def _take(self, one: Pass, answer: m.Profiled) -> None:
        if answer.error is not None:
            one.missing.append(f"{answer.worker}: {answer.error}")
        one.notes += [f"{answer.worker}: {note}" for note in answer.notes]
        for name, unpacked in answer.files.items():
            file = self._file(Path(name), worker=answer.worker, steps=answer.steps, unpacked_bytes=unpacked)
            one.files.append(file)

    def _merge(self, one: Pass, variant: str, trial: Trial) -> None:
        traces = [self.root / file["path"] for file in one.files]
        trace = merged_trace(trial.span_rows, traces, trial=f"{variant}, profiled", ahead=_clocks(trial))
        path = self.folder(variant) / MERGED
        had = path.is_file()
        unpacked = write_merged(path, trace)
        one.files.append({**self._file(path), "unpacked_bytes": unpacked, **trace["metadata"]})
        if had:
            one.notes.append(f"{path}: was there already, and is that of this profile now")

    def _sample(self, one: Pass, variant: str, pipeline: ProfiledPipeline) -> Trial:
        processes = pipeline.processes()
        paths = {worker: self.flame(variant, worker) for worker in processes}
        with sampled(processes, paths, native=self.native) as samplers:
            trial = pipeline.run(self.workload)
        one.missing += [sampler.error for sampler in samplers if sampler.error]
        one.files += [self._file(s.path, worker=s.worker) for s in samplers if s.path.is_file()]
        return trial

    def _file(self, path: Path, **more: Any) -> dict[str, Any]:
        return {"path": str(path.relative_to(self.root)), "bytes": path.stat().st_size, **more}

    def _keep(self, profile: Profile) -> None:
        kept = {
            "variant": profile.variant, "workload": self.workload.to_dict(),
            "passes": [{**asdict(one), "cost": one.cost} for one in profile.passes],
        }  # fmt: skip
        path = self.folder(profile.variant) / "profile.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(strict_json(kept, indent=1) + "\n", encoding="utf-8")


class _Stages:
    """Warm stages, opened again after a failure."""

    def __init__(self, open_pipeline: OpenProfiled, workload: Workload) -> None:
        self._open, self._workload = open_pipeline, workload
        self._pipeline: ProfiledPipeline | None = None

    def ready(self) -> ProfiledPipeline:
        """Return them; a stage that does not start is raised."""
        if self._pipeline is not None and self._pipeline.ended:
            self.close()
        if self._pipeline is None:
            self._pipeline = self._open()
            self._pipeline.run(warm_up(self._workload))
        return self._pipeline

    def close(self) -> None:
        """End them."""
        if self._pipeline is not None:
            self._pipeline.close()
        self._pipeline = None


def lines_of(variant: str, one: Pass, root: Path) -> list[str]:
    """Return what is said of a pass: cost, files with their sizes, notes, and what is missing."""
    lines = [f"{variant}, {one.name}{_cost(one)}"]
    for file in one.files:
        unpacked = f", {_size(file['unpacked_bytes'])} unpacked" if "unpacked_bytes" in file else ""
        more = f", {file['steps']} steps" if "steps" in file else ""
        if "torch" in file:  # the merged one
            off_ns = max((worker["clock_error_ns"] for worker in file["torch"].values()), default=0)
            more = f", {file['spans']:,} spans, {file['arrows']:,} arrows, torch's clock within {off_ns / 1000:.1f} µs"
        lines.append(f"  {root / file['path']}: {_size(file['bytes'])}{unpacked}{more}")
    lines += [f"  {note}" for note in one.notes]
    return lines + [f"  MISSING {what}" for what in one.missing]


def _cost(one: Pass) -> str:
    if one.cost is None:
        return ""
    return (
        f": {one.wall_s:.1f} s, {one.plain_s:.1f} s without, so about {one.cost:.2f} x; "
        f"{one.took_s:.0f} s with starting, ending and writing"
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.1f} kB"


def _clocks(trial: Trial) -> dict[str, int]:
    """Return by worker how many ns its clock is ahead of ours."""
    ahead = {key: clock.ahead_ns for key, clock in trial.clocks.items()}
    return {key.removesuffix(f"/{RUNNER}").replace(f"/{ENGINE}", ".engine"): by for key, by in ahead.items()}
