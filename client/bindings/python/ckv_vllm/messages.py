"""The messages from the scheduler's half of the connector to the workers' half, in each step.

They are plain data, because they are pickled if there are several processes. Does not import vLLM.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from .prefill_times import Prefill


@dataclasses.dataclass
class Route:
    """A scheduled request whose corpora are placed before its position 0.

    request_id
    corpora     Resolved.to_list of each
    policy      of the context: "route", "cache" or "auto"
    block_ids   its own blocks, in order
    token_end   the number of its own tokens at the end of the step
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
    """The rows of tokens [token_begin, token_end) of a request are to be loaded into its blocks.

    tokens      its prompt: chunks are looked up again by it, and the last one may end after token_end
    chunk_ids   ids of the chunks that contain the prompt's first token_end tokens, 32 bytes each
    corpus      the corpus whose chunks are wanted; "" for any corpus of the model
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
    """Consecutive chunks of a prompt's prefix that can be found.

    ids     32 bytes per chunk
    sizes   the number of tokens of each
    tokens  the token ids of all of them
    parent  the id of the chunk before them; b"" if they begin at token 0
    """

    ids: bytes
    sizes: list[int]
    tokens: list[int]
    parent: bytes = b""

    def after(self, count: int) -> Optional[Chunks]:
        """Returns all but the first `count` chunks; None if there are no more."""
        if count >= len(self.sizes):
            return None
        parent = self.ids[(count - 1) * 32:count * 32] if count else self.parent
        return Chunks(self.ids[count * 32:], self.sizes[count:], self.tokens[sum(self.sizes[:count]):], parent)


@dataclasses.dataclass
class Event:
    """A message to routers: chunks that can be found from now on, or ids of chunks that are no longer offered."""

    stored: Optional[Chunks] = None
    removed: list[bytes] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Publish:
    """A prompt whose last rows are computed in this step. Its rows are added to a corpus."""

    request_id: str
    corpus: str
    tokens: list[int]
    block_ids: list[int]


@dataclasses.dataclass
class Step:
    """All messages of a step.

    routes   by the block that contains the request's last token of the step. The step writes this block, so no
             other request has it.
    refused  requests that end with this step: reasons
    prefill  the time of the step before, if it shows the engine's cost of prefill
    """

    routes: dict[int, Route] = dataclasses.field(default_factory=dict)
    loads: list[Load] = dataclasses.field(default_factory=list)
    publishes: list[Publish] = dataclasses.field(default_factory=list)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    prefill: Optional[Prefill] = None
