"""Toggle: send layer-24 rows and the output ids with the prefill only.

The Talker reads layer-24 rows at multimodal positions of the prompt and nowhere else, and the ids only at its prefill.
Before vllm-omni#1378 every decode chunk carried a layer-24 row and all output ids so far; the receiver appends what it
gets to what it has, so the row doubles what is concatenated and pickled on each Talker step, and the ids grow with the
square of the number of tokens (the work done on them with the cube).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from omnilab.seams import (
    EMBEDDINGS,
    FIRST_ROW,
    HIDDEN_STATES,
    PROMPT_IDS,
    SEQUENCES,
    TTS_ROWS,
    Lookup,
    Payload,
    Phase,
    Snapshot,
    ThinkerPayload,
    ThinkerRows,
)
from omnilab.toggle import Toggle

TOKEN_IDS = "token_ids"
LAST_TOKEN = "last_token"  # position in the sequence of the last of TOKEN_IDS


class EveryChunk:
    """Baseline: layer-24 rows and the whole list of output ids in every chunk."""

    def build(self, state: dict[str, Any], snapshot: Snapshot) -> Payload | None:
        """Chunk 0 has the P prompt rows and the first token's, later ones one row each."""
        if (rows := _rows_to_send(state, snapshot)) is None:
            return None
        ids = snapshot.output_ids[: snapshot.num_outputs]
        if rows[0].phase is Phase.DECODE:
            return {
                EMBEDDINGS: rows[0].embeddings,
                HIDDEN_STATES: rows[0].hidden_states,
                SEQUENCES: ids,
                FIRST_ROW: _position(snapshot),
            }
        return _prefill_chunk(rows, torch.cat([r.hidden_states for r in rows]), snapshot)

    def read(self, state: Payload, position: int, lookup: Lookup) -> Tensor | None:
        """Return the row from those that have arrived."""
        return _held_row(state, position)


class PrefillOnly:
    """Optimized: layer-24 rows of the prompt and the ids in chunk 0, later chunks one layer-0 row each."""

    def build(self, state: dict[str, Any], snapshot: Snapshot) -> Payload | None:
        """As the baseline, without what is read at the prefill only."""
        if (rows := _rows_to_send(state, snapshot)) is None:
            return None
        if rows[0].phase is Phase.DECODE:
            return {EMBEDDINGS: rows[0].embeddings, FIRST_ROW: _position(snapshot)}
        of_prompt = [r.hidden_states for r in rows if r.phase is Phase.PREFILL]
        return _prefill_chunk(rows, torch.cat(of_prompt), snapshot)

    def read(self, state: Payload, position: int, lookup: Lookup) -> Tensor | None:
        """Return the row from those that have arrived."""
        return _held_row(state, position)


class TokenIdsOnly:
    """Further still: later chunks carry a token id, and the Talker looks its row up in the Thinker's table."""

    def build(self, state: dict[str, Any], snapshot: Snapshot) -> Payload | None:
        """As PrefillOnly, with the id in place of the row."""
        if (rows := _rows_to_send(state, snapshot)) is None:
            return None
        if rows[0].phase is Phase.DECODE:
            token = snapshot.output_ids[snapshot.num_outputs - 2]  # the one whose row this step made
            return {TOKEN_IDS: [token], LAST_TOKEN: _position(snapshot)}
        of_prompt = [r.hidden_states for r in rows if r.phase is Phase.PREFILL]
        return _prefill_chunk(rows, torch.cat(of_prompt), snapshot)

    def read(self, state: Payload, position: int, lookup: Lookup) -> Tensor | None:
        """Return the row of the token at a position, if its chunk has come."""
        index = position - state.get(LAST_TOKEN, -1) - 1  # from the end: the list may hold one id or all
        tokens = state.get(TOKEN_IDS, [])
        return lookup(tokens[index]) if -len(tokens) <= index < 0 else _held_row(state, position)


def _rows_to_send(state: dict[str, Any], snapshot: Snapshot) -> list[ThinkerRows] | None:
    """Hold the prefill's rows, however many parts it has, until the first decode row completes chunk 0."""
    held: list[ThinkerRows] = state.setdefault("held", [])
    held.append(snapshot.rows)
    if snapshot.rows.phase is Phase.PREFILL and not snapshot.finished:
        return None
    del state["held"]
    return held


def _prefill_chunk(rows: list[ThinkerRows], hidden_states: Tensor, snapshot: Snapshot) -> Payload:
    return {
        EMBEDDINGS: torch.cat([r.embeddings for r in rows]),
        HIDDEN_STATES: hidden_states,
        SEQUENCES: snapshot.prompt_ids + snapshot.output_ids[: snapshot.num_outputs],
        PROMPT_IDS: list(snapshot.prompt_ids),
        TTS_ROWS: rows[0].tts_rows,
        FIRST_ROW: 0,
    }


def _position(snapshot: Snapshot) -> int:
    """Position of the row of a decode step: that step read the last token but one."""
    return len(snapshot.prompt_ids) + snapshot.num_outputs - 2


def _held_row(state: Payload, position: int) -> Tensor | None:
    rows, index = state[EMBEDDINGS], position - state[FIRST_ROW]
    return rows[index] if 0 <= index < len(rows) else None


TOGGLE: Toggle[type[ThinkerPayload]] = Toggle(
    name="prefill_only_hidden_states",
    seam="thinker_payload",
    baseline=EveryChunk,
    optimized=PrefillOnly,
    claim="a Talker step's host work halves and no longer grows with the number of tokens spoken",
)
