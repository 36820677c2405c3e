"""`python -m omnilab.serve`: a pipeline behind the HTTP interface of OpenAI, vLLM and vLLM-Omni, and a page."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from omnilab.command import run_typer
from omnilab.errors import BadInput
from omnilab.serve.limits import MIB, Allowed, Limits

NEED = "pip install 'omnilab[serve]'"
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def serve(
    model: Annotated[str, typer.Option(help="size name, folder or hub id")] = "thin",
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 for every one")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port; 0 for any that is free")] = 8091,
    recipe: Annotated[str, typer.Option(help="a named recipe")] = "BEST",
    toggles: Annotated[str | None, typer.Option(help="a,b,c: turned on over the recipe")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0")] = "auto",
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16; default by device")] = None,
    served_model_name: Annotated[str | None, typer.Option(help="the name clients ask for; default --model")] = None,
    max_num_seqs: Annotated[int, typer.Option(help="requests that run at once")] = 8,
    max_waiting: Annotated[int, typer.Option(help="requests that wait; more get 429")] = 128,
    max_model_len: Annotated[int | None, typer.Option(help="tokens of prompt and answer; default the model's")] = None,
    codec_chunk_frames: Annotated[int, typer.Option(help="frames of 80 ms in an audio chunk")] = 25,
    api_key: Annotated[
        str | None, typer.Option(envvar="OMNILAB_API_KEY", help="asked of every request but /health")
    ] = None,
    allow_url: Annotated[list[str] | None, typer.Option(help="https host to fetch media from; may be repeated")] = None,
    allow_files: Annotated[
        list[Path] | None, typer.Option(help="folder that file: URLs may read; may be repeated")
    ] = None,
    max_body_mib: Annotated[int, typer.Option(help="largest body")] = 32,
    max_audio_s: Annotated[float, typer.Option(help="longest sound of a prompt")] = 300,
    max_image_mp: Annotated[float, typer.Option(help="most megapixels of an image of a prompt")] = 16,
    profile_dir: Annotated[Path | None, typer.Option(help="folder for /start_profile")] = None,
) -> None:
    """Serve a pipeline until Ctrl-C or SIGTERM.

    Exit: 0 ended, 1 a stage did not start, 2 bad input or an address that cannot be used (nothing was loaded).
    """
    _need()
    _check_numbers(
        {"--max-num-seqs": max_num_seqs, "--codec-chunk-frames": codec_chunk_frames, "--max-body-mib": max_body_mib}
    )
    if not 0 <= port <= 65535 or max_waiting < 0 or not 0 < max_audio_s < 1e5 or not 0 < max_image_mp < 1e4:
        raise BadInput("--port lies in 0..65535, --max-waiting is 0 or more, sizes are above 0 and finite")
    if api_key is not None and not (api_key.strip() == api_key and api_key.isprintable() and api_key):
        raise BadInput("--api-key: give printable characters without spaces around them")
    limits = replace(
        Limits(), body_bytes=max_body_mib * MIB, media_bytes=max_body_mib * MIB * 3 // 4, audio_s=max_audio_s,
        image_pixels=int(1e6 * max_image_mp),
    )  # fmt: skip
    allowed = Allowed(hosts=frozenset(map(_host, allow_url or ())), folders=tuple(map(_folder, allow_files or ())))

    from omnilab.recipe import recipe_with
    from omnilab.recipes import recipe_named
    from omnilab.serve.server import Server
    from omnilab.serve.service import Served

    names = [name.strip() for name in (toggles or "").split(",") if name.strip()]
    chosen = recipe_with(*names, base=recipe_named(recipe))
    served = Served(
        model=served_model_name or model, recipe=" + ".join([recipe, *names]), changed=chosen.changed(),
        max_running=max_num_seqs, max_waiting=max_waiting, api_key=api_key, limits=limits, allowed=allowed,
        profile_dir=None if profile_dir is None else str(profile_dir),
    )  # fmt: skip
    opening = {
        "device": device, "dtype": dtype, "max_model_len": max_model_len, "codec_chunk_frames": codec_chunk_frames,
    }  # fmt: skip
    Server(served=served, model=model, recipe=chosen, host=host, port=port, opening=opening, version=_version()).run()


def _version() -> str:
    try:
        return version("omnilab")
    except PackageNotFoundError:
        return "0"


def _need() -> None:
    missing = [name for name in ("starlette", "uvicorn", "prometheus_client", "torch") if find_spec(name) is None]
    if missing:
        raise BadInput(f"{', '.join(missing)}: not installed: {NEED}")


def _check_numbers(given: dict[str, int]) -> None:
    for name, value in given.items():
        if value < 1:
            raise BadInput(f"{name}: must be 1 or more, not {value}")


def _host(text: str) -> str:
    host = text.lower()
    if not host or any(mark in host for mark in "/@ *?#"):
        raise BadInput(f"--allow-url {text}: give a host, or host:port, as in cdn.example.org")
    return host.removesuffix(":443")


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise BadInput(f"--allow-files {path}: is no folder")
    return path.resolve()


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_typer(app, argv, "serve")


if __name__ == "__main__":
    sys.exit(main())
