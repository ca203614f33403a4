"""Attention of routed requests: their corpora where they lie, and their own rows in vLLM's blocks.

A routed request has its own tokens alone in vLLM, at positions 0 and on. Its corpora stand before
them. For each layer, the queries of all routed requests of the step, prefill and decode alike, go to
ckv in one call, a segment a request. The call is posted before vLLM attends the other requests, and
waited for after that. ckv attends the own rows in the blocks, and merges: the answer is whole.

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

from . import notes, places

log = logging.getLogger("ckv_vllm")

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")
_NOT_YET = object()
ROWS_MAX = 65536  # query rows of one call of ckv
# The worker's half of the connector in this process. None: there is none.
WORKER: Any = None


def step_of(attn_metadata: Any) -> Optional["Step"]:
    """The routed rows of a step; None if it has none. Resolved once a step, at its first layer.

    vLLM makes one object for the layers of a step, before the connector has its notes.
    """
    if WORKER is None or attn_metadata is None:
        return None
    step = getattr(attn_metadata, "_ckv_step", _NOT_YET)
    if step is _NOT_YET:
        step = WORKER.routed_step(attn_metadata)
        attn_metadata._ckv_step = step
    return step


def rows_of(attn_metadata: Any, routes: dict[int, notes.Route], block_size: int) -> list["Row"]:
    """Which tokens of the batch are whose, in the batch's order.

    An attention layer is told no request. The slot that its last token is written to tells it: requests
    may share the blocks before that one, and vLLM moves requests within the batch.
    """
    starts = attn_metadata.query_start_loc.tolist()  # on a GPU this waits for the step's input, once a step
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

    def __init__(self, route: notes.Route, begin: int, end: int) -> None:
        self.route, self.begin, self.end = route, begin, end
        self.context: Any = None
        self.blocks = np.asarray(route.block_ids, np.uint32)
        self.visible: Any = None
        self.error: Optional[str] = None

    @property
    def count(self) -> int:
        return self.end - self.begin


class Step:
    """The routed requests of one step. One thread."""

    def __init__(self, rows: list[Row], worker: Any, heads: int) -> None:
        """`heads`: of this rank. All of ckv's part of the step ends `deadline` seconds from here."""
        self.rows, self.worker, self.heads = rows, worker, heads
        self.until = time.monotonic() + worker.settings.deadline
        dead: dict[Any, Exception] = {}  # a corpus that does not answer is waited for once
        for row in rows:
            first = row.route.token_end - row.count
            row.visible = np.repeat(np.arange(first + 1, row.route.token_end + 1, dtype=np.uint32), heads)
            key = worker.contexts.key_of(row.route)
            try:
                if key in dead:
                    raise dead[key]
                row.context = worker.contexts.get(row.route, self.left())
            except Exception as error:  # whatever it is, it ends this request alone
                dead[key] = error
                self.fail(row, error)

    def left(self) -> float:
        """Seconds that ckv may still take from this step; a little, where all are spent."""
        return max(self.until - time.monotonic(), self.worker.settings.deadline / 8)

    @property
    def live(self) -> list[Row]:
        return [row for row in self.rows if row.error is None]

    def fail(self, row: Row, error: Exception) -> None:
        """Its rows are zeros from here on, and it ends after this step."""
        row.error = f"{type(error).__name__}: {error}"
        self.worker.failed(row.route, row.count, row.error)

    def forward(self, layer: Any, original: Callable[..., Any], q: torch.Tensor, k_c_normed: Any, k_pe: Any,
                kv_cache: torch.Tensor, attn_metadata: Any, output: torch.Tensor, *args: Any,
                **kwargs: Any) -> torch.Tensor:
        """MLAAttention.forward_impl of a step that has routed rows."""
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
        """Posts one call for all routed rows; those of corpora that failed lately, each alone."""
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
    """Cuts rows into calls of at most so many tokens. Decodes and prompts of usual length are one."""
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
    """The trace of a call that serves one request alone. A call of several would be in the wrong one."""
    first = pieces[0][0]
    return first.route.trace or None if all(row is first for row, _, _ in pieces) else None


class Call:
    """One call of one layer, under way."""

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
            grade=worker.settings.grade, traceparent=trace_of(pieces), stream=worker.place.stream())

    def finish(self, output: torch.Tensor) -> None:
        """Waits, and writes the answers to the rows' places in `output` [tokens, heads x v]."""
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
        """The answer of all rows, or what of it there is: others' errors are not a request's own."""
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
        """Asks again, for the rows of each request alone and side by side, in the time that is left.

        The call had its whole deadline to find a replica. If it was spent, a part of it is granted
        again: requests of other corpora are to go on.
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
    """Queries [tokens, heads, nope + rope] in the latent space: bf16 [tokens x heads, latent + rope].

    As MLAAttention.forward_impl makes them for its decode.
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
