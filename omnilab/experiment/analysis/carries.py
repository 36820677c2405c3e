"""What a result of this machine is worth on another: said of every variant, and of what was not exercised at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from omnilab.experiment.analysis.findings import Effect

Row: TypeAlias = Mapping[str, Any]
FRAME_MS = 80.0  # of audio
PLACEMENT = frozenset({"save", "engine_wait", "receive_wait", "worker_link"})  # which thread does it, and when it wakes
COMPUTE = frozenset({"vocode", "decode_step", "predict_codes"})
STAGES = 3
SERVERS = "servers"  # topology of arms


def carries(run: Row, seams: Sequence[str], host: Effect | None) -> str:
    """Say what of a variant's result carries over to a GPU. `host`: its effect on the Talker's host ms a step."""
    if run.get("arms"):
        return "a server's own speed: holds for this machine, these settings and requests"
    if run["cuda"]:
        return "measured on a GPU: holds for this GPU and host"
    parts = ["counts, bytes and rows: exactly"]
    if host is not None and host.before is not None and host.after is not None:
        saved = host.after - host.before
        parts.append(f"host time in kind: {saved:+.2f} ms a step, {100 * saved / FRAME_MS:+.1f} % of an 80 ms frame")
    parts.append("wall time and first packets: no")
    if _kinds(seams) & PLACEMENT:
        parts.append("it moves work between threads, which shows only where cores are free: measure it there")
    if _kinds(seams) & COMPUTE:
        parts.append("it changes compute, which a GPU does otherwise: measure it there")
    return "; ".join(parts)


def in_short(run: Row, seams: Sequence[str]) -> str:
    """Return the same in a table's cell."""
    if run.get("arms"):
        return "this machine"
    if run["cuda"]:
        return "this GPU and host"
    return "counts; else measure there" if _kinds(seams) & (PLACEMENT | COMPUTE) else "counts, host ms in kind"


def _kinds(seams: Sequence[str]) -> set[str]:
    """Return seams without the engine that they are of: vllm_omni.save moves work as the lab's save does."""
    return {seam.rpartition(".")[2] for seam in seams}


def limits(run: Row) -> list[str]:
    """List what this run cannot show, whatever its numbers."""
    found = []
    cores = run["machine"]["cores"]
    if run.get("arms"):
        found.append(
            "servers are looked at from outside: no counters, no spans, so nothing says why one is faster; the client "
            "runs on the same machine and takes a part of it"
        )
    elif not run["cuda"]:
        found.append(
            "measured on a CPU: counters, bytes and rows carry over to a GPU exactly, growth with length and "
            "interactions as laws, host milliseconds in kind; ratios of wall time and of first packets do not"
        )
        found.append("not exercised: copies between device and host, CUDA graphs, fused mixture-of-experts kernels")
    if run.get("subject"):
        found.append(
            "an engine of another's is looked at through counters and sums: no single spans, so no critical path, and "
            "its host time holds accumulate and merge alone, neither get nor pickle"
        )
    if cores <= STAGES and run["topology"] == "processes":
        found.append(
            f"{cores} cores for {STAGES} busy stages and their workers: work that runs beside the critical path "
            "competes with it, so async save and waits cannot show their worth in time"
        )
    if run["topology"] not in ("processes", SERVERS):
        found.append(f"topology {run['topology']}: one process, so nothing is pickled and no stage runs beside another")
    if run["gate"] is not None:
        asked = [request["prompt"] for request in run["gate"]["requests"]]
        blind = [what for what in ("audio", "image") if not any(prompt.get(what) for prompt in asked)]
        if blind:
            found.append(
                f"the gate had no prompt with {' or '.join(blind)}: lost layer-24 rows would not have been seen"
            )
    concurrency = run["workload"]["arrivals"].get("max_concurrency")
    if concurrency == 1:
        found.append("one request at a time: nothing about load")
    return found
