"""Where things stand in a prompt: placeholders, the Talker's part, rotary positions. Host integers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omnilab.errors import BadInput
from omnilab.model.config import ModelConfig

ASSISTANT_HEADER = 3  # <im_start> assistant \n
ASSISTANT_ROWS = 9  # header, four pads, tts bos and the first text token: what the Talker sees of the answer


@dataclass(frozen=True, slots=True)
class TalkerLayout:
    """The Talker's view of a prompt of P tokens."""

    user_positions: list[int]  # U positions of all user turns; system and earlier assistant turns are dropped
    media_positions: list[int]  # those among them that hold audio, image or video
    assistant_start: int  # P - 3


def media_ids(config: ModelConfig) -> frozenset[int]:
    """Return the placeholder ids of audio, image and video."""
    thinker = config.thinker_config
    return frozenset((thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id))


def talker_layout(prompt_ids: Sequence[int], config: ModelConfig) -> TalkerLayout:
    """Find the user turns and the answer's header; BadInput when the prompt does not end with that header."""
    start = len(prompt_ids) - ASSISTANT_HEADER
    header = list(prompt_ids[max(start, 0) : start + 2])
    if header != [config.im_start_token_id, config.assistant_token_id]:
        raise BadInput("a prompt must end with the three tokens <|im_start|> assistant newline: use the chat template")
    placeholders, user, media = media_ids(config), list[int](), list[int]()
    in_user_turn = False
    for position, token in enumerate(prompt_ids):
        if token == config.im_start_token_id:
            in_user_turn = prompt_ids[position + 1] == config.user_token_id
        if in_user_turn:
            user.append(position)
            if token in placeholders:
                media.append(position)
    return TalkerLayout(user, media, start)


def rope_positions(
    ids: Sequence[int], grids: Sequence[Sequence[int]], *, image_token_id: int, merge: int, per_second: int
) -> tuple[Tensor, int]:
    """Give positions [3, n] (time, height, width; int64) and the delta: the next position minus n.

    Text and audio advance all three axes by one a token. An image of grid (t, h, w) patches spreads over the axes
    from its start, and what follows goes on after the largest. Without images the positions are plain.
    """
    positions = torch.zeros(3, len(ids), dtype=torch.int64)
    cursor, index, image = 0, 0, 0
    while index < len(ids):
        if ids[index] != image_token_id:
            positions[:, index] = cursor
            cursor, index = cursor + 1, index + 1
            continue
        if image >= len(grids):
            raise BadInput("the prompt holds more images than were given")
        block = _image_positions(grids[image], merge, per_second)
        end = index + block.shape[1]
        if end > len(ids) or any(token != image_token_id for token in ids[index:end]):
            raise BadInput(f"image {image} needs {block.shape[1]} placeholder tokens in a row")
        positions[:, index:end] = block + cursor
        cursor, index, image = int(positions[:, index:end].max()) + 1, end, image + 1
    return positions, cursor - len(ids)


def _image_positions(grid: Sequence[int], merge: int, per_second: int) -> Tensor:
    """Give [3, t * h * w] for one image, counted from zero, in merged patches."""
    time, height, width = grid[0], grid[1] // merge, grid[2] // merge
    axes = torch.meshgrid(torch.arange(time) * per_second, torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([axis.reshape(-1) for axis in axes])


def audio_tokens(frames: int) -> int:
    """Return the rows that the audio tower makes of mel frames: 13 for each 100, the rest halved three times."""
    rest = frames % 100
    for _ in range(3):
        rest = (rest + 1) // 2
    return frames // 100 * 13 + rest


def expand(ids: list[int], placeholder: int, counts: Sequence[int]) -> list[int]:
    """Repeat each placeholder as often as its clip or image has rows."""
    if ids.count(placeholder) != len(counts):
        raise BadInput(
            f"the chat template made {ids.count(placeholder)} placeholders for {len(counts)} clips or images"
        )
    remaining = iter(counts)
    expanded: list[int] = []
    for token in ids:
        expanded += [token] * (next(remaining) if token == placeholder else 1)
    return expanded
