"""Ends requests whose corpus failed, in the step that failed: only these, and without a token of the step.

vLLM ends requests whose blocks could not be loaded, but it checks only blocks that were computed before
the step. A prefill over a corpus that failed has none, so its token would be sent.
"""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("ckv_vllm")


def take(scheduler: Any, model_runner_output: Any) -> dict[str, str]:
    """Takes the failures from the workers' report, and passes them to the scheduler. Returns {request: reason}.

    A failed request's blocks of this step have wrong rows. vLLM has hashed them already, so other requests
    may share them. Those requests end too, and so do those that share blocks which they computed after a
    wrong one. All these blocks are evicted, so that no request finds them.
    """
    output = getattr(model_runner_output, "kv_connector_output", None)
    meta = getattr(output, "kv_connector_worker_meta", None)
    compute_here(scheduler, getattr(meta, "ckv_loads_failed", None) or {})
    reported = getattr(meta, "ckv_failed", None) or {}
    if not reported:
        return {}
    manager = scheduler.kv_cache_manager
    bad = {block for _, blocks in reported.values() for block in blocks}
    failed = {one: why for one, (why, _) in reported.items()
              if one in scheduler.requests and not scheduler.requests[one].is_finished()}
    others = {one: manager.get_block_ids(one)[0] for one, request in scheduler.requests.items()
              if one not in failed and not request.is_finished()}
    while sharers := [one for one, blocks in others.items() if not bad.isdisjoint(blocks)]:
        for request_id in sharers:
            blocks = others.pop(request_id)
            failed[request_id] = "it shares blocks with a request whose corpus failed"
            # The rows that it computed after a wrong block are wrong, too.
            bad.update(blocks[next(i for i, block in enumerate(blocks) if block in bad):])
    manager.evict_blocks(bad)
    output.failed_recving = set(output.failed_recving or ()) | failed.keys()
    return failed


def compute_here(scheduler: Any, failed: dict[str, str]) -> None:
    """Makes vLLM compute the prompts of requests whose asynchronous load failed.

    vLLM itself does this under kv_load_failure_policy=recompute. That policy cannot be used, because a
    routed request would then continue without its corpus.
    """
    from vllm.v1.request import RequestStatus

    for request_id in failed:
        request = scheduler.requests.get(request_id)
        if request is not None and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            request.num_computed_tokens = 0
            scheduler.failed_recving_kv_req_ids.add(request_id)


def ended(scheduler: Any, failed: set[str]) -> set[str]:
    """Returns the requests that vLLM does not end itself. It ends those that wait for rows."""
    from vllm.v1.request import RequestStatus

    return {one for one in failed if one in scheduler.requests
            and scheduler.requests[one].status != RequestStatus.WAITING_FOR_REMOTE_KVS}


def report(failed: dict[str, str], outputs: Any) -> Any:
    """Adds the reasons to the answers, and logs them."""
    for client in outputs.values():
        for one in client.outputs:
            reason = failed.get(one.request_id)
            if reason is not None and one.finish_reason is not None:
                log.warning("ckv: request %s failed: %s", one.request_id, reason)
                one.kv_transfer_params = {"ckv": {"error": reason}}
                one.stop_reason = reason
    return outputs


def for_client(output: Any) -> Any:
    """Returns what a server's client receives: the output, or the error of a request that ckv ended."""
    params = (getattr(output, "kv_transfer_params", None) or {}).get("ckv")
    reason = params.get("error") if isinstance(params, dict) else None
    if reason is None:
        return output
    from http import HTTPStatus

    from vllm.exceptions import GracefulHTTPError

    return GracefulHTTPError(f"ckv: {reason}", HTTPStatus.SERVICE_UNAVAILABLE)
