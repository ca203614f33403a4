#!/usr/bin/python3
"""Goal: a shortage of descriptors or threads is reported in one line, ends nothing for good, and has no effect later.

Method: real daemons with low limits. Silent connections fill each port of a holder. After they are closed, a new
requester is answered without a restart. A start with too few threads or descriptors ends with exit code 1 and one line
that names the limit. A daemon whose standard descriptors are closed gives none of them to a peer.

    python3 tests/e2e/limits_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl
"""

import argparse
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip  # noqa: E402
from ctl_fleet import PROGRAMS, Fleet, Rows

FILES = 64
IDLE = 100
PATIENCE_S = 60
# A user that has no process, so that the limit of processes counts those of the test alone.
NOBODY = 61234


def address_of(text):
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def is_closed(client):
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class Scarce(Fleet):
    """A fleet whose holder may have few descriptors."""

    def start_holder(self, index):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, before[1]))
        try:
            self.holder = self.start(f"h{index}", "--role=holder", f"--directory={self.directory}", "--store-capacity=64MiB",
                                     "--metrics-address=127.0.0.1:0", "--fabrics=tcp", f"--config={self.limited()}")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    def limited(self):
        path = self.folder / "holder.yaml"
        path.write_text("data_listen: 127.0.0.1:0\n")
        return path

    def start(self, name, *arguments, **options):
        address = super().start(name, *arguments, **options)
        if name.startswith("h"):
            # The start raises the soft limit; from here on it may have no more than this.
            resource.prlimit(self.processes[-1].pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        return address


class Limits(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="ckv-limits-")
        self.folder = pathlib.Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def ctl(self, fleet, requester, *arguments):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        environment.update(CKV_REQUESTER=requester, CKV_DIRECTORY=fleet.directory)
        return subprocess.run([PROGRAMS.ckvctl, *map(str, arguments)], env=environment, timeout=120, capture_output=True,
                              text=True, check=False)

    def answered(self, fleet, requester):
        """Has ckvctl read every chunk from the holder until it succeeds, for PATIENCE_S. Returns the last run."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            said = self.ctl(fleet, requester, "corpus", "verify", "text")
            if said.returncode == 0 or time.monotonic() > deadline:
                return said

    def test_ports_accept_again_after_all_descriptors_were_taken(self):
        fleet = Scarce(self.folder, 1)
        try:
            rows = self.folder / "rows.safetensors"
            Rows(1, 32, 0).write(rows)
            loaded = self.ctl(fleet, fleet.requester, "corpus", "load", "text", rows, "--chunk-tokens", "16")
            self.assertEqual(loaded.returncode, 0, loaded.stderr)
            log = (self.folder / "h0.log").read_text()
            metrics = re.search(r"metrics at http://(\S+)/metrics", log).group(1)
            ports = [fleet.holder, metrics]
            for port in ports:
                clients = [socket.create_connection(address_of(port), timeout=30) for _ in range(IDLE)]
                # Some are refused. None of these stays in the backlog for ever.
                deadline = time.monotonic() + PATIENCE_S
                while not any(is_closed(client) for client in clients) and time.monotonic() < deadline:
                    os.sched_yield()
                self.assertTrue(any(is_closed(client) for client in clients), port)
                for client in clients:
                    client.close()
                fresh = fleet.start(f"fresh{ports.index(port)}", "--role=requester", f"--directory={fleet.directory}")
                said = self.answered(fleet, fresh)
                self.assertEqual(said.returncode, 0, said.stderr + (self.folder / "h0.log").read_text())
                with urllib.request.urlopen(f"http://{metrics}/healthz", timeout=30) as page:
                    self.assertEqual(page.status, 200)
            self.assertIn("refused a connection", (self.folder / "h0.log").read_text())
        finally:
            fleet.stop()

    def start_alone(self, prepare):
        ready = self.folder / "alone.ready"
        process = subprocess.Popen([PROGRAMS.ckvd, "--name=alone", "--role=directory,holder,requester", "--listen=127.0.0.1:0",
                                    f"--ready-file={ready}"], preexec_fn=prepare, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(PATIENCE_S * 20):
            if ready.exists() and ready.read_text().endswith("\n"):
                process.send_signal(signal.SIGTERM)
                break
            try:
                process.wait(0.05)
                break
            except subprocess.TimeoutExpired:
                continue
        out, error = process.communicate(timeout=60)
        return process.returncode, error

    def judge_short_start(self, code, error, words):
        lines = [line for line in error.split("\n") if line]
        self.assertEqual(code, 1, error)
        self.assertEqual(len(lines), 1, error)
        self.assertIn(words, lines[0])

    def test_too_few_descriptors_are_one_line(self):
        for count in (8, 12, 16, 20, 32):
            def limit(count=count):
                resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
            with self.subTest(count=count):
                code, error = self.start_alone(limit)
                self.judge_short_start(code, error, "ulimit -n")

    def test_too_few_threads_are_one_line(self):
        if os.geteuid() != 0:
            self.skipTest(skip.say("the limit of processes is tried as another user", "the same as root"))
        os.chmod(self.folder, 0o777)

        def limit(count):
            resource.setrlimit(resource.RLIMIT_NPROC, (count, count))
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        try:
            subprocess.run([PROGRAMS.ckvd, "--version"], preexec_fn=lambda: limit(100), check=True, capture_output=True)
        except (OSError, subprocess.SubprocessError):
            self.skipTest(skip.say(f"another user cannot run {PROGRAMS.ckvd}", "a build where all may read it"))
        for count in (2, 4, 8, 12, 16, 20):
            with self.subTest(count=count):
                code, error = self.start_alone(lambda count=count: limit(count))
                self.judge_short_start(code, error, "ulimit -u")
        code, error = self.start_alone(lambda: limit(200))
        self.assertEqual(code, 0, error)

    def test_closed_standard_descriptors_are_no_peers(self):
        def close():
            for fd in (0, 1, 2):
                os.close(fd)
        ready = self.folder / "closed.ready"
        command = f"exec {PROGRAMS.ckvd} --role=directory --listen=127.0.0.1:0 --ready-file={ready} 0<&- 1>&- 2>&-"
        process = subprocess.Popen(["sh", "-c", command])
        try:
            for _ in range(PATIENCE_S * 20):
                if ready.exists() and ready.read_text().endswith("\n"):
                    break
                self.assertIsNone(process.poll())
                try:
                    process.wait(0.05)
                except subprocess.TimeoutExpired:
                    pass
            with socket.create_connection(address_of(ready.read_text().strip()), timeout=30) as client:
                client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                client.recv(1)  # it is accepted
                for fd in (0, 1, 2):
                    self.assertEqual(os.readlink(f"/proc/{process.pid}/fd/{fd}"), "/dev/null")
        finally:
            process.terminate()
            process.wait(60)
        for program, arguments in ((PROGRAMS.ckvctl, ["--version"]), (PROGRAMS.ckvd, ["--version"])):
            self.assertEqual(subprocess.run([program, *arguments], preexec_fn=close, check=False).returncode, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("--ckvd", "--ckvctl"):
        parser.add_argument(option, required=True, type=pathlib.Path)
    known, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = known.ckvd.resolve(), known.ckvctl.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
