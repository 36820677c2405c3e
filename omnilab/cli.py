"""`omnilab NAME` is `python -m omnilab.NAME`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, version

COMMANDS = {
    "ablate": "which optimization pays on this workload and machine, and is the output still the same",
    "verify": "recompute a run's report from its rows; needs no torch",
    "compare": "does a second run repeat the first, and may the two be compared",
    "pack": "one zip of a run to attach to a pull request",
    "trace": "the spans of a run as traces for Perfetto, and as TensorBoard's summaries",
    "profile": "torch traces, a merged trace and flame graphs of every stage, in passes of their own",
    "export": "the requests of a run as OpenTelemetry traces",
    "bench": "requests at any omni server, or at the pipeline in process; the report as vLLM-Omni prints it",
    "serve": "an OpenAI-compatible server of the pipeline",
    "models": "write a named size as a Hugging Face folder",
    "check": "what this machine can run, and what to install",
}


def main(argv: list[str] | None = None) -> int:
    """Run the named command with the rest of the arguments; return its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(_version())
        return 0
    if arguments[0] not in COMMANDS:
        print(f"omnilab: no command {arguments[0]!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return importlib.import_module(_module(arguments[0])).main(arguments[1:])


def _module(name: str) -> str:
    """Return the module of a command; a room that is one has it in its `__main__`."""
    spec = importlib.util.find_spec(f"omnilab.{name}")
    assert spec is not None
    return f"omnilab.{name}" if spec.submodule_search_locations is None else f"omnilab.{name}.__main__"


def usage() -> str:
    """Return the list of commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(["omnilab NAME [arguments]; NAME --help says more", "", *lines])


def _version() -> str:
    try:
        return f"omnilab {version('omnilab')}"
    except PackageNotFoundError:
        return "omnilab, from a source folder that is not installed"


if __name__ == "__main__":
    sys.exit(main())
