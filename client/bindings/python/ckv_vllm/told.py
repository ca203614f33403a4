"""The chunks that this engine has announced in vLLM's events. Does not import vLLM."""

from __future__ import annotations

from typing import Any, Iterable, Optional

from . import notes

# Chunks that are remembered, 32 bytes each. Older ones may be announced again.
CHUNKS_MAX = 1 << 16


def wanted(vllm_config: Any) -> bool:
    """Returns whether vLLM publishes events of its cache."""
    config = getattr(vllm_config, "kv_events_config", None)
    return bool(config is not None and config.enable_kv_cache_events)


class Told:
    """Announced chunks. `take` returns the events since its last call. Only for the scheduler's thread."""

    def __init__(self) -> None:
        self._told: dict[bytes, None] = {}  # oldest first
        self._news: list[notes.Event] = []

    def stored(self, chunks: notes.Chunks) -> None:
        """Adds an event for those of these chunks that are not announced yet. They can be found now."""
        ids = ids_of(chunks.ids)
        known = next((at for at, one in enumerate(ids) if one not in self._told), len(ids))
        news = chunks.after(known)
        if news is None:
            return
        for one in ids[known:]:
            self._told.pop(one, None)
            self._told[one] = None
        while len(self._told) > CHUNKS_MAX:
            del self._told[next(iter(self._told))]
        self._news.append(notes.Event(stored=news))

    def removed(self, ids: Optional[bytes] = None) -> None:
        """Adds an event that these chunks, by default all, are no longer offered."""
        gone = self._told if ids is None else ids_of(ids)
        told = [one for one in gone if one in self._told]
        for one in told:
            del self._told[one]
        if told:
            self._news.append(notes.Event(removed=told))

    def take(self) -> Iterable[notes.Event]:
        news, self._news = self._news, []
        return news


def ids_of(joined: bytes) -> list[bytes]:
    return [joined[at:at + 32] for at in range(0, len(joined), 32)]
