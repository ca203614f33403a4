"""Publishes rows that vLLM prefilled as chunks of a corpus, in the background. One rank publishes.

Rows are copied in the step that computed them, because another request may get the blocks right after
it. A thread puts the copies on holders, in the order of the steps.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import threading
from typing import Any

import numpy as np
import torch

import ckv

from . import messages, places, prefix
from .counts import Counts
from .settings import Settings

log = logging.getLogger("ckv_vllm")

BYTES_MAX = 4 << 30          # limit for rows that wait to be put; beyond it a publish is dropped, and counted
# Seconds. The thread gets a sixtieth of a core if all cores are busy; 500 MB take this long then.
PUT_TIMEOUT = 600.0
NICE = 19


@dataclasses.dataclass
class Copied:
    """A prompt, and its rows [layers, tokens, values]."""

    request_id: str
    corpus: str
    tokens: np.ndarray
    rows: places.Rows


def step_aside() -> None:
    """Gives this thread the lowest priority. The model's threads wait for each other at each layer, so a
    thread that takes the core of one delays all."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)  # on Linux, a thread's own
    except OSError as error:
        log.info("ckv: publishing has the priority of the model's threads: %s", error)


class Publisher:
    """Puts rows on holders from a thread, which the first publish starts."""

    def __init__(self, settings: Settings, requester: ckv.Requester, model: ckv.Model, counts: Counts,
                 place: places.Host, reports: bool = False) -> None:
        """`reports`: whether take_stored returns what was published."""
        self._place = place
        self.settings, self.requester, self.model, self.counts = settings, requester, model, counts
        self._reports, self._stored = reports, list[messages.Chunks]()
        self._queue: queue.Queue[Any] = queue.Queue()
        self._lock = threading.Lock()
        self._bytes = 0
        self._thread: Any = None

    def add(self, message: messages.Publish, caches: dict[int, torch.Tensor]) -> None:
        """Copies the rows of a prompt that has just been computed, and queues them."""
        first = next(iter(caches.values()))
        size = len(message.tokens) * len(caches) * first.shape[2] * 2
        with self._lock:
            if self._bytes + size > BYTES_MAX:
                log.warning("ckv: rows of request %s are not published: %d MiB wait to be put already",
                            message.request_id, self._bytes >> 20)
                self.counts.add("publish_failed_tokens", len(message.tokens))
                return
            self._bytes += size
        try:
            copied = Copied(message.request_id, message.corpus, np.asarray(message.tokens, np.int32),
                            self._place.rows(caches, message.block_ids, len(message.tokens)))
        except Exception as error:  # out of memory: the step continues
            log.warning("ckv: rows of request %s are not published: %s", message.request_id, error)
            self.counts.add("publish_failed_tokens", len(message.tokens))
            with self._lock:
                self._bytes -= size
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ckv-publish", daemon=True)
            self._thread.start()
        self._queue.put(copied)

    def take_stored(self) -> list[messages.Chunks]:
        """Returns the chunks of prompts that were published since the last call."""
        with self._lock:
            stored, self._stored = self._stored, []
        return stored

    def _tell(self, copied: Copied, have: prefix.Prefix) -> None:
        chunks = have.chunks_of(copied.tokens) if self._reports else None
        if chunks is not None:
            with self._lock:
                self._stored.append(chunks)

    def _found(self, copied: Copied) -> prefix.Prefix:
        """Returns the prefix that the directory finds of a prompt just published. An error is only logged."""
        try:
            corpus = self.requester.resolve(copied.corpus)
            return prefix.prefix_of(self.requester.find(copied.tokens, model_of=corpus))
        except ckv.Error as error:
            log.warning("ckv: no event reports what was published of request %s: %s", copied.request_id, error)
            return prefix.Prefix()

    def _run(self) -> None:
        aside = False
        while True:
            copied = self._queue.get()
            if copied is None:
                return
            try:
                self._put(copied)
            except Exception as error:  # a lost publish is only a later miss
                log.warning("ckv: rows of request %s are not published in %s: %s", copied.request_id,
                            copied.corpus, error)
                self.counts.add("publish_failed_tokens", len(copied.tokens))
            with self._lock:
                self._bytes -= copied.rows.nbytes
            if not aside:  # after the first put: its gRPC threads serve look-ups, too, and would inherit the priority
                step_aside()
                aside = True

    def _have(self, copied: Copied) -> prefix.Prefix:
        """Returns the prompt's prefix that the corpus has already. FailedPrecondition: it is of another model."""
        try:
            corpus = self.requester.resolve(copied.corpus)
        except ckv.NotFound:
            return prefix.Prefix()
        if corpus.revision != self.model.revision:
            raise ckv.FailedPrecondition(f"its rows are of {corpus.model} {corpus.revision}, these are of "
                                         f"{self.model.revision}")
        try:
            found = self.requester.find(copied.tokens, model_of=corpus)
        except ckv.NotFound:
            return prefix.Prefix()
        ids = {bytes(one) for one in corpus.chunks()[0]}
        return prefix.prefix_of(found, ids)

    def _put(self, copied: Copied) -> None:
        have = self._have(copied)
        if have.token_count >= len(copied.tokens):
            self._tell(copied, have)
            return
        size, whole = self.settings.chunk_tokens, copied.rows.wait()
        with self.requester.put(copied.corpus, parent=have.last_id, create=self.model,
                                replicas=self.settings.replicas) as put:
            for begin in range(have.token_count, len(copied.tokens), size):
                end = min(begin + size, len(copied.tokens))
                put.chunk(copied.tokens[begin:end])
                for layer, rows in enumerate(whole):
                    put.rows(layer, rows[begin:end])
            put.finish(PUT_TIMEOUT)
        self.counts.add("published_tokens", len(copied.tokens) - have.token_count)
        if self._reports:
            self._tell(copied, self._found(copied))
        log.info("ckv: published %d tokens of request %s in %s", len(copied.tokens) - have.token_count,
                 copied.request_id, copied.corpus)

    def close(self, timeout: float = 5.0) -> None:
        """Puts the queued rows, for at most `timeout` seconds."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout)
