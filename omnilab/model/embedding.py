"""The Thinker's token embedding at the Talker, for recipes that send token ids in place of rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from omnilab.model.weights import thinker_embedding


class TokenRows:
    """Layer-0 rows by token id. Read from the folder at the first call: other recipes never need it."""

    def __init__(
        self, folder: Path, device: torch.device, dtype: torch.dtype, edge_dtype: torch.dtype, seed: int
    ) -> None:
        """Rows are rounded to `edge_dtype`, so that they are the very rows that would have crossed the edge."""
        self._source = (folder, device, dtype, seed)
        self._edge_dtype = edge_dtype
        self._table: Tensor | None = None

    def __call__(self, token_id: int) -> Tensor:
        """Return a token's row [Ht]."""
        return self._read()[token_id].to(self._edge_dtype)

    def rows(self, token_ids: Sequence[int]) -> Tensor:
        """Return the rows of tokens, [n, Ht], owned."""
        return self._read()[torch.tensor(token_ids, dtype=torch.int64)].to(self._edge_dtype)

    def _read(self) -> Tensor:
        if self._table is None:
            folder, device, dtype, seed = self._source
            self._table = thinker_embedding(folder, device=device, dtype=dtype, seed=seed)
        return self._table
