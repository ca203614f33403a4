"""The chunks whose rows vLLM's own prefix cache probably has, for rankings of engines. Does not import vLLM.

vLLM does not show a plug-in which blocks it evicts, but it evicts those that were used least recently. So the list keeps
the chunks of the last requests, as many as have room in vLLM's blocks together with all other tokens of these requests.
If vLLM has evicted a listed chunk after all, the engine that was chosen for it must load it again.
"""

from __future__ import annotations

import itertools
from typing import Optional, Union

from . import announced_chunks, prefix

# A report lists at most as many (ckv_load.h).
CHUNKS_MAX = 4096

Key = Union[bytes, str]


class RecentChunks:
    """Only for the scheduler's thread. capacity_tokens: those of all of vLLM's blocks."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity, self._total = capacity_tokens, 0
        # Tokens of a chunk by its id, and of a request beyond its chunks by its name. The least recently used first.
        self._tokens: dict[Key, int] = {}
        self._changed = False

    def used(self, request_id: str, found: prefix.Prefix, tokens: int) -> None:
        """Takes a request that begins with these chunks, whose `tokens` tokens have blocks now. May be called again."""
        # As vLLM frees blocks, the end of a request first: a prefix cache has no use for an end without its beginning.
        if tokens > found.token_count:
            self._put(request_id, tokens - found.token_count)
        for one, size in reversed(list(zip(announced_chunks.ids_of(found.ids), found.sizes))):
            self._put(one, size)
        while self._total > self._capacity and self._tokens:
            oldest = next(iter(self._tokens))
            self._total -= self._tokens.pop(oldest)
            self._changed = self._changed or isinstance(oldest, bytes)

    def _put(self, key: Key, tokens: int) -> None:
        self._total += tokens - self._tokens.pop(key, 0)
        self._tokens[key] = tokens
        self._changed = self._changed or isinstance(key, bytes)

    def again(self) -> None:
        """The next take returns the list even if it has not changed."""
        self._changed = True

    def take(self) -> Optional[list[bytes]]:
        """Returns the chunks, the most recent first, and of a request those at its beginning; None if the last call did."""
        if not self._changed:
            return None
        self._changed = False
        recent = (one for one in reversed(self._tokens) if isinstance(one, bytes))
        return list(itertools.islice(recent, CHUNKS_MAX))
