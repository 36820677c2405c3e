"""The tokenizer of our own folders: bytes in, no merges, special tokens where the config wants them.

Text becomes one token a byte. The other ids, which a random model does produce, read as made-up words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_ROLES = {"system_token_id": "system", "user_token_id": "user", "assistant_token_id": "assistant"}
_SPECIALS = {
    "im_start_token_id": "<|im_start|>", "im_end_token_id": "<|im_end|>", "tts_pad_token_id": "<tts_pad>",
    "tts_bos_token_id": "<tts_text_bos>", "tts_eos_token_id": "<tts_text_eod>",
}  # fmt: skip
_MEDIA = {
    "audio_token_id": "<|audio_pad|>", "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
    "audio_start_token_id": "<|audio_start|>", "audio_end_token_id": "<|audio_end|>",
    "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
}  # fmt: skip
# Names under which processors ask a tokenizer for its placeholders.
_NAMED = {
    "image_token": "<|image_pad|>", "audio_token": "<|audio_pad|>", "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>",
}  # fmt: skip
_RELEASED_IM_START = 151644
_PART = (
    "{%- if part.type == 'text' -%}{{ part.text }}"
    "{%- elif 'audio' in part.type -%}<|audio_start|><|audio_pad|><|audio_end|>"
    "{%- elif 'image' in part.type -%}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- elif 'video' in part.type -%}<|vision_start|><|video_pad|><|vision_end|>"
    "{%- endif -%}"
)
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- else -%}{%- for part in message.content -%}" + _PART + "{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def _byte_characters() -> list[str]:
    """Return the printable character that stands for each byte in byte-level vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _word(number: int) -> str:
    """Return a made-up word, another for each number; the leading character is a space."""
    syllables = ""
    while True:
        number, digit = divmod(number, 80)
        syllables += "bdfghjklmnprstvz"[digit // 5] + "aeiou"[digit % 5]
        if number == 0:
            return "\u0120" + syllables + "n"
        number -= 1


def _vocabulary(config: dict[str, Any], named: dict[int, str]) -> dict[str, int]:
    """Map every string to its id: bytes, names, then a word for each id left."""
    characters = _byte_characters()
    if config["im_start_token_id"] == _RELEASED_IM_START:
        # The released order puts the printable bytes first: newline is 198 there, and vLLM-Omni counts on it.
        characters = sorted(characters, key=lambda character: (ord(character) > 255, ord(character)))
    size = config["thinker_config"]["text_config"]["vocab_size"]
    if config["im_start_token_id"] == _RELEASED_IM_START:
        size = max(named) + 1  # as released: the last rows of the embedding have no token
    texts = [*characters, *(_word(number) for number in range(size - len(characters)))]
    return {named.get(index, text): index for index, text in enumerate(texts)}


def write(config: dict[str, Any], folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special = {config[key]: text for key, text in _SPECIALS.items()}
    special |= {config["thinker_config"][key]: text for key, text in _MEDIA.items()}
    if config["im_start_token_id"] == _RELEASED_IM_START:
        special |= {151643: "<|endoftext|>", 151674: "<tts_text_bos_single>"}
    roles = {config[key]: text for key, text in _ROLES.items()}
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(config, special | roles), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(special[i], special=True, normalized=False) for i in sorted(special)])
    tokenizer.add_tokens([AddedToken(roles[i], normalized=False) for i in sorted(roles)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
        "pad_token": special.get(151643, "<|im_end|>"), "model_max_length": 32768,
        "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE, **_NAMED,
        "extra_special_tokens": _NAMED,
    }  # fmt: skip
    for name, content in (
        ("tokenizer_config.json", settings),
        ("chat_template.json", {"chat_template": CHAT_TEMPLATE}),
    ):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
