"""Corpora: snapshots of the directory's entries, and parts of them."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, Optional, Sequence, Union

import numpy as np

from . import _structs
from ._handles import Handle, Owner
from ._memory import address, choice, count, ints, signed, text
from .errors import InvalidArgument

# The numbers of a model: counts, and floats.
_COUNTS = ("layers", "d_qk", "d_v", "d_rope", "index_dim", "index_heads", "index_d_rope")
_FLOATS = ("rope_theta", "softmax_scale", "yarn_factor", "yarn_original_max_position", "yarn_beta_fast",
           "yarn_beta_slow", "yarn_mscale", "yarn_mscale_all_dim", "index_scale")


@dataclasses.dataclass(frozen=True)
class Model:
    """The geometry of a model's rows, for a corpus to be created by Requester.put. Immutable.

    model, revision  the name, for example "deepseek-ai/DeepSeek-V2-Lite", and the weights' revision
    layers           layers of the model
    d_qk             values of a cKV row and of a query row
    d_v              values of a row of an answer: the first d_v values of a cKV row
    d_rope           the last values of a row, which are rotated to its position
    softmax_scale    holders apply it, so pass queries without it
    rope_style       "none", "interleaved" (pairs 2i, 2i+1) or "half_split" (i, i + d_rope/2)
    row_dtype        "bf16", or "fp8_ds_mla" for FlashMLA's row of 656 bytes
    yarn_*           0 if the model has no YaRN
    index_*          the index keys of sparse attention (DeepSeek-V3.2); index_dim is 0 if there are none
      index_dim      values of a key, and of each of a token's index_heads query vectors
      index_dtype    "bf16", or "fp8" (e4m3) or "int8", each with a float scale behind the values
      index_d_rope   the first values of a key, which are rotated to its position, and how
      index_scale    the score of key k is index_scale x sum of w_h x max(0, q_h . k) over the heads h
    """

    model: str
    revision: str
    layers: int
    d_qk: int
    d_v: int
    d_rope: int
    softmax_scale: float
    rope_style: str = "interleaved"
    rope_theta: float = 10000.0
    row_dtype: str = "bf16"
    yarn_factor: float = 0.0
    yarn_original_max_position: float = 0.0
    yarn_beta_fast: float = 0.0
    yarn_beta_slow: float = 0.0
    yarn_mscale: float = 0.0
    yarn_mscale_all_dim: float = 0.0
    index_dim: int = 0
    index_heads: int = 0
    index_dtype: str = ""
    index_d_rope: int = 0
    index_rope_style: str = "none"
    index_scale: float = 0.0


def facts_of(model: Union[Model, Corpus]) -> _structs.CorpusFacts:
    """Returns a Model, or the model of a Corpus, as the struct for ckv_put_target.create."""
    facts = _structs.CorpusFacts.made(
        model=text(model.model, "model"), revision=text(model.revision, "revision"),
        rope_style=choice(_structs.ROPE_STYLES, model.rope_style, "rope_style"),
        row_dtype=choice(_structs.DTYPES, model.row_dtype, "row_dtype"),
        index_dtype=choice(_structs.INDEX_DTYPES, model.index_dtype, "index_dtype"),
        index_rope_style=choice(_structs.ROPE_STYLES, model.index_rope_style, "index_rope_style"))
    for name in _COUNTS:
        setattr(facts, name, count(getattr(model, name), name))
    for name in _FLOATS:
        setattr(facts, name, float(getattr(model, name)))
    return facts


class Corpus(Handle):
    """A named, ordered list of chunks: an immutable snapshot. From Requester.resolve or find.

    name, model, revision  texts; the name of a corpus from find is ""
    version                increases with each publication
    token_count            tokens of all chunks together
    chunk_count, layers    counts
    d_qk, d_v, d_rope      values of a cKV row, of a row of an answer, and of the RoPE band
    row_dtype, row_bytes   "bf16" or "fp8_ds_mla", and the bytes of one row at one layer
    rope_style, rope_theta, yarn_*, softmax_scale, index_*  as in Model
    index_key_bytes        the bytes of one index key at one layer; 0 if there are none

    Any threads may use it at once. Contexts, tickets and fetches that use it remain valid after
    close(), and its attributes remain readable. A new call with it raises FailedPrecondition.
    """

    __slots__ = ("name", "model", "revision", "version", "token_count", "chunk_count", "layers",
                 "d_qk", "d_v", "d_rope", "row_dtype", "row_bytes", "rope_style", "rope_theta",
                 "yarn_factor", "yarn_original_max_position", "yarn_beta_fast", "yarn_beta_slow",
                 "yarn_mscale", "yarn_mscale_all_dim", "softmax_scale", "index_scale", "index_dim",
                 "index_heads", "index_dtype", "index_d_rope", "index_rope_style", "index_key_bytes")

    name: str
    model: str
    revision: str
    version: int
    token_count: int
    chunk_count: int
    layers: int
    d_qk: int
    d_v: int
    d_rope: int
    row_dtype: str
    row_bytes: int
    rope_style: str
    rope_theta: float
    softmax_scale: float
    index_dim: int
    index_heads: int
    index_dtype: str
    index_d_rope: int
    index_rope_style: str
    index_scale: float
    index_key_bytes: int

    def __init__(self, owner: Owner, cell: ctypes.c_void_p) -> None:
        """Only for Requester.resolve and Requester.find."""
        self._own(owner, cell)
        facts = _structs.CorpusFacts.made()
        status = owner.library.corpus_describe(self._handle, ctypes.byref(facts))
        if status:
            owner.library.fail(status)
        for name, _type in _structs.CorpusFacts._fields_[1:]:
            value = getattr(facts, name)
            setattr(self, name, value.decode() if isinstance(value, bytes) else value)
        self.name = self.name or ""
        self.row_dtype = _structs.DTYPE_NAMES.get(facts.row_dtype, str(facts.row_dtype))
        self.rope_style = _structs.ROPE_STYLE_NAMES.get(facts.rope_style, str(facts.rope_style))
        self.index_dtype = _structs.INDEX_DTYPE_NAMES.get(facts.index_dtype, str(facts.index_dtype))
        self.index_rope_style = _structs.ROPE_STYLE_NAMES.get(facts.index_rope_style,
                                                              str(facts.index_rope_style))

    def __repr__(self) -> str:
        return (f"<ckv.Corpus {self.name!r} version {self.version}: {self.token_count} tokens in "
                f"{self.chunk_count} chunks of {self.model}>")

    def chunks(self, begin: int = 0,
               end: Optional[int] = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Describes the chunks [begin, end), by default all. Sends nothing.

        Returns (ids, token_counts, positions), new arrays:
          ids           uint8 (n, 32): SHA-256 over the model, and all tokens and extra keys up to
                        the end of the chunk
          token_counts  uint32 (n,)
          positions     uint64 (n,): the canonical position of the chunk's first token
        InvalidArgument  the range is not within the corpus
        """
        begin = count(begin, "begin")
        end = self.chunk_count if end is None else count(end, "end")
        size = min(max(end - begin, 0), self.chunk_count)
        ids = np.zeros((size, _structs.CHUNK_ID_BYTES), np.uint8)
        token_counts, positions = np.zeros(size, np.uint32), np.zeros(size, np.uint64)
        library = self._owner.library
        status = library.corpus_chunks(self._live(), begin, end, address(ids),
                                       address(token_counts), address(positions))
        if status:
            library.fail(status)
        return ids, token_counts, positions


@dataclasses.dataclass(frozen=True)
class Found:
    """The chunks that match a prompt, from Requester.find.

    corpus               the chunks as a corpus without a name, in the order of the prompt
    token_begins         uint32 (n,): the index of the prompt's token with which each chunk begins
    offsets              int64 (n,): token_begins less the chunks' canonical positions, as in Part
    matched_token_count  tokens of the prompt that are in chunks
    truncated            the search hit a limit, of candidate chunks or of their positions. A better
                         match may exist.

    Tokens in no chunk are the gaps between them. A chunk that occurs several times in the prompt is
    listed once, at its first occurrence. Treat the other occurrences as tokens without a chunk.
    """

    corpus: Corpus
    token_begins: np.ndarray
    offsets: np.ndarray
    matched_token_count: int
    truncated: bool

    def part(self) -> Part:
        """Returns all chunks, at their positions in a prompt whose first token is at position 0."""
        return Part(self.corpus, range(self.corpus.chunk_count), self.offsets)


class Part:
    """Chunks of one corpus, and their positions. Immutable; any threads may use it at once.

    corpus   kept alive; must stay open while the part is passed to a call
    chunks   ordinals in the corpus, each at most once, at least one; None: all
    offsets  the distance of each chunk from its canonical position, in tokens, from -2^40 to 2^40;
             by default 0. Needs `chunks`
    offset   added to the offset of each chunk

    A contiguous `chunks` of uint32 or `offsets` of int64 is not copied: do not change it.
    InvalidArgument     lengths differ, or a number does not fit its type. The call that uses the part
                        checks ordinals and offsets.
    FailedPrecondition  the corpus is closed
    """

    __slots__ = ("corpus", "chunks", "offsets", "offset", "_struct")

    def __init__(self, corpus: Corpus, chunks: Optional[Sequence[int]] = None,
                 offsets: Optional[Sequence[int]] = None, offset: int = 0) -> None:
        if not isinstance(corpus, Corpus):
            raise InvalidArgument(f"a part is of a ckv.Corpus, not of a {type(corpus).__name__}")
        if offsets is not None and (chunks is None or len(offsets) != len(chunks)):
            raise InvalidArgument("offsets need as many chunks")
        self.corpus = corpus
        self.chunks = None if chunks is None else ints(chunks, np.uint32, "chunks")
        self.offsets = None if offsets is None else ints(offsets, np.int64, "offsets")
        self.offset = signed(offset, "offset")
        self._struct = _structs.Part.made(
            corpus=corpus._live(), chunks=address(self.chunks), offsets=address(self.offsets),
            chunk_count=0 if self.chunks is None else self.chunks.size, offset=self.offset)
        if self.chunks is not None and not self.chunks.size:
            raise InvalidArgument("a part has at least one chunk")

    def _live(self) -> Any:
        """Returns the struct for C. FailedPrecondition: the corpus is closed."""
        self.corpus._live()
        return self._struct
