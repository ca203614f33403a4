"""A small real fleet, calls of agents on it, and what `ckvctl plan corpus` predicts for them.

Used by tests/e2e/plan_e2e.py and tests/bench/planned.py. The prediction has the constants of the fleet's own calibration.
"""

import json
import os
import pathlib
import random
import struct
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from ctl_fleet import PROGRAMS, Fleet, write_safetensors  # noqa: E402

TOKENS, LAYERS, D_QK, D_V, HEADS = 2048, 4, 576, 512, 16
HOLDERS = 2
CALLS = 300
# Agents, and the mean time that each thinks between two calls. A call takes some 300 us on a core of a Zen 4.
LOADS = {"low": (1, 1000), "high": (2, 600)}
QUANTILES = ("p50_us", "p99_us")

PROFILE = """
corpus:
  geometry: {{layers: {layers}, heads: {heads}, d_qk: {d_qk}, d_v: {d_v}}}
  tokens: {tokens}
  replicas: {holders}
load:
  agents: {agents}
  steps_per_s: {steps_per_s}
  batch: 1
  context_tokens: {tokens}
  near_share: 0
  session_steps: {calls}
goal: {{per: layer, p50_us: 1e6, utilisation_max: 1}}
requesters: {{count: {agents}, network_Gbps: 1000, cache_GiB: 0, calibration: fleet.json}}
machines:
  - name: here
    count_max: {holders}
    memory_GiB: 1
    network_Gbps: 1000
    price_per_hour: 1
    processors_per_holder: {processors}
    calibration: fleet.json
policy: route
"""


def write_rows(path):
    """Rows of small values, as wide as those of DeepSeek's models."""
    rng, count = random.Random(1), TOKENS * D_QK
    ids = struct.pack(f"<{TOKENS}i", *(rng.randrange(1000) for _ in range(TOKENS)))
    tensors = {"token_ids": ("I32", [TOKENS], ids)}
    exponents = bytes(0x3C | (byte & 0x80) for byte in range(256))
    for layer in range(LAYERS):
        rows = bytearray(2 * count)
        rows[0::2], rows[1::2] = rng.randbytes(count), rng.randbytes(count).translate(exponents)
        tensors[f"layers.{layer}.ckv"] = ("BF16", [TOKENS, D_QK], bytes(rows))
    write_safetensors(path, tensors, {"model": "test/plan", "revision": "1", "d_v": str(D_V), "d_rope": str(D_QK - D_V),
                                      "rope_style": "interleaved", "rope_theta": "10000", "softmax_scale": "0.1147",
                                      "base_position": "0"})


class PlannedFleet:
    """A directory and two holders with a copy of one chunk each."""

    def __init__(self, folder, plan_caller):
        self.folder, self.plan_caller = folder, plan_caller
        # Room for the rows of a calibration, but not for those that push them out of caches: the test's rows stay there, too.
        self.fleet = Fleet(folder, holders=HOLDERS, capacity="160MiB")
        try:
            write_rows(folder / "rows.safetensors")
            self.ctl("corpus", "load", "planned", folder / "rows.safetensors", "--replicas", HOLDERS)
        except BaseException:
            self.fleet.stop()
            raise

    def stop(self):
        self.fleet.stop()

    def ctl(self, *arguments):
        done = self.fleet.run_ctl(*arguments)
        if done.returncode != 0:
            raise RuntimeError(f"{arguments}: exit {done.returncode}\n{done.stderr}")
        return done.stdout

    def calibrate(self):
        self.ctl("calibrate", "--profile", self.folder / "fleet.json", "--fabric", "shm")

    def measure(self, agents, think_us):
        """{"p50_us", "p99_us", "calls_per_s"} of agents that call at once: the medians of theirs, and all of their calls."""
        command = [self.plan_caller, self.fleet.directory, "planned", HEADS, think_us, CALLS]
        callers = [subprocess.Popen([*map(str, command), str(seed + 1)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                   for seed in range(agents)]
        try:
            for caller in callers:
                if caller.stdout.readline() != "ready\n":
                    raise RuntimeError("a caller did not start")
            for caller in callers:
                caller.stdin.write("\n")
                caller.stdin.flush()
            found = [json.loads(caller.communicate(timeout=60)[0]) for caller in callers]
        finally:
            for caller in callers:
                if caller.poll() is None:
                    caller.kill()
                    caller.wait()
        result = {name: sorted(one[name] for one in found)[len(found) // 2] for name in QUANTILES}
        return {**result, "calls_per_s": sum(one["calls"] / one["seconds"] for one in found)}

    def predict(self, agents, calls_per_s):
        """The same quantiles of a plan for that load, with the constants of the last calibration."""
        # The callers poll while they wait, so each takes a processor.
        left = max(1, (os.cpu_count() or 1) - agents)
        path = self.folder / "plan.yaml"
        path.write_text(PROFILE.format(layers=LAYERS, heads=HEADS, d_qk=D_QK, d_v=D_V, tokens=TOKENS, holders=HOLDERS, agents=agents,
                                       steps_per_s=calls_per_s / LAYERS / agents, calls=CALLS, processors=min(1, left / HOLDERS)),
                        encoding="utf-8")
        plan = json.loads(self.ctl("plan", "corpus", "--profile", path, "-o", "json"))
        at = plan["machines"][0]
        return {"p50_us": at["layer_us_p50"], "p99_us": at["layer_us_p99"], "utilisation": at["kernel_utilisation"],
                "terms": {name: at[f"{name}_us"] for name in ("probe", "transfer", "compute", "merge", "wait")}}

    def round(self):
        """One round of all loads, after a calibration: {load: {"measured": ..., "predicted": ...}}."""
        self.calibrate()
        loads = {}
        for name, (agents, think_us) in LOADS.items():
            measured = self.measure(agents, think_us)
            loads[name] = {"measured": measured, "predicted": self.predict(agents, measured["calls_per_s"])}
        return loads


def least(rounds, load, kind, quantile="p50_us"):
    """The smallest of all rounds. What else a machine does only adds to times, also to those of a calibration. None if
    a load was beyond what a plan serves."""
    values = [one[load][kind][quantile] for one in rounds]
    return min((value for value in values if value is not None), default=None)


__all__ = ["LOADS", "PROGRAMS", "PlannedFleet", "least"]
