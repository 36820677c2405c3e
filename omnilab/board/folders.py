"""Which run folders lie where TensorBoard looks."""

from __future__ import annotations

import os
from pathlib import Path

from omnilab.profile.files import TRACES

DEEPEST = 4  # folders below the logdir: one of a whole disk must not hang the tab
MOST = 200
RUN = ("run.json", "trials.jsonl")


def find_runs(logdir: str | Path) -> dict[str, Path]:
    """Return the run folders at and below `logdir` by name, their path from it; its own name where it is the run.

    For RUN/traces it is RUN. Damaged ones are among them: a folder with run.json or trials.jsonl. Links are not
    followed; not more than MOST are returned, from not deeper than DEEPEST folders down.
    """
    root = Path(logdir).expanduser().absolute() if str(logdir) else None
    if root is None:
        return {}
    if root.name == TRACES and _is_run(root.parent):
        root = root.parent
    found: dict[str, Path] = {}
    for at, folders, _ in os.walk(root):
        path = Path(at)
        if _is_run(path):
            found[path.relative_to(root).as_posix() if path != root else path.name or "run"] = path
            folders.clear()
        elif len(path.relative_to(root).parts) >= DEEPEST:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if len(found) == MOST:
            break
    return found


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in RUN)
