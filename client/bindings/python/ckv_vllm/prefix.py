"""The tokens of a prompt that a prefix match covers from the first one on. Imports no vLLM."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Sequence

from . import messages


@dataclasses.dataclass(frozen=True)
class Prefix:
    """The first tokens of a prompt, as the first chunks of what was found.

    token_count  tokens that these chunks have
    ids          of the chunks: bytes, 32 each
    sizes        tokens of each chunk
    is_complete  no other chunk that follows them in the prompt can be found. Not set if a look-up failed, took too
                 long or was limited to a corpus
    """

    token_count: int = 0
    ids: bytes = b""
    sizes: tuple[int, ...] = ()
    is_complete: bool = False

    @property
    def last_id(self) -> Optional[bytes]:
        return self.ids[-32:] or None

    def chunks_of(self, prompt: Sequence[int]) -> Optional[messages.Chunks]:
        """These chunks, of a prompt that begins with them; None if there are none."""
        if not self.sizes:
            return None
        return messages.Chunks(self.ids, list(self.sizes), [int(one) for one in prompt[:self.token_count]])


def prefix_of(found: Any, only: Optional[set[bytes]] = None) -> Prefix:
    """The longest run of a ckv.Found's chunks from token 0 without a gap, at canonical positions.

    A chunk with another offset was computed behind other tokens, or none. Its rows are not those of
    this prompt, so the prefix ends before it. `only`: the ids of the chunks that count, or all.
    """
    count = len(found.token_begins)
    ids, token_counts, _ = found.corpus.chunks(0, count)
    chunks = tokens = 0
    for begin, offset, size, one in zip(found.token_begins, found.offsets, token_counts, ids):
        if int(begin) != tokens or int(offset) != 0 or (only is not None and bytes(one) not in only):
            break
        chunks, tokens = chunks + 1, tokens + int(size)
    return Prefix(tokens, ids[:chunks].tobytes(), tuple(int(one) for one in token_counts[:chunks]),
                  is_complete=only is None)


def whole_blocks(prefix_tokens: int, prompt_tokens: int, block_size: int) -> int:
    """Tokens to load: whole blocks, and fewer than the prompt, whose last token is computed."""
    return max(min(prefix_tokens, prompt_tokens - 1), 0) // block_size * block_size
