"""One trace of a profiled trial: spans and arrows, below each loop the torch operations of its thread, GPU streams.

A torch trace has another clock. Marks whose monotonic times are known bring it onto that of the spans; how far that may
be wrong is said.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omnilab.errors import RunFolderError
from omnilab.profile.arrows import LOOPS, STAGES
from omnilab.profile.chrome import LOOPS_AT_MOST, Event, chrome_trace
from omnilab.profile.torch_trace import CLOCK
from omnilab.record import SpanRow

HOST = frozenset({"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"})
GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"})
LAUNCHES = "ac2g"  # arrows from a launch to its kernel
FIRST_TORCH_TID = 50  # of a stage: above those of its loops
ORDER = 100  # between two loops: room for the tracks below the first
FIRST_LAUNCH = 1 << 32  # of a trace's launch arrows: above the numbers of chunks


class Shift(NamedTuple):
    """What a torch trace's clock shows beyond the monotonic one, in ns, and by how much that may be wrong."""

    offset_ns: int
    error_ns: int


@dataclass(frozen=True, slots=True)
class TorchFile:
    """A trace that `torch_trace` has written, read."""

    worker: str
    pid: int
    base_ns: int
    threads: Mapping[int, str]
    shift: Shift
    events: Sequence[Event]

    @property
    def stage(self) -> str:
        """The stage of the process."""
        return self.worker.partition(".")[0]

    def monotonic_ns(self, event: Event) -> int:
        """When an event began, on the process's monotonic clock."""
        return self.base_ns + round(event["ts"] * 1000) - self.shift.offset_ns


def merged_trace(
    spans: Iterable[SpanRow], files: Iterable[Path], *, trial: str = "", ahead: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the spans of a trial and what torch recorded in its processes as Chrome trace JSON.

    `ahead` are ns, by worker ("talker", "talker.engine"), that its monotonic clock is ahead of that of the spans.
    `metadata` gives of each worker its torch events and the error of its clock. RunFolderError for a file that cannot
    be read.
    """
    trace = chrome_trace(spans, trial=trial)
    start_ns, metadata = trace["metadata"]["start_ns"], trace["metadata"]
    tracks = _Tracks(trace["traceEvents"])
    metadata["torch"], timed = {}, list[Event]()
    for number, path in enumerate(files, 1):
        file = read_torch(path)
        begin_ns = start_ns + (ahead or {}).get(file.worker, 0)
        ours = list(_moved(file, tracks, begin_ns, number * FIRST_LAUNCH))
        slices = sum(event["ph"] == "X" for event in ours)
        metadata["torch"][file.worker] = {"events": slices, "clock_error_ns": file.shift.error_ns}
        timed += ours
    timed.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    trace["traceEvents"] = [*tracks.named(), *(e for e in trace["traceEvents"] if e["ph"] != "M"), *timed]
    return trace


def write_merged(path: Path, trace: Mapping[str, Any]) -> int:
    """Write a trace gzipped; return its size before."""
    text = json.dumps(trace, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, compresslevel=6, mtime=0))
    return len(text)


def read_torch(path: Path) -> TorchFile:
    """Read a trace of `torch_trace`; RunFolderError when it is damaged or of another tool."""
    try:
        trace = json.loads(gzip.decompress(path.read_bytes()))
        facts, base_ns = trace["omnilab"], trace.get("baseTimeNanoseconds", 0)
        events = [event for event in trace["traceEvents"] if event.get("cat")]
        marks = [event for event in events if event["name"] == CLOCK]
        shift = shift_of(base_ns, marks, facts["marks"])
        threads = {int(tid): name for tid, name in facts["threads"].items()}
        kept = [event for event in events if event["name"] != CLOCK]
        return TorchFile(facts["worker"], facts["pid"], base_ns, threads, shift, kept)
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{path}: is no trace of omnilab.profile, or is damaged: {error!r}") from error


def shift_of(base_ns: int, marks: Sequence[Event], known: Sequence[Sequence[int]]) -> Shift:
    """Return the shift from marks and the monotonic ns right before and after each; ValueError when one is missing.

    A mark lies somewhere between the two; of those at either end of the recording the one known best counts. Clocks
    drift: half of what the two ends differ is added to the error.
    """
    if len(marks) != len(known) or len(known) < 2:
        raise ValueError(f"it has {len(marks)} marks of the clock, not {len(known)}")
    shifts = []
    for mark, (before, after) in zip(sorted(marks, key=lambda mark: mark["ts"]), known, strict=True):
        spare = max(0, after - before - round(mark["dur"] * 1000))
        shifts.append(Shift(base_ns + round(mark["ts"] * 1000) - before - spare // 2, spare // 2 + 1))
    middle = len(shifts) // 2
    first, last = (min(half, key=lambda shift: shift.error_ns) for half in (shifts[:middle], shifts[middle:]))
    drift = abs(first.offset_ns - last.offset_ns)
    return Shift((first.offset_ns + last.offset_ns) // 2, max(first.error_ns, last.error_ns) + (drift + 1) // 2)


class _Tracks:
    """Pids and tids: those of the spans as `chrome` gave them, and a track below a loop for its thread's operations."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._names = [event for event in events if event["ph"] == "M"]
        self._orders = {
            event["tid"]: event["args"]["sort_index"] for event in self._names if event["name"] == "thread_sort_index"
        }
        self._named = {event["pid"] for event in self._names}
        self._places: dict[tuple[str, str], tuple[int, int]] = {}

    def place(self, stage: str, name: str, below: str | None) -> tuple[int, int]:
        """Return pid and tid of a track by its name; `below` is the loop that it stands under."""
        if (stage, name) not in self._places:
            pid = STAGES.index(stage) + 1
            tid = pid * LOOPS_AT_MOST + FIRST_TORCH_TID + len(self._places)
            self._places[stage, name] = pid, tid
            loops = LOOPS.index(below) + 1 if below in LOOPS else len(LOOPS) + 1
            self._add(stage, name, pid, tid, ORDER * (pid * LOOPS_AT_MOST + loops) + len(self._places))
        return self._places[stage, name]

    def named(self) -> list[Event]:
        """Return the events that name the tracks, in their order from top to bottom."""
        for event in self._names:
            if event["name"] == "thread_sort_index" and event["tid"] in self._orders:
                event["args"]["sort_index"] = ORDER * self._orders.pop(event["tid"])
        return self._names

    def _add(self, stage: str, name: str, pid: int, tid: int, order: int) -> None:
        said: dict[str, dict[str, Any]] = {"thread_name": {"name": name}, "thread_sort_index": {"sort_index": order}}
        if pid not in self._named:  # the stage has no spans
            said |= {"process_name": {"name": stage}, "process_sort_index": {"sort_index": pid}}
            self._named.add(pid)
        self._names += [{"ph": "M", "pid": pid, "tid": tid, "name": key, "args": args} for key, args in said.items()]


def _moved(file: TorchFile, tracks: _Tracks, begin_ns: int, first_arrow: int) -> Iterator[Event]:
    """Yield a trace's events on the tracks and the clock of the merged one; what came before its start is left out."""
    for event in file.events:
        category, phase = event["cat"], event["ph"]
        if phase == "X" and category in HOST | GPU:
            more = {"dur": event["dur"], "args": event.get("args", {})}
        elif phase in "sf" and category == LAUNCHES:
            more = {"id": first_arrow + int(event["id"])} | ({"bp": "e"} if phase == "f" else {})
        else:
            continue
        pid, tid = tracks.place(file.stage, *_track(file, event))
        ts = (file.monotonic_ns(event) - begin_ns) / 1000
        if ts >= 0:
            yield {"ph": phase, "pid": pid, "tid": tid, "ts": ts, "name": event["name"], "cat": category, **more}


def _track(file: TorchFile, event: Event) -> tuple[str, str | None]:
    """Return the name of an event's track and the loop that it stands under."""
    if event["pid"] != file.pid:  # then it is a device's number, and the tid a stream's
        return f"{file.stage}/GPU {event['pid']} stream {event['tid']}", None
    thread = file.threads.get(int(event["tid"]), f"{file.stage}/thread {event['tid']}")
    return f"{thread} torch", thread.partition("/")[2]
