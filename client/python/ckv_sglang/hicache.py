"""The class that SGLang loads: module_path "ckv_sglang.hicache". Imports SGLang.

Never run: no SGLang can be installed where this is tested.
"""

from __future__ import annotations

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, get_hash_str

from . import storage

CkvHiCacheStorage = storage.storage_over(HiCacheStorage, get_hash_str)
