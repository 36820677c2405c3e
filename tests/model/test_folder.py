"""Folders: written once, checked, and refused with advice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omnilab.errors import ModelNotFound
from omnilab.model.folder import resolve, write_folder

RACER = """
import sys, time
from pathlib import Path
from omnilab.model import folder, weights
write = weights.write_weights
def slow(*args, **kwargs):
    with open(sys.argv[1], "a") as log:
        log.write("written\\n")
    time.sleep(0.5)
    write(*args, **kwargs)
weights.write_weights = slow
print(folder.resolve("tiny"))
"""


def test_two_processes_write_once(tmp_path: Path) -> None:
    """Catches a half-written folder that the other process takes for whole, and work done twice."""
    environment = {**os.environ, "OMNILAB_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", RACER, str(tmp_path / "log")]
    racers = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [racer.communicate(timeout=90)[0].strip() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert answers[0] == answers[1] and Path(answers[0], "model.safetensors").exists()
    assert (tmp_path / "log").read_text() == "written\n"
    left = [path.name for path in (tmp_path / "cache" / "models").iterdir() if not path.name.endswith(".lock")]
    assert left == [Path(answers[0]).name]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a folder without weights left behind by a full disk: it would be taken for whole ever after."""

    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("omnilab.model.weights.write_weights", fail)
    with pytest.raises(OSError, match="no space"):
        write_folder("tiny", tmp_path / "models" / "tiny")
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize("size", ["tiny", "parity"])
def test_the_folder_is_complete_for_others(size: str) -> None:
    """Catches a folder that transformers loads with warnings, or that vLLM-Omni refuses."""
    from transformers import AutoConfig, AutoTokenizer, Qwen3OmniMoeForConditionalGeneration

    folder = resolve(size)
    kind = Qwen3OmniMoeForConditionalGeneration
    _, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    assert AutoConfig.from_pretrained(folder).model_type == "qwen3_omni_moe"
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [kind.__name__]
    assert config["thinker_config"]["vision_config"]["apply_vit_abs_pos_embed"] is True
    assert {"model_type", "dtype", "text_config"} <= config["thinker_config"].keys()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.image_token == "<|image_pad|>" and tokenizer.audio_bos_token == "<|audio_start|>"
    for name in ("generation_config", "preprocessor_config", "video_preprocessor_config", "chat_template"):
        assert json.loads((folder / f"{name}.json").read_text())
    for key, text in (
        ("user_token_id", "user"),
        ("im_start_token_id", "<|im_start|>"),
        ("tts_eos_token_id", "<tts_text_eod>"),
    ):
        assert tokenizer.convert_tokens_to_ids(text) == config[key]


def test_a_processor_template_will_do(tmp_path: Path) -> None:
    """Catches a released folder whose tokenizer brings no chat template."""
    from omnilab.model.inputs import InputProcessor

    folder = tmp_path / "released"
    shutil.copytree(resolve("tiny"), folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert InputProcessor(folder).process("hello") is not None
    (folder / "chat_template.json").unlink()
    with pytest.raises(ModelNotFound, match="no chat template"):
        InputProcessor(folder)


def test_parity_has_the_released_ids() -> None:
    """Catches ids that vLLM-Omni has written into its code."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve("parity"))
    assert tokenizer("<|im_start|>user\n<|im_end|>")["input_ids"] == [151644, 872, 198, 151645]
    assert tokenizer("<|audio_pad|><|audio_start|>assistant")["input_ids"] == [151675, 151669, 77091]


def test_a_folder_is_itself() -> None:
    """Catches a path that is taken for a name."""
    assert resolve(resolve("tiny")) == resolve(str(resolve("tiny"))) == resolve("tiny")


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    """Catches a traceback from deep inside transformers in place of advice."""
    with pytest.raises(ModelNotFound, match="tiny, parity, thin, full"):
        resolve("medium")
    with pytest.raises(ModelNotFound, match="model folder"):
        resolve("./nowhere/at/all")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match="no model folder"):
        resolve(tmp_path / "empty")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelNotFound, match="'llama'"):
        resolve(tmp_path / "other")
    with pytest.raises(ModelNotFound, match="no model folder"):
        write_folder("tiny", tmp_path / "empty")
    shutil.copytree(resolve("tiny"), tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ModelNotFound, match="no safetensors"):
        resolve(tmp_path / "bare")


def test_an_unreachable_hub_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a bare network error."""

    def offline(*_args: object, **_kwargs: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelNotFound, match="check the name and the network"):
        resolve("someone/some-model")
