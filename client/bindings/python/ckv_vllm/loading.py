"""Loads rows into vLLM's blocks. Each load is reported once, after the last write to its blocks.

vLLM reserves a request's blocks until the load is reported, even if the request has ended by then. So
each load ends: completed, failed, or at its deadline.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from typing import Any

import numpy as np

import ckv

from . import messages, places, prefix
from .counts import Counts
from .settings import Settings

log = logging.getLogger("ckv_vllm")

THREADS = 4  # concurrent loads; more wait in a queue, within their deadline


class Loader:
    """Loads rows on threads of its own. The thread that runs the model calls begin and take."""

    def __init__(self, settings: Settings, requester: ckv.Requester, fingerprint: str, counts: Counts,
                 place: places.Host) -> None:
        self._place = place
        self.settings, self.requester, self.fingerprint, self.counts = settings, requester, fingerprint, counts
        self._pool = concurrent.futures.ThreadPoolExecutor(THREADS, "ckv-load")
        self._lock = threading.Lock()
        self._done: dict[str, str] = {}  # request to the reason of its failure, or ""
        self._closed = threading.Event()

    def begin(self, load: messages.Load, caches: list[Any]) -> None:
        deadline = time.monotonic() + self.settings.deadline
        self._pool.submit(self._run, load, caches, self._place.stream(), deadline)

    def take(self) -> dict[str, str]:
        """Returns {request: reason of its failure, or ""} of the loads that ended since the last call.

        Nothing is written to their blocks any more.
        """
        with self._lock:
            done, self._done = self._done, {}
        return done

    def _run(self, load: messages.Load, caches: list[Any], stream: Any, deadline: float) -> None:
        why, begun = "", time.monotonic()
        try:
            self._load(load, caches, stream, deadline)
        except Exception as error:  # the load is reported in any case
            why = f"{type(error).__name__}: {error}"
            log.warning("ckv: rows of request %s are computed here, because they were not loaded: %s",
                        load.request_id, why)
        self.counts.add("load_failed_requests" if why else "loaded_requests")
        self.counts.add("load_seconds", time.monotonic() - begun)
        if not why:
            self.counts.add("loaded_tokens", load.token_end - load.token_begin)
        with self._lock:
            self._done[load.request_id] = why

    def _load(self, load: messages.Load, caches: list[Any], stream: Any, deadline: float) -> None:
        def left() -> float:
            seconds = deadline - time.monotonic()
            if seconds <= 0 or self._closed.is_set():
                raise ckv.DeadlineExceeded("no time was left")
            return seconds

        corpus = self.requester.resolve(load.corpus, timeout=left()) if load.corpus else None
        found = self.requester.find(np.asarray(load.tokens, np.int32), model_of=corpus, timeout=left())
        have = prefix.prefix_of(found)
        chunks = len(load.chunk_ids) // 32
        if have.ids[:len(load.chunk_ids)] != load.chunk_ids or found.corpus.revision != self.fingerprint:
            raise ckv.NotFound(f"{have.token_count} of {load.token_end} tokens are left")
        place = ckv.BlockPlace(caches, np.asarray(load.block_ids, np.uint32),
                               tokens=(load.token_begin, load.token_end))
        ticket = self.requester.begin_fetch(found.corpus, place, chunks=(0, chunks), timeout=left(),
                                            traceparent=load.trace or None, stream=stream)
        try:
            if ticket.wait(left()) is None:
                raise ckv.DeadlineExceeded(f"not loaded after {self.settings.deadline} s")
        finally:
            ticket.cancel()  # nothing is written to blocks after this
            ticket.close()

    def close(self) -> None:
        self._closed.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
