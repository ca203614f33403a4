"""ckv for vLLM: requests attend corpora on their holders, load their rows, and publish prefilled prompts.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "CkvConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "ckv_vllm.connector",
        "kv_connector_extra_config": {"directory": "127.0.0.1:7400"}}'

A request names what it wants in kv_transfer_params: {"ckv": {"corpus": "law", "policy": "route"}}.
deploy/handbook/vllm.md is the manual.
"""

__version__ = "0.1.0"


def register() -> None:
    """Called by vLLM in each of its processes, through the entry point vllm.general_plugins."""
    from . import hooks

    hooks.install()
