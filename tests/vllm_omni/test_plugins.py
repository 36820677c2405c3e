"""The plugins: when they install, when they refuse and say so, and what they bring along."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib import metadata

import pytest

from omnilab.errors import ToggleUnavailable
from omnilab.vllm_omni import plugins
from omnilab.vllm_omni.after_import import AfterImport, after_import
from omnilab.vllm_omni.board import BOARD, Board


@pytest.fixture
def versions(monkeypatch):
    """Versions of distributions, as the test says."""
    found: dict[str, str] = {}

    def version(name):
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(plugins.metadata, "version", version)
    return found


@pytest.fixture
def finders(monkeypatch):
    """The finders of imports, put back at the end."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return lambda: [finder for finder in sys.meta_path if isinstance(finder, AfterImport)]


@pytest.mark.parametrize("version, ours", [("0.30.0+cpu", True), ("0.30.0", False), (None, False)])
def test_our_platform_is_for_a_vllm_built_for_cpus_alone(versions, version, ours):
    if version is not None:
        versions["vllm"] = version
    assert (plugins.cpu_platform() == "omnilab.vllm_omni.cpu.platform.CpuOmniPlatform") is ours


def test_without_a_board_nothing_is_installed(versions, finders, monkeypatch):
    monkeypatch.delenv(BOARD, raising=False)
    plugins.toggles()
    assert finders() == []


def test_another_version_is_refused_in_the_log_and_to_the_client(versions, finders, monkeypatch, tmp_path, caplog):
    board = Board.create(tmp_path)
    monkeypatch.setenv(BOARD, str(board.folder))
    versions["vllm-omni"] = "0.31.0"
    plugins.toggles()
    assert finders() == []
    assert "0.31.0: our toggles are written for 0.30.0" in caplog.text
    with pytest.raises(ToggleUnavailable, match=r"vLLM-Omni 0\.31\.0.*install that version"):
        board.check()


def test_on_the_stated_version_modules_are_waited_for(versions, finders, monkeypatch, tmp_path):
    monkeypatch.setenv(BOARD, str(Board.create(tmp_path).folder))
    versions["vllm-omni"] = "0.30.0"
    plugins.toggles()
    assert len(finders()) == 1


def test_a_module_is_changed_before_its_importer_sees_it(finders, monkeypatch, tmp_path):
    (tmp_path / "omnilab_waited.py").write_text("def answer():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    calls = []

    def install(module):
        calls.append(module.__name__)
        module.answer = lambda: 2

    after_import({"omnilab_waited": install})
    try:
        assert importlib.import_module("omnilab_waited").answer() == 2
        importlib.import_module("omnilab_waited")
        assert calls == ["omnilab_waited"]
        after_import({"omnilab_waited": install})  # there already: at once
        assert calls == ["omnilab_waited"] * 2
    finally:
        sys.modules.pop("omnilab_waited", None)


def test_plugins_bring_neither_torch_nor_vllm():
    code = (
        "import sys\nfrom omnilab.vllm_omni import plugins, board, panel, toggles, server, deploy\n"
        "assert not {'torch', 'transformers', 'vllm', 'vllm_omni', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
