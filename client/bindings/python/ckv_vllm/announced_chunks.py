"""The chunks that this engine has announced in vLLM's events. Does not import vLLM."""

from __future__ import annotations

from typing import Any, Iterable, Optional

from . import messages

# Chunks that are remembered, 32 bytes each. Older ones may be announced again.
CHUNKS_MAX = 1 << 16


def events_enabled(vllm_config: Any) -> bool:
    """Returns whether vLLM publishes events of its cache."""
    config = getattr(vllm_config, "kv_events_config", None)
    return bool(config is not None and config.enable_kv_cache_events)


class AnnouncedChunks:
    """Announced chunks. `take` returns the events since its last call. Only for the scheduler's thread."""

    def __init__(self) -> None:
        self._announced: dict[bytes, None] = {}  # oldest first
        self._events: list[messages.Event] = []

    def stored(self, chunks: messages.Chunks) -> None:
        """Adds an event for those of these chunks that are not announced yet. They can be found now."""
        ids = ids_of(chunks.ids)
        known = next((at for at, one in enumerate(ids) if one not in self._announced), len(ids))
        new = chunks.after(known)
        if new is None:
            return
        for one in ids[known:]:
            self._announced.pop(one, None)
            self._announced[one] = None
        while len(self._announced) > CHUNKS_MAX:
            del self._announced[next(iter(self._announced))]
        self._events.append(messages.Event(stored=new))

    def removed(self, ids: Optional[bytes] = None) -> None:
        """Adds an event that these chunks, by default all, are no longer offered."""
        gone = self._announced if ids is None else ids_of(ids)
        removed = [one for one in gone if one in self._announced]
        for one in removed:
            del self._announced[one]
        if removed:
            self._events.append(messages.Event(removed=removed))

    def take(self) -> Iterable[messages.Event]:
        events, self._events = self._events, []
        return events


def ids_of(joined: bytes) -> list[bytes]:
    return [joined[at:at + 32] for at in range(0, len(joined), 32)]
