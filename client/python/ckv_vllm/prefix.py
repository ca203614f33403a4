"""Which tokens of a prompt a found cover has as a prefix, and where a paged cache puts them."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Prefix:
    """The first tokens of a prompt, as the first chunks of a found corpus.

    chunk_count  chunks that have them
    token_count  tokens that these chunks have
    """

    chunk_count: int
    token_count: int


def prefix_of(token_begins: Sequence[int], offsets: Sequence[int],
              token_counts: Sequence[int]) -> Prefix:
    """The longest run of chunks from token 0 without a hole, at their canonical positions.

    A chunk with another offset was computed elsewhere, behind other tokens or none. Its rows are
    not those of this prompt, so the prefix ends before it.
    """
    chunks = tokens = 0
    for begin, offset, count in zip(token_begins, offsets, token_counts):
        if int(begin) != tokens or int(offset) != 0:
            break
        chunks, tokens = chunks + 1, tokens + int(count)
    return Prefix(chunks, tokens)


def prefix_found(found: Any) -> Prefix:
    """The same of a ckv.Found."""
    count = len(found.token_begins)
    _, token_counts, _ = found.corpus.chunks(0, count)
    return prefix_of(found.token_begins, found.offsets, token_counts)


def whole_blocks(prefix_tokens: int, prompt_tokens: int, block_size: int) -> int:
    """Tokens to load: whole blocks, and fewer than the prompt, whose last token is computed."""
    return max(min(prefix_tokens, prompt_tokens - 1), 0) // block_size * block_size


def slots_of(block_ids: Sequence[int], block_size: int, token_begin: int,
             token_end: int) -> np.ndarray:
    """int64 slots of a sequence's tokens [token_begin, token_end) in a cache of blocks.

    Raises ValueError if the blocks do not have them.
    """
    if not 0 <= token_begin <= token_end <= len(block_ids) * block_size:
        raise ValueError(f"ckv_vllm: tokens {token_begin} to {token_end} are not in "
                         f"{len(block_ids)} blocks of {block_size}")
    tokens = np.arange(token_begin, token_end, dtype=np.int64)
    return np.asarray(block_ids, dtype=np.int64)[tokens // block_size] * block_size \
        + tokens % block_size
