"""One core: these tests are many small steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Keep torch off the other cores, and gradients out of the runners, as stage processes do."""
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
