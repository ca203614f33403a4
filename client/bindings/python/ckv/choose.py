"""Sparse attention: the rows of a context with the best index scores. See Requester.select_rows."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p
from typing import Any, Optional

import numpy as np

from . import _structs
from ._handles import Handle, Owner
from ._memory import address, count, dense, field_nanoseconds, plain, text
from .attend import Context
from .errors import InvalidArgument

_QUERIES = ("uint16", "bfloat16", "uint8", "float8_e4m3fn")
_INDEX_MAX = 2**31 - 1


class Choice(Handle):
    """The rows that Requester.choose_rows chose, for `choice` of Segment.

    token_count  the tokens that it has rows of

    Holders remember the rows, so no call lists them. If a holder has forgotten them, the next attend
    finds them again. Any threads may use it at once, at any layer. No attend or submit with it may be
    in progress when it is closed; tickets in flight continue.
    """

    __slots__ = ("token_count", "context")

    token_count: int
    context: Context

    def __init__(self, owner: Owner, cell: c_void_p, context: Context, token_count: int) -> None:
        """Only for Requester.choose_rows."""
        self._own(owner, cell)
        self.context, self.token_count = context, token_count

    def own_rows(self, token: int) -> np.ndarray:
        """Returns which of the caller's own rows were chosen for a token: ascending uint32, a copy."""
        rows = c_void_p()
        found = self._owner.library.choice_own_rows(self._live(), count(token, "token"), byref(rows))
        if not found:
            return np.zeros(0, np.uint32)
        assert rows.value is not None
        at = (ctypes.c_uint32 * found).from_address(rows.value)
        return np.frombuffer(at, np.uint32).copy()


class Selecting:
    """The C struct of a selection, and the arrays whose memory it uses."""

    def __init__(self, context: Context, layer: int, q: Any, weights: Any, k: int, own_scores: Any,
                 timeout: Optional[float], traceparent: Optional[str]) -> None:
        if not isinstance(context, Context):
            raise InvalidArgument(f"rows of a {type(context).__name__} cannot be selected: "
                                  f"it must be a ckv.Context")
        corpus = context._corpus
        heads, dim = corpus.index_heads, corpus.index_dim
        q, weights = plain(q, "q"), plain(weights, "weights")
        queries = dense(q, "q", _QUERIES)
        if len(queries.shape) != 3 or queries.shape[1:] != (heads, dim):
            raise InvalidArgument(f"q has shape {queries.shape}: it must be (tokens, {heads}, {dim})")
        self.tokens, self.k = queries.shape[0], count(k, "k", _INDEX_MAX)
        of_heads = dense(weights, "weights", ("float32",))
        if of_heads.shape != (self.tokens, heads):
            raise InvalidArgument(f"weights have shape {of_heads.shape}: it must be ({self.tokens}, {heads})")
        own = None
        if own_scores is not None:
            own_scores = plain(own_scores, "own_scores")
            own = dense(own_scores, "own_scores", ("float32",))
            if len(own.shape) != 2 or own.shape[0] != self.tokens:
                raise InvalidArgument(f"own_scores have shape {own.shape}: it must be ({self.tokens}, own rows)")
        self.struct = _structs.SelectCall.made(
            context=context._live(), layer=count(layer, "layer"), token_count=count(self.tokens, "tokens"),
            q=queries.address, weights=of_heads.address,
            q_dtype=_structs.INDEX_DTYPES["bf16" if queries.item_bytes == 2 else "fp8"], k=self.k,
            own_scores=own.address if own is not None else 0,
            own_count=count(own.shape[1], "own rows") if own is not None else 0,
            timeout_ns=field_nanoseconds(timeout), traceparent=text(traceparent, "traceparent"))
        self.keep = (context, q, weights, own_scores)


def select_rows(owner: Owner, selecting: Selecting) -> np.ndarray:
    """See Requester.select_rows."""
    rows = np.empty((selecting.tokens, selecting.k), np.int32)
    status = owner.library.select_rows(owner.live(), byref(selecting.struct), address(rows), None)
    if status:
        owner.library.fail(status)
    return rows


def choose_rows(owner: Owner, selecting: Selecting) -> Choice:
    """See Requester.choose_rows."""
    library = owner.library
    cell = owner.make(library.choice_free, (selecting,), library.choose_rows, byref(selecting.struct), None)
    return Choice(owner, cell, selecting.keep[0], selecting.tokens)
