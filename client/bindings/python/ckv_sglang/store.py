"""The pages in ckv of one rank of an engine: looks them up, loads them, and adds new ones. Does not import SGLang.

SGLang calls `exists` on one thread, gets on a second and sets on a third, and does not restart a thread that ends. So
no exception is raised into them. A failure is a miss, and a rate-limited warning. Each call has one deadline.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterator, Optional, TypeVar

import numpy as np

import ckv

from . import calls, identity, keyed, pages, settings

TOKENS_MAX = 1 << 20  # tokens of one Requester.find
FETCH_BYTES_MAX = 128 << 20  # rows of one fetch; they are copied into pages
LOST_S = 30.0  # how long a page whose rows could not be fetched is not offered
LOST_COUNT_MAX = 1 << 16  # keys of lost pages, 64 characters each
# How often, and after which pause, to check whether another process has published the pages that both put.
OTHERS_LOOKS, OTHERS_PAUSE_S = 5, 0.1

Answer = TypeVar("Answer")


class Store:
    """The pages. Thread-safe once `open_pages` has returned; until then, all pages are misses."""

    def __init__(self, given: settings.Settings, is_writer: bool) -> None:
        """Opens a requester. Raises the errors of ckv.open with `check`, so no engine starts without its directory.

        is_writer  whether this rank puts pages; with MLA all ranks have the same ones
        """
        self.settings, self.is_writer = given, is_writer and bool(given.publish)
        self.calls, self.warnings = calls.Calls(), calls.Warnings()
        self.shape: Optional[identity.Shape] = None
        self.pages: Optional[pages.Pages] = None
        self.keyed: Optional[keyed.KeyedPages] = None
        self._lost: dict[str, float] = {}  # key to when it is offered again; the dict is replaced, never changed
        self.requester = ckv.open(given.directory, tenant=given.tenant, name="sglang", local_cache_bytes=0,
                                  check=given.timeout)

    def open_pages(self, shape: identity.Shape, hash_of: pages.Hash) -> None:
        """Finds the corpora of the token files. Raises ValueError or ckv.Error if one is missing or does not fit."""
        given = self.settings
        model = identity.model_of(given.model, given.revision, shape)
        found = pages.Pages(shape.page_size, hash_of)
        for path in given.token_files:
            tokens = np.fromfile(path, "<i4")[:TOKENS_MAX]
            one = self.requester.find(tokens, timeout=given.timeout)
            different = identity.difference(one.corpus, model)
            if different:
                raise ValueError(f"ckv_sglang: {path} is of another model: {different}; "
                                 "extra_config's `model` and `revision` may name it")
            if found.add(one, tokens) == 0:
                raise ValueError(f"ckv_sglang: no whole page of {path} is published as a prefix")
        if given.revision:
            self.keyed = keyed.KeyedPages(self.requester, model, shape, given.publish, given.replicas)
            if self.is_writer:
                self.keyed.check_model(given.timeout)
        self.shape, self.pages = shape, found

    def close(self) -> None:
        """Waits for the calls in progress, then closes the requester. If one takes too long, it stays open."""
        if not self.calls.close(settings.TIMEOUT_S_MAX):
            self.warnings.warn("close", "a call is in progress, so the requester stays open")
            return
        self.requester.close()

    def prefix(self, keys: list[str]) -> int:
        """Returns how many of the first keys are stored, without a gap. Does not query holders."""
        return self._kept("exists", 0, lambda deadline: self._prefix(keys, deadline))

    def get(self, keys: list[str], take: Callable[[int, np.ndarray], None]) -> list[bool]:
        """Loads pages. Returns for each key whether its page was loaded.

        take  called as take(i, rows) for each page that is loaded. rows are uint16 [layers, tokens, values], valid only
              during the call
        """
        got = [False] * len(keys)
        self._kept("get", None, lambda deadline: self._get(keys, take, got, deadline))
        return got

    def set(self, keys: list[str], rows_of: Callable[[int], np.ndarray]) -> bool:
        """Puts the pages that are not stored yet, and keeps the others. Returns whether all are stored then.

        Also returns True if this rank puts nothing: otherwise SGLang would warn of each backup.
        """
        if not self.is_writer:
            return True
        return self._kept("set", False, lambda deadline: self._set(keys, rows_of, deadline))

    def _kept(self, kind: str, miss: Answer, work: Callable[[calls.Deadline], Answer]) -> Answer:
        if self.shape is None or not self.calls.begin(kind):
            return miss
        try:
            # No request waits for a backup, so it may take longer.
            return work(calls.Deadline(settings.TIMEOUT_S_MAX if kind == "set" else self.settings.timeout))
        except Exception as error:  # it would end SGLang's thread
            self.warnings.warn(kind, "%s fails: %s: %s", kind, type(error).__name__, error)
        finally:
            self.calls.end()
        return miss

    def _prefix(self, keys: list[str], deadline: calls.Deadline) -> int:
        known, now, count = self.pages.by_key, time.monotonic(), 0
        for batch in self.keyed.batches(keys) if self.keyed else [keys]:
            there = self._find([key for key in batch if key not in known], deadline)
            for key in batch:
                if (key not in known and key not in there) or self._lost.get(key, 0.0) > now:
                    return count
                count += 1
        return count

    def _find(self, keys: list[str], deadline: calls.Deadline) -> dict[str, int]:
        if not keys or self.keyed is None:
            return {}
        corpus, there = self._look_up(keys, deadline)
        if corpus is not None:
            corpus.close()
        return there

    def _look_up(self, keys: list[str], deadline: calls.Deadline) -> tuple[Any, dict[str, int]]:
        try:
            return self.keyed.find(keys, deadline)
        except (ckv.Unavailable, ckv.DeadlineExceeded):  # the directory
            self.calls.pause("exists", "get", "set")
            raise

    def _get(self, keys: list[str], take: Callable[[int, np.ndarray], None], got: list[bool],
             deadline: calls.Deadline) -> None:
        for piece in self._pieces(keys, deadline):
            rows = np.empty((self.shape.layers, piece.tokens, self.shape.d_qk), np.uint16)
            try:
                self.requester.fetch(piece.corpus, rows, chunks=piece.chunks, timeout=deadline.left())
            except ckv.Error as error:
                self._lose([keys[i] for i, _ in piece.pages])
                self.warnings.warn("get", "%d pages are a miss: %s", len(piece.pages), error)
                return  # SGLang uses no page after a miss, and most of the time is spent
            for i, begin in piece.pages:
                take(i, rows[:, begin:begin + self.shape.page_size])
                got[i] = True

    def _pieces(self, keys: list[str], deadline: calls.Deadline) -> Iterator[pages.Piece]:
        yield from self.pages.pieces(keys, FETCH_BYTES_MAX)
        if self.keyed is None:
            return
        places = {key: [] for key in keys if key not in self.pages.by_key}
        for i, key in enumerate(keys):
            if key in places:
                places[key].append(i)
        size = self.shape.page_size
        each = max(1, FETCH_BYTES_MAX // (2 * self.shape.page_values))
        for batch in self.keyed.batches(list(places)):
            corpus, there = self._look_up(batch, deadline)
            try:
                for begin in range(0, len(there), each):
                    some = list(there)[begin:begin + each]
                    yield pages.Piece(corpus, (begin, begin + len(some)), begin * size, len(some) * size,
                                      [(i, at * size) for at, key in enumerate(some) for i in places[key]])
            finally:
                if corpus is not None:
                    corpus.close()

    def _lose(self, keys: list[str]) -> None:
        now = time.monotonic()
        kept = {key: end for key, end in self._lost.items() if end > now}
        if len(kept) + len(keys) > LOST_COUNT_MAX:
            kept = {}
        self._lost = {**kept, **dict.fromkeys(keys, now + LOST_S)}

    def _set(self, keys: list[str], rows_of: Callable[[int], np.ndarray], deadline: calls.Deadline) -> bool:
        new = self._missing(keys, deadline)
        if not new:
            return True
        try:
            others = self.keyed.put(list(new), lambda key: rows_of(new[key]), deadline)
        except (ckv.Unavailable, ckv.DeadlineExceeded):
            self.calls.pause("set")  # SGLang's backups wait in a queue, and occupy pages of its host pool
            raise
        for _ in range(OTHERS_LOOKS if others else 0):
            if not self._missing(others, deadline):
                return True
            time.sleep(min(OTHERS_PAUSE_S, deadline.left()))
        if others:
            self.warnings.warn("others", "%d pages are on a holder with other rows, and in no corpus: another process "
                               "put them and ended, or has not published them yet", len(others))
        return not others

    def _missing(self, keys: list[str], deadline: calls.Deadline) -> dict[str, int]:
        """Returns {key: index} of the keys that are not stored."""
        at = {key: i for i, key in enumerate(keys) if key not in self.pages.by_key}
        for batch in self.keyed.batches(list(at)):
            for key in self._find(batch, deadline):
                del at[key]
        return at
