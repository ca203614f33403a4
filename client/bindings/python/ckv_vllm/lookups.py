"""Looks up prompts on threads of its own, so that the scheduler does not wait. Does not import vLLM."""

from __future__ import annotations

import concurrent.futures
import logging
import time
from typing import Any, Optional, Sequence

import numpy as np

import ckv

from . import prefix, shared
from .settings import Settings

log = logging.getLogger("ckv_vllm")

THREADS = 4
# Seconds for which a request waits for its look-up; then vLLM computes it. The directory takes 1 ms.
WAIT_MAX = 0.1
# Seconds for which chunks whose load failed are not offered. Otherwise the next request would fail on them, too.
FAILED_FOR = 30.0


class Lookups:
    """Look-ups in progress, by request. Only for the scheduler's thread."""

    def __init__(self, settings: Settings, fingerprint: str) -> None:
        self.settings, self.fingerprint = settings, fingerprint
        self._pool = concurrent.futures.ThreadPoolExecutor(THREADS, "ckv-lookup")
        self._asked: dict[str, tuple[float, concurrent.futures.Future[prefix.Prefix]]] = {}
        self._failed: dict[bytes, float] = {}

    def begin(self, request_id: str, tokens: Sequence[int], corpus: Optional[str]) -> None:
        """Begins to look up a prompt's prefix; only in the corpus, if one is named."""
        future = self._pool.submit(self._find, np.asarray(tokens, np.int32), corpus)
        self._asked[request_id] = time.monotonic(), future

    def result(self, request_id: str) -> Optional[prefix.Prefix]:
        """Returns what was found; None if it is not known yet: call again. After WAIT_MAX, an empty prefix."""
        asked = self._asked.get(request_id)
        if asked is None:
            return prefix.Prefix()
        begun, future = asked
        if not future.done():
            return None if time.monotonic() - begun < WAIT_MAX else prefix.Prefix()
        found = future.result()
        if self._failed and time.monotonic() - self._failed.get(found.ids[-32:], -FAILED_FOR) < FAILED_FOR:
            return prefix.Prefix()
        return found

    def end(self, request_id: str) -> None:
        asked = self._asked.pop(request_id, None)
        if asked is not None:
            asked[1].cancel()

    def failed(self, ids: bytes) -> None:
        """Records that a load of these chunks failed, so that they are not offered for a while."""
        now = time.monotonic()
        self._failed = {one: at for one, at in self._failed.items() if now - at < FAILED_FOR}
        self._failed[ids[-32:]] = now

    def _find(self, tokens: np.ndarray, name: Optional[str]) -> prefix.Prefix:
        try:
            requester = shared.REQUESTERS.of(self.settings)
            corpus = shared.REQUESTERS.resolve(self.settings, name, self.settings.deadline)[0] if name else None
            found = requester.find(tokens, model_of=corpus, timeout=self.settings.deadline)
            if found.corpus.revision != self.fingerprint:
                return prefix.Prefix()
            only = {bytes(one) for one in corpus.chunks()[0]} if corpus is not None else None
            return prefix.prefix_of(found, only)
        except ckv.NotFound:
            return prefix.Prefix(is_complete=name is None)
        except ckv.InvalidArgument:  # chunks of several models
            return prefix.Prefix()
        except Exception as error:  # any error is a miss
            log.warning("ckv: a prompt was not looked up, and is computed here: %s", error)
            return prefix.Prefix()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
