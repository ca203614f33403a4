"""Contexts of the corpora that routed requests attend. Some are kept open after their last request.

Only for the engine's thread of one worker process.
"""

from __future__ import annotations

import collections
import logging
import time
from typing import Any

import numpy as np

import ckv

from . import messages, shared
from .settings import Settings

log = logging.getLogger("ckv_vllm")

CONTEXTS_MAX = 64    # kept open; above it the least recently used ones are closed
FAILED_FOR = 30.0    # seconds for which a corpus that failed has calls of its own

Key = tuple[Any, ...]


class Contexts:
    def __init__(self, settings: Settings, requester: ckv.Requester, fingerprint: str) -> None:
        self.settings, self.requester, self.fingerprint = settings, requester, fingerprint
        self._open: collections.OrderedDict[Key, ckv.Context] = collections.OrderedDict()
        self._failed: dict[Key, float] = {}

    @staticmethod
    def key_of(route: messages.Route) -> Key:
        return (route.policy, *map(tuple, route.corpora))

    def get(self, route: messages.Route, timeout: float) -> ckv.Context:
        """Returns a context of a route's corpora, as they were when it was admitted. Raises errors of ckv."""
        key = self.key_of(route)
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        context = self._make(route, timeout)
        self._open[key] = context
        # Rows of this step may still use a context that is removed here. It is closed once they drop it.
        while len(self._open) > CONTEXTS_MAX:
            self._open.popitem(last=False)
        return context

    def _make(self, route: messages.Route, timeout: float) -> ckv.Context:
        corpora = []
        for one in route.corpora:
            meant = shared.Resolved(*one)
            corpus, _ = shared.REQUESTERS.resolve(self.settings, meant.name, timeout)
            if corpus.chunk_count < meant.chunk_count:  # it grew since this process looked
                corpus, _ = shared.REQUESTERS.resolve(self.settings, meant.name, timeout, fresh=True)
            if corpus.revision != self.fingerprint:
                raise ckv.FailedPrecondition(f"{meant.name} is of {corpus.revision}, this is {self.fingerprint}")
            try:
                now = shared.resolved_of(corpus, meant.name, meant.chunk_count)
            except ValueError as error:
                raise ckv.FailedPrecondition(str(error)) from None
            if now != meant:
                raise ckv.FailedPrecondition(f"{meant.name} has other chunks than when the request was admitted")
            corpora.append((corpus, meant))
        # The corpora follow each other, and the last one ends at position -1.
        end, parts = -sum(meant.token_count for _, meant in corpora), []
        for corpus, meant in corpora:
            _, counts, positions = corpus.chunks(0, meant.chunk_count)
            begins = np.cumsum(counts, dtype=np.int64) - counts + end
            parts.append(ckv.Part(corpus, range(meant.chunk_count), begins - positions.astype(np.int64)))
            end += meant.token_count
        return self._open_context(parts, route.policy, timeout)

    def _open_context(self, parts: list[ckv.Part], policy: str, timeout: float) -> ckv.Context:
        """Opens a context. If its rows do not fit under the policy cache, drops the other contexts of that policy.
        That closes those that no row of this step uses. If it is not enough, the queries are routed: the answer
        is the same."""
        until = time.monotonic() + timeout
        try:
            return self.requester.context(parts, policy=policy, timeout=timeout)
        except ckv.ResourceExhausted:
            if policy != "cache":
                raise
        for key in [key for key in self._open if key[0] == "cache"]:
            del self._open[key]
        left = max(until - time.monotonic(), timeout / 8)
        try:
            return self.requester.context(parts, policy=policy, timeout=left)
        except ckv.ResourceExhausted as error:
            log.warning("ckv: routed, because rows do not fit into local_cache_bytes: %s", error)
        return self.requester.context(parts, policy="route", timeout=max(until - time.monotonic(), timeout / 8))

    def failed(self, route: messages.Route) -> None:
        """Records that a route's corpora failed. They have calls of their own for a while, and are resolved again."""
        key = self.key_of(route)
        self._failed[key] = time.monotonic()
        self._open.pop(key, None)  # other rows of the step may still use it

    def apart(self, rows: list[Any]) -> list[list[Any]]:
        """Groups rows by call: one group for most rows, and one for each context whose corpora failed lately.

        Called for each layer, so the usual case is fast.
        """
        if not self._failed:
            return [rows] if rows else []
        now = time.monotonic()
        for key in [key for key, at in self._failed.items() if now - at > FAILED_FOR]:
            del self._failed[key]
        together: list[Any] = []
        alone: dict[Key, list[Any]] = {}
        for row in rows:
            key = self.key_of(row.route)
            (alone.setdefault(key, []) if key in self._failed else together).append(row)
        return [group for group in (together, *alone.values()) if group]

    def close(self) -> None:
        for context in self._open.values():
            context.close()
        self._open.clear()
