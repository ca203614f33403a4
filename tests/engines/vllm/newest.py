#!/usr/bin/python3
"""Compares what the plug-in wraps and overrides of vLLM with the newest wheel on PyPI: unpacked, not installed.

    newest.py [VERSION]      prints a line for each difference; exit code 1 if there is one

A difference is no fault yet. It says which function to read before the pin (requirements.txt) is raised.
"""

import pathlib
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "client/bindings/python"), str(ROOT / "tests/support"), str(ROOT / "tests/engines")]
import wheels  # noqa: E402
from ckv_vllm import hooks  # noqa: E402

BASE = "vllm/distributed/kv_transfer/kv_connector/v1/base.py", "KVConnectorBase_V1"
CONNECTOR = ROOT / "client/bindings/python/ckv_vllm/connector.py"
# What the connector and the wrappers read of vLLM's own state.
WORDS = {"vllm/v1/core/sched/scheduler.py": ("failed_recving_kv_req_ids", "self.kv_cache_manager", "on_new_request"),
         "vllm/v1/worker/kv_connector_model_runner_mixin.py": ("build_connector_worker_meta", "wait_for_save"),
         "vllm/model_executor/layers/rotary_embedding/__init__.py": ("_ROPE_DICT",),
         "vllm/v1/core/kv_cache_manager.py": ("def evict_blocks", "def get_block_ids")}


def differences(text):
    for wrapped, expected in hooks.EXPECTED.items():
        module, _, path = wrapped.partition(":")
        owner, method = path.split(".")
        given = wheels.methods(text(module.replace(".", "/") + ".py"), owner).get(method)
        if given is None or given[:len(expected)] != expected:
            yield f"{wrapped}: parameters {given}, expected {expected}"
    ours = wheels.methods(CONNECTOR.read_text(), "CkvConnector")
    for method, theirs, given in wheels.overridden(ours, wheels.methods(text(BASE[0]), BASE[1])):
        yield f"{BASE[1]}.{method}: parameters {theirs}, the connector has {given}"
    yield from wheels.missing_words(text, WORDS)


if __name__ == "__main__":
    sys.exit(wheels.compare("vllm", differences))
