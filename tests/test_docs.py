"""The pages: every command in them is run, or taken by its command line where it would run for minutes; links hold."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from omnilab import cli
from omnilab.experiment.reports.report import write_reports
from tests.board.scripted_run import make_run

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
COMMAND = re.compile(r"(?:^|`)python -m omnilab\.(\w+)([^`\n#]*)", re.MULTILINE)
TAKEN_ONLY = {"profile", "serve", "bench", "ablate"}  # stages, and minutes: their own tests run them
NEEDS_ANOTHER = ("--endpoint", "--queries")  # a collector, a trace processor


def commands():
    """Commands by the page that has them first."""
    found = {}
    for page in PAGES:
        for name, rest in COMMAND.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")):  # a line goes on
            found.setdefault((name, rest.strip()), page.name)
    return [pytest.param(name, rest, id=f"{page}: {name} {rest}") for (name, rest), page in found.items()]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A folder of two runs, RUN and AGAIN."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("RUN", "AGAIN"):
        write_reports(make_run(folder / name, blocks=3))  # with the figures, which scripted runs leave out
    return folder


def arguments(rest, folder):
    """Put real things for the placeholders; what stands in brackets is taken, and a lone name of a command stands."""
    text = rest.replace("[", "").replace("]", "").replace("EXPERIMENT.py", "experiments/quick.py")
    text = text.replace("RUN RUN", f"RUN {folder / 'AGAIN'}")
    real = {"RUN": str(folder / "RUN"), "SIZE": "tiny", "DIR": str(folder / "written"), "NAME": "async_save"}
    return [real.get(part, part) for part in shlex.split(text)]


@pytest.mark.parametrize("name, rest", commands())
def test_a_command_of_the_pages_is_taken(name, rest, run_folder, tmp_path, monkeypatch, capsys):
    shutil.copytree(run_folder, tmp_path, dirs_exist_ok=True)
    for place in ("experiments", "prompts.jsonl"):
        if (ROOT / place).exists():
            (tmp_path / place).symlink_to(ROOT / place)
    monkeypatch.chdir(tmp_path)
    given = arguments(rest, tmp_path)
    if name in TAKEN_ONLY or any(option in given for option in NEEDS_ANOTHER):
        if "--help" not in given:
            parsed(name, given)
        return
    status = cli.main([name, *given])
    said = capsys.readouterr()
    assert status == 0 or (name == "check" and status == 1), said.err


def parsed(name, given):
    """Let the command line take its arguments, and no more; it raises where it would refuse them."""
    module = importlib.import_module(cli._module(name))
    typer.main.get_command(module.app).make_context(name, given).close()


def test_every_command_line_is_in_the_list():
    for name, _ in COMMAND.findall("\n".join(page.read_text(encoding="utf-8") for page in PAGES)):
        assert name in cli.COMMANDS


def test_a_command_that_is_not_there_is_found_out():
    with pytest.raises(Exception, match="No such option"):
        parsed("ablate", ["--blockz", "5"])


def test_the_pages_make_a_site_that_asks_for_nothing_from_outside(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="((?:https?:)?//[^"]+)"', page.read_text())
        assert not loaded, f"{page.name} loads {loaded}"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_of_the_front_pages_hold(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (ROOT / link).exists(), link
