"""The chunks that this engine has announced in vLLM's events. Does not import vLLM."""

from __future__ import annotations

import array
import hashlib
from typing import Any, Iterable, Optional, Sequence

from . import messages, prefix

# Chunks that are remembered, some 400 bytes each. Older ones may be announced again.
CHUNKS_MAX = 1 << 16


def events_enabled(vllm_config: Any) -> bool:
    """Returns whether vLLM publishes events of its cache."""
    config = getattr(vllm_config, "kv_events_config", None)
    return bool(config is not None and config.enable_kv_cache_events)


class AnnouncedChunks:
    """Announced chunks. `take` returns the events since its last call. Only for the scheduler's thread."""

    def __init__(self) -> None:
        self._announced: dict[bytes, tuple[bytes, int, bytes]] = {}  # oldest first, and where: see _after
        # The id of a chunk, by the chunk before it, its size and the digest of its tokens.
        self._after: dict[bytes, dict[int, dict[bytes, bytes]]] = {}
        self._events: list[messages.Event] = []

    def stored(self, chunks: messages.Chunks) -> None:
        """Adds an event for those of these chunks that are not announced yet. They can be found now."""
        ids = ids_of(chunks.ids)
        known = next((at for at, one in enumerate(ids) if one not in self._announced), len(ids))
        new = chunks.after(known)
        if new is None:
            return
        parent, begin = new.parent, 0
        for one, size in zip(ids[known:], new.sizes):
            self._forget(one)
            digest = digest_of(new.tokens[begin:begin + size])
            self._announced[one] = parent, size, digest
            self._after.setdefault(parent, {}).setdefault(size, {})[digest] = one
            parent, begin = one, begin + size
        while len(self._announced) > CHUNKS_MAX:
            self._forget(next(iter(self._announced)))
        self._events.append(messages.Event(stored=new))

    def looked_up(self, found: prefix.Prefix, prompt: Sequence[int]) -> None:
        """Adds an event that the announced chunks of `prompt` behind those `found` are no longer offered, as after
        their corpus was dropped. Does nothing if the look-up was not complete."""
        gone: list[bytes] = []
        parent, begin = found.ids[-32:], found.token_count
        while found.is_complete and parent in self._after:
            following = next((of_size[digest] for size, of_size in self._after[parent].items()
                              if (digest := digest_of(prompt[begin:begin + size])) in of_size), None)
            if following is None:
                break
            gone.append(following)
            parent, begin = following, begin + self._announced[following][1]
        self.removed(b"".join(gone))

    def removed(self, ids: Optional[bytes] = None) -> None:
        """Adds an event that these chunks, by default all, are no longer offered."""
        gone = self._announced if ids is None else ids_of(ids)
        removed = [one for one in gone if one in self._announced]
        for one in removed:
            self._forget(one)
        if removed:
            self._events.append(messages.Event(removed=removed))

    def _forget(self, one: bytes) -> None:
        parent, size, digest = self._announced.pop(one, (b"", 0, b""))
        of_size = self._after.get(parent, {}).get(size, {})
        if of_size.get(digest) != one:
            return  # it was not announced, or another has its place by now
        del of_size[digest]
        if not of_size:
            del self._after[parent][size]
        if not self._after[parent]:
            del self._after[parent]

    def take(self) -> Iterable[messages.Event]:
        events, self._events = self._events, []
        return events


def digest_of(tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(array.array("i", tokens).tobytes(), digest_size=16).digest()


def ids_of(joined: bytes) -> list[bytes]:
    return [joined[at:at + 32] for at in range(0, len(joined), 32)]
