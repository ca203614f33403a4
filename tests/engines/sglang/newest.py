#!/usr/bin/python3
"""Compares what the plug-in overrides and uses of SGLang with the newest wheel on PyPI: unpacked, not installed.

    newest.py [VERSION]      prints a line for each difference; exit code 1 if there is one

A difference is no fault yet. It says what to read before the pin (requirements.txt) is raised.
"""

import pathlib
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/engines")]
import wheels  # noqa: E402

CACHE = "sglang/srt/mem_cache/"
BASE = CACHE + "hicache_storage.py"
OURS = ROOT / "client/bindings/python/ckv_sglang/hicache.py"
# Methods that SGLang calls if a backend has them, without a place in the base class.
EXTRA = {"close"}
# Public methods of the base that the plug-in leaves as they are, each read in 0.5.23.
LEFT = {"on_host_pools_registered", "get_stats"}
FIELDS = {"HiCacheStorageConfig": {"tp_rank", "tp_size", "pp_size", "attn_cp_size", "dcp_size", "is_mla_model",
                                   "model_name", "extra_config"},
          "PoolTransfer": {"name", "host_indices", "keys", "hit_policy"},
          "PoolHitPolicy": {"ALL_PAGES", "TRAILING_PAGES", "BLOCK_GROUPS"}}
FUNCTIONS = {CACHE + "utils.py": {"get_hash_str": ("token_ids", "prior_hash", "page_size")}}
WORDS = {CACHE + "storage/backend_factory.py": ("return backend_class(storage_config, kwargs)",),
         CACHE + "pool_host/base.py": ("storage_format_tag",),
         CACHE + "pool_host/mla.py": (
             "self.kv_lora_rank", "self.qk_rope_head_dim", "self.kv_cache_dim", "self.layer_num", "self.kv_buffer",
             "def get_dummy_flat_data_page", "def set_from_flat_data_page", "def get_data_page", '"page_first_direct"'),
         "sglang/srt/managers/cache_controller.py": ("t.join(timeout=10)", "self.storage_backend.close()",
                                                     "is_storage_writer")}


def differences(text):
    theirs, ours = wheels.methods(text(BASE), "HiCacheStorage"), wheels.methods(OURS.read_text(), "CkvHiCacheStorage")
    for method, their, given in wheels.overridden(ours, theirs):
        if method not in EXTRA:
            yield f"HiCacheStorage.{method}: parameters {their}, the plug-in has {given}"
    for method in sorted(set(theirs) - set(ours) - LEFT):
        yield f"HiCacheStorage.{method}: the plug-in does not have it"
    for owner, wanted in FIELDS.items():
        yield from (f"{owner} has no {name}" for name in sorted(wanted - set(wheels.fields(text(BASE), owner))))
    results = ["kv_hit_pages", "extra_pool_hit_pages", "restorable_prefix_pages"]
    if wheels.fields(text(BASE), "PoolTransferResult") != results:
        yield f"PoolTransferResult has {wheels.fields(text(BASE), 'PoolTransferResult')}, expected {results}"
    for name, wanted in FUNCTIONS.items():
        given = wheels.functions(text(name))
        yield from (f"{name}: {one}{given.get(one)}, expected {parameters}" for one, parameters in wanted.items()
                    if given.get(one) != parameters)
    yield from wheels.missing_words(text, WORDS)


if __name__ == "__main__":
    sys.exit(wheels.compare("sglang", differences))
