"""torch.profiler in one process of a stage: a few steps of it, in a file that torch-tb-profiler and Perfetto read.

The first step that is looked at is thrown away: it warms the profiler up, and what it weighs says how many steps fit
into the limit. Each file says under the key "omnilab" of which process it is, how its threads are called, and when by
`time.monotonic_ns` some marks were made, which is how its clock is brought onto that of the spans.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnilab.engine.profiling import Kept

LIMIT_BYTES = 50_000_000  # of a trace, unpacked
STEPS = 4
SKIPPED = {"thinker": 1, "talker": 1, "code2wav": 0}  # steps before the first that is looked at: a prefill
CLOCK, MARKS = "omnilab/clock", 10
STEP = "ProfilerStep#"  # the name by which torch-tb-profiler knows a step
ENDING = ".pt.trace.json.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchTrace:
    """Makes the profiler of a process; travels to it.

    With all threads torch records no memory, so `memory` records the thread that steps and no other.
    """

    folder: str
    steps: int = STEPS
    memory: bool = False
    limit_bytes: int = LIMIT_BYTES

    def __call__(self, worker: str) -> TorchProfiler:
        """Make it."""
        return TorchProfiler(self, worker)


class TorchProfiler:
    """Satisfies omnilab.engine.profiling.Profiler."""

    def __init__(self, wanted: TorchTrace, worker: str) -> None:
        self._wanted, self._worker = wanted, worker
        self._skip = SKIPPED[worker.partition(".")[0]]
        self._seen, self._allowed = 0, wanted.steps
        self._probe: _Window | None = None
        self._window: _Window | None = None

    def prepare(self) -> None:
        """Bring torch's profiler up, which takes seconds once; quietly, unless the user has set its log level."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        warm = _Window(self._wanted.memory)
        warm.open()
        warm.close()

    def start(self) -> None:
        """Begin, or wait for the steps that are skipped."""
        if self._skip == 0:
            self._probe = _opened(self._wanted.memory)

    def step(self) -> None:
        """Go on: skip, throw one away, record, be done."""
        self._seen += 1
        if self._probe is None:
            if self._seen == self._skip:
                self._probe = _opened(self._wanted.memory)
        elif self._window is None:
            self._probe.step()
            self._probe.close()
            self._allowed = self._that_fit(len(self._probe.exported()))
            self._window = _opened(self._wanted.memory)
        elif self._window.is_open:
            self._window.step()
            if self._window.steps == self._allowed:
                self._window.close()

    def stop(self) -> Kept:
        """Write the file; with no step recorded there is none."""
        for window in (self._probe, self._window):
            if window is not None and window.is_open:
                window.close()
        if self._window is None or self._window.steps == 0:
            passed = min(self._seen, self._skip + 1)
            return Kept(notes=[f"no steps recorded: it made {self._seen}, of which the first {passed} are not kept"])
        text = self._window.exported()
        path = self._write(text)
        return Kept(self._window.steps, {str(path): len(text)}, self._notes(len(text)))

    def _that_fit(self, one_step: int) -> int:
        return max(1, min(self._wanted.steps, self._wanted.limit_bytes // max(1, one_step)))

    def _notes(self, num_bytes: int) -> list[str]:
        assert self._window is not None
        recorded, asked, limit = self._window.steps, self._wanted.steps, self._wanted.limit_bytes / 1e6
        notes = []
        if self._allowed < asked and recorded == self._allowed:
            notes.append(f"stopped after {recorded} of {asked} steps: more would pass {limit:g} MB")
        elif recorded < asked:
            notes.append(f"recorded {recorded} of {asked} steps: the workload made no more")
        if num_bytes > self._wanted.limit_bytes:
            notes.append(f"its trace has {num_bytes / 1e6:.0f} MB, more than {limit:g}: take fewer --steps")
        return notes

    def _write(self, text: bytes) -> Path:
        assert self._window is not None
        facts = {
            "worker": self._worker, "pid": os.getpid(), "steps": self._window.steps, "bytes": len(text),
            "threads": {thread.native_id: thread.name for thread in threading.enumerate()},
            "marks": self._window.marks,
        }  # fmt: skip
        start = text.index(b"{") + 1
        body = b'{"omnilab": ' + json.dumps(facts).encode() + b", " + text[start:]
        path = Path(self._wanted.folder) / f"{self._worker}.{time.time_ns()}{ENDING}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(body, compresslevel=6))
        return path


class _Window:
    """A stretch of steps that is recorded, all on one thread."""

    def __init__(self, memory: bool) -> None:
        import torch
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized():  # by this process: an engine apart from its runner has no GPU work
            activities.append(ProfilerActivity.CUDA)
        settings: dict[str, Any] = {"profile_memory": True}
        if not memory:
            settings = {"experimental_config": _ExperimentalConfig(profile_all_threads=True)}
        self._profile = profile(activities=activities, **settings)
        self._step: Any = None
        self.steps, self.is_open = 0, False
        self.marks: list[tuple[int, int]] = []  # monotonic ns before and after each mark

    def open(self) -> None:
        """Begin with the marks and the first step."""
        self._profile.start()
        self.is_open = True
        self._mark()
        self._enter()

    def step(self) -> None:
        """End a step, begin the next."""
        self._step.__exit__(None, None, None)
        self.steps += 1
        self._enter()

    def close(self) -> None:
        """End; the step under way is not counted."""
        self.is_open = False
        self._step.__exit__(None, None, None)
        self._mark()
        self._profile.stop()

    def exported(self) -> bytes:
        """Return the trace as JSON. The step that was under way at the end is no step by its name."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            return path.read_bytes().replace(f'"{STEP}{self.steps}"'.encode(), b'"after the last step"')

    def _enter(self) -> None:
        from torch.profiler import record_function

        self._step = record_function(f"{STEP}{self.steps}")
        self._step.__enter__()

    def _mark(self) -> None:
        from torch.profiler import record_function

        for _ in range(MARKS):
            before = time.monotonic_ns()
            with record_function(CLOCK):
                pass
            self.marks.append((before, time.monotonic_ns()))


def _opened(memory: bool) -> _Window:
    window = _Window(memory)
    window.open()
    return window
