"""What all command lines share: exit statuses, and one clear line instead of a traceback for what is bad input."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from omnilab.errors import BadInput, Error

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
# Newer typer carries a click of its own, older ones import click's: this name is the same in both.
UsageProblem = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def run_typer(app: typer.Typer, argv: list[str] | None, name: str) -> int:
    """Run a typer application; return 0 done, 1 failed, 2 bad input, 130 interrupted."""
    try:
        with _terminated_as_interrupted():
            status = app(args=argv, prog_name=f"omnilab {name}", standalone_mode=False)
    except typer.Exit as ended:
        status = ended.exit_code
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except BadInput as error:
        return _say(f"omnilab {name}: {error}", BAD_INPUT)
    except Error as error:
        return _say(f"omnilab {name}: {type(error).__name__}: {error}", FAILED)
    except Exception as error:
        if not isinstance(error, UsageProblem):
            raise
        said = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
        return _say(f"omnilab {name}: {' '.join(said.split())}", BAD_INPUT)
    if status == INTERRUPTED:
        return _say(f"omnilab {name}: interrupted; what was finished is kept", INTERRUPTED)
    return status if isinstance(status, int) else DONE


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM unwind as Ctrl-C does: the default ends a process with servers and shared memory still there."""
    if threading.current_thread() is not threading.main_thread():  # only that one may set handlers, or gets signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(text: str, status: int) -> int:
    print(text, file=sys.stderr)
    return status
