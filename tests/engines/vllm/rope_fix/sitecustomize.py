"""First on PYTHONPATH: vLLM takes its own PyTorch path to rotate queries.

vLLM for CPUs 0.32.0 rotates 3-D queries at wrong positions (torch.ops._C.rotary_embedding). Its answers are
then so far off that six parts in seven of any error of ours would not show.
"""

import importlib.abc
import importlib.util
import sys

NAME = "vllm.model_executor.layers.rotary_embedding.base"


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            module.RotaryEmbedding.forward_cpu = lambda self, positions, query, key=None: self.forward_native(
                positions, query, key)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
