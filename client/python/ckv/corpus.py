"""Corpora: snapshots of what the directory knows, and parts of them."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, Optional, Sequence, Union

import numpy as np

from . import _structs
from ._handles import Handle, Owner
from ._memory import address, choice, count, ints, signed, text
from .errors import InvalidArgument

# Facts that belong to the model, in the order of Model.
_NUMBERS = ("layers", "d_qk", "d_v", "d_rope", "rope_theta", "softmax_scale", "yarn_factor",
            "yarn_original_max_position", "yarn_beta_fast", "yarn_beta_slow", "yarn_mscale",
            "yarn_mscale_all_dim")


@dataclasses.dataclass(frozen=True)
class Model:
    """The geometry of a model's rows, for a corpus that is made.

    model, revision  the name and the weights' revision, as in "deepseek-ai/DeepSeek-V2-Lite"
    d_qk, d_v        values of a cKV row and of a query row, and the first of them that are a value
    d_rope           the last values of a row, which are rotated to its position
    softmax_scale    holders apply it, so queries come without it
    rope_style       "none", "interleaved" (pairs 2i, 2i+1) or "half_split" (i, i + d_rope/2)
    row_dtype        "bf16", or "fp8_ds_mla" for FlashMLA's row of 656 bytes
    yarn_*           0 if the model has no YaRN
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


def facts_of(model: Union[Model, Corpus]) -> _structs.CorpusFacts:
    """The model of a corpus, or a Model, as ckv_put_target.create takes it."""
    facts = _structs.CorpusFacts.made(
        model=text(model.model, "model"), revision=text(model.revision, "revision"),
        rope_style=choice(_structs.ROPE_STYLES, model.rope_style, "rope_style"),
        row_dtype=choice(_structs.DTYPES, model.row_dtype, "row_dtype"))
    for name in _NUMBERS:
        value = getattr(model, name)
        setattr(facts, name, count(value, name) if name in _NUMBERS[:4] else float(value))
    return facts


class Corpus(Handle):
    """A list of chunks with a name: an immutable snapshot. Any threads may use it at once.

    name, model, revision  texts; the name of what a prompt found is ""
    version                rises with each publication
    token_count            tokens of all chunks together
    chunk_count, layers    counts
    d_qk, d_v, d_rope      values of a row, of an answer, and of the rotated band
    row_dtype, row_bytes   "bf16" or "fp8_ds_mla", and the bytes of one row
    rope_style, rope_theta, yarn_*, softmax_scale  as in Model
    """

    __slots__ = ("name", "model", "revision", "version", "token_count", "chunk_count", "layers",
                 "d_qk", "d_v", "d_rope", "row_dtype", "row_bytes", "rope_style", "rope_theta",
                 "yarn_factor", "yarn_original_max_position", "yarn_beta_fast", "yarn_beta_slow",
                 "yarn_mscale", "yarn_mscale_all_dim", "softmax_scale")

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

    def __init__(self, owner: Owner, cell: ctypes.c_void_p) -> None:
        """Made by Requester.resolve and Requester.find alone."""
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

    def __repr__(self) -> str:
        return (f"<ckv.Corpus {self.name!r} version {self.version}: {self.token_count} tokens in "
                f"{self.chunk_count} chunks of {self.model}>")

    def chunks(self, begin: int = 0,
               end: Optional[int] = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tells of the chunks [begin, end); by default of all.

        Returns (ids, token_counts, positions):
          ids           uint8 (n, 32): SHA-256 over the model and the tokens up to the chunk's last
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
    """The chunks that a prompt has.

    corpus               they as a corpus without a name, in the order of the prompt
    token_begins         uint32 (n,): the prompt's token with which each chunk begins
    offsets              int64 (n,): that less the chunk's canonical position, as Part takes it
    covered_token_count  tokens of the prompt that are in chunks
    truncated            there were more places to look at; another cover may have more tokens
    """

    corpus: Corpus
    token_begins: np.ndarray
    offsets: np.ndarray
    covered_token_count: int
    truncated: bool

    def part(self) -> Part:
        """All chunks, each where it stands in the prompt."""
        return Part(self.corpus, range(self.corpus.chunk_count), self.offsets)


class Part:
    """Chunks of one corpus, and where they stand. Immutable; any threads may use it at once.

    chunks   ordinals in the corpus, each at most once; None for all
    offsets  how far each stands from its canonical position, in tokens; needs `chunks`
    offset   is added to the offset of each
    InvalidArgument  lengths differ, or a number does not fit. The library checks the ordinals.
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
        """The struct for C."""
        self.corpus._live()
        return self._struct
