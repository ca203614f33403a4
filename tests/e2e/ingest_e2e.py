#!/usr/bin/python3
"""Goal: ckvctl corpus ingest takes no answer of an engine on trust, and each failure says what to do.

Method: real ckvd and ckvctl, and HTTP servers that answer wrongly in every way. vLLM itself prefills and publishes in
tests/engines/vllm/quickstart.py.
"""

import argparse
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import ctl_fleet  # noqa: E402

TIMEOUT_S = 60
MODELS = {"data": [{"id": "small", "max_model_len": 101}]}
DONE = {"kv_transfer_params": {"ckv": {"tokens": 0}}}


class Server(http.server.ThreadingHTTPServer):
    """Answers each path with what `answers` has: (status, bytes), an object, or a function that gives one."""

    daemon_threads = True

    def __init__(self, answers):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked = answers, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        self.server.asked.append((self.path, body, self.headers.get("Authorization")))
        given = self.server.answers[self.path]
        given = given() if callable(given) else given
        status, text = given if isinstance(given, tuple) else (200, json.dumps(given).encode())
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        try:
            self.wfile.write(text)
        except OSError:
            pass  # the client had enough

    do_GET = do_POST = answer


class Ingest(unittest.TestCase):
    fleet = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=self.fleet.folder))
        self.tokens = self.folder / "tokens.jsonl"
        self.tokens.write_text(json.dumps(list(range(250))) + "\n" + json.dumps({"token_ids": [1, 2, 3]}) + "\n")

    def ingest(self, url, *more, environment=None):
        return subprocess.run(
            [ctl_fleet.PROGRAMS.ckvctl, "--directory", self.fleet.directory, "corpus", "ingest", "docs", *more, "--engine", url],
            capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False)

    def fails(self, answers, *reasons, files=None, more=()):
        server = Server(answers)
        done = self.ingest(server.url, *(files or [self.tokens]), *more)
        server.shutdown()
        server.server_close()
        self.assertNotEqual(done.returncode, 0, done.stdout)
        for reason in reasons:
            self.assertIn(reason, done.stderr)
        return server.asked

    def test_answers_that_are_not_the_api(self):
        self.fails({"/v1/models": (200, b"<html>")}, "no JSON object", "OpenAI server of vLLM")
        self.fails({"/v1/models": {"models": []}}, "no list of models")
        self.fails({"/v1/models": {"data": 7}}, "no list of models")
        self.fails({"/v1/models": (200, b"[" * 100000)}, "no JSON object")
        self.fails({"/v1/models": (200, b'{"data": "' + b"x" * (65 << 20) + b'"}')}, "more than 67108864 bytes")
        self.fails({"/v1/models": (302, b"")}, "HTTP 302")

    def test_reports_what_the_engine_refuses(self):
        error = json.dumps({"error": {"message": "ckv: corpus 'docs' is of another model"}}).encode()
        self.fails({"/v1/models": MODELS, "/v1/completions": (400, error)}, "HTTP 400", "is of another model")
        self.fails({"/v1/models": (401, b"who?")}, "HTTP 401", "VLLM_API_KEY")
        self.fails({"/v1/models": MODELS, "/v1/completions": (500, b"")}, "HTTP 500")

    def test_an_engine_without_the_plug_in(self):
        for answer in ({}, {"kv_transfer_params": None}, {"kv_transfer_params": {"other": 1}}):
            self.fails({"/v1/models": MODELS, "/v1/completions": answer}, "no plug-in of ckv", "CkvConnector")

    def test_which_model(self):
        two = {"data": [{"id": "a"}, {"id": "b"}, {"no": "id"}, 7]}
        self.fails({"/v1/models": two}, "it serves a, b", "--model")
        self.fails({"/v1/models": two}, "no model 'c'", "a, b", more=("--model", "c"))
        self.fails({"/v1/models": {"data": []}}, "it serves")

    def test_reports_what_is_prefilled_and_not_published(self):
        asked = self.fails({"/v1/models": MODELS, "/v1/completions": DONE}, "corpus docs does not have it after 1 s",
                           more=("--engine-timeout", "1"))
        (_, body, key) = asked[-1]
        self.assertEqual((body["prompt"], body["model"], body["max_tokens"], key), (list(range(100)), "small", 1, None))
        self.assertEqual(body["kv_transfer_params"], {"ckv": {"publish": "docs"}})

    def test_a_document_of_a_tenant_is_done_once_its_chunks_are_there(self):
        """The first chunk that is put makes the tenant's key, on which their ids depend."""
        rows, path = ctl_fleet.Rows(seed=1, tokens=60, position=0), self.folder / "rows.safetensors"
        rows.write(path)
        self.tokens.write_text(json.dumps(rows.token_ids) + "\n")

        def publish():
            subprocess.run([ctl_fleet.PROGRAMS.ckvctl, "--directory", self.fleet.directory, "--tenant", "acme", "corpus", "load",
                            "docs", path, "--chunk-tokens", "25"], check=True, capture_output=True, timeout=TIMEOUT_S)
            return DONE

        server = Server({"/v1/models": {"data": [{"id": "small", "max_model_len": 1000}]}, "/v1/completions": publish})
        told = [json.loads(self.ingest(server.url, self.tokens, "--tenant", "acme", "-o", "json").stdout) for _ in range(2)]
        server.shutdown()
        server.server_close()
        self.assertEqual([(one["prefilled_token_count"], one["present_token_count"]) for one in told], [(60, 0), (0, 60)])

    def test_texts_are_the_engines_tokens(self):
        text = self.folder / "text.txt"
        text.write_text("über Recht")
        server = Server({"/v1/models": MODELS, "/tokenize": {"tokens": [5, 6, 7]}})
        done = self.ingest(server.url + "/v1/", text, "--dry-run", "-o", "json", environment={"VLLM_API_KEY": "secret"})
        server.shutdown()
        server.server_close()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((json.loads(done.stdout)["token_count"], json.loads(done.stdout)["present_token_count"]), (3, 0))
        self.assertEqual(server.asked[-1], ("/tokenize", {"model": "small", "prompt": "über Recht"}, "Bearer secret"))
        for tokens in ([-1], [1 << 31], ["a"], 7, None, [1.5]):
            self.fails({"/v1/models": MODELS, "/tokenize": {"tokens": tokens}}, "/tokenize", files=[text])

    def test_files_that_no_engine_takes(self):
        for content, reason in ((b"", "is empty"), (b"a\xffb", "byte 1 is no UTF-8")):
            path = self.folder / "bad.txt"
            path.write_bytes(content)
            self.assertEqual(len(self.fails({"/v1/models": MODELS}, reason, files=[path])), 1, "it was sent")
        self.fails({"/v1/models": MODELS}, "no such file", files=[self.folder / "nosuch"])
        keyed = self.folder / "keys.jsonl"
        keyed.write_text(json.dumps({"token_ids": [1, 2], "extra_keys": [{"digest": "ab"}]}) + "\n")
        self.fails({"/v1/models": MODELS}, "extra keys", files=[keyed])

    def test_addresses_where_no_engine_is(self):
        for url, reason in (("http://127.0.0.1:1", "is the engine up"), ("ftp://127.0.0.1", "http://HOST:PORT"),
                            ("file:///etc/passwd", "http://HOST:PORT"), ("http://", "http://HOST:PORT")):
            done = self.ingest(url, self.tokens)
            self.assertNotEqual(done.returncode, 0, url)
            self.assertIn(reason, done.stderr, url)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("--ckvd", "--ckvctl"):
        parser.add_argument(name, required=True)
    parser.parse_args(namespace=ctl_fleet.PROGRAMS)
    with tempfile.TemporaryDirectory() as name:
        Ingest.fleet = ctl_fleet.Fleet(pathlib.Path(name), holders=1, keyed=True)
        try:
            suite = unittest.defaultTestLoader.loadTestsFromTestCase(Ingest)
            return 0 if unittest.TextTestRunner(verbosity=1).run(suite).wasSuccessful() else 1
        finally:
            Ingest.fleet.stop()


if __name__ == "__main__":
    sys.exit(main())
