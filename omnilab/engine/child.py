"""How a process of a pipeline begins: `python -m omnilab.engine.child stage_process|worker FD ...`.

Importing torch and transformers makes a million objects that live as long as the process. While they come, collecting
garbage finds nothing and takes a fifth of the start; later each full collection would walk them, in the middle of a
step. So there is no collection until the runner is there, and what is there by then is left out of those that follow,
as vLLM's engine does.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

PROCESSES = ("stage_process", "worker")  # modules of this package that have a main()


def settle() -> None:
    """Collect garbage from here on, but never what the start has made."""
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    gc.disable()
    name = sys.argv.pop(1)
    assert name in PROCESSES, name
    raise SystemExit(import_module(f"omnilab.engine.{name}").main())
