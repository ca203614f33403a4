"""Costs measured under load, the choice between replicas of equal cost, and predictions compared with call times.

Uses real processes: a directory, three holders and requesters over tcp, as in the quick start. The load is 12 processes
that only compute. They are ended by their ids after some seconds.
"""

import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tests/support")]
from ports import free_port  # noqa: E402
from priority import usual_priority  # noqa: E402

BUSY, BUSY_S_MAX = 12, 25.0
CALLS = 100           # attends after the load, before costs are checked again
SHARED_CALLS = 150    # attends of a corpus with two replicas
TEXT = "/usr/share/common-licenses/GPL-3"
TOKENS, CHUNK_TOKENS = 3072, 512  # two chunks for each of three holders


class LoadedFleet:
    """The fleet, and calls of ckvctl to it."""

    def __init__(self, folder, build):
        import ctl_fleet

        self.programs, self.write = ctl_fleet.PROGRAMS, ctl_fleet.write_safetensors
        self.programs.ckvd, self.programs.ckvctl = (build / "bin" / name for name in ("ckvd", "ckvctl"))
        self.fleet = ctl_fleet.Fleet.__new__(ctl_fleet.Fleet)
        self.fleet.folder, self.fleet.processes, self.fleet.durable = folder, [], False
        self.directory = self.fleet.start("directory", "--role=directory")
        self.metrics = []
        for i in range(3):
            self.metrics.append(f"127.0.0.1:{free_port()}")
            self.fleet.start(f"h{i}", "--role=holder", f"--directory={self.directory}", "--store-capacity=64MiB",
                             "--fabrics=tcp", f"--metrics-address={self.metrics[i]}")

    def requester(self, name):
        """Starts a requester that has measured nothing."""
        return self.fleet.start(name, "--role=requester", f"--directory={self.directory}", "--fabrics=tcp",
                                "--requester-local-cache-bytes=64MiB")

    def ctl(self, requester, *arguments):
        done = subprocess.run([self.programs.ckvctl, "--directory", self.directory, "--requester", requester, *arguments],
                              stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=300, check=True, text=True)
        return done.stdout

    def rounds(self, requester, corpus):
        """{holder: microseconds of a round}, as explain reports."""
        said = json.loads(self.ctl(requester, "explain", "--corpus", corpus, "--mq", "16", "--steps", "64", "-o", "json"))
        return {holder["name"]: holder["route_us"] for holder in said["holders"]}

    def attend(self, requester, corpus):
        """One attend of a token's 16 query rows over the whole corpus."""
        queries = self.fleet.folder / "queries.safetensors"
        if not queries.exists():
            width = json.loads(self.ctl(requester, "corpus", "show", corpus, "-o", "json"))["d_qk"]
            self.write(queries, {"q": ("BF16", [16, width], bytes(2 * 16 * width))})
        self.ctl(requester, "attend", "--corpus", corpus, "--layer", "0", "--queries", queries, "--out",
                 self.fleet.folder / "out.safetensors")

    def query_rows(self):
        found = []
        for address in self.metrics:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
                text = reply.read().decode()
            found.append(float(re.search(r"^ckv_holder_query_rows_total(?:\{[^}]*\})? (\S+)$", text, re.M).group(1)))
        return found


def busy():
    """Starts BUSY loops; returns once all of them compute. They end by themselves, even if this process is killed."""
    code = f"import time\nend = time.monotonic() + {BUSY_S_MAX}\nprint(flush=True)\nwhile time.monotonic() < end: pass"
    loops = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(BUSY)]
    for loop in loops:
        loop.stdout.readline()
    return loops


def end(processes):
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()
        process.stdout.close()


def apart(one, other):
    """The largest factor, over all holders, between two requesters' rounds."""
    return max(max(one[name] / other[name], other[name] / one[name]) for name in one)


def heal(fleet):
    """Compares a requester that measured its holders under load with one that measured them on an idle machine."""
    idle = fleet.requester("idle")
    fleet.rounds(idle, "text")
    loaded = fleet.requester("loaded")
    loops = busy()
    under_load = None
    try:
        # With yet more load, a call's 10 s may pass before all holders are measured. Those already measured count.
        for _ in range(2):
            try:
                under_load = fleet.rounds(loaded, "text")
                break
            except subprocess.CalledProcessError:
                continue
    finally:
        end(loops)
    quiet = fleet.rounds(idle, "text")
    # The idle requester makes the same calls. So what both learn from cold calls does not count as a trace of load.
    for _ in range(CALLS):
        for requester in (loaded, idle):
            fleet.attend(requester, "text")
    after, beside = fleet.rounds(loaded, "text"), fleet.rounds(idle, "text")
    fresh = apart(after, fleet.rounds(fleet.requester("fresh"), "text"))
    print(f"loaded_costs: under load {under_load}, idle {quiet}, after {CALLS} calls {after}, idle {beside}", file=sys.stderr)
    # Without a measurement under load, there is nothing to recover from.
    if not under_load:
        return {"under_load": 0, "after": math.inf, "fresh": math.inf}
    return {"under_load": apart(under_load, quiet), "after": apart(after, beside), "fresh": fresh}


def share(fleet):
    """How the query rows of many attends are spread over holders if each chunk has two replicas."""
    asker = fleet.requester("asker")
    fleet.rounds(asker, "copies")
    before = fleet.query_rows()
    for _ in range(SHARED_CALLS):
        fleet.attend(asker, "copies")
    rows = [after - was for after, was in zip(fleet.query_rows(), before)]
    print(f"loaded_costs: query rows of {SHARED_CALLS} attends: {rows}", file=sys.stderr)
    return {"least_of_mean": min(rows) / statistics.mean(rows)}


def predict(fleet):
    """How far predictions are from the time that the same attends took, in percent."""
    asker = fleet.requester("comparer")
    said = json.loads(fleet.ctl(asker, "agents", "compare", "--corpus", "text", "--text", TEXT, "--tokens", "128",
                                "--policy", "route,cache", "-o", "json"))
    off = {}
    for policy in said["policies"]:
        ratio = policy["call_seconds"] / policy["predicted_seconds"]
        print(f"loaded_costs: {policy['policy']}: calls took {policy['call_seconds']:.3f} s, predicted "
              f"{policy['predicted_seconds']:.3f}", file=sys.stderr)
        off[policy["policy"]] = 100 * abs(ratio - 1)
    return off


@usual_priority()
def figures(build):
    with tempfile.TemporaryDirectory(prefix="ckv-loaded-costs-") as name:
        fleet = LoadedFleet(pathlib.Path(name), build)
        try:
            maker = fleet.requester("maker")
            for corpus, replicas in (("text", "1"), ("copies", "2")):
                fleet.ctl(maker, "corpus", "load", corpus, TEXT, "--text", "--max-tokens", str(TOKENS),
                          "--chunk-tokens", str(CHUNK_TOKENS), "--replicas", replicas)
            return {"heal": heal(fleet), "share": share(fleet), "predict": predict(fleet)}
        finally:
            fleet.fleet.stop()
