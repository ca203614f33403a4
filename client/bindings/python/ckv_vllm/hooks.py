"""All wrappers of vLLM's functions that have no hook, each with its reason.

    InputProcessor.process_inputs   a request that cannot be answered as requested is refused with HTTP 400;
                                    one with corpora shares blocks only with requests over equal corpora
                                    (cache_salt)
    MLAAttention.forward_impl       the rows of routed requests attend their corpora; this is above the
                                    backends, so it works with each of them (CPU, AMX, FlashMLA, Triton)
    Scheduler.update_from_output, Scheduler._handle_failed_recving
                                    a request whose corpus failed ends in that step, without a token
    RequestOutputCollector.put      its client receives HTTP 503 and the reason, which vLLM would not send

For requests without ckv, each wrapper calls the original immediately, with the same arguments.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any, Callable

log = logging.getLogger("ckv_vllm")

# The parameters that the wrappers rely on, as of vLLM 0.32.
EXPECTED = {
    "vllm.v1.engine.input_processor:InputProcessor.process_inputs": ("self", "request_id", "prompt", "params"),
    "vllm.model_executor.layers.attention.mla_attention:MLAAttention.forward_impl": (
        "self", "q", "k_c_normed", "k_pe", "kv_cache", "attn_metadata", "output"),
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": (
        "self", "scheduler_output", "model_runner_output"),
    "vllm.v1.core.sched.scheduler:Scheduler._handle_failed_recving": ("self", "failed_req_ids"),
    "vllm.v1.engine.output_processor:RequestOutputCollector.put": ("self", "output"),
}


class OtherVersion(RuntimeError):
    """A version of vLLM whose classes differ from what the wrappers expect."""


def differences() -> list[str]:
    """Returns descriptions of what differs in this vLLM from what is expected; [] if nothing does."""
    found = []
    for name, expected in EXPECTED.items():
        try:
            given = tuple(inspect.signature(_find(name)[2]).parameters)
        except (ImportError, AttributeError) as error:
            found.append(f"{name}: {error}")
            continue
        if given[:len(expected)] != expected:
            found.append(f"{name} has the parameters {', '.join(given)}; expected {', '.join(expected)}, ...")
    return found


def _find(name: str) -> tuple[Any, str, Callable[..., Any]]:
    """Returns (class, attribute, function) of "module:Class.attribute"."""
    module, _, path = name.partition(":")
    owner, attribute = path.split(".")
    cls = getattr(__import__(module, fromlist=[owner]), owner)
    return cls, attribute, inspect.getattr_static(cls, attribute)


def _wrap(name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    cls, attribute, function = _find(name)
    if getattr(function, "_ckv_wrapped", None) is not None:
        return  # wrapped already in this process
    wrapper = functools.wraps(function)(make(function))
    wrapper._ckv_wrapped = function
    setattr(cls, attribute, wrapper)


def _admit(original: Callable[..., Any]) -> Callable[..., Any]:
    def process_inputs(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        from . import frontend

        admission = frontend.admit(self.vllm_config, params)
        request = original(self, request_id, prompt, params, *args, **kwargs)
        return request if admission is None else admission.finish(request)

    return process_inputs


def _attend(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward_impl(self: Any, q: Any, k_c_normed: Any, k_pe: Any, kv_cache: Any, attn_metadata: Any,
                     output: Any, *args: Any, **kwargs: Any) -> Any:
        from . import route

        step = route.step_of(attn_metadata)
        if step is None:
            return original(self, q, k_c_normed, k_pe, kv_cache, attn_metadata, output, *args, **kwargs)
        return step.forward(self, original, q, k_c_normed, k_pe, kv_cache, attn_metadata, output, *args,
                            **kwargs)

    return forward_impl


def _update(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any, *args: Any,
                           **kwargs: Any) -> Any:
        from . import failures

        failed = failures.take(self, model_runner_output)
        outputs = original(self, scheduler_output, model_runner_output, *args, **kwargs)
        return failures.report(failed, outputs) if failed else outputs

    return update_from_output


def _fail(original: Callable[..., Any]) -> Callable[..., Any]:
    def _handle_failed_recving(self: Any, failed_req_ids: set[str]) -> set[str]:
        from . import failures

        return original(self, failed_req_ids) | failures.ended(self, failed_req_ids)

    return _handle_failed_recving


def _answer(original: Callable[..., Any]) -> Callable[..., Any]:
    def put(self: Any, output: Any) -> None:
        from . import failures

        original(self, failures.for_client(output))

    return put


def install() -> None:
    """Installs all wrappers. Idempotent. Opens nothing and starts no thread, because vLLM forks after this."""
    wrong = differences()
    if wrong:
        # Not raised here: vLLM only logs errors of plug-ins. The connector refuses to start.
        log.error("ckv: another version of vLLM than the plug-in was made for: %s", "; ".join(wrong))
        return
    _wrap("vllm.v1.engine.input_processor:InputProcessor.process_inputs", _admit)
    _wrap("vllm.model_executor.layers.attention.mla_attention:MLAAttention.forward_impl", _attend)
    _wrap("vllm.v1.core.sched.scheduler:Scheduler.update_from_output", _update)
    _wrap("vllm.v1.core.sched.scheduler:Scheduler._handle_failed_recving", _fail)
    _wrap("vllm.v1.engine.output_processor:RequestOutputCollector.put", _answer)


def check_installed() -> None:
    """Raises OtherVersion unless all wrappers are installed in this process."""
    wrong = differences()
    if wrong:
        raise OtherVersion("ckv: this plug-in does not support this version of vLLM: " + "; ".join(wrong))
    missing = [name for name in EXPECTED if getattr(_find(name)[2], "_ckv_wrapped", None) is None]
    if missing:
        raise OtherVersion("ckv: the plug-in was not loaded by vLLM (VLLM_PLUGINS leaves it out?): "
                           + ", ".join(missing))
