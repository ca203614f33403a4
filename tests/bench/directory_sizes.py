"""1,000 members and 1,000,000 chunks of 10,000 corpora in directories on etcd: what etcd holds, how soon another directory
leads with all of it after a kill, and what a requester keeps of a chunk.

    python3 tests/bench/directory_sizes.py BUILD_DIR

Real processes on loopback: three members of etcd, three directories.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / path) for path in ("tests/bench", "tests/e2e", "tests/support")]
from priority import usual_priority  # noqa: E402

MEMBERS, CORPORA, CHUNKS = 1000, 10_000, 100  # chunks of a corpus
RESOLVED = 1000  # corpora that the requester keeps
KILLS = 3
SERVES_S_MAX = 60


def etcd_bytes(etcd):
    """(what the states of a member need, what its file has), the largest of the members."""
    found = []
    for client in etcd.clients:
        with urllib.request.urlopen(f"http://{client}/metrics", timeout=20) as page:
            text = page.read().decode()
        found.append([float(re.search(rf"(?m)^etcd_mvcc_db_total_size_in_{kind} (\S+)$", text).group(1))
                      for kind in ("use_in_bytes", "bytes")])
    return [max(sizes) for sizes in zip(*found)]


def figures(build):
    """{"sizes": {"etcd_mib", "file_mib", "fill_s", "lead_s": the longest, "requester_bytes", "complete"}}"""
    import directories_e2e as shared

    build = build.resolve()
    shared.PROGRAMS.ckvd, shared.PROGRAMS.ckvctl = build / "bin/ckvd", build / "bin/ckvctl"
    fill = str(build / "bin/web_fill")
    with tempfile.TemporaryDirectory(prefix="ckv-sizes-") as name, usual_priority():
        fleet = shared.SharedFleet(pathlib.Path(name), holders=0)
        try:
            begin = time.monotonic()
            subprocess.run([fill, "members", fleet.address(fleet.await_leader()), *map(str, (MEMBERS, CORPORA, CHUNKS))],
                           check=True, stdout=subprocess.DEVNULL)
            fill_s = time.monotonic() - begin
            used, whole = etcd_bytes(fleet.etcd)
            lead_s = []
            for _ in range(KILLS):
                leader = fleet.await_leader()
                fleet.kill(leader)
                since = time.monotonic()
                following = fleet.await_leader()
                lead_s.append(time.monotonic() - since)
                fleet.start(leader)
                if not shared.poll(lambda: listed(shared, fleet, following) == CORPORA, SERVES_S_MAX):
                    raise RuntimeError(f"{listed(shared, fleet, following)} corpora are there")
            resolved = subprocess.run([fill, "resolve", fleet.address(fleet.await_leader()), str(RESOLVED)], check=True,
                                      stdout=subprocess.PIPE, text=True)
        finally:
            fleet.stop()
    return {"sizes": {"etcd_mib": used / 2**20, "file_mib": whole / 2**20, "fill_s": fill_s, "lead_s": max(lead_s),
                      "corpora": CORPORA, "requester_bytes": float(resolved.stdout)}}


def listed(shared, fleet, index):
    """Corpora that one of the directories lists."""
    shown = subprocess.run([str(shared.PROGRAMS.ckvctl), "--directory", fleet.address(index), "corpus", "list", "-o", "json"],
                           capture_output=True, text=True, check=False)
    return len(json.loads(shown.stdout)["corpora"]) if shown.returncode == 0 else 0


if __name__ == "__main__":
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
