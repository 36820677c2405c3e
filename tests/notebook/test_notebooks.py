"""The notebooks: in step with their sources, stripped, and executed from top to bottom on `tiny`.

`make notebooks` runs this file with OMNILAB_NOTEBOOK_MODEL=thin: the same notebooks in full, which takes minutes each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omnilab.notebook.lessons import VARIABLE
from tests.conftest import left_since, leftovers
from tests.notebook.test_kernel import gone

jupytext = pytest.importorskip("jupytext", reason="the notebooks' sources are read by jupytext: pip install jupytext")

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
HEADINGS = [
    "The question", "The baseline's timeline", "The change", "Same output?", "Measurement", "Verdict",
]  # fmt: skip
LESSONS = ("async_save", "prefill_only_hidden_states", "idle_skip", "shallow_merge")
MODEL = os.environ.get(VARIABLE, "tiny")
CELL_S = 300 if MODEL == "tiny" else 3600


def by_name(path: Path) -> str:
    return path.stem


def cells(notebook: Any) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def read(path: Path) -> Any:
    return jupytext.read(path)


def test_all_nine_are_there() -> None:
    assert [path.stem[:2] for path in SOURCES] == [f"{number:02d}" for number in range(9)]
    assert {path.stem[3:] for path in SOURCES} >= set(LESSONS)


@pytest.mark.parametrize("path", SOURCES, ids=by_name)
def test_a_notebook_says_what_its_source_says(path: Path) -> None:
    """`jupytext --to ipynb --update` was run after the last change."""
    notebook = read(path.with_suffix(".ipynb"))
    assert cells(notebook) == cells(read(path)), f"run: jupytext --to ipynb --update {path.relative_to(ROOT)}"
    assert notebook.metadata.kernelspec.name == "python3"


def test_notebooks_are_stripped() -> None:
    """No outputs, no counts: run nbstripout."""
    program = Path(sys.executable).with_name("nbstripout")
    notebooks = [path.with_suffix(".ipynb") for path in SOURCES]
    done = subprocess.run([program, "--verify", *notebooks], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", LESSONS)
def test_a_toggles_notebook_has_the_six_headings_and_shows_its_file(name: str) -> None:
    (path,) = [path for path in SOURCES if path.stem[3:] == name]
    notebook = read(path)
    headings = [line[3:] for _, source in cells(notebook) for line in source.splitlines() if line.startswith("## ")]
    assert headings == HEADINGS
    assert any(f"inspect.getsource({name})" in source for _, source in cells(notebook))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("path", SOURCES, ids=by_name)
def test_a_notebook_runs_to_its_end_and_leaves_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a kernel of its own, with no output that is an error; then no process and nothing in shared memory is left."""
    if path.stem == "00_tour" and MODEL == "tiny" and shutil.which("chromium"):
        pytest.skip("tests/browser/test_tour.py runs it, in a browser")
    before = leftovers()
    executed = run(path, tmp_path, monkeypatch)
    errors = [out for cell in executed.cells for out in cell.get("outputs", []) if out["output_type"] == "error"]
    assert not errors
    gone(lambda: left_since(before))
    if path.stem[3:] in LESSONS:
        last = shown(executed)
        said = [text for text in last if text.startswith("<Claim of ")]
        assert len(said) == 2, "the verdict, of this run and of the kept hour"
        if MODEL == "tiny":
            assert "inconclusive" in said[0], "three blocks settle nothing that is timed"


def run(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Execute a notebook in `folder`, and keep it there."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv(VARIABLE, MODEL)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    notebook = read(path.with_suffix(".ipynb"))
    client = NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", resources={"metadata": {"path": folder}})
    try:
        client.execute()
    finally:
        kept = Path(os.environ.get("OMNILAB_NOTEBOOKS_OUT", folder))
        kept.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, kept / path.with_suffix(".ipynb").name)
    return notebook


def shown(notebook: Any) -> list[str]:
    """Return what cells showed, as text."""
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    return [out["data"].get("text/plain", "") for out in outputs if "data" in out]
