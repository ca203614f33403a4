"""SGLang's own cache controllers on a CPU, with ckv behind their factory, and pages made from seeds.

The pools are SGLang's, without a GPU or an engine: the test writes rows into the host pool in place of a prefill.
"""

import argparse
import logging
import tempfile
import threading

import numpy as np
import torch
import torch.distributed as dist

from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName
from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_parallel

MODEL, REVISION, FAMILY = "test/mla", "rev1", "pages"
PAGE, LAYERS, RANK, ROPE, PAGES = 32, 3, 64, 16, 7  # PAGES of one prompt
WIDTH = RANK + ROPE
LAYOUTS = ("layer_first", "page_first", "page_first_direct")
# (name of the controller, layout, interface_v1)
WAYS = [(kind, layout, v1) for kind in ("plain", "hybrid") for layout in LAYOUTS for v1 in (0, 1)]
WAIT_S = 15.0
ARGUMENTS = argparse.Namespace()  # of instances.py
TIMEOUT_S = 1.5  # the plug-in's


class Log(logging.Handler):
    """All warnings and errors of SGLang and the plug-in."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.records = []
        for name in ("sglang", "ckv_sglang"):
            logging.getLogger(name).addHandler(self)

    def emit(self, record):
        self.records.append(record)

    def take(self):
        """Returns and removes the texts so far. An exception in one of SGLang's threads fails the test."""
        records, self.records = self.records, []
        for record in records:
            if record.exc_info:
                raise AssertionError(f"SGLang's thread got an exception: {record.getMessage()}") \
                    from record.exc_info[1]
        return [record.getMessage() for record in records]


def start(rank=0, world=1, place=None):
    """Sets up this process as the scheduler's process does before it makes a controller.

    place  path of a file that does not exist, for the rendezvous of tensor-parallel ranks; required for several
    """
    with tempfile.TemporaryDirectory() as folder:
        place = place or f"{folder}/meet"
        dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=world)
    names = ("tp", "pp", "attn_tp", "attn_dp", "attn_dcp", "attn_cp")
    of_tp = ("tp", "attn_tp")
    get_parallel().override_permanently(**{f"{name}_rank": rank if name in of_tp else 0 for name in names},
                                        **{f"{name}_size": world if name in of_tp else 1 for name in names})
    return Log()


def tokens_of(seed, pages=PAGES):
    return [int(token) for token in np.random.default_rng([1, seed]).integers(0, 2000, pages * PAGE)]


def rows_of(seed, pages=PAGES):
    """Random bits: uint16 [layers, tokens, values]. A page must return with the same bytes, NaNs included."""
    made = np.random.default_rng([2, seed]).integers(0, 1 << 16, (pages * PAGE, LAYERS, WIDTH), np.uint16)
    return np.ascontiguousarray(made.transpose(1, 0, 2))


def prompt(seed, salt=None, pages=PAGES):
    """The tokens as SGLang's tree passes them: with the namespace of an adapter or a salt."""
    return RadixKey(tokens_of(seed, pages), extra_key=salt)


def keys_of(key):
    return get_storage_hash_str(key, None, page_size=PAGE)


def device_pool(layers=LAYERS, page=PAGE):
    return MLATokenToKVPool(64 * page, page, torch.bfloat16, RANK, ROPE, layers, "cpu", False)


def host_pool(device, layout, page=PAGE):
    return MLATokenToKVPoolHost(device.get_device_pool_infos()[0].buffer_info, 2.0, 0, page, layout, pin_memory=False,
                                device_capacity_tokens=device.size, start_layer=device.start_layer,
                                end_layer=device.end_layer, target_layer_num=device.layer_num)


def view(pool, index):
    """A page of the host pool as [layers, tokens, values], in the pool's own memory: int16."""
    buffer = pool.kv_buffer.view(torch.int16)
    if pool.layout == "layer_first":
        return buffer[:, index:index + PAGE, 0]
    if pool.layout == "page_first":
        return buffer[index:index + PAGE, :, 0].transpose(0, 1)
    return buffer[index // PAGE, :, :, 0]


def extra(directory, **more):
    return {"backend_name": "ckv", "module_path": "ckv_sglang.hicache", "class_name": "CkvHiCacheStorage",
            "directory": directory, "revision": REVISION, "timeout": TIMEOUT_S, **more}


class Cache:
    """A controller, its pools and the storage, which are closed at the end of `with`."""

    def __init__(self, directory, way=WAYS[0], model=MODEL, layers=LAYERS, page=PAGE, change=None, **more):
        """change(host pool)  before the storage is attached"""
        self.kind, layout, v1 = way
        self.extra, self.model = extra(directory, interface_v1=v1, **more), model
        self.device = device_pool(layers, page)
        self.pool = host_pool(self.device, layout, page)
        if change is not None:
            change(self.pool)
        self.group = self.pool
        kind = HiCacheController
        if self.kind == "hybrid":
            kind = HybridCacheController
            self.group = HostPoolGroup([hybrid_pool_assembler.build_pool_entry(
                name=PoolName.KV, host_pool=self.pool, device_pool=self.device,
                layer_mapping={i: i for i in range(layers)}, transfer_layer_id_max=layers, is_anchor=True)])
        self.controller = kind(self, self.group, page, dist.group.WORLD, threading.Event(),
                               write_policy="write_through", io_backend="direct")
        self.attach()

    def get_kvcache(self):
        """Replaces the allocator of device slots: a controller uses nothing else of it here."""
        return self.device

    def attach(self):
        pools = {"host_pools": self.group.entries} if self.kind == "hybrid" else {}
        self.controller.attach_storage_backend("dynamic", prefetch_threshold=PAGE, model_name=self.model,
                                               storage_backend_extra_config=dict(self.extra), **pools)
        self.storage = self.controller.storage_backend

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.controller.detach_storage_backend()

    def back_up(self, key, rows, **more):
        """Backs pages up as a finished prefill does. Returns how many tokens SGLang counts as stored."""
        indices = self.group.alloc(rows.shape[1])
        for begin in range(0, rows.shape[1], PAGE):
            view(self.pool, int(indices[begin])).copy_(torch.from_numpy(rows[:, begin:begin + PAGE].view(np.int16)))
        self.controller.write_storage(indices, key, hash_value=keys_of(key), **more)
        done = self.controller.ack_backup_queue.get(timeout=WAIT_S)
        self.group.free(indices)
        return done.completed_tokens

    def prefetch(self, key, **more):
        """Prefetches as a new request does. Returns (tokens of the hit, rows that were loaded: uint16)."""
        rid = CacheRequestHandle("r1", 1) if self.kind == "hybrid" else "r1"
        self.controller.prefetch(rid, key, None, None, **more)
        operation = self.controller.prefetch_hit_queue.get(timeout=WAIT_S)
        hit = operation.storage_hit_count
        if hit == 0:
            return 0, np.empty((self.pool.layer_num, 0, WIDTH), np.uint16)
        operation.host_indices = self.group.alloc(hit)
        for begin in range(0, hit, PAGE):
            view(self.pool, int(operation.host_indices[begin])).zero_()
        self.controller.prefetch_buffer.put(operation)
        done = 0
        while True:
            ack = self.controller.ack_prefetch_queue.get(timeout=WAIT_S)
            done = ack.completed_tokens if ack.completed_tokens is not None else done
            if ack.completed_req:
                break
        loaded = [view(self.pool, int(operation.host_indices[begin])).numpy().view(np.uint16).copy()
                  for begin in range(0, done, PAGE)]
        missed = [view(self.pool, int(operation.host_indices[begin])) for begin in range(done, hit, PAGE)]
        assert not any(bool(page.any()) for page in missed), "a page that missed was written to"
        self.group.free(operation.host_indices)
        return hit, np.concatenate(loaded or [np.empty((self.pool.layer_num, 0, WIDTH), np.uint16)], axis=1)

    def has_threads(self):
        """Whether all threads of the controller are alive: SGLang restarts none."""
        one = self.controller
        return all(thread.is_alive() for thread in (one.prefetch_thread, one.prefetch_io_aux_thread,
                                                    one.prefetch_sync_thread, one.backup_thread))


def config_of(directory, layout="layer_first", is_mla_model=True, tp_rank=0, tp_size=1, pp_size=1, **more):
    return HiCacheStorageConfig(
        tp_rank=tp_rank, tp_size=tp_size, pp_rank=0, pp_size=pp_size, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=is_mla_model, enable_storage_metrics=False, is_page_first_layout=layout == "page_first",
        model_name=MODEL, extra_config=extra(directory, **more))


def storage(directory, layout="layer_first", **more):
    """A storage without a controller, as another rank has it. The caller closes it."""
    pool = host_pool(device_pool(), layout)
    made = StorageBackendFactory.create_backend("dynamic", config_of(directory, layout, **more), pool)
    made.register_mem_pool_host(pool)
    return made


def flat(rows):
    """Pages as SGLang passes them in the layout layer_first: a list of flat tensors of bf16."""
    pages = [np.ascontiguousarray(rows[:, begin:begin + PAGE]) for begin in range(0, rows.shape[1], PAGE)]
    return [torch.from_numpy(page.view(np.int16)).view(torch.bfloat16).flatten() for page in pages]


def bits(page):
    return page.view(torch.int16).numpy().view(np.uint16)

