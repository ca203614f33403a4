"""The scheduler's half of the connector: determines what each step does for requests that use ckv."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any, Iterable, Optional

from . import (announced_chunks, counts, frontend, identity, load_report, lookups, messages, prefill_times, prefix,
               request_params, rule, shared)
from .settings import Settings
from .shared import Resolved

log = logging.getLogger("ckv_vllm")

# Concurrent loads. More of them would occupy blocks while they wait in the queue, so vLLM computes those prompts.
LOADS_MAX = 16


@dataclasses.dataclass
class Known:
    """The connector's state of a request."""

    asked: request_params.RequestParams
    resolved: list[Resolved]
    refused: str = ""
    looks_up: bool = False
    computed: int = 0  # tokens that vLLM had when it was last offered rows
    offered: prefix.Prefix = prefix.Prefix()
    found: prefix.Prefix = prefix.Prefix()  # chunks that its prompt begins with, wherever their rows come from
    has_blocks: bool = False  # vLLM has given it blocks
    load_failed: bool = False
    publish: str = ""  # the corpus that its rows are added to
    prompt: list[int] = dataclasses.field(default_factory=list)  # the tokens to publish, until they are published
    block_ids: list[int] = dataclasses.field(default_factory=list)
    tokens: int = 0  # for the answer: tokens of corpora before position 0, or loaded
    trace: str = ""  # its traceparent

    @property
    def needs_blocks(self) -> bool:
        return self.asked.routes or bool(self.prompt)


def may_be_found(request: Any) -> bool:
    """Returns whether only the prompt's tokens determine its rows, and they are not secret (a salt)."""
    return not (getattr(request, "lora_request", None) or getattr(request, "mm_features", None)
                or getattr(request, "prompt_embeds", None) is not None or not request.prompt_token_ids
                or request.cache_salt)


class SchedulerSide:
    """The connector's methods in the scheduler's process. Only for the scheduler's thread."""

    _load: Optional[load_report.LoadReport] = None  # unless the server has an address for routers

    def __init__(self, vllm_config: Any, settings: Settings) -> None:
        self.settings = settings
        self.fingerprint = identity.fingerprint_of(vllm_config, settings.revision)
        self.counts = counts.Counts()
        self._known: dict[str, Known] = {}
        self._lookups = lookups.Lookups(settings, self.fingerprint)
        shared.REQUESTERS.use(settings)
        self._block_size = int(vllm_config.cache_config.block_size)
        self._loads: list[messages.Load] = []
        self._loading: dict[str, bytes] = {}  # request to the ids of the chunks that it loads
        self._loaded: dict[str, messages.Chunks] = {}  # the same chunks, for an event once they are loaded
        # With vLLM's own prefix caching, all requests can use what one request loads.
        self._shares = bool(vllm_config.cache_config.enable_prefix_caching)
        self._stopped = ""
        self._prefills = prefill_times.PrefillTimes()
        self._announced = (announced_chunks.AnnouncedChunks() if announced_chunks.events_enabled(vllm_config)
                           else None)
        if settings.engine_address:
            model = vllm_config.model_config
            geometry = identity.model_of(model.model, model.hf_text_config, "")
            token_bytes = 2 * geometry.layers * geometry.d_qk  # bf16, which is the only cache that `limits` allows
            self._load = load_report.LoadReport(settings, vllm_config, token_bytes)
        self._rule = (rule.Rule(settings.rule_tokens, settings.rule_times, settings.chunk_tokens)
                      if settings.publish == "rule" else None)

    def new_request(self, request: Any) -> None:
        """Takes a request. One with a corpus that `frontend` has not admitted, or with another error, is refused
        before it computes anything. vLLM cannot return an error here, so the answer has no token."""
        try:
            self._take(request)
        except Exception as error:
            log.error("ckv: request %s is refused: %s", request.request_id, error)
            self._known[request.request_id] = Known(request_params.RequestParams(), [], refused=f"{error}")
            self.counts.add("refused_requests")

    def _take(self, request: Any) -> None:
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        asked = request_params.read(extra, self.settings)
        if self._stopped:
            if asked.corpus or asked.publish:
                raise request_params.Refused(f"ckv is off: {self._stopped}")
            return
        known = Known(asked, [Resolved(*one) for one in extra.get(request_params.RESOLVED, [])],
                      trace=request_params.trace_of(request))
        if asked.routes:
            salt = frontend.salt_of(known.resolved, None)
            if not (request.cache_salt or "").startswith(salt):
                raise RuntimeError(f"ckv: request {request.request_id} is over a corpus and was admitted without "
                                   f"its salt: the plug-in is not in the process that takes requests")
            known.tokens = sum(one.token_count for one in known.resolved)
        if may_be_found(request) and not asked.routes and (asked.corpus or self._looks_up(request)):
            known.looks_up = True
            self.counts.add("looked_up_requests")
            self._lookups.begin(request.request_id, request.prompt_token_ids,
                                asked.corpus[0] if asked.corpus else None)
        if asked.publish:
            known.publish, known.prompt = asked.publish, list(request.prompt_token_ids)
        elif self._rule is not None and not asked.corpus and may_be_found(request):
            due = self._rule.due(request.prompt_token_ids)
            known.publish, known.prompt = self.settings.rule_corpus, request.prompt_token_ids[:due]  # may be none
        self._known[request.request_id] = known

    def stop(self, why: str) -> None:
        """From now on, refuses requests that name a corpus, and looks up no prompt. Requests that are in
        progress end if they are routed; others load and publish nothing more."""
        log.error("ckv: off: %s", why)
        self._stopped = why
        for known in self._known.values():
            known.looks_up = False
            if known.asked.routes:
                known.refused = f"ckv is off: {why}"
            known.prompt = []  # its rows may be of other weights than the fingerprint names
        if self._announced is not None:
            self._announced.removed()
        if self._load is not None:
            self._load.forget()

    def close(self) -> None:
        self._lookups.close()
        if self._load is not None:
            self._load.close()
        shared.REQUESTERS.close(self.settings)

    def matched(self, request: Any, computed: int) -> tuple[Optional[int], bool]:
        """Returns (tokens that can be loaded beyond `computed`, whether the load is asynchronous).

        The first is None if it is not known yet; vLLM then calls again.
        """
        known = self._known.get(request.request_id)
        if known is None or not known.looks_up or known.load_failed or len(self._loading) >= LOADS_MAX:
            return 0, False
        found = self._lookups.result(request.request_id)
        if found is None:
            return None, False
        known.found = found
        if self._announced is not None:
            self._announced.looked_up(found, request.prompt_token_ids)
        end = prefix.whole_blocks(found.token_count, request.num_prompt_tokens, self._block_size)
        least = 1 if known.asked.corpus else max(1, self.settings.min_tokens)
        if end - computed < least:
            return 0, False
        if self._shares and any(found.ids[:32] == ids[:32] for ids in self._loading.values()):
            return None, False  # another request is loading it, and is reported by its deadline
        known.computed, known.offered = computed, found  # the last offer counts
        return end - computed, True

    def _looks_up(self, request: Any) -> bool:
        return self.settings.lookup and request.num_prompt_tokens > self.settings.min_tokens

    def allocated(self, request: Any, block_ids: list[int], external_tokens: int) -> None:
        known = self._known.get(request.request_id)
        if known is not None and known.needs_blocks:
            known.block_ids = list(block_ids)  # called again after a preemption, with other blocks
        if known is not None:
            known.has_blocks = True
            if self._load is not None:
                self._load.used(request.request_id, known.found, request.num_prompt_tokens)
        if known is not None and external_tokens > 0:
            end = known.computed + external_tokens
            known.tokens = end
            self._loading[request.request_id] = known.offered.ids
            chunks = known.offered.chunks_of(request.prompt_token_ids) if self._announced is not None else None
            if chunks is not None:
                self._loaded[request.request_id] = chunks
            self._loads.append(messages.Load(request.request_id, list(request.prompt_token_ids), known.computed,
                                             end, list(block_ids), known.offered.ids,
                                             known.asked.corpus[0] if known.asked.corpus else "", known.trace))

    def step(self, output: Any) -> messages.Step:
        """Returns the messages of a step that was scheduled."""
        cached = output.scheduled_cached_reqs
        resumed = set(cached.resumed_req_ids or ())
        for request_id, new in zip(cached.req_ids, cached.new_block_ids):
            known = self._known.get(request_id)
            if known is not None and known.needs_blocks and new and request_id not in resumed:
                known.block_ids.extend(new[0])
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens))
        computed.update({one.req_id: one.num_computed_tokens for one in output.scheduled_new_reqs})
        refused = {one: known.refused for one, known in self._known.items()
                   if known.refused and one in output.num_scheduled_tokens}
        step = messages.Step(loads=self._loads, refused=refused)
        self._loads = []
        for request_id, count in output.num_scheduled_tokens.items():
            known = self._known.get(request_id)
            if known is None:
                continue
            end = computed[request_id] + count
            self._add_publish(step, request_id, known, end)
            if not known.asked.routes or known.refused:
                continue
            made = messages.Route(request_id, [one.to_list() for one in known.resolved], known.asked.policy,
                                  list(known.block_ids), end, known.trace)
            self.counts.add("routed_tokens", count)
            step.routes[known.block_ids[(end - 1) // self._block_size]] = made
        # A step that loads or publishes waits for neither, but competes with them for memory.
        usable = not (step.routes or step.loads or step.publishes or self._loading)
        step.prefill = self._prefills.step(time.monotonic(), output.num_scheduled_tokens, usable)
        if self._load is not None:
            self._load.step(output.num_scheduled_tokens,
                            {one: computed[one] + count for one, count in output.num_scheduled_tokens.items()},
                            len(self._known))
        return step

    def take_counts(self) -> dict[str, float]:
        return self.counts.take()

    def loads_ended(self, ended: Iterable[str]) -> None:
        for request_id in ended:
            self._loading.pop(request_id, None)
            chunks = self._loaded.pop(request_id, None)
            if chunks is not None:
                self.stored([chunks])

    def stored(self, all_chunks: Iterable[messages.Chunks]) -> None:
        """Announces published or loaded chunks to routers."""
        for chunks in all_chunks if self._announced is not None and not self._stopped else ():
            self._announced.stored(chunks)

    def take_events(self) -> Iterable[messages.Event]:
        return self._announced.take() if self._announced is not None else ()

    def loads_failed(self, failed: dict[str, str]) -> None:
        """Records failed loads: vLLM computes these prompts, and their chunks are not offered for a while."""
        for request_id in failed:
            known = self._known.get(request_id)
            if known is not None:
                known.load_failed, known.tokens = True, 0
                self._lookups.failed(known.offered.ids)
            failed_chunks = self._loaded.pop(request_id, None)
            if failed_chunks is not None and self._announced is not None:
                self._announced.removed(failed_chunks.ids)

    @staticmethod
    def _add_publish(step: messages.Step, request_id: str, known: Known, token_end: int) -> None:
        """Adds a publish to the step that computes the prompt's last row. The prompt may take several steps."""
        if known.prompt and token_end >= len(known.prompt):
            step.publishes.append(messages.Publish(request_id, known.publish, known.prompt,
                                                   list(known.block_ids)))
            known.prompt = []

    def finished(self, request: Any) -> Optional[dict[str, Any]]:
        """Returns what the answer reports about ckv; None if the request named no corpus and no publish."""
        self._lookups.end(request.request_id)
        known = self._known.pop(request.request_id, None)
        if self._load is not None and known is not None and known.has_blocks:
            self._load.used(request.request_id, known.found, request.num_tokens)
        if self._load is not None and not self._known:
            self._load.step({}, {}, 0)  # no step follows
        if known is None or not (known.asked.corpus or known.asked.publish):
            return None
        reply: dict[str, Any] = {"tokens": known.tokens}
        if known.asked.corpus:
            names = list(known.asked.corpus)
            reply.update(corpus=names[0] if len(names) == 1 else names, policy=known.asked.policy)
        return {request_params.KEY: reply}
