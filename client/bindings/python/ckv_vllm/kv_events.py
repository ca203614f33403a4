"""Events of vLLM's own kind (`--kv-events-config`), for routers: which tokens ckv has. Imports vLLM.

vLLM publishes them with those of its own cache. The chunks are on other machines, and every engine of
the fleet can load them.
"""

from __future__ import annotations

from typing import Any, Iterable

from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

from . import announced_chunks, messages

# Fields that earlier versions of vLLM do not have.
WHERE = {key: value for key, value in {"locality": "REMOTE", "ownership": "ckv"}.items()
         if key in BlockStored.__struct_fields__ and key in BlockRemoved.__struct_fields__}


def hash_of(chunk_id: bytes) -> Any:
    """In the form of all hashes of vLLM's events: bytes, or a number of the last eight."""
    return maybe_convert_block_hash(BlockHash(chunk_id))


def made(events: Iterable[messages.Event]) -> list[Any]:
    """vLLM's events. One has blocks of one size, so a prompt's shorter last chunk has its own."""
    out: list[Any] = []
    for event in events:
        if event.removed:
            out.append(BlockRemoved(block_hashes=[hash_of(one) for one in event.removed], medium=MEDIUM_STORAGE,
                                    **WHERE))
        if event.stored is not None:
            out.extend(_stored(event.stored))
    return out


def _stored(chunks: messages.Chunks) -> Iterable[Any]:
    ids = announced_chunks.ids_of(chunks.ids)
    parent, begin, at = chunks.parent, 0, 0
    while at < len(ids):
        size, end = chunks.sizes[at], at
        while end < len(ids) and chunks.sizes[end] == size:
            end += 1
        tokens = chunks.tokens[begin:begin + size * (end - at)]
        yield BlockStored(block_hashes=[hash_of(one) for one in ids[at:end]],
                          parent_block_hash=hash_of(parent) if parent else None, token_ids=tokens, block_size=size,
                          lora_id=None, medium=MEDIUM_STORAGE, lora_name=None, **WHERE)
        parent, begin, at = ids[end - 1], begin + len(tokens), end
