#!/usr/bin/python3
"""Goal: the example router passes each request to the engine that costs least now, and its answer back whole.

Method: a directory with a network oracle, a holder with a corpus, and the router as its own process. Two engines of
this process have HTTP servers, and report their loads through the library. An engine's answer has its name and the
body that it got, so the test compares both. The engines compute no model; tests/engines/vllm has those that do.

    python3 tests/client/bindings/python/router_e2e.py --ckvd ... --ckvctl ... --library libckv.so.1
"""

import argparse
import http.client
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "support"))
import skip  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "client/bindings/python")]
from ctl_fleet import PROGRAMS, Fleet, Rows  # noqa: E402

PATIENCE_S = 20
# The holder is on 127.0.0.1. The far engine's path is slow.
NETWORK = {"version": 1,
           "tiers": [{"name": "rack", "bandwidth_GBps": 10, "latency_us": 3},
                     {"name": "far", "bandwidth_GBps": 0.0001, "latency_us": 15}],
           "hosts": {"127.0.0.1": ["r1"], "near": ["r1"], "far": ["r2"]}}


class Engine:
    """An HTTP server with a requester of its own. Closed, it accepts no connection."""

    def __init__(self, ckv, directory, name, host):
        self.ckv, self.name, self.host, self.bodies = ckv, name, host, []
        engine = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

            def do_POST(self):
                engine.bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                for piece in (b"data: " + engine.name.encode() + b"\n\n", b"data: [DONE]\n\n"):
                    self.wfile.write(piece)
                    self.wfile.flush()

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.requester = ckv.open(directory, name=name, local_cache_bytes=0)

    def report(self, ids=None, **load):
        load = {"free_bytes": 1e9, "batch": 2, "batch_max": 2, "iteration_base_us": 1000, **load}
        self.requester.report_load(f"127.0.0.1:{self.server.server_address[1]}", self.ckv.Load(**load), ids, self.host)

    def end_server(self):
        self.server.shutdown()
        self.server.server_close()


def post(router, body, path="/v1/completions"):
    """Returns (status, name of the engine or None, body)."""
    host, port = router.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    connection.request("POST", path, body=body if isinstance(body, bytes) else json.dumps(body),
                       headers={"content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.getheader("x-ckv-engine"), answer.read()


def until(router, body, engine):
    """Sends the request until this engine answers: loads and paths arrive within a second."""
    end = time.monotonic() + PATIENCE_S
    while True:
        got = post(router, body)
        if got[1] == engine:
            return got
        if time.monotonic() > end:
            sys.exit(f"{body} got {got}, {engine} expected")


def expect(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got}, {want} expected")


def check(ckv, fleet, router):
    body = {"prompt": [1, 2, 3], "stream": True}
    expect("without an engine", post(router, body)[0], 503)
    near, far = Engine(ckv, fleet.directory, "near", "near"), Engine(ckv, fleet.directory, "far", "far")
    near.report(queued=5)
    far.report()
    status, _, text = until(router, body, "far")
    expect("a streamed answer", (status, text), (200, b"data: far\n\ndata: [DONE]\n\n"))
    expect("the request's body", far.bodies[-1], json.dumps(body).encode())
    far.report(queued=9)
    until(router, body, "near")
    # The corpus's rows are a slow way from the engine that is idle, unless it has them.
    far.report(queued=0)
    corpus = {"prompt": "q", "kv_transfer_params": {"ckv": {"corpus": "law"}}}
    until(router, corpus, "near")
    with ckv.open(fleet.directory) as requester, requester.resolve("law", timeout=10) as law:
        ids = law.chunks()[0]
    far.report(ids)
    until(router, corpus, "far")
    # No room, and then no server at the address.
    far.report(ids, free_bytes=0, queued=9)
    near.report(queued=0, free_bytes=1e9)
    until(router, body, "near")
    far.report(ids)
    near.report(queued=5)
    until(router, corpus, "far")
    far.end_server()
    expect("with the best one gone", post(router, corpus)[:2], (200, "near"))
    far.requester.close()
    for bad, status in ((b"{", 400), (b"[]", 400), ({"kv_transfer_params": {"ckv": "none"}}, 400),
                        ({"kv_transfer_params": {"ckv": {"corpus": 3}}}, 400)):
        expect(f"{bad}", post(router, bad)[0], status)
    expect("another path", post(router, body, "/v1/models")[0], 404)
    near.requester.close()
    end = time.monotonic() + PATIENCE_S
    while post(router, body)[0] != 503:
        if time.monotonic() > end:
            sys.exit("an engine that has left is still chosen")
    near.end_server()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--library", required=True)
    arguments = parser.parse_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = arguments.ckvd, arguments.ckvctl
    skip.needs("numpy")
    import ckv
    os.environ["CKV_LIBRARY"] = arguments.library
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "network.json").write_text(json.dumps(NETWORK))
        fleet = Fleet(folder, holders=1, directory_options=(f"--oracle-file={folder}/network.json",))
        router = None
        try:
            Rows(seed=5, tokens=100, position=0).write(folder / "rows.safetensors")
            loaded = fleet.run_ctl("--directory", fleet.directory, "corpus", "load", "law",
                                   folder / "rows.safetensors", "--chunk-tokens", 24)
            expect("corpus load", (loaded.returncode, loaded.stderr if loaded.returncode else ""), (0, ""))
            router = subprocess.Popen(
                [sys.executable, str(ROOT / "deploy/example_router.py"), "--directory", fleet.directory, "--listen",
                 "127.0.0.1:0", "--token-bytes", "160"], stdout=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT / "client/bindings/python")})
            said = router.stdout.readline()
            expect("the router's start", said.startswith("listening on "), True)
            check(ckv, fleet, said.split()[-1])
        finally:
            if router is not None:
                router.terminate()
                router.wait(PATIENCE_S)
            fleet.stop()
    print("the router chose by queue, path, cached chunks and room")
    return 0


if __name__ == "__main__":
    sys.exit(main())
