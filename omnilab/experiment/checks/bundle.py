"""A run as one zip to attach to a pull request, and back. One run gives the same bytes each time."""

from __future__ import annotations

import hashlib
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from omnilab.errors import BadInput, Error, RunFolderError
from omnilab.experiment.analysis.waited import KEPT
from omnilab.experiment.checks.verification import MANIFEST, SPANS, TABLES, read_manifest, verify
from omnilab.experiment.reports.report import write_reports
from omnilab.experiment.reports.timeline import KEPT as TIMELINE
from omnilab.experiment.results import strict_json

FORMAT = 1
MOST_BYTES = 2 << 30  # of all files of a zip, unpacked
TOLD = 5  # differences named when a run is refused
ALWAYS = ("run.json", "trials.jsonl", "report.md", "report.html", KEPT, TIMELINE, "figures")
AUDIO = "audio"
EARLIEST = (1980, 1, 1, 0, 0, 0)  # a zip knows no earlier time
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


class Unverified(Error):
    """A run that says something else than its rows give; names the first differences."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A zip that was written: how many files it holds, its size, and how many files of what were left out."""

    path: Path
    files: int
    size: int
    left_out: dict[str, int]


def pack(folder: Path, out: Path | None = None, *, audio: bool = False, spans: bool = True) -> Packed:
    """Write a verified run into one zip, with the hash of every file; `out` None: RUN.zip beside the folder.

    RunFolderError when it is no run, BadInput when `out` exists, Unverified when its rows give other numbers.
    """
    target = folder.resolve().with_name(folder.resolve().name + ".zip") if out is None else out
    if target.exists():
        raise BadInput(f"{target}: exists already; name another with --out")
    if differences := verify(folder).differences:
        first = "".join(f"\n  {difference}" for difference in differences[:TOLD])
        raise Unverified(f"{folder}: {len(differences)} differences from its rows, so it is not packed:{first}")
    chosen = (*ALWAYS, *(table for table in TABLES if spans or table != SPANS), *([AUDIO] if audio else []))
    files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    every = {file.relative_to(folder).as_posix(): file for file in files if file != folder / MANIFEST}
    packed = {name: file.read_bytes() for name, file in every.items() if name.split("/")[0] in chosen}
    counts = Counter(name.split("/")[0] for name in every if name not in packed)
    left_out = dict(sorted({**_left_out_before(folder, packed), **counts}.items()))
    hashes = {name: hashlib.sha256(packed[name]).hexdigest() for name in sorted(packed)}
    manifest = {"format": FORMAT, "files": hashes, "left_out": left_out}
    packed[MANIFEST] = (strict_json(manifest, indent=1) + "\n").encode()
    _write(target, packed)
    return Packed(target, len(packed), target.stat().st_size, left_out)


def rewrite(folder: Path) -> None:
    """Write the reports of a run anew from its rows, as this version words and draws them."""
    manifest = read_manifest(folder)
    shutil.rmtree(folder / "figures", ignore_errors=True)  # this version may draw others
    write_reports(folder)
    if manifest:
        files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != MANIFEST)
        hashes = {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        (folder / MANIFEST).write_text(strict_json({**manifest, "files": hashes}, indent=1) + "\n", encoding="utf-8")


def _left_out_before(folder: Path, packed: dict[str, bytes]) -> dict[str, int]:
    """Return what the zip had left out that this folder was unpacked from."""
    there = {name.split("/")[0] for name in packed}
    return {name: count for name, count in read_manifest(folder).get("left_out", {}).items() if name not in there}


def _write(target: Path, packed: dict[str, bytes]) -> None:
    try:
        with zipfile.ZipFile(target, "x") as archive:
            for name in sorted(packed):
                info = zipfile.ZipInfo(name, EARLIEST)
                info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16  # as on Unix, wherever
                # row files are compressed already
                kind = zipfile.ZIP_STORED if name.endswith(".parquet") else zipfile.ZIP_DEFLATED
                archive.writestr(info, packed[name], kind, compresslevel=9)
    except OSError as error:
        if not isinstance(error, FileExistsError):
            with suppress(OSError):
                target.unlink(missing_ok=True)
        raise BadInput(f"{target}: cannot be written: {error.strerror or error}; name another with --out") from error


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """Give a run folder as it is, and a zip as a temporary folder; RunFolderError for anything else."""
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="omnilab-") as folder:
        root = unpack(path, Path(folder))
        try:
            yield root
        except RunFolderError as error:
            raise RunFolderError(str(error).replace(str(root), str(path))) from error


def unpack(path: Path, into: Path) -> Path:
    """Unpack a zip into an empty folder; return where run.json is: there, or in the one folder that the zip holds.

    RunFolderError for what is no zip, is damaged, is too large, holds no run, or would write outside of the folder.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _refuse_unsafe(path, archive.infolist())
            archive.extractall(into)
    except DAMAGED as error:
        if isinstance(error, FileNotFoundError) and not path.exists():
            raise RunFolderError(f"{path}: no such run folder or zip") from error
        raise RunFolderError(f"{path}: is no zip of a run, or is damaged: {error}") from error
    inside = [into, *(folder for folder in into.iterdir() if folder.is_dir())]
    roots = [folder for folder in inside if (folder / "run.json").is_file()]
    if len(roots) != 1:
        raise RunFolderError(f"{path}: holds {len(roots) or 'no'} run{'s' * (len(roots) > 1)}: no run.json at its top")
    return roots[0]


def _refuse_unsafe(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    names = Counter(info.filename for info in infos)
    for info in infos:
        name, kind = info.orig_filename, stat.S_IFMT(info.external_attr >> 16)
        outside = PureWindowsPath(name).anchor or "\\" in name or ".." in PurePosixPath(name).parts
        if outside or "\0" in name or kind not in (0, stat.S_IFREG, stat.S_IFDIR) or names[info.filename] > 1:
            raise RunFolderError(f"{path}: is refused: {name!r} is no plain file inside of it")
    if (total := sum(info.file_size for info in infos)) > MOST_BYTES:
        raise RunFolderError(f"{path}: is refused: {total / 2**30:.1f} GiB unpacked, at most {MOST_BYTES >> 30} are")
