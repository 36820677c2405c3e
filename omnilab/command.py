"""What all command lines share: exit statuses, and one clear line instead of a traceback for what is bad input."""

from __future__ import annotations

import sys

import typer
from click.exceptions import Abort, ClickException, Exit

from omnilab.errors import BadInput, Error

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def run_typer(app: typer.Typer, argv: list[str] | None, name: str) -> int:
    """Run a typer application; return 0 done, 1 failed, 2 bad input, 130 interrupted."""
    try:
        status = app(args=argv, prog_name=f"omnilab {name}", standalone_mode=False)
    except Exit as ended:
        return ended.exit_code
    except ClickException as error:
        return _say(f"omnilab {name}: {error.format_message()}", BAD_INPUT)
    except BadInput as error:
        return _say(f"omnilab {name}: {error}", BAD_INPUT)
    except (KeyboardInterrupt, Abort):
        return _say(f"omnilab {name}: interrupted; what was finished is kept", INTERRUPTED)
    except Error as error:
        return _say(f"omnilab {name}: {type(error).__name__}: {error}", FAILED)
    return status if isinstance(status, int) else DONE


def _say(text: str, status: int) -> int:
    print(text, file=sys.stderr)
    return status
