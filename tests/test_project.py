"""The shape of the project: imports point one way, the light parts stay light, modules stay short."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "omnilab"
# A module imports from its own layer and those above it.
LAYERS = (
    {"errors", "record", "seams", "show"},
    {"toggle"},
    {"toggles"},
    {"recipe", "recipes"},
    {"prompt", "workload", "metrics", "clock", "trial", "model", "transfer"},
    {"engine"},
    {"intake", "speech", "answer", "thinkers", "pipeline", "client", "launch", "installed"},
    {"experiment", "profile", "serve", "vllm_omni"},
    {
        *("notebook", "board", "export", "command", "ablate", "bench", "models", "check", "cli", "__main__"),
        *("verify", "pack", "compare", "trace"),
    },
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
DRAWS = {"report.py", "sweep_report.py", "drawing.py", "progress.py"}


def room(path):
    """The part of the package that a module belongs to; a room's `__main__` is a command line."""
    return "__main__" if path.name == "__main__.py" else path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Full names of what a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def identity(path):
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", MODULES, ids=identity)
def test_imports_point_one_way(path):
    assert room(path) in RANK, f"{room(path)} is in no layer: add it to LAYERS"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "omnilab" and len(parts) > 1 and parts[1] in RANK:
            assert RANK[parts[1]] <= RANK[room(path)], f"{identity(path)} imports {name}"


WITHIN = ("statistics", "analysis", "reports", "checks")  # folders of the experiment room, each may import those before


@pytest.mark.parametrize("path", [p for p in MODULES if p.parent.name in WITHIN], ids=identity)
def test_folders_of_the_experiment_room_import_one_way(path):
    later = WITHIN[WITHIN.index(path.parent.name) + 1 :]
    assert not [name for name in imports(path) if name.startswith(tuple(f"omnilab.experiment.{f}." for f in later))]


def test_statistics_know_nothing_of_omnilab():
    for path in (PACKAGE / "experiment" / "statistics").glob("*.py"):
        outside = [n for n in imports(path) if n.startswith("omnilab") and "experiment.statistics" not in n]
        assert not outside


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) in ("engine", "model", "transfer")], ids=identity)
def test_stages_import_no_toggle(path):
    assert not [name for name in imports(path) if name.startswith(("omnilab.toggles", "omnilab.toggle."))]


@pytest.mark.parametrize("path", MODULES, ids=identity)
def test_only_some_draw(path):
    if path.name in DRAWS or room(path) in ("notebook", "ablate", "compare", "models", "check"):
        return
    assert not {name.split(".")[0] for name in imports(path)} & {"rich", "matplotlib"}


@pytest.mark.parametrize("path", MODULES, ids=identity)
def test_modules_stay_short(path):
    written = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(written) <= 400


LIGHT = (
    "omnilab",
    "omnilab.workload",
    "omnilab.trial",
    "omnilab.cli",
    "omnilab.experiment.analysis.analyse",
    "omnilab.experiment.reports.report",
    "omnilab.experiment.experiment",
    "omnilab.verify",
    "omnilab.pack",
    "omnilab.compare",
    "omnilab.trace",
    "omnilab.export",
    "omnilab.profile.otel",
    "omnilab.board.data",
    "omnilab.client.summary",
    "omnilab.vllm_omni.plugins",
    "omnilab.vllm_omni.subject",
    "omnilab.vllm_omni.toggles",
    "omnilab.launch",
    "omnilab.experiment.arms",
    "omnilab.bench",
)


def test_light_modules_bring_neither_torch_nor_transformers():
    code = (
        f"import importlib, sys\nfor name in {LIGHT}:\n    importlib.import_module(name)\n"
        "    heavy = {'torch', 'transformers'} & set(sys.modules)\n    assert not heavy, (name, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_experiment_file_has_a_question_and_an_experiment(tmp_path, monkeypatch):
    from omnilab.ablate import load_experiment
    from omnilab.experiment.sweep import Sweep

    python = tmp_path / "bin" / "python"  # of an environment that a plan only looks for
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setenv("OMNILAB_VLLM_OMNI_PYTHON", str(python))
    others = ("make_media", "transformers_server")
    files = [path for path in (ROOT / "experiments").glob("*.py") if path.stem not in others]
    assert {"quick", "seed"} <= {path.stem for path in files}
    for path in files:
        assert "?" in (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
        found = load_experiment(path)
        plan = next(iter(found.experiments.values())).plan() if isinstance(found, Sweep) else found.plan()
        assert plan.gate is not None
        assert len(plan.orders) >= 5


def test_media_are_what_their_script_makes(tmp_path, monkeypatch):
    import importlib.util

    spec = importlib.util.spec_from_file_location("make_media", ROOT / "experiments" / "make_media.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.setattr(made, "MEDIA", tmp_path)
    made.main()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in (ROOT / "experiments" / "media").iterdir())
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 300_000
    for wav in tmp_path.glob("*.wav"):
        kept = (ROOT / "experiments" / "media" / wav.name).read_bytes()
        assert len(kept) == wav.stat().st_size <= 40_000


def test_prompts_are_many_tongues_with_sound_and_pictures():
    from omnilab.workload import Workload

    prompts = [item.prompt for item in Workload.from_jsonl(ROOT / "experiments" / "prompts.jsonl").requests]
    assert len(prompts) >= 20
    assert sum(prompt.audio is not None for prompt in prompts) >= 4
    assert sum(prompt.image is not None for prompt in prompts) >= 4
