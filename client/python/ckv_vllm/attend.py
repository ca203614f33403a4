"""forward_mqa with corpora: rows go to holders while the base's kernel attends the own rows.

`impl_over(base, ...)` makes the class, so that this file needs no vLLM. The signature is that of
MLAAttentionImpl.forward_mqa(q, kv_c_and_k_pe_cache, attn_metadata, layer) -> (o, lse).
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Callable, Sequence

import numpy as np
import torch

import ckv

from . import tensors

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")


@dataclasses.dataclass(frozen=True)
class Span:
    """Consecutive tokens of a step that attend one context beside their own rows."""

    context: Any  # ckv.Context
    token_begin: int
    token_count: int


class EverySequence:
    """All sequences attend one corpus, which stands directly before position 0.

    Sequences count their positions from 0, as ever. RoPE depends on differences of positions alone,
    so the first chunk stands at -token_count, and each other one directly behind the one before it,
    wherever their canonical positions are. One thread at a time.
    """

    def __init__(self, requester: Any, corpus_name: str, timeout: float = 10.0) -> None:
        self.requester, self.timeout = requester, timeout
        self.corpus = requester.resolve(corpus_name, timeout=timeout)
        count = self.corpus.chunk_count
        _, token_counts, positions = self.corpus.chunks(0, count)
        begins = np.cumsum(token_counts, dtype=np.int64) - token_counts - self.corpus.token_count
        part = ckv.Part(self.corpus, range(count), begins - positions.astype(np.int64))
        self.context = requester.context([part], timeout=timeout)

    def spans(self, attn_metadata: Any, tokens: int) -> Sequence[Span]:
        """Rising and disjoint spans of the step's decode tokens."""
        return [Span(self.context, 0, tokens)]

    def prefills_attend(self, attn_metadata: Any) -> bool:
        """Whether a token that goes to forward_mha would have to attend a corpus."""
        return True


def layer_of(layer: Any) -> int:
    """The model's layer number, from the name that vLLM gives an attention layer."""
    found = LAYER.search(getattr(layer, "layer_name", None) or "")
    if not found:
        raise ValueError(f"ckv_vllm: no layer number in {getattr(layer, 'layer_name', None)!r}")
    return int(found.group(1))


def check(impl: Any, corpus: Any, d_qk: int) -> None:
    """Raises ValueError if answers of the corpus cannot be merged with those of the impl."""
    if getattr(impl, "dcp_world_size", 1) > 1:
        raise ValueError("ckv_vllm: decode context parallelism would count a corpus several times")
    if corpus.d_qk != d_qk:
        raise ValueError(f"ckv_vllm: queries of {d_qk} values, rows of {corpus.d_qk}")
    if not math.isclose(impl.scale, corpus.softmax_scale, rel_tol=1e-5):
        raise ValueError(f"ckv_vllm: softmax scale {impl.scale} here, {corpus.softmax_scale} there")


def merge_local(o: torch.Tensor, lse: torch.Tensor, chosen: np.ndarray, answer: Any,
                form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges an answer into the rows `chosen` of a kernel's own. Other rows keep their bits.

      o       [tokens, heads, d_v], divided by its softmax sum
      lse     [tokens, heads], in `form`, one of ckv.lse_from_partial
      chosen  int64 [n], tokens, rising
      answer  of the tokens chosen, x heads
    """
    index = torch.as_tensor(chosen, device=o.device)
    heads, d_v = o.shape[1], o.shape[2]
    own_o = tensors.host_f32(o.index_select(0, index)).reshape(-1, d_v)
    own_lse = tensors.host_f32(lse.index_select(0, index.to(lse.device))).reshape(-1)
    own_m, own_l = ckv.partial_from_lse(own_lse, form)
    merged = ckv.merge([(answer.o, answer.m, answer.l), (own_o, own_m, own_l)])
    new_o = torch.from_numpy(np.ascontiguousarray(merged.o)).reshape(-1, heads, d_v)
    new_lse = torch.from_numpy(np.ascontiguousarray(
        ckv.lse_from_partial(merged.m, merged.l, form))).reshape(-1, heads)
    o, lse = o.clone(), lse.clone()
    o[index] = new_o.to(device=o.device, dtype=o.dtype)
    lse[index.to(lse.device)] = new_lse.to(device=lse.device, dtype=lse.dtype)
    return o, lse


def _submit(impl: Any, source: Any, spans: Sequence[Span], q: torch.Tensor, layer: int) -> Any:
    heads = q.shape[1]
    chosen = np.concatenate(
        [np.arange(s.token_begin, s.token_begin + s.token_count, dtype=np.int64) for s in spans])
    if chosen.size == 0 or chosen[0] < 0 or chosen[-1] >= q.shape[0] or (np.diff(chosen) <= 0).any():
        raise ValueError("ckv_vllm: spans are empty, beyond the step's tokens, or not rising")
    rows = tensors.host_bf16(q.index_select(0, torch.as_tensor(chosen, device=q.device)))
    segments, begin = [], 0
    for span in spans:
        segments.append(ckv.Segment(span.context, begin, span.token_count * heads))
        begin += span.token_count * heads
    # The ticket borrows the rows: the caller keeps them until it has waited.
    rows = rows.reshape(begin, -1)
    return chosen, rows, source.requester.submit(layer, rows, segments, timeout=source.timeout)


def impl_over(base: type, make_source: Callable[[], Any], *, layout: str, form: str,
              allow_coarse_lse: bool = False) -> type:
    """A class over an MLA implementation of vLLM, whose decode rows attend corpora too.

    make_source  called at the first step; returns an EverySequence or an object like it
    layout, form  how the base writes its lse: one of tensors.LAYOUTS, and a form of ckv
    All errors of ckv are raised out of forward_mqa: a step fails, and is never computed without a
    corpus. One thread at a time, as vLLM calls it.
    """
    if layout not in tensors.LAYOUTS:
        raise ValueError(f"ckv_vllm: no layout {layout!r}")
    for name in ("forward_mqa", "forward_mha"):
        # Earlier vLLM has other names. The overrides would never be called, and the corpus missed.
        if not callable(getattr(base, name, None)):
            raise TypeError(f"ckv_vllm: {base.__name__} has no {name}: another version of vLLM")
    sources: list[Any] = []

    def source() -> Any:
        if not sources:
            sources.append(make_source())
        return sources[0]

    class CkvImpl(base):  # type: ignore[misc, valid-type]
        can_return_lse_for_decode = True

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.need_to_return_lse_for_decode = True

        def forward_mha(self, q: Any, kv_c_normed: Any, k_pe: Any, kv_c_and_k_pe_cache: Any,
                        attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
            if source().prefills_attend(attn_metadata):
                raise NotImplementedError(
                    "ckv_vllm: a prefill took the way of decompressed heads, which cannot attend a "
                    "corpus; only prompts up to the base's reorder_batch_threshold can")
            return super().forward_mha(q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata,
                                       *args, **kwargs)

        def forward_mqa(self, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any,
                        layer: Any) -> tuple[torch.Tensor, Any]:
            tokens = (q[0] if isinstance(q, (tuple, list)) else q).shape[0]
            spans = source().spans(attn_metadata, tokens)
            if not spans:
                return super().forward_mqa(q, kv_c_and_k_pe_cache, attn_metadata, layer)
            query = tensors.whole_query(q)
            check(self, source().corpus, query.shape[2])
            chosen, rows, ticket = _submit(self, source(), spans, query, layer_of(layer))
            try:
                o, lse = super().forward_mqa(q, kv_c_and_k_pe_cache, attn_metadata, layer)
                own = self._own_lse(lse, tokens, query.shape[1])
                answer = ticket.wait()
                o, merged = merge_local(o, own, chosen, answer, self._form())
            finally:
                ticket.close()  # cancels what did not end; after this `rows` may go
                del rows
            return o, tensors.lse_of_rows(merged, layout, lse)

        def _form(self) -> str:
            return form if getattr(self, "lse_base_on_e", True) else "base2"

        def _own_lse(self, lse: Any, tokens: int, heads: int) -> torch.Tensor:
            if lse is None:
                raise ValueError(f"ckv_vllm: {base.__name__} returned no log-sum-exp")
            if lse.dtype != torch.float32 and not allow_coarse_lse:
                # A half ulp of bf16 at 16 is 1/16: the weight of the own rows is off by 6 percent.
                raise ValueError(f"ckv_vllm: {base.__name__} returned a log-sum-exp of {lse.dtype}, "
                                 "too coarse to merge; CKV_VLLM_ALLOW_COARSE_LSE=1 takes it")
            return tensors.rows_of_lse(lse, layout, tokens, heads)

    CkvImpl.__name__ = CkvImpl.__qualname__ = f"Ckv{base.__name__}"
    return CkvImpl
