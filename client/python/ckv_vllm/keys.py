"""What of a request of vLLM shapes its rows beside the tokens, as extra keys of ckv.

Pictures and sounds have the same placeholder ids whatever they show, so a look-up by ids alone would
give one picture's rows to another. vLLM identifies each by a hash of its content.
"""

from __future__ import annotations

import hashlib
from typing import Any, Optional

ExtraKey = tuple[int, int, bytes]  # (begin, token_count, digest), as ckv.Requester.find takes it


def digest_of(identifier: str) -> bytes:
    """The digest of a picture or a sound that vLLM identifies so. Who publishes rows uses it too."""
    return hashlib.sha256(b"vllm.mm\0" + identifier.encode()).digest()


def extra_keys(request: Any) -> Optional[list[ExtraKey]]:
    """The extra keys of a request's prompt. None: it must not be looked up at all.

    That is so if an adapter or a salt is at work, which vLLM knows by a name only, if the prompt is
    of embeddings, or if a picture of it has no identifier.
    """
    if getattr(request, "lora_request", None) is not None or getattr(request, "cache_salt", None):
        return None
    if getattr(request, "prompt_embeds", None) is not None:
        return None
    keys: list[ExtraKey] = []
    for feature in _features(request):
        identifier, place = feature
        if not isinstance(identifier, str) or not identifier or place is None:
            return None
        keys.append((int(place.offset), int(place.length), digest_of(identifier)))
    return keys


def _features(request: Any) -> list[tuple[Any, Any]]:
    """(identifier, place) of each picture or sound; of vLLM's older requests too."""
    features = getattr(request, "mm_features", None)
    if features:
        return [(getattr(one, "identifier", None) or getattr(one, "mm_hash", None),
                 getattr(one, "mm_position", None)) for one in features]
    places = list(getattr(request, "mm_positions", None) or ())
    hashes = list(getattr(request, "mm_hashes", None) or ())
    if len(places) != len(hashes) or (getattr(request, "mm_inputs", None) and not hashes):
        return [(None, None)]
    return list(zip(hashes, places))
