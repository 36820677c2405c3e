"""Folders and models, loaded once for the room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from omnilab.model.folder import resolve
from tests.model.loop import Network


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the user's cache out of the tests, and torch off the second core."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("cache")
        patch.setenv("OMNILAB_CACHE", str(root))
        yield root


@pytest.fixture(scope="session")
def networks() -> Callable[[str], Network]:
    """Return a size's network, loaded once."""
    loaded: dict[str, Network] = {}

    def get(size: str) -> Network:
        if size not in loaded:
            loaded[size] = Network(resolve(size))
        return loaded[size]

    return get


@pytest.fixture(scope="session")
def references() -> Callable[[str], Any]:
    """Return transformers' own model of the same folder, loaded once."""
    loaded: dict[str, Any] = {}

    def get(size: str) -> Any:
        if size not in loaded:
            kind = transformers.Qwen3OmniMoeForConditionalGeneration
            loaded[size] = kind.from_pretrained(resolve(size), dtype=torch.float32).eval()
            # The Talker's positions with audio beside an image ask for this; transformers forgets to put it there.
            loaded[size].talker.config.audio_config = loaded[size].config.thinker_config.audio_config
        return loaded[size]

    return get
