"""Limits for calls from SGLang's threads: a deadline, a count, pauses after failures, and rate-limited warnings."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

log = logging.getLogger("ckv_sglang")

PAUSE_S = 5.0  # after ckv did not answer; without it, each call would wait until its deadline
WARN_EVERY_S = 30.0  # between two warnings of one kind


class Deadline:
    """The deadline of one call from SGLang, which may make several calls of ckv."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Returns the seconds that are left, at least a millisecond: after the end, ckv reports the timeout."""
        return max(self._end - time.monotonic(), 0.001)


class Calls:
    """The calls in progress. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._closed = False
        self._paused_until: dict[str, float] = {}  # by kind

    def begin(self, kind: str) -> bool:
        """Returns whether a call of this kind may begin. If so, call `end` after it."""
        with self._changed:
            if self._closed or time.monotonic() < self._paused_until.get(kind, 0.0):
                return False
            self._count += 1
            return True

    def end(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def pause(self, *kinds: str) -> None:
        """Lets no call of these kinds begin for PAUSE_S."""
        with self._changed:
            self._paused_until.update(dict.fromkeys(kinds, time.monotonic() + PAUSE_S))

    def close(self, timeout: float) -> bool:
        """Lets no more calls begin. Returns whether all calls have ended within `timeout` seconds."""
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: self._count == 0, timeout)


class Warnings:
    """Warnings that each request could cause, logged at most once per WARN_EVERY_S and kind. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}
        self._silent: dict[str, int] = {}

    def warn(self, kind: str, text: str, *arguments: Any) -> None:
        """Logs a warning, with the number of those left out since the last one of its kind.

        kind  one of a few names; each has its own limit
        """
        now = time.monotonic()
        with self._lock:
            if now < self._next.get(kind, 0.0):
                self._silent[kind] = self._silent.get(kind, 0) + 1
                return
            self._next[kind] = now + WARN_EVERY_S
            silent = self._silent.pop(kind, 0)
        more = f" ({silent} more like it since the last one)" if silent else ""
        log.warning("ckv: " + text + "%s", *arguments, more)
