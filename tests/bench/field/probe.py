"""How long a probe, a scrape and the status page take beside 500 connections that are idle or have sent half a request.

Each path is requested 20 times beside each kind of connection, from a daemon with all three roles. The figure is the
longest time.
"""

import pathlib
import re
import resource
import socket
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/e2e"))

CONNECTIONS, ASKED = 500, 20
# The bytes that each kind of connection has sent. One kind requests the page and does not read it.
KINDS = {"idle": b"", "half a line": b"GET /heal", "half a head": b"GET /healthz HTTP/1.1\r\nHost: a\r\n",
         "unread": b"GET / HTTP/1.1\r\n\r\n"}
PATHS = ("/healthz", "/readyz", "/metrics", "/")


def longest_ms(address, path):
    longest = 0.0
    for _ in range(ASKED):
        begin = time.monotonic()
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as page:
            page.read()
        longest = max(longest, time.monotonic() - begin)
    return longest * 1e3


def figures(build):
    """{"beside": {path: longest ms of all kinds}, "alone": {path: ms}}."""
    from ctl_fleet import PROGRAMS, Fleet

    PROGRAMS.ckvd, PROGRAMS.ckvctl = (build / "bin" / name for name in ("ckvd", "ckvctl"))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    with tempfile.TemporaryDirectory(prefix="ckv-probe-") as name:
        folder = pathlib.Path(name)
        fleet = Fleet.__new__(Fleet)
        fleet.folder, fleet.processes, fleet.durable = folder, [], False
        try:
            fleet.start("all", "--role=directory,holder,requester", "--metrics-address=127.0.0.1:0", "--store-capacity=64MiB")
            log = (folder / "all.log").read_text()
            address = re.search(r"metrics at http://(\S+)/metrics", log).group(1)
            host, _, port = address.rpartition(":")
            alone = {path: longest_ms(address, path) for path in PATHS}
            beside = dict.fromkeys(PATHS, 0.0)
            for kind, said in KINDS.items():
                clients = []
                for _ in range(CONNECTIONS):
                    clients.append(socket.create_connection((host, int(port)), timeout=60))
                    if said:
                        clients[-1].sendall(said)
                for path in PATHS:
                    took = longest_ms(address, path)
                    print(f"probe: {path} beside {CONNECTIONS} {kind}: {took:.1f} ms", file=sys.stderr, flush=True)
                    beside[path] = max(beside[path], took)
                for client in clients:
                    client.close()
        finally:
            fleet.stop()
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return {"beside": beside, "alone": alone}
