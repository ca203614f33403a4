"""Publishing: rows that an engine has computed, put on holders and into a corpus."""

from __future__ import annotations

from ctypes import addressof, byref
from typing import Any, Iterable, NamedTuple, Optional, Union

import numpy as np

from . import _inputs, _structs
from ._handles import Handle, Owner
from ._memory import (ROWS, UINT64_MAX, address, count, dense, field_nanoseconds, ints, nanoseconds,
                      plain, size_of, text)
from .corpus import Corpus, Model, facts_of
from .errors import InvalidArgument


class PutReport(NamedTuple):
    """The outcome of a put."""

    version: int  # of the corpus that has the chunks
    bytes_sent: int  # rows that went to holders, copies counted
    chunk_begin: int  # ordinal in the corpus of the first chunk that is new
    added_count: int  # chunks that the corpus did not have
    # Whether the chunks stay in the corpus even if the directory crashes. False if the directory has
    # no directory.path and a holder has not confirmed them. After a crash, put them again.
    kept: bool


def _id(parent: Any) -> Optional[np.ndarray]:
    if parent is None:
        return None
    if isinstance(parent, (bytes, bytearray, memoryview)):
        parent = np.frombuffer(parent, np.uint8)
    parent = ints(parent, np.uint8, "parent")
    if parent.size != _structs.CHUNK_ID_BYTES:
        raise InvalidArgument(f"parent has {parent.size} bytes: an id has 32")
    return parent


class Put(Handle):
    """Chunks on their way into a corpus, of Requester.put. Use it by one thread at a time.

    Nobody sees a chunk before finish(). close() drops what was not finished.
    """

    __slots__ = ("_row_bytes",)

    def __init__(self, owner: Owner, corpus: str, parent: Any, create: Union[Corpus, Model, None],
                 replicas: int, bytes_max: int, timeout: Optional[float]) -> None:
        """Made by Requester.put alone."""
        parent = _id(parent)
        facts = None if create is None else facts_of(create)
        target = _structs.PutTarget.made(
            corpus=text(corpus, "corpus"), parent=address(parent),
            create=0 if facts is None else addressof(facts),
            bytes_max=count(bytes_max, "bytes_max", UINT64_MAX),
            replicas=count(replicas, "replicas"), timeout_ns=field_nanoseconds(timeout))
        library = owner.library
        self._own(owner, owner.make(library.put_free, (), library.put_begin, byref(target)))
        self._row_bytes = library.put_row_bytes(self._handle)

    def chunk(self, token_ids: Any, *, standalone: bool = False, position: int = 0,
              extra_keys: Optional[Iterable[Any]] = None) -> None:
        """Begins the next chunk. All rows of the one before it must be there.

        token_ids   (n,) integers from 0 to 2^31 - 1, 1 to 2^20 of them; copied
        standalone  its rows were computed alone at position 0, and prompts find it anywhere, if it
                    has 16 tokens or more.
                    Otherwise it follows the last chunk of this put that is not, or the parent.
        position    where its first token stands if it has no parent; else checked if it is not 0
        extra_keys  what shapes its rows beside the tokens: (begin, token_count, digest) of each
                    picture or sound, a digest of what shapes all of them, as an adapter. `begin`
                    counts from this chunk's first token; it is negative for what began before. A
                    digest is 1 to 64 bytes. In any order, at most 1024
        Takes the memory of all its rows at once: n x layers x row_bytes.
        FailedPrecondition  rows of the chunk before it are missing
        InvalidArgument     also: the position is not the one that follows, or an extra key shapes no
                            token of the chunk or is there twice
        ResourceExhausted   the rows do not fit bytes_max
        """
        tokens = _inputs.token_ids(token_ids, "token_ids")
        keys, key_count, _alive = _inputs.extra_keys(extra_keys)
        chunk = _structs.PutChunk.made(
            token_ids=address(tokens), token_count=tokens.size, standalone=int(bool(standalone)),
            position=count(position, "position", UINT64_MAX),
            extra_keys=addressof(keys) if key_count else 0, extra_key_count=key_count)
        library = self._owner.library
        status = library.put_add_chunk(self._live(), byref(chunk))
        if status:
            library.fail(status)

    def rows(self, layer: int, rows: Any, offset_bytes: int = 0) -> None:
        """Takes rows of the last chunk at one layer, and copies them.

        rows          (n, d_qk) in bf16 (uint16 or bfloat16) or (n, row_bytes) in uint8, contiguous,
                      in host memory: canonical rows, rotated to the chunk's own positions
        offset_bytes  the number of the layer's bytes that came before
        Layers come in any order, rows of one layer one after another.
        FailedPrecondition  there is no chunk yet
        InvalidArgument     also: there is no such layer, or the rows do not follow or do not fit
        """
        rows = plain(rows, "rows")
        at = dense(rows, "rows", ROWS)
        if len(at.shape) != 2 or at.shape[1] * at.item_bytes != self._row_bytes:
            raise InvalidArgument(f"rows has shape {at.shape} of {at.dtype}: it must be (n, values), "
                                  f"{self._row_bytes} bytes a row")
        library = self._owner.library
        status = library.put_add_rows(self._live(), count(layer, "layer"),
                                      count(offset_bytes, "offset_bytes", UINT64_MAX), at.address,
                                      size_of(at) * at.item_bytes)
        if status:
            library.fail(status)

    def finish(self, timeout: Optional[float] = 60.0) -> PutReport:
        """Puts all chunks on holders and appends them to the corpus, by one change.

        Chunks that the corpus has are left out, so a put whose answer was lost may be made again;
        their rows are not compared.
        After an error it may be called again; after success the put is done. For a directory in
        memory it waits until the holders keep the change, for at most 5 s of the timeout.
        FailedPrecondition  rows are missing, or the corpus has got another chunk behind `parent`,
                            or there are no holders, or the put is done
        InvalidArgument     also: there are no chunks, or more copies than holders
        DataLoss            a holder has other rows under an id
        Aborted             others changed the corpus again and again: call it again
        ResourceExhausted   a holder is full
        Unavailable, DeadlineExceeded  the directory or a holder does not answer, or not in time
        """
        report = _structs.PutReport.made()
        library = self._owner.library
        status = library.put_finish(self._live(), nanoseconds(timeout), byref(report))
        if status:
            library.fail(status)
        return PutReport(report.version, report.bytes_sent, report.chunk_begin, report.added_count,
                         bool(report.kept))

    def ids(self) -> np.ndarray:
        """The ids of the put's chunks: uint8 (n, 32). The last one is among them after finish()."""
        library, handle = self._owner.library, self._live()
        number = library.put_ids(handle, 0, 0)
        ids = np.zeros((number, _structs.CHUNK_ID_BYTES), np.uint8)
        library.put_ids(handle, address(ids), number)
        return ids
