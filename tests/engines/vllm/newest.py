#!/usr/bin/python3
"""Compares what the plug-in wraps and overrides of vLLM with the newest wheel on PyPI: unpacked, not installed.

    newest.py [VERSION]      prints a line for each difference; exit code 1 if there is one

A difference is no fault yet. It says which function to read before the pin (requirements.txt) is raised.
"""

import ast
import pathlib
import subprocess
import sys
import tempfile
import zipfile

sys.dont_write_bytecode = True  # the source tree stays as it is
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/support")]
import skip  # noqa: E402
from ckv_vllm import hooks  # noqa: E402

BASE = "vllm/distributed/kv_transfer/kv_connector/v1/base.py", "KVConnectorBase_V1"
CONNECTOR = ROOT / "client/python/ckv_vllm/connector.py"
# What the connector and the wrappers read of vLLM's own state.
WORDS = {"vllm/v1/core/sched/scheduler.py": ("failed_recving_kv_req_ids", "self.kv_cache_manager", "on_new_request"),
         "vllm/v1/worker/kv_connector_model_runner_mixin.py": ("build_connector_worker_meta", "wait_for_save"),
         "vllm/v1/core/kv_cache_manager.py": ("def evict_blocks", "def get_block_ids")}


def methods(source, name):
    """{method: its parameters} of a class."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {one.name: tuple(a.arg for a in one.args.args) for one in node.body if isinstance(one, ast.FunctionDef)}
    return {}


def differences(wheel):
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())

        def text(name):
            return files.read(name).decode() if name in names else ""

        for wrapped, expected in hooks.EXPECTED.items():
            module, _, path = wrapped.partition(":")
            owner, method = path.split(".")
            given = methods(text(module.replace(".", "/") + ".py"), owner).get(method)
            if given is None or given[:len(expected)] != expected:
                yield f"{wrapped}: parameters {given}, expected {expected}"
        theirs = methods(text(BASE[0]), BASE[1])
        for method, given in methods(CONNECTOR.read_text(), "CkvConnector").items():
            if not method.startswith("_") and theirs.get(method) != given:
                yield f"{BASE[1]}.{method}: parameters {theirs.get(method)}, the connector has {given}"
        for name, words in WORDS.items():
            yield from (f"{name} has no {word!r}" for word in words if word not in text(name))


def main():
    version = f"=={sys.argv[1]}" if len(sys.argv) > 1 else ""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder,
                               f"vllm{version}"], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            return skip.cannot(f"no wheel of vllm{version}: {' '.join(done.stderr.split())[-200:]}",
                               "a network that reaches PyPI")
        (wheel,) = pathlib.Path(folder).iterdir()
        found = list(differences(wheel))
    for line in found:
        print(f"{wheel.name}: {line}")
    print(f"{wheel.name}: {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
