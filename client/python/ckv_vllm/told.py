"""Which chunks vLLM's events have told of. Knows no vLLM."""

from __future__ import annotations

from typing import Any, Iterable, Optional

from . import notes

# Chunks that are remembered, of 32 bytes each. What was told before them may be told again.
CHUNKS_MAX = 1 << 16


def wanted(vllm_config: Any) -> bool:
    """Whether vLLM publishes events of its cache."""
    config = getattr(vllm_config, "kv_events_config", None)
    return bool(config is not None and config.enable_kv_cache_events)


class Told:
    """The scheduler's thread alone. `take` returns what is new since it was last called."""

    def __init__(self) -> None:
        self._told: dict[bytes, None] = {}  # the oldest first
        self._news: list[notes.Event] = []

    def stored(self, chunks: notes.Chunks) -> None:
        """These chunks can be found. What of them was not told yet is news."""
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
        """These chunks, or all, are offered no more."""
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
