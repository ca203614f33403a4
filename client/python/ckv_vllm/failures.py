"""Requests whose corpus failed end in the step that failed, alone, and without a token of it.

vLLM ends requests whose blocks could not be loaded, but it looks at blocks that were computed before
the step. A prefill over a corpus that failed has none, and its token would go out.
"""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("ckv_vllm")


def take(scheduler: Any, model_runner_output: Any) -> dict[str, str]:
    """Moves the failures that workers report to where the scheduler looks. {request: reason}."""
    output = getattr(model_runner_output, "kv_connector_output", None)
    meta = getattr(output, "kv_connector_worker_meta", None)
    compute_here(scheduler, getattr(meta, "ckv_loads_failed", None) or {})
    failed = dict(getattr(meta, "ckv_failed", None) or {})
    if failed:
        output.failed_recving = set(output.failed_recving or ()) | failed.keys()
    return failed


def compute_here(scheduler: Any, failed: dict[str, str]) -> None:
    """Has vLLM compute the prompts of requests whose asynchronous load failed.

    That is what it does itself under kv_load_failure_policy=recompute, which a routed request must not
    meet: it would go on without its corpus.
    """
    from vllm.v1.request import RequestStatus

    for request_id in failed:
        request = scheduler.requests.get(request_id)
        if request is not None and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            request.num_computed_tokens = 0
            scheduler.failed_recving_kv_req_ids.add(request_id)


def running(scheduler: Any, failed: set[str]) -> set[str]:
    """Those of the requests that run. Their rows of this step are wrong, so no other may find them."""
    from vllm.v1.request import RequestStatus

    ended = set()
    for request_id in failed:
        request = scheduler.requests.get(request_id)
        if request is None or request.status != RequestStatus.RUNNING:
            continue
        (blocks,) = scheduler.kv_cache_manager.get_block_ids(request_id)
        scheduler.kv_cache_manager.evict_blocks(set(blocks))
        ended.add(request_id)
    return ended


def tell(failed: dict[str, str], outputs: Any) -> Any:
    """Puts the reasons into the answers."""
    for client in outputs.values():
        for one in client.outputs:
            reason = failed.get(one.request_id)
            if reason is not None and one.finish_reason is not None:
                log.warning("ckv: request %s failed: %s", one.request_id, reason)
                one.kv_transfer_params = {"ckv": {"error": reason}}
                one.stop_reason = reason
    return outputs
