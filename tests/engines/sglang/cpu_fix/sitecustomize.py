"""First on PYTHONPATH: SGLang's engine serves MLA on a CPU, with HiCache. Three things that only a GPU has otherwise.

SGLang 0.5.23 has no MLA for its backend torch_native, registers host pools with CUDA, and copies pages between its
pools by kernels that are on no index of packages. Here it takes its absorbed MLA, registers nothing, and copies by
torch.
"""

import importlib.abc
import importlib.util
import sys


def attention(module):
    module.AttentionBackendRegistry.register("torch_native", module._dispatch_mla_subtype)


def memory(module):
    module._cuda_host_register = lambda *_buffer: None


def copies(module):
    """Of the layout page_first_direct: host [pages, layers, page tokens, 1, values], a layer [tokens, 1, values]."""

    def to_host(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
        for layer, rows in enumerate(src_ptrs):
            dst_ptrs[0][dst_indices // page_size, layer, dst_indices % page_size] = rows[src_indices]

    def to_device(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size):
        dst_ptrs[0][dst_indices] = src_ptrs[0][src_indices // page_size, layer_id, src_indices % page_size]

    module.transfer_kv_all_layer_direct_lf_pf = to_host
    module.transfer_kv_per_layer_direct_pf_lf = to_device


FIXES = {"sglang.srt.models.deepseek_common.attention_backend_handler": attention,
         "sglang.srt.mem_cache.pool_host.common": memory, "sglang.srt.mem_cache.pool_host.mla": copies}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        fix = FIXES.pop(name, None)
        if fix is None:
            return None
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            fix(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
