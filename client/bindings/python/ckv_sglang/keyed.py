"""Pages that SGLang set, as chunks of ckv that are found by the page's key.

A key of HiCache is a hash, and no token id can be read out of it. ckv finds chunks by token ids. So each page
is a chunk of its own, whose ids are made of the key: the same in each process that has the same model.
"""

from __future__ import annotations

import hashlib
import json
import threading
from typing import Any, Callable, Iterable, Optional

import numpy as np

import ckv

from . import calls, identity

PAGE_SIZE_MIN = 16  # ckv finds no chunk of fewer tokens
# Tokens of one look-up: 8 bytes each on the way to the directory, whose limit is twice this.
FIND_TOKENS_MAX = 1 << 16
# Chunks of one corpus; pages above them go to the next. Each put publishes all of them again: a put of one page took
# 22 ms into a small corpus, 64 ms into one of 4,096 chunks, and 200 ms into one of 16,384 (two busy cores).
CORPUS_CHUNKS_MAX = 4096
PUT_BYTES_MAX = 128 << 20  # rows of one put, which copies them


class KeyedPages:
    """Finds pages by their keys, and puts them. Thread-safe."""

    def __init__(self, requester: Any, model: ckv.Model, shape: identity.Shape, publish: str,
                 replicas: int = 1) -> None:
        """publish  the corpora's name, to which a number is added; "" if nothing is put"""
        if shape.page_size < PAGE_SIZE_MIN:
            raise ValueError(f"ckv_sglang: pages of {shape.page_size} tokens are not found by ckv: "
                             f"--page-size must be at least {PAGE_SIZE_MIN}, or `revision` unset")
        self.requester, self.model, self.shape = requester, model, shape
        self.publish, self.replicas = publish, replicas
        facts = [getattr(model, name) for name in ("model", "revision", "layers", "d_qk", "d_v", "d_rope", "row_dtype")]
        # Pages of another model have other ids, so they are not even found.
        self._seed = json.dumps(["ckv_sglang.page.1", shape.page_size, *facts]).encode()
        self._lock = threading.Lock()  # of what follows: puts are one after another
        self._number: Optional[int] = None
        self._is_full = False

    def tokens_of(self, key: str) -> np.ndarray:
        """The token ids of a page's chunk: int32 [page_size], from 0 to 2^31 - 1."""
        digest = hashlib.shake_256(self._seed + key.encode()).digest(4 * self.shape.page_size)
        return (np.frombuffer(digest, "<u4") & 0x7fffffff).astype(np.int32)

    def find(self, keys: Iterable[str], deadline: calls.Deadline) -> tuple[Any, dict[str, int]]:
        """(a corpus to close, {key: its chunk in it}) of those keys that are there; (None, {}) if none is.

        Chunks rise in the order of the keys. At most FIND_TOKENS_MAX tokens of keys are looked up.
        Raises ckv.Error
        """
        keys = list(dict.fromkeys(keys))
        try:
            found = self.requester.find(np.concatenate([self.tokens_of(key) for key in keys]), timeout=deadline.left())
        except ckv.NotFound:
            return None, {}
        different = identity.difference(found.corpus, self.model)
        if different:
            found.corpus.close()
            raise ckv.FailedPrecondition(f"pages of another model are under these keys: {different}")
        return found.corpus, {keys[int(begin) // self.shape.page_size]: i for i, begin in enumerate(found.token_begins)}

    def batches(self, keys: list[str]) -> list[list[str]]:
        """The keys in as many lists as look-ups are needed."""
        size = max(1, FIND_TOKENS_MAX // self.shape.page_size)
        return [keys[i:i + size] for i in range(0, len(keys), size)]

    def check_model(self, timeout: float) -> None:
        """Raises ckv.Error if the corpora's name or model does not fit, or the first of them is of another model."""
        self.requester.put(f"{self.publish}.0", create=self.model, timeout=timeout).close()

    def put(self, keys: list[str], rows_of: Callable[[str], np.ndarray], deadline: calls.Deadline) -> list[str]:
        """Publishes pages. Those that are there stay as they are. Raises ckv.Error

        rows_of(key)  uint16 [layers, tokens, values], of any strides

        Returns the keys of pages that another process is putting, with other last bits. They are left to it.
        """
        each = max(1, PUT_BYTES_MAX // (2 * self.shape.page_values))
        if not self._lock.acquire(timeout=deadline.left()):
            raise ckv.DeadlineExceeded("another put is in progress")
        try:
            parts = [keys[i:i + each] for i in range(0, len(keys), each)]
            return [key for part in parts for key in self._put_half(part, rows_of, deadline)]
        finally:
            self._lock.release()

    def _put_half(self, keys: list[str], rows_of: Callable[[str], np.ndarray], deadline: calls.Deadline) -> list[str]:
        """Two processes that put the same pages may each be first at another holder: then each takes what it can."""
        try:
            self._put(keys, rows_of, deadline)
            return []
        except ckv.DataLoss:
            if len(keys) == 1:
                return keys
        half = len(keys) // 2
        return self._put_half(keys[:half], rows_of, deadline) + self._put_half(keys[half:], rows_of, deadline)

    def _put(self, keys: list[str], rows_of: Callable[[str], np.ndarray], deadline: calls.Deadline) -> None:
        with self.requester.put(f"{self.publish}.{self._corpus(deadline)}", create=self.model,
                                replicas=self.replicas, timeout=deadline.left()) as put:
            for key in keys:
                put.chunk(self.tokens_of(key), standalone=True)
                for layer, rows in enumerate(rows_of(key)):
                    put.rows(layer, np.ascontiguousarray(rows))
            report = put.finish(deadline.left())
        self._is_full = report.chunk_begin + report.added_count >= CORPUS_CHUNKS_MAX

    def _corpus(self, deadline: calls.Deadline) -> int:
        """The number of the first corpus, from the last one on, that is not full."""
        while self._number is None or self._is_full:
            number = 0 if self._number is None else self._number + 1
            try:
                with self.requester.resolve(f"{self.publish}.{number}", timeout=deadline.left()) as corpus:
                    self._is_full = corpus.chunk_count >= CORPUS_CHUNKS_MAX
            except ckv.NotFound:
                self._is_full = False
            self._number = number
        return self._number
