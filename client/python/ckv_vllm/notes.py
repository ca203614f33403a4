"""What the scheduler's half of the connector tells the workers', in each step. Knows no vLLM.

All of it is plain data: with several processes it is pickled.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional


@dataclasses.dataclass
class Route:
    """A scheduled request whose corpora stand before its position 0.

    request_id
    corpora     Resolved.to_list of each
    policy      of the context: "route", "near" or "auto"
    block_ids   its own blocks, in order
    token_end   its own tokens at the end of the step, those of the step included
    trace       the request's traceparent, "" if it has none
    """

    request_id: str
    corpora: list[list[Any]]
    policy: str
    block_ids: list[int]
    token_end: int
    trace: str = ""


@dataclasses.dataclass
class Load:
    """Tokens [token_begin, token_end) of a request, which its blocks get.

    tokens      its prompt: chunks are found by it again, and the last may end behind token_end
    chunk_ids   bytes of the chunks that have these tokens from the first on, 32 each
    corpus      the corpus that they are to be of; "" for any of the model
    trace       the request's traceparent, "" if it has none
    """

    request_id: str
    tokens: list[int]
    token_begin: int
    token_end: int
    block_ids: list[int]
    chunk_ids: bytes
    corpus: str = ""
    trace: str = ""


@dataclasses.dataclass
class Chunks:
    """A run of chunks that can be found, of the beginning of a prompt.

    ids     bytes, 32 a chunk
    sizes   tokens of each
    tokens  of all of them
    parent  the id of the chunk before them; b"" if they begin at token 0
    """

    ids: bytes
    sizes: list[int]
    tokens: list[int]
    parent: bytes = b""

    def after(self, count: int) -> Optional[Chunks]:
        """All but the first chunks; None if there are no more."""
        if count >= len(self.sizes):
            return None
        parent = self.ids[(count - 1) * 32:count * 32] if count else self.parent
        return Chunks(self.ids[count * 32:], self.sizes[count:], self.tokens[sum(self.sizes[:count]):], parent)


@dataclasses.dataclass
class Event:
    """What routers are told: chunks that can be found from now on, or ids of chunks that are offered no
    more."""

    stored: Optional[Chunks] = None
    removed: list[bytes] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Publish:
    """A prompt whose last rows are computed in this step. They become a part of a corpus."""

    request_id: str
    corpus: str
    tokens: list[int]
    block_ids: list[int]


@dataclasses.dataclass
class Step:
    """All notes of a step. Routes by the block that holds the request's last token of the step: it is
    written in the step, so no other request has it."""

    routes: dict[int, Route] = dataclasses.field(default_factory=dict)
    loads: list[Load] = dataclasses.field(default_factory=list)
    publishes: list[Publish] = dataclasses.field(default_factory=list)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)  # requests that end with this step
