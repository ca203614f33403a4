#!/usr/bin/python3
r"""An example router: passes requests of the OpenAI API to the engine that the directory ranks first.

Engines are those that report their load with the address of their HTTP server (Requester.report_load of the
package ckv; the plug-in for vLLM does so). Needs the package and libckv.so.1, and nothing else.

    deploy/example_router.py --directory 10.0.0.1:7400 --listen 127.0.0.1:8080 --token-bytes 31104 [--from-host p0]

A request that names a corpus (kv_transfer_params of deploy/handbook/vllm.md) is ranked by the corpus's chunks. Other
requests are ranked by load alone. The answer's header x-ckv-engine names the engine.

The router counts a transfer as in flight from the choice until the first byte of the answer. An engine that cannot be
reached is skipped, and the next one of the ranking gets the request. Once an engine has the request, no other gets it.
"""

import argparse
import http.client
import http.server
import json
import logging
import math
import threading

import ckv

BODY_BYTES_MAX = 16 << 20
TIERS_MAX = 16  # client/cost/network_oracle.h
RANK_TIMEOUT_S = 1.0
CONNECT_TIMEOUT_S = 2.0
# An engine's first token may wait for a long prefill. Beyond this its host is taken for dead.
ANSWER_TIMEOUT_S = 600.0
PIECE_BYTES = 1 << 16
PATHS = ("/v1/completions", "/v1/chat/completions")

log = logging.getLogger("ckv.router")


class BadRequest(Exception):
    """The request's body is malformed; the text has the reason."""


def corpus_of(body):
    """Returns the one corpus that the body names, or "". Several corpora are ranked by the first."""
    params = body.get("kv_transfer_params")
    if params is None:
        return ""
    named = params.get("ckv") if isinstance(params, dict) else None
    corpus = named.get("corpus", "") if isinstance(named, dict) else named
    if isinstance(corpus, list) and corpus:
        corpus = corpus[0]
    if not isinstance(corpus, str):
        raise BadRequest("kv_transfer_params.ckv.corpus is not a name")
    return corpus


def tokens_of(body):
    """Returns the number of tokens of a prompt of token ids. A text's is unknown: 1 stands for it."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and all(isinstance(one, int) for one in prompt):
        return len(prompt)
    return 1


class Flights:
    """The router's own transfers in progress, by tier. Any threads may use it."""

    def __init__(self):
        self._lock = threading.Lock()
        self._counts = [0.0] * TIERS_MAX

    def counts(self):
        with self._lock:
            return list(self._counts)

    def add(self, tier, count):
        if tier is not None and tier < TIERS_MAX:
            with self._lock:
                self._counts[tier] += count


class Router(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address, requester, token_bytes, from_hosts):
        super().__init__(address, Handler)
        self.requester, self.token_bytes, self.from_hosts = requester, token_bytes, from_hosts
        self.flights = Flights()

    def candidates(self, body):
        """Returns the engines that have room, the cheapest first, as the directory ranks them now."""
        corpus = corpus_of(body)
        sizes = {} if corpus else {"tokens": tokens_of(body), "cache_bytes": tokens_of(body) * self.token_bytes}
        ranking = self.requester.rank(corpus, **sizes, from_hosts=self.from_hosts,
                                      in_flight=self.flights.counts(), timeout=RANK_TIMEOUT_S)
        # sorted is stable, so ties stay with the lower index.
        return sorted((one for one in ranking["requesters"] if one["has_room"]), key=lambda one: one["total_us"])


class Handler(http.server.BaseHTTPRequestHandler):
    server: Router
    timeout = 60  # seconds to read a request

    def log_message(self, format, *arguments):
        log.debug(format, *arguments)

    def do_POST(self):
        try:
            if self.path not in PATHS:
                return self.refuse(404, f"{self.path}: there are {', '.join(PATHS)}")
            raw = self.read_body()
            candidates = self.server.candidates(json.loads(raw))
        except (BadRequest, ValueError, AttributeError) as error:
            return self.refuse(400, f"{error}")
        except (ckv.NotFound, ckv.InvalidArgument) as error:
            return self.refuse(400, f"{error}")
        except ckv.Error as error:
            return self.refuse(503, f"the directory ranks no engine: {error}")
        for engine in candidates:
            if self.served_by(engine, raw):
                return None
        return self.refuse(503, "no engine has room, or none can be reached: try again")

    def read_body(self):
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            raise BadRequest(f"content-length is '{length}': it must be a number up to {BODY_BYTES_MAX}")
        return self.rfile.read(int(length))

    def served_by(self, engine, raw):
        """Passes the request on and the answer back. Returns False if the engine did not get the request."""
        host, _, port = engine["address"].rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
        except OSError as error:
            log.warning("%s at %s: %s", engine["name"], engine["address"], error)
            return False
        tier = engine["path"]["tier"] if engine["path"] and engine["missing_bytes"] > 0 else None
        self.server.flights.add(tier, 1)
        try:
            connection.sock.settimeout(ANSWER_TIMEOUT_S)
            kept = {name: value for name, value in self.headers.items()
                    if name.lower() in ("content-type", "authorization", "traceparent", "accept")}
            connection.request("POST", self.path, body=raw, headers=kept)
            answer = connection.getresponse()
            first = answer.read1(PIECE_BYTES)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.refuse(502, f"{engine['name']}: {error}")
            return True
        finally:
            self.server.flights.add(tier, -1)
        try:
            self.pass_back(engine, answer, first)
        except (OSError, http.client.HTTPException) as error:
            log.warning("%s: an answer ended early: %s", engine["name"], error)
            self.close_connection = True
        finally:
            connection.close()
        return True

    def pass_back(self, engine, answer, piece):
        self.send_response(answer.status)
        self.send_header("x-ckv-engine", engine["name"])
        self.send_header("content-type", answer.getheader("content-type", "application/json"))
        self.send_header("connection", "close")  # which also ends an answer of unknown length
        self.end_headers()
        while piece:
            self.wfile.write(piece)
            self.wfile.flush()
            piece = answer.read1(PIECE_BYTES)

    def refuse(self, status, why):
        body = json.dumps({"error": {"message": why, "code": status}}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def positive(text):
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", required=True, help="host:port of the directory, or of several")
    parser.add_argument("--listen", default="127.0.0.1:8080", help="host:port; port 0 takes a free one")
    parser.add_argument("--token-bytes", required=True, type=positive,
                        help="bytes of the KV cache of one token, of all layers: for requests without a corpus")
    parser.add_argument("--from-host", action="append", default=[],
                        help="a host that prefills, as the network oracle names it; by default the holders'")
    parser.add_argument("--tenant", default="", help="the tenant whose corpora are read, too")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    host, _, port = arguments.listen.rpartition(":")
    with ckv.open(arguments.directory, tenant=arguments.tenant, name="router", local_cache_bytes=0) as requester, \
            Router((host.strip("[]"), int(port)), requester, arguments.token_bytes, arguments.from_host) as router:
        print(f"listening on {host}:{router.server_address[1]}", flush=True)
        try:
            router.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
