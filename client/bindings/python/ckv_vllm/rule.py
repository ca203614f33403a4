"""The rule for publishing prompts without a request: a beginning that is long and frequent enough.

Does not import vLLM.
"""

from __future__ import annotations

import collections
import hashlib
from typing import Sequence

import numpy as np

# Beginnings that are remembered, 100 bytes each. The least recently seen are removed first.
REMEMBERED_MAX = 65536


class Rule:
    """Counts beginnings of prompts. Only one thread may use it."""

    def __init__(self, tokens: int, times: int, step: int) -> None:
        """A beginning of at least `tokens` tokens is due for publishing once `times` prompts had it. Beginnings
        are compared at multiples of `step`, the tokens of a chunk."""
        self.tokens, self.times, self.step = tokens, times, step
        self._seen: collections.OrderedDict[bytes, int] = collections.OrderedDict()

    def due(self, prompt: Sequence[int]) -> int:
        """Counts a prompt. Returns the tokens of its longest beginning that is to be published now, or 0.

        Each beginning is due once. A shorter one that is due at the same time is not due again.
        """
        array = np.asarray(prompt, np.int32)
        digest, due, ends = hashlib.sha256(), 0, []
        for end in range(self.step, len(array) + 1, self.step):
            digest.update(array[end - self.step:end].tobytes())
            if end >= self.tokens:
                ends.append((end, digest.digest()[:16]))
        for end, key in ends:
            count = self._seen.pop(key, 0) + 1
            self._seen[key] = count
            if count == self.times:
                due = end
        while len(self._seen) > REMEMBERED_MAX:
            self._seen.popitem(last=False)
        return due
