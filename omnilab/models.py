"""Write a named size as a Hugging Face folder: `python -m omnilab.models thin --out FOLDER`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from omnilab.errors import BadInput, Error
from omnilab.model.config import SIZES
from omnilab.model.folder import write_folder

WRITTEN_SIZES = tuple(size for size in SIZES if size != "full")  # full is made on the device


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 0 done, 1 failed, 2 bad input."""
    parser = argparse.ArgumentParser(
        prog="omnilab models", description="Write a named size as a Hugging Face folder: config, tokenizer, weights."
    )
    parser.add_argument("size", help=f"one of {', '.join(WRITTEN_SIZES)}")
    parser.add_argument("--out", type=Path, required=True, help="folder to make; must not exist, or be empty")
    arguments = parser.parse_args(argv)
    try:
        print(f"wrote {write(arguments.size, arguments.out)}")
    except BadInput as error:
        print(f"omnilab models: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"omnilab models: {arguments.out} cannot be written ({error.strerror}): name another", file=sys.stderr)
        return 2
    except Error as error:
        print(f"omnilab models: {error}", file=sys.stderr)
        return 1
    return 0


def write(size: str, out: Path) -> Path:
    """Write a size; BadInput for one that is not written to disk, or for a folder that holds something."""
    if size not in WRITTEN_SIZES:
        raise BadInput(f"no size {size!r} can be written: use one of {', '.join(WRITTEN_SIZES)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} is not an empty folder: name another")
    return write_folder(size, out)


if __name__ == "__main__":
    raise SystemExit(main())
