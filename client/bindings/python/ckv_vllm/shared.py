"""The requester of this process, and a cache of the corpora that it has resolved by name."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
import time
from typing import Any, Optional

import ckv

from .settings import Settings

# Seconds. A corpus may grow meanwhile. A request keeps the chunks that its name meant when it was admitted.
NAMES_AGE_MAX = 2.0
CALLS_MAX = 256  # concurrent calls: one per layer at a time, loads, and publishing
NAMES_MAX = 1024  # names in the cache
# Seconds for which a directory that did not answer is not queried. One thread takes all requests, and
# would wait for each of them.
SILENT_FOR = 2.0


@dataclasses.dataclass(frozen=True)
class Resolved:
    """The meaning of a name when a request was admitted: the first chunks of a corpus, which never change.

    digest  hexadecimal, over their ids, token counts and positions
    """

    name: str
    chunk_count: int
    token_count: int
    digest: str

    def to_list(self) -> list[Any]:
        return [self.name, self.chunk_count, self.token_count, self.digest]


def check_directory(settings: Settings) -> None:
    """Raises an error if the directory does not answer. Otherwise the engine would answer without corpora, and
    seem to work."""
    ckv.open(settings.directory, tenant=settings.tenant, name="vllm", check=settings.deadline).close()


class Requesters:
    """One requester per process, settings and backend. Opened on first use, never before a fork. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[int, Settings, str], ckv.Requester] = {}
        self._names: dict[tuple[Settings, str], tuple[float, ckv.Corpus, Resolved]] = {}
        self._silent: dict[Settings, tuple[float, ckv.Error]] = {}
        self._users: dict[Settings, int] = {}
        self._announced: dict[Settings, tuple[str, int, int]] = {}

    def announce(self, settings: Settings, fingerprint: str, rank: int, rank_count: int) -> None:
        """Makes `ckvctl status` show this process as an engine's. Call it before the requester is opened."""
        with self._lock:
            self._announced[settings] = fingerprint, rank, rank_count

    def of(self, settings: Settings, backend: str = "") -> ckv.Requester:
        """Returns the requester. Raises the errors of ckv.open. Does not query the directory.

        backend  attends locally cached and own rows; as in ckv.open
        """
        key = (os.getpid(), settings, backend)
        with self._lock:
            if key not in self._open:
                model, rank, rank_count = self._announced.get(settings, (None, 0, 0))
                self._open[key] = ckv.open(settings.directory, tenant=settings.tenant, name="vllm",
                                           fabrics=settings.fabrics, local_cache_bytes=settings.local_cache_bytes,
                                           call_count_max=CALLS_MAX, announce=model, announce_rank=rank,
                                           announce_rank_count=rank_count, requester=settings.requester,
                                           backend=backend)
            return self._open[key]

    def resolve(self, settings: Settings, name: str, timeout: float,
                fresh: bool = False) -> tuple[ckv.Corpus, Resolved]:
        """Returns a corpus by name, as it was at most NAMES_AGE_MAX seconds ago. Raises as Requester.resolve.

        While the directory does not answer, returns the corpus as it was last known, because chunks do not change
        and holders still answer. `fresh` skips the cache.
        InvalidArgument  it has no chunks
        """
        key = (settings, name)
        with self._lock:
            known = self._names.get(key)
            silent = self._silent.get(settings)
        now = time.monotonic()
        if known is not None and not fresh and now - known[0] < NAMES_AGE_MAX:
            return known[1], known[2]
        if silent is not None and now - silent[0] < SILENT_FOR:
            if known is not None and not fresh:
                return known[1], known[2]
            raise silent[1]
        try:
            corpus = self.of(settings).resolve(name, timeout=timeout)
        except (ckv.Unavailable, ckv.DeadlineExceeded) as error:
            with self._lock:
                self._silent[settings] = time.monotonic(), error
            if known is not None and not fresh:
                return known[1], known[2]
            raise
        if corpus.chunk_count == 0:
            raise ckv.InvalidArgument(f"corpus {name!r} is empty")
        found = corpus, resolved_of(corpus, name, corpus.chunk_count)
        with self._lock:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            self._names[key] = (time.monotonic(), *found)
        return found

    def use(self, settings: Settings) -> None:
        """Registers a user of the requester, which calls close later."""
        with self._lock:
            self._users[settings] = self._users.get(settings, 0) + 1

    def close(self, settings: Settings) -> None:
        """Unregisters a user. The last one closes the requester."""
        with self._lock:
            self._users[settings] = self._users.get(settings, 1) - 1
            if self._users[settings] > 0:
                return
            for known in [key for key in self._names if key[0] == settings]:
                del self._names[known]
            open_ones = [self._open.pop(key) for key in list(self._open) if key[:2] == (os.getpid(), settings)]
        for requester in open_ones:
            try:
                requester.close()
            except ckv.FailedPrecondition:
                pass  # a ticket, fetch or put is open; it ends with the process


REQUESTERS = Requesters()


def resolved_of(corpus: ckv.Corpus, name: str, chunk_count: int) -> Resolved:
    """Returns the first chunks of a corpus. Raises ValueError if it has fewer, or chunk_count is 0."""
    if not 0 < chunk_count <= corpus.chunk_count:
        raise ValueError(f"corpus {name!r} has {corpus.chunk_count} chunks, {chunk_count} are meant")
    ids, counts, positions = corpus.chunks(0, chunk_count)
    digest = hashlib.sha256()
    for array in (ids, counts, positions):
        digest.update(array.tobytes())
    return Resolved(name, chunk_count, int(counts.sum()), digest.hexdigest()[:32])
