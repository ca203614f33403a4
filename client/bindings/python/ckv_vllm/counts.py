"""What the plug-in did, counted until vLLM takes it. Imports no vLLM."""

from __future__ import annotations

import threading

# Name to what it counts. vLLM's /metrics has each as vllm:ckv_NAME_total.
NAMES = {
    "routed_tokens": "Tokens whose queries were sent to corpora.",
    "routed_calls": "Calls of one layer to holders, or to rows in the local row cache.",
    "route_seconds": "Seconds for which steps waited for such calls.",
    "route_failed_requests": "Requests that ended because their corpus did not answer.",
    "refused_requests": "Requests without admission, or after the plug-in was turned off.",
    "looked_up_requests": "Requests whose prompt was looked up.",
    "loaded_requests": "Requests for which rows were loaded into vLLM's blocks.",
    "loaded_tokens": "Tokens whose rows were loaded into vLLM's blocks.",
    "load_failed_requests": "Requests whose rows could not be loaded, and were computed.",
    "load_seconds": "Seconds that loads took, failed ones too.",
    "prefilled_tokens": "Tokens of the steps whose time ckv takes for the cost of prefill.",
    "prefill_seconds": "Seconds of these steps.",
    "published_tokens": "Tokens whose rows were put on holders.",
    "publish_failed_tokens": "Tokens whose rows were to be put on holders, and were not.",
}


class Counts:
    """Of one process. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[str, float] = {}

    def add(self, name: str, count: float = 1) -> None:
        """`name`: of NAMES. `count` is not negative: a metric of vLLM's may only grow."""
        if name not in NAMES:
            raise KeyError(name)
        with self._lock:
            self._since[name] = self._since.get(name, 0) + max(0, count)

    def take(self) -> dict[str, float]:
        """What was added since the last time; empty if nothing was."""
        if not self._since:  # of most steps
            return {}
        with self._lock:
            since, self._since = self._since, {}
        return since
