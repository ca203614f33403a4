#!/usr/bin/python3
"""Goal: a ckvd that reads a slow store requests time from its service manager while the reading makes progress.

Method: a socket of this test takes the place of systemd's. Some files of the store are FIFOs, which
simulate a slow disk: a daemon that opens one blocks until the test opens it too. The test opens one
at a time; each time the daemon reports progress, and otherwise nothing. In the end it reports ready.

    python3 tests/e2e/slow_start_e2e.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl
"""

import argparse
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
from slow_store import SlowFiles  # noqa: E402

PROGRAMS = argparse.Namespace(ckvd=None, ckvctl=None)
PATIENCE_S = 60
# Twice kExtendPeriod (1 s): a start that makes progress reports it at most that often.
STILL_S = 2
LOADS = re.compile(r"STATUS=loads: (\d+) calls to the store's files\nEXTEND_TIMEOUT_USEC=30000000$")


class Manager:
    """Takes the place of systemd."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.path = path

    def next(self, patience_s=PATIENCE_S):
        """The next message, or None if none arrives in time."""
        self.socket.settimeout(patience_s)
        try:
            return self.socket.recv(4096).decode()
        except TimeoutError:
            return None

    def await_message(self, wanted):
        while (message := self.next()) is not None:
            if wanted in message:
                return message
        raise AssertionError(f"no message has {wanted}")


class SlowStart(unittest.TestCase):
    @contextlib.contextmanager
    def daemon(self):
        log = self.folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [PROGRAMS.ckvd, "--role=directory,holder", "--name=h", "--listen=127.0.0.1:0",
                 "--store-capacity=16MiB", f"--store-path={self.store}"],
                env={**os.environ, "NOTIFY_SOCKET": str(self.manager.path)}, stdout=out, stderr=out,
                stdin=subprocess.DEVNULL)
        try:
            yield process
        except AssertionError:
            print(log.read_text())
            raise
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.folder = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.manager = Manager(self.folder / "notify")
        self.store = self.folder / "store"

    def tearDown(self):
        self.manager.socket.close()
        self.stack.close()

    def end(self, process):
        process.send_signal(signal.SIGTERM)
        self.assertRegex(self.manager.await_message("STOPPING=1"),
                         r"STOPPING=1\nSTATUS=drains\nEXTEND_TIMEOUT_USEC=15000000")
        self.assertEqual(process.wait(PATIENCE_S), 0)

    def loads(self):
        """The count in the next message."""
        message = self.manager.next()
        self.assertRegex(message or "no message", LOADS)
        return int(LOADS.match(message)[1])

    def test_the_start_timeout_is_extended_while_files_are_read(self):
        with self.daemon() as process:
            self.manager.await_message("READY=1")
            self.end(process)
        slow = SlowFiles(self.store, count=4)
        with self.daemon() as process:
            count = self.loads()
            for _ in range(3):
                slow.let_go()
                later = self.loads()
                self.assertGreater(later, count)
                count = later
            # Calls of this second may be unreported yet.
            if (last := self.manager.next(STILL_S)) is not None:
                self.assertGreater(int(LOADS.match(last)[1]), count)
                self.assertIsNone(self.manager.next(STILL_S), "it stands still, and asks for time")
            slow.let_go()
            self.assertRegex(self.manager.await_message("READY=1"), r"READY=1\nSTATUS=serves at 127\.0\.0\.1:")
            self.end(process)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.parse_args(namespace=PROGRAMS)
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
