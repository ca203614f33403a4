"""The time that the engine takes to prefill, from the steps that do little else. Does not import vLLM.

It is the price of recomputing rows, with which ckv compares the prices of routing and of fetching.
"""

from __future__ import annotations

import dataclasses
from typing import Mapping, Optional

# A shorter prefill takes as long as a step that decodes, so its time shows nothing of its tokens.
TOKENS_MIN = 64
# The least part of a step's tokens that are prefilled.
SHARE_MIN = 0.75


@dataclasses.dataclass(frozen=True)
class Prefill:
    tokens: int
    seconds: float


class PrefillTimes:
    """Times steps from one to the next. Only for the scheduler's thread."""

    def __init__(self) -> None:
        # Of the last step, if it can be timed: when it began, its prefilled tokens, and its requests.
        self._last: Optional[tuple[float, int, frozenset[str]]] = None

    def step(self, now: float, scheduled: Mapping[str, int], usable: bool) -> Optional[Prefill]:
        """Returns the time of the step before this one, if it prefilled and the engine was not idle after it.

        now        seconds of a monotonic clock, when the step is scheduled
        scheduled  new tokens of each request in the step. One token counts as decoding
        usable     whether the step does nothing else that takes long, as attending routed rows
        """
        last, self._last = self._last, None
        tokens = sum(count for count in scheduled.values() if count > 1)
        if usable and tokens >= max(TOKENS_MIN, SHARE_MIN * sum(scheduled.values())):
            self._last = now, tokens, frozenset(scheduled)
        # A request of both steps went on without a pause. Otherwise, the engine may have waited for one.
        if last is None or last[2].isdisjoint(scheduled) or now <= last[0]:
            return None
        return Prefill(last[1], now - last[0])
