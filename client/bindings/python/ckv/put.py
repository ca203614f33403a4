"""Publishing: stores rows that an engine has computed on holders, and adds them to a corpus."""

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

    version: int  # the version of the corpus that contains the chunks
    bytes_sent: int  # rows sent to holders, including copies
    chunk_begin: int  # ordinal in the corpus of the first new chunk
    added_count: int  # chunks that the corpus did not have before
    # Whether the chunks stay in the corpus even if the directory crashes. False if the directory has
    # no directory.path and a holder has not confirmed them. Then put them again after a crash.
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
    """Chunks being added to a corpus, from Requester.put. Only one thread at a time may use it.

    Call chunk(), then rows() for each layer, and index_keys() if the corpus has an index, for one chunk
    after another; then finish(). No reader
    sees a chunk before finish(). close() drops what was not finished. Close it before its requester.
    """

    __slots__ = ("_row_bytes", "_key_bytes")

    def __init__(self, owner: Owner, corpus: str, parent: Any, create: Union[Corpus, Model, None],
                 replicas: int, bytes_max: int, timeout: Optional[float], ttl: Optional[float],
                 quota_bytes: int, kept_versions: int) -> None:
        """Only for Requester.put."""
        parent = _id(parent)
        facts = None if create is None else facts_of(create)
        target = _structs.PutTarget.made(
            corpus=text(corpus, "corpus"), parent=address(parent),
            create=0 if facts is None else addressof(facts),
            bytes_max=count(bytes_max, "bytes_max", UINT64_MAX),
            replicas=count(replicas, "replicas"), timeout_ns=field_nanoseconds(timeout),
            ttl_ms=-(-nanoseconds(ttl, "ttl") // 1_000_000) if ttl else 0,
            quota_bytes=count(quota_bytes, "quota_bytes", UINT64_MAX),
            kept_version_count=count(kept_versions, "kept_versions"))
        library = owner.library
        self._own(owner, owner.make(library.put_free, (), library.put_begin, byref(target)))
        self._row_bytes = library.put_row_bytes(self._handle)
        self._key_bytes = library.put_index_key_bytes(self._handle)

    def chunk(self, token_ids: Any, *, standalone: bool = False, position: int = 0,
              extra_keys: Optional[Iterable[Any]] = None) -> None:
        """Begins the next chunk. All rows of the previous chunk must have been added.

        token_ids   (n,) integers from 0 to 2^31 - 1, with n from 1 to 2^20; copied
        standalone  True: its rows were computed alone at position 0, and prompts match it anywhere
                    if it has 16 tokens or more. False: it follows the previous chunk of this put
                    that is not standalone, or the put's parent
        position    the position of the first token, if the chunk has no parent. A parent determines
                    the position of any other chunk; a value that is not 0 is checked against it
        extra_keys  inputs other than tokens that affect the rows: (begin, token_count, digest) for
                    each picture or sound, or only a digest, which affects every token, as an adapter
                    does. `begin` counts from this chunk's first token. It is negative for a picture
                    that began in the previous chunk. A digest is 1 to 64 bytes, chosen by the
                    engine. At most 1024 keys, in any order; copied
        Allocates the memory for all rows of the chunk: n x layers x row_bytes. After an error,
        another chunk may be begun; the failed call may have completed the previous one.
        FailedPrecondition  rows of the previous chunk are missing
        InvalidArgument     also: the position is not the end of the previous chunk; or an extra key
                            affects no token of the chunk, occurs twice, or is too long
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
        """Adds rows of the last chunk at one layer. Copies them.

        rows          (n, d_qk) in bf16 (uint16 or bfloat16), or (n, row_bytes) in uint8; contiguous,
                      in host memory. Canonical rows of the model, rotated to the chunk's positions
        offset_bytes  the number of the layer's bytes added before
        Layers may be in any order. The rows of one layer must be in sequence.
        FailedPrecondition  there is no chunk yet
        InvalidArgument     also: there is no such layer, or the rows are out of sequence or do not fit
        """
        self._add(self._owner.library.put_add_rows, layer, rows, "rows", self._row_bytes, offset_bytes)

    def index_keys(self, layer: int, keys: Any, offset_bytes: int = 0) -> None:
        """Adds index keys of the last chunk at one layer. Copies them.

        keys          (n, index_dim) in bf16, or (n, index_key_bytes) in uint8: fp8 or int8 values and
                      their float scale. As the model stores them, rotated to the chunk's positions
        offset_bytes  the number of bytes of the layer's keys added before
        A corpus with an index needs the keys of all layers, in any order, before the next chunk.
        FailedPrecondition  there is no chunk yet
        InvalidArgument     also: the corpus has no index, there is no such layer, or the keys are out of
                            sequence or do not fit
        """
        if self._key_bytes == 0:
            raise InvalidArgument("index_keys: the corpus has no index")
        self._add(self._owner.library.put_add_index_keys, layer, keys, "keys", self._key_bytes,
                  offset_bytes)

    def _add(self, add: Any, layer: int, rows: Any, name: str, row_bytes: int, offset_bytes: int) -> None:
        rows = plain(rows, name)
        at = dense(rows, name, ROWS)
        if len(at.shape) != 2 or at.shape[1] * at.item_bytes != row_bytes:
            raise InvalidArgument(f"{name} has shape {at.shape} of {at.dtype}: it must be (n, values), "
                                  f"{row_bytes} bytes each")
        status = add(self._live(), count(layer, "layer"), count(offset_bytes, "offset_bytes", UINT64_MAX),
                     at.address, size_of(at) * at.item_bytes)
        if status:
            self._owner.library.fail(status)

    def finish(self, timeout: Optional[float] = 60.0) -> PutReport:
        """Puts all chunks on holders and appends them to the corpus in one change.

        Readers see all of the chunks or none. Chunks that the corpus already has are skipped, so a put
        whose answer was lost may be repeated; their rows are not compared. After an error it may be
        called again; after success the put is done. If the directory has no directory.path, it waits
        for at most 5 s of the timeout until the holders have recorded the change.
        FailedPrecondition  rows are missing; another chunk was added after `parent` meanwhile; there
                            are no holders; or the put is done
        InvalidArgument     also: there are no chunks, or more copies than holders
        DataLoss            a holder already has different rows under the id of a new chunk
        Aborted             others changed the corpus repeatedly: call it again
        ResourceExhausted   a holder is full, or the corpus has a quota that the chunks exceed
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
        """Returns the ids of the completed chunks: uint8 (n, 32), a new array.

        A chunk is completed by the next one, or by finish().
        """
        library, handle = self._owner.library, self._live()
        number = library.put_ids(handle, 0, 0)
        ids = np.zeros((number, _structs.CHUNK_ID_BYTES), np.uint8)
        library.put_ids(handle, address(ids), number)
        return ids
