"""The connector that vLLM loads by kv_connector_module_path. Imports vLLM.

Never run: no vLLM can be installed where this is tested.
"""

from __future__ import annotations

import dataclasses

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

from . import loads


@dataclasses.dataclass
class CkvConnectorMetadata(KVConnectorMetadata):
    loads: list[loads.Load]


CkvConnector = loads.connector_over(KVConnectorBase_V1, CkvConnectorMetadata)
