"""What a variant must count on the edge Thinker -> Talker, from lengths alone: laws that carry over to any machine.

P prompt tokens, T text tokens of one request; a decode chunk k = 1..T-2 follows the prefill's chunk 0 of P + 1 rows.
Exact for the lab's occupants; a measured count beside its law shows that what was measured is what was meant.
"""

from __future__ import annotations

from collections.abc import Iterable

ELEMENTS, BYTES, HIDDEN_ROWS = "elements_visited", "bytes_accumulated", "hidden_rows_in_later_chunks"
ATTACHED = "bytes_to_worker"
# Where each is counted; other stages count some of them too.
WHERE = {
    ELEMENTS: "talker/runner/elements_visited",
    BYTES: "talker/receive/bytes_accumulated",
    HIDDEN_ROWS: "thinker/send/hidden_rows_in_later_chunks",
    ATTACHED: "talker/engine/bytes_to_worker",
}
EXPLAINED = {
    ELEMENTS: "list elements that merges visited: ids of prompt and output, summed over steps; cubic in T",
    BYTES: "bytes that the receiver copied to append a row to all it had; quadratic in T, linear in P T",
    HIDDEN_ROWS: "layer-24 rows sent with decode chunks",
    ATTACHED: "bytes of rows pickled to the Talker's worker: all that was accumulated, each step; lists on top",
}


def counts(input_len: int, output_len: int, row_bytes: int, toggles: Iterable[str]) -> dict[str, int]:
    """Return counter -> count of one request over BEFORE_1378 with `toggles` on; `row_bytes` is a row's size."""
    on = set(toggles)
    decode = max(0, output_len - 2)
    rows = sum(input_len + 1 + k for k in range(1, decode + 1))
    tensors = 1 if "prefill_only_hidden_states" in on else 2
    attached = decode if "override_rows" in on else rows
    return {
        ELEMENTS: 0 if "shallow_merge" in on else _elements(input_len, decode, on),
        BYTES: 0 if "override_rows" in on else tensors * rows * row_bytes,
        HIDDEN_ROWS: 0 if "prefill_only_hidden_states" in on else decode,
        ATTACHED: (2 * (input_len + 1) + tensors * attached) * row_bytes,
    }


def _elements(input_len: int, decode: int, on: set[str]) -> int:
    """Prompt ids once; then at each merge the ids held, to which chunk k adds the k + 2 output ids there are."""
    first = 2 * input_len + 2
    if "prefill_only_hidden_states" in on:
        return first
    chunks = [k + 2 for k in range(1, decode + 1)]
    if "override_rows" in on:  # a chunk's own ids are all that is held
        return first + sum(chunks)
    held, total = input_len + 2, first
    for ids in chunks:
        held += ids
        total += held
    return total
