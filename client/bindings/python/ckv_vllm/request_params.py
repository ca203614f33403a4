"""The parameters of a request for ckv: {"ckv": {...}} in its kv_transfer_params. Does not import vLLM."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, Mapping, Optional

from .settings import POLICIES, Settings

KEY = "ckv"          # in kv_transfer_params of a request, and of its answer
RESOLVED = "ckv_resolved"  # in extra_args: the corpora as they were when the request was admitted
NAMES = ("corpus", "policy", "publish")
SHOWN_MAX = 200  # characters of a value in an error
# As in W3C Trace Context. Ids of only zeros are not valid.
TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Refused(ValueError):
    """A request that cannot be answered as requested. The text has the reason; vLLM answers with HTTP 400."""


@dataclasses.dataclass(frozen=True)
class RequestParams:
    """What a request asks of ckv. Without a corpus, its prompt is looked up.

    corpus   the corpora before the request's position 0, in order. Under the policy fetch, one corpus: the
             prompt's prefix
    policy   one of POLICIES; "" without a corpus
    publish  the corpus that the prompt's rows are added to; "" for none
    """

    corpus: tuple[str, ...] = ()
    policy: str = ""
    publish: str = ""

    @property
    def routes(self) -> bool:
        """Whether the corpora are placed before position 0, with no row of them in vLLM's cache."""
        return bool(self.corpus) and self.policy != "fetch"


def _shown(value: Any) -> str:
    """A value of the request for an error's text, which is logged."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."


def _text(name: str, value: Any) -> str:
    # A lone surrogate has no bytes, and no name of a corpus has one.
    if not isinstance(value, str) or not value or "\0" in value or not value.isprintable():
        raise Refused(f"ckv: {name} is {_shown(value)}, it must be a name")
    return value


def _from_xargs(value: Any) -> Any:
    """Converts a value of vllm_xargs, where vLLM takes only texts and lists: a name, names, or an object's JSON."""
    if isinstance(value, (list, tuple)):
        return {"corpus": value}
    if not isinstance(value, str):
        return value
    if not value.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return {"corpus": value}
    try:
        read = json.loads(value.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise Refused(f"ckv: vllm_xargs.ckv is {_shown(value)}: {error}") from error
    return {"corpus": read} if isinstance(read, list) else read


def read(extra_args: Optional[Mapping[str, Any]], settings: Settings) -> RequestParams:
    """Reads SamplingParams.extra_args: "ckv" in kv_transfer_params, or else the body's vllm_xargs.

    Refused  an unknown name, a contradiction, or no corpus although the settings require one
    """
    extra_args = extra_args or {}
    params = extra_args.get("kv_transfer_params") or {}
    asked = None
    if isinstance(params, Mapping):
        asked = params.get(KEY)
        if asked is None:
            asked = _from_xargs(extra_args.get(KEY))
    for name in (*(params if isinstance(params, Mapping) else ()), *extra_args):
        if isinstance(name, str) and name.startswith("ckv_") and name != RESOLVED:
            raise Refused(f"ckv: a request has {name!r}; it is kv_transfer_params: "
                          f'{{"ckv": {{"corpus": NAME, "policy": "route"}}}}')
    if asked is None:
        asked = {}
    if not isinstance(asked, Mapping):
        raise Refused(f"ckv: kv_transfer_params.ckv is {_shown(asked)}, it must be an object")
    unknown = sorted(set(asked) - set(NAMES))
    if unknown:
        raise Refused(f"ckv: kv_transfer_params.ckv has {', '.join(map(repr, unknown))}; known are "
                      f"{', '.join(NAMES)}")
    return _consistent(asked, settings)


def _consistent(asked: Mapping[str, Any], settings: Settings) -> RequestParams:
    named = asked.get("corpus", ())
    corpus = tuple(_text("corpus", one) for one in (named if isinstance(named, (list, tuple)) else [named]))
    if "corpus" in asked and not corpus:
        raise Refused("ckv: corpus is an empty list")
    if len(set(corpus)) != len(corpus):
        raise Refused("ckv: a corpus is named twice")
    policy = asked.get("policy", settings.policy if corpus else "")
    if "policy" in asked and (not isinstance(policy, str) or policy not in POLICIES):
        raise Refused(f"ckv: policy is {_shown(policy)}, one of {', '.join(POLICIES)}")
    if policy and not corpus and policy != "fetch":
        raise Refused(f"ckv: policy {policy} without a corpus")
    publish = _text("publish", asked["publish"]) if "publish" in asked else ""
    if publish and settings.publish == "off":
        raise Refused("ckv: this server publishes nothing (publish is off)")
    params = RequestParams(corpus, policy if corpus else "", publish)
    if params.routes and publish:
        raise Refused("ckv: rows over a corpus that begins before position 0 are not published: they "
                      "are valid only behind it")
    if len(corpus) > 1 and not params.routes:
        raise Refused("ckv: policy fetch takes one corpus, the prompt's prefix")
    if settings.required and not corpus:
        raise Refused('ckv: this server requires a corpus: kv_transfer_params: {"ckv": {"corpus": NAME}}')
    return params


def trace_of(request: Any) -> str:
    """Returns a request's traceparent; "" if it has none, or one that is not valid."""
    found = (getattr(request, "trace_headers", None) or {}).get("traceparent")
    return found if isinstance(found, str) and TRACEPARENT.fullmatch(found) else ""
