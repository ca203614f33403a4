"""Attention of routed requests: over their corpora on the holders, and their own rows in vLLM's blocks.

In vLLM a routed request has only its own tokens, from position 0 on. Its corpora are placed before them.
For each layer, one call of ckv has the queries of all routed requests of the step, prefill and decode
alike, with one segment per request. The call is posted before vLLM attends the other requests, and
waited for after that. ckv attends the own rows in the blocks and merges, so its answer is complete.

A query row is token x heads + head, as everywhere in ckv.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Any, Callable, Optional

import numpy as np
import torch

import ckv

from . import messages, places

log = logging.getLogger("ckv_vllm")

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")
_NOT_YET = object()
ROWS_MAX = 65536  # query rows of one call of ckv
# The worker's half of the connector in this process, if there is one.
WORKER: Any = None


def step_of(attn_metadata: Any) -> Optional["Step"]:
    """Returns the routed rows of a step; None if it has none. Resolves them once per step, at its first layer.

    `attn_metadata` is one object for all layers of a step. vLLM creates it before the connector has its messages.
    """
    if WORKER is None or attn_metadata is None:
        return None
    step = getattr(attn_metadata, "_ckv_step", _NOT_YET)
    if step is _NOT_YET:
        step = WORKER.routed_step(attn_metadata)
        attn_metadata._ckv_step = step
    return step


def rows_of(attn_metadata: Any, routes: dict[int, messages.Route], block_size: int) -> list["Row"]:
    """Returns which tokens of the batch belong to which routed request, in the batch's order.

    vLLM passes no requests to an attention layer. The slot of its last token identifies a request: requests
    may share the blocks before that one, and vLLM moves requests within the batch.
    """
    starts = attn_metadata.query_start_loc.tolist()  # on a GPU this waits for the step's input, once per step
    ends = [end - 1 for begin, end in zip(starts, starts[1:]) if end > begin]
    slots = attn_metadata.slot_mapping[ends].tolist() if ends else []
    left, rows = dict(routes), []
    spans = [(begin, end) for begin, end in zip(starts, starts[1:]) if end > begin]
    for (begin, end), slot in zip(spans, slots):
        one = left.pop(slot // block_size, None) if slot >= 0 else None
        if one is not None:
            rows.append(Row(one, begin, end))
    if left:
        raise RuntimeError(f"ckv: {len(left)} routed requests of the step are not in the batch")
    return rows


class Row:
    """The tokens [begin, end) of the batch, of one routed request."""

    __slots__ = ("route", "begin", "end", "context", "blocks", "visible", "error")

    def __init__(self, route: messages.Route, begin: int, end: int) -> None:
        self.route, self.begin, self.end = route, begin, end
        self.context: Any = None
        self.blocks = np.asarray(route.block_ids, np.uint32)
        self.visible: Any = None
        self.error: Optional[str] = None

    @property
    def count(self) -> int:
        return self.end - self.begin


class Step:
    """The routed requests of one step. Only for the thread that runs the model."""

    def __init__(self, rows: list[Row], worker: Any, heads: int) -> None:
        """`heads`: of this rank. From now on, ckv may take `deadline` seconds in total from this step."""
        self.rows, self.worker, self.heads = rows, worker, heads
        self.until = time.monotonic() + worker.settings.deadline
        dead: dict[Any, Exception] = {}  # waits only once for a corpus that does not answer
        for row in rows:
            first = row.route.token_end - row.count
            row.visible = np.repeat(np.arange(first + 1, row.route.token_end + 1, dtype=np.uint32), heads)
            key = worker.contexts.key_of(row.route)
            try:
                if key in dead:
                    raise dead[key]
                row.context = worker.contexts.get(row.route, self.left())
            except Exception as error:  # any error ends only this request
                dead[key] = error
                self.fail(row, error)

    def left(self) -> float:
        """Returns the seconds that ckv may still take from this step; an eighth of `deadline` if fewer are left."""
        return max(self.until - time.monotonic(), self.worker.settings.deadline / 8)

    @property
    def live(self) -> list[Row]:
        return [row for row in self.rows if row.error is None]

    def fail(self, row: Row, error: Exception) -> None:
        """Marks a row's request as failed: its output is zeros from now on, and it ends after this step."""
        row.error = f"{type(error).__name__}: {error}"
        self.worker.failed(row.route, row.count, row.error)

    def forward(self, layer: Any, original: Callable[..., Any], q: torch.Tensor, k_c_normed: Any, k_pe: Any,
                kv_cache: torch.Tensor, attn_metadata: Any, output: torch.Tensor, *args: Any,
                **kwargs: Any) -> torch.Tensor:
        """Replaces MLAAttention.forward_impl in a step with routed rows."""
        begun = self._post(layer, q, kv_cache)
        if sum(row.count for row in self.rows) < attn_metadata.num_actual_tokens:
            result = original(layer, q, k_c_normed, k_pe, kv_cache, attn_metadata, output, *args, **kwargs)
        else:
            result = output
        waited = time.monotonic()
        self._take(layer, begun, output)
        self.worker.counts.add("route_seconds", time.monotonic() - waited)
        self.worker.counts.add("routed_calls", len(begun))
        return result

    def _post(self, layer: Any, q: torch.Tensor, kv_cache: torch.Tensor) -> list["Call"]:
        """Posts one call for all routed rows. Corpora that failed lately have calls of their own."""
        calls = []
        for rows in self.worker.contexts.apart(self.live):
            for pieces in pieces_of(rows, ROWS_MAX // self.heads):
                calls.append(Call(self, layer, pieces, q, kv_cache))
        return calls

    def _take(self, layer: Any, calls: list["Call"], output: torch.Tensor) -> None:
        for call in calls:
            call.finish(output)
        for row in self.rows:
            if row.error is not None:
                output[row.begin:row.end] = 0


Piece = tuple[Row, int, int]  # tokens [begin, end) of the batch, of a row


def pieces_of(rows: list[Row], tokens_max: int) -> list[list[Piece]]:
    """Splits rows into calls of at most `tokens_max` tokens. Decodes and prompts of usual length need one."""
    calls: list[list[Piece]] = []
    room = 0
    for row in rows:
        begin = row.begin
        while begin < row.end:
            if room == 0:
                calls.append([])
                room = tokens_max
            end = min(row.end, begin + room)
            calls[-1].append((row, begin, end))
            room -= end - begin
            begin = end
    return calls


def trace_of(pieces: list[Piece]) -> Optional[str]:
    """Returns the trace of a call for a single request. A call for several requests is in no trace."""
    first = pieces[0][0]
    return first.route.trace or None if all(row is first for row, _, _ in pieces) else None


class Call:
    """One call of one layer, in flight."""

    def __init__(self, step: Step, layer: Any, pieces: list[Piece], q: torch.Tensor,
                 cache: torch.Tensor) -> None:
        self.step, self.layer, self.pieces, self.cache = step, layer, pieces, cache
        self.number = int(LAYER.search(layer.layer_name).group(1))  # type: ignore[union-attr]
        tokens = [q[begin:end] for _, begin, end in pieces]
        self.queries = absorbed(layer, torch.cat(tokens) if len(tokens) > 1 else tokens[0])
        self.error: Optional[Exception] = None
        self.ticket: Any = None
        try:
            self.ticket = self._submit(pieces, self.queries, step.left())
        except Exception as error:
            self.error = error

    def _submit(self, pieces: list[Piece], queries: torch.Tensor, timeout: float) -> Any:
        heads, segments, at = self.step.heads, [], 0
        for row, begin, end in pieces:
            visible = row.visible[(begin - row.begin) * heads:(end - row.begin) * heads]
            own = ckv.OwnRows(self.cache, visible, blocks=row.blocks, row_count=row.route.token_end)
            count = (end - begin) * heads
            segments.append(ckv.Segment(row.context, at, count, own=[own]))
            at += count
        worker = self.step.worker
        return worker.requester.submit(
            self.number, queries, segments, out=worker.place.out(queries, worker.model.d_v), timeout=timeout,
            precision=worker.settings.precision, traceparent=trace_of(pieces), stream=worker.place.stream())

    def finish(self, output: torch.Tensor) -> None:
        """Waits, and writes the answers to the rows' tokens in `output` [tokens, heads x v]."""
        answer = self._wait()
        if answer is None:
            return
        o, at = places.o_of(answer).to(output.dtype), 0
        for row, begin, end in self.pieces:
            count = (end - begin) * self.step.heads
            if row.error is None:
                self.layer._v_up_proj(o[at:at + count], out=output[begin:end])
            at += count

    def _wait(self) -> Any:
        """Returns the answer of all rows; None if the call's only request failed.

        An error fails only the requests that caused it.
        """
        if self.ticket is not None:
            try:
                with self.ticket as ticket:
                    return ticket.wait()
            except Exception as error:
                self.error = error
        if len(self.pieces) == 1:
            self.step.fail(self.pieces[0][0], self.error)  # type: ignore[arg-type]
            return None
        return self._each()

    def _each(self) -> Any:
        """Repeats the call with one call per request, all at once, in the time that is left.

        The call had its whole deadline to find a replica. If that was spent, this adds a part of it, so that
        requests of other corpora can continue.
        """
        left = self.step.left()
        whole = self.queries.new_zeros((self.queries.shape[0], self.step.worker.model.d_v), dtype=torch.float32)
        tickets, at = [], 0
        for piece in self.pieces:
            row, count = piece[0], (piece[2] - piece[1]) * self.step.heads
            try:
                tickets.append((row, at, at + count, self._submit([piece], self.queries[at:at + count], left)))
            except Exception as error:
                self.step.fail(row, error)
            at += count
        for row, begin, end, ticket in tickets:
            try:
                with ticket:
                    whole[begin:end] = places.o_of(ticket.wait())
            except Exception as error:
                self.step.fail(row, error)
        return ckv.Answer(whole, None, None)


def absorbed(layer: Any, q: torch.Tensor) -> torch.Tensor:
    """Converts queries [tokens, heads, nope + rope] to the latent space: bf16 [tokens x heads, latent + rope].

    MLAAttention.forward_impl does the same for its decode.
    """
    nope, pe = q.split([layer.qk_nope_head_dim, layer.qk_rope_head_dim], dim=-1)
    tokens, heads, _ = nope.shape
    latent = layer.kv_lora_rank
    rows = q.new_empty((tokens, heads, latent + layer.qk_rope_head_dim))
    rows[..., latent:] = pe
    if getattr(layer, "is_amx_bmm_enabled", False):
        from vllm import _custom_ops as ops

        product = q.new_empty((heads, tokens, latent))
        ops.bmm_cpu(product, nope.transpose(0, 1), layer.impl._w_uk_packed, True, layer.impl._w_scale)
        rows[..., :latent] = product.transpose(0, 1)
    else:
        rows[..., :latent] = torch.bmm(nope.transpose(0, 1), layer.W_UK_T).transpose(0, 1)
    return rows.view(tokens * heads, -1).to(torch.bfloat16)
