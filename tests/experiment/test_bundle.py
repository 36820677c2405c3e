"""Packing: one zip, the same bytes each time, that verifies anywhere; nothing unsafe is unpacked."""

import json
import shutil
import stat
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from omnilab import pack as command
from omnilab import verify as verify_command
from omnilab.errors import BadInput, RunFolderError
from omnilab.experiment.checks import bundle
from omnilab.experiment.checks.verification import verify
from omnilab.experiment.reports.report import Report

ROOT = Path(__file__).resolve().parents[2]
DRAWN = Report.figures


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Drawing takes most of a verification's time, and what is drawn is not compared."""
    monkeypatch.setattr(Report, "figures", lambda self: {"effects": "<svg>the effects</svg>"})


@pytest.fixture
def run(kept, tmp_path, small, script):
    """A copy of a run of one toggle in three blocks."""
    if not kept.exists():
        small(toggles=["shallow_merge"], blocks=3).run(kept, open_pipeline=script().open)
    return shutil.copytree(kept, tmp_path / "run")


def names_in(path):
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_a_packed_run_verifies_and_holds_what_a_reviewer_needs(run, capsys):
    assert command.main([str(run)]) == 0
    zipped = run.with_name("run.zip")
    said = capsys.readouterr().out
    assert str(zipped) in said
    assert "left out: audio (3 files)" in said
    names = names_in(zipped)
    assert names == sorted(names)
    assert {"run.json", "trials.jsonl", "report.md", "report.html", "figures/effects.svg", "MANIFEST.json"} <= set(
        names
    )
    assert {name.split("/")[0] for name in names} >= {"requests.parquet", "counters.parquet", "spans.parquet"}
    assert not [name for name in names if name.startswith("audio")]
    assert verify_command.main([str(zipped)]) == 0
    said = capsys.readouterr().out
    assert f"equal   manifest: sha256 of {len(names) - 1}; left out: 3 of audio" in said
    assert f"{zipped}: everything that it says is what its rows give" in said


def test_packing_twice_gives_the_same_bytes(run, tmp_path):
    first = bundle.pack(run, tmp_path / "first.zip")
    elsewhere = shutil.copytree(run, tmp_path / "another name", copy_function=shutil.copyfile)
    second = bundle.pack(elsewhere, tmp_path / "second.zip")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.files == second.files


def test_audio_comes_when_asked_and_spans_go(run, tmp_path, capsys):
    assert command.main([str(run), "--out", str(tmp_path / "x.zip"), "--audio", "--no-spans"]) == 0
    spans = len(list((run / "spans.parquet").iterdir()))
    assert f"left out: spans.parquet ({spans} files)" in capsys.readouterr().out
    names = names_in(tmp_path / "x.zip")
    assert sum(name.startswith("audio/") for name in names) == 3
    assert not [name for name in names if name.startswith("spans")]
    assert verify_command.main([str(tmp_path / "x.zip")]) == 0
    said = capsys.readouterr().out
    assert "span rows are not packed: span sums are taken from trials.jsonl" in said


def test_an_unpacked_run_can_be_verified_packed_and_moved_again(run, tmp_path):
    packed = bundle.pack(run, tmp_path / "x.zip", spans=False)
    (tmp_path / "again").mkdir()
    folder = bundle.unpack(packed.path, tmp_path / "again")
    assert folder == tmp_path / "again"
    assert verify(folder).differences == []
    again = bundle.pack(folder, tmp_path / "y.zip", spans=False)
    assert again.left_out == packed.left_out
    assert again.path.read_bytes() == packed.path.read_bytes()


def test_a_zip_of_older_words_is_written_anew(run, tmp_path, capsys, monkeypatch):
    """A later version words its report otherwise, and draws another figure: the rows stay, the zip verifies again."""
    assert command.main([str(run), "--no-spans"]) == 0
    zipped = run.with_name("run.zip")
    monkeypatch.setattr(Report, "title", lambda self: "In other words")
    monkeypatch.setattr(Report, "figures", lambda self: {"another": "<svg>another</svg>"})
    assert verify_command.main([str(zipped)]) == 1
    assert command.main([str(zipped), "--rewrite", "--out", str(tmp_path / "new.zip")]) == 0
    assert verify_command.main([str(tmp_path / "new.zip")]) == 0, capsys.readouterr().out
    assert {"figures/another.svg"} == {name for name in names_in(tmp_path / "new.zip") if name.startswith("figures")}
    with zipfile.ZipFile(zipped) as old, zipfile.ZipFile(tmp_path / "new.zip") as new:
        assert old.read("trials.jsonl") == new.read("trials.jsonl")
        assert json.loads(old.read("MANIFEST.json"))["left_out"] == json.loads(new.read("MANIFEST.json"))["left_out"]


def test_a_folder_that_was_zipped_by_hand_is_read_too(run, tmp_path, capsys):
    zipped = shutil.make_archive(str(tmp_path / "by hand"), "zip", run.parent, "run")
    assert verify_command.main([zipped]) == 0
    assert zipped in capsys.readouterr().out


def test_a_run_that_does_not_verify_is_not_packed(run, capsys):
    lines = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    for line in lines:
        if "metrics" in line:
            line["metrics"]["e2el_ms"] *= 2
    (run / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert command.main([str(run)]) == 1
    said = capsys.readouterr().err
    assert "differences from its rows, so it is not packed" in said
    assert said.count("metrics.e2el_ms: stored ") == bundle.TOLD
    assert not run.with_name("run.zip").exists()


def test_nothing_is_overwritten_and_a_zip_that_cannot_be_written_leaves_nothing(run, tmp_path, capsys):
    (tmp_path / "there.zip").write_text("mine")
    assert command.main([str(run), "--out", str(tmp_path / "there.zip")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "there.zip").read_text() == "mine"
    assert command.main([str(run), "--out", "/proc/none/x.zip"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert command.main([str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    with pytest.raises(BadInput):
        bundle.pack(run, tmp_path / "no folder" / "x.zip")


def test_of_a_folder_of_several_runs_one_must_be_named(tmp_path, capsys):
    for point in ("c1", "c4"):
        (tmp_path / "sweep" / point).mkdir(parents=True)
        (tmp_path / "sweep" / point / "run.json").touch()
    assert command.main([str(tmp_path / "sweep")]) == 2
    assert "is not a run folder; it holds c1, c4: name one of them" in capsys.readouterr().err


def test_a_changed_file_in_a_zip_is_named(run, tmp_path, capsys):
    packed = bundle.pack(run, tmp_path / "x.zip")
    with zipfile.ZipFile(packed.path) as archive, zipfile.ZipFile(tmp_path / "y.zip", "w") as other:
        for name in archive.namelist():
            data = archive.read(name)
            other.writestr(name, data.replace(b"the effects", b"other effects") if name.endswith(".svg") else data)
    assert verify_command.main([str(tmp_path / "y.zip")]) == 1
    assert "figures/effects.svg (MANIFEST.json) sha256: stored " in capsys.readouterr().out


def refused(path, capsys, said):
    assert verify_command.main([str(path)]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert len(seen.err.splitlines()) == 1
    assert str(path) in seen.err
    assert said in seen.err


def test_damaged_and_foreign_zips(run, tmp_path, capsys):
    data = bundle.pack(run, tmp_path / "x.zip").path.read_bytes()
    place = data.index(b"report.html") + 400  # in the midst of its compressed text
    for name, damaged in {
        "cut.zip": data[: len(data) // 2],
        "flipped.zip": data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :],
        "empty.zip": b"",
        "text.zip": b"no zip at all",
    }.items():
        (tmp_path / name).write_bytes(damaged)
        refused(tmp_path / name, capsys, "is no zip of a run, or is damaged")
    refused(tmp_path / "none.zip", capsys, "no such run folder or zip")
    with zipfile.ZipFile(tmp_path / "foreign.zip", "w") as archive:
        archive.writestr("notes.txt", "hello")
    refused(tmp_path / "foreign.zip", capsys, "holds no run")
    with zipfile.ZipFile(tmp_path / "old.zip", "w") as archive:
        archive.writestr("run.json", '{"schema_version": 1}')
        archive.writestr("trials.jsonl", "")
    refused(tmp_path / "old.zip", capsys, "has schema version 1")


def entry(name, kind=0):
    info = zipfile.ZipInfo(name)
    info.external_attr = kind << 16
    return info


@pytest.mark.parametrize(
    "info",
    [
        entry("../out.txt"),
        entry("figures/../../out.txt"),
        entry("/tmp/out.txt"),
        entry("C:/out.txt"),
        entry("..\\out.txt"),
        entry("link", stat.S_IFLNK | 0o777),
        entry("pipe", stat.S_IFIFO | 0o644),
    ],
    ids=lambda info: info.filename,
)
def test_what_would_write_outside_is_refused(tmp_path, capsys, info):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("run.json", "{}")
        archive.writestr(info, "../secret")
    (tmp_path / "into").mkdir()
    with pytest.raises(RunFolderError, match="is refused"):
        bundle.unpack(tmp_path / "x.zip", tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []
    refused(tmp_path / "x.zip", capsys, "is refused")


def test_what_is_there_twice_or_too_large_is_refused(tmp_path, capsys, monkeypatch):
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        archive.writestr("run.json", "{}")
        archive.writestr("run.json", "{}")
    refused(tmp_path / "twice.zip", capsys, "is refused")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run.json", " " * 2_000_000)
    monkeypatch.setattr(bundle, "MOST_BYTES", 1_000_000)
    refused(tmp_path / "bomb.zip", capsys, "is refused")


def test_nothing_is_left_in_the_temporary_folder(run, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    packed = bundle.pack(run, tmp_path / "x.zip")
    with bundle.opened(packed.path) as folder:
        assert folder.parent == tmp_path / "tmp"
    assert verify_command.main([str(packed.path)]) == 0
    assert list((tmp_path / "tmp").iterdir()) == []


def needed(requirements, found):
    """Add the installed distributions that requirements ask for, and what those ask for, extras left out."""
    for text in requirements or ():
        requirement = Requirement(text)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            needed(found[requirement.name].requires, found)
    return found


def link(ours, site):
    """Let an environment see one distribution of this one."""
    tops = {file.parts[0] for file in ours.files if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        if not (site / top).exists():
            (site / top).symlink_to(Path(str(ours.locate_file(top))))


def build_wheel(folder):
    """Build the wheel into a folder and return it."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def clean_environment(folder, wheel):
    """Make an environment of the wheel (None: the package's source) and of what it declares, nothing else.

    That is what `pip install` would bring; packages are links to ours, so that nothing is fetched. Return its Python.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    if wheel is None:
        shutil.copytree(ROOT / "omnilab", site / "omnilab", ignore=shutil.ignore_patterns("__pycache__"))
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    else:
        with zipfile.ZipFile(wheel) as archive:  # pure Python: to install it is to unpack it
            archive.extractall(site)
        (info,) = site.glob("omnilab-*.dist-info")
        declared = Distribution.at(info).requires
    for ours in needed(declared, {}).values():
        link(ours, site)
    return [str(folder / "bin" / "python"), "-I"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["source", "wheel"])
def test_a_packed_run_verifies_where_there_is_no_torch(small, script, tmp_path, monkeypatch, what):
    if what == "wheel":
        pytest.importorskip("hatchling", reason="building the wheel needs hatchling: pip install hatchling")
    monkeypatch.setattr(Report, "figures", DRAWN)
    small(toggles=["shallow_merge"], blocks=3).run(tmp_path / "run", open_pipeline=script().open)
    zipped = bundle.pack(tmp_path / "run").path
    wheel = build_wheel(tmp_path / "dist") if what == "wheel" else None
    python = clean_environment(tmp_path / "clean", wheel)
    for name in ("torch", "transformers"):
        absent = subprocess.run([*python, "-c", f"import {name}"], capture_output=True, text=True, check=False)
        assert f"No module named '{name}'" in absent.stderr
    where = subprocess.run([*python, "-c", "import omnilab; print(omnilab.__file__)"], capture_output=True, text=True)
    assert where.stdout.startswith(str(tmp_path / "clean"))
    for argv in (["-m", "omnilab.verify"], ["-m", "omnilab", "verify"]):
        done = subprocess.run([*python, *argv, str(zipped)], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{zipped}: everything that it says is what its rows give" in done.stdout
