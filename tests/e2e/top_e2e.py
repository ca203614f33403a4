#!/usr/bin/python3
"""Goal: ckvctl top shows what a fleet does: in a terminal, which it leaves as it was, in a pipe, and to a script.

Method: real processes, agents that make queries, and pseudo-terminals.
"""

import argparse
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

from ctl_fleet import D_QK, PROGRAMS, Fleet, Rows

BEGIN, END = b"\x1b[?1049h", b"\x1b[?1049l"
PATIENCE_S = 60


class Shown:
    """A ckvctl top on its own terminal."""

    def __init__(self, env, columns=80, rows=40):
        self.master, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self.terminal)
        self.seen = b""
        # Its own session, so that Ctrl-C reaches only this process.
        self.process = subprocess.Popen(
            [PROGRAMS.ckvctl, "top", "--interval", "200ms"], stdin=self.terminal, stdout=self.terminal,
            stderr=self.terminal, env=env, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def until(self, pattern):
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.seen):
            assert time.monotonic() < deadline, (pattern, self.seen)
            if select.select([self.master], [], [], 1)[0]:
                self.seen += os.read(self.master, 1 << 16)
        return self.seen

    def screens(self):
        """The texts that were drawn whole, without the codes that drew them."""
        drawn = self.seen.split(b"\x1b[H")[1:]
        return [re.sub(rb"\x1b\[[?0-9]*[a-zA-Z]", b"", one).decode().replace("\r", "") for one in drawn if b"\x1b[J" in one]

    def press(self, key):
        os.write(self.master, key)

    def end(self):
        code = self.process.wait(PATIENCE_S)
        while select.select([self.master], [], [], 0)[0]:
            self.seen += os.read(self.master, 1 << 16)
        after = termios.tcgetattr(self.terminal)
        os.close(self.master)
        os.close(self.terminal)
        return code, after


class TopTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="ckv-top-")))
        cls.fleet = Fleet(cls.folder, holders=2)
        cls.addClassCleanup(cls.fleet.stop)
        cls.env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        cls.env.update(CKV_REQUESTER=cls.fleet.requester, CKV_DIRECTORY=cls.fleet.directory, TERM="xterm")
        Rows(1, 70, 0).write(cls.folder / "rows.safetensors")
        cls.ctl("corpus", "load", "docs", cls.folder / "rows.safetensors", "--chunk-tokens", 32)
        caller = subprocess.Popen([PROGRAMS.attend_caller, cls.fleet.requester, "docs", str(D_QK)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        cls.addClassCleanup(lambda: (caller.stdin.close(), caller.wait(30), caller.stdout.close()))
        caller.stdout.readline()

    @classmethod
    def ctl(cls, *arguments, code=0):
        done = subprocess.run([PROGRAMS.ckvctl, *map(str, arguments)], env=cls.env, capture_output=True, text=True,
                              timeout=120, check=False)
        assert done.returncode == code, (arguments, done.returncode, done.stderr)
        return done.stdout

    def test_a_script_gets_a_line(self):
        said = self.ctl("top", "--once", "--interval", "300ms", "-o", "json")
        self.assertEqual(said.count("\n"), 1)
        view = json.loads(said)
        self.assertEqual(len(view["holders"]), 2)
        self.assertEqual(view["findings"], [])
        self.assertGreater(sum(one["query_rows_per_s"] for one in view["holders"]), 0)
        self.assertGreater(view["requesters"][0]["route_per_s"], 0)
        self.assertGreater(view["requesters"][0]["attend_p99_us"], 0)
        self.assertEqual(view["corpora"][0]["name"], "docs")
        self.assertGreater(view["corpora"][0]["attends_per_s"], 0)
        times = {one["of"]: one for one in view["times"]}
        for of in ("route", "kernel", "wait"):
            self.assertGreater(times[of]["p99_us"], 0, of)
            self.assertGreaterEqual(times[of]["p99_us"], times[of]["p50_us"], of)

    def test_a_pipe_gets_text(self):
        said = self.ctl("top", "--once", "--interval", "300ms")
        self.assertNotIn("\x1b", said)
        self.assertTrue(all(len(line) <= 80 for line in said.splitlines()), said)
        for word in ("REQUESTER", "HOLDER", "TIMES", "HOTTEST CORPORA", "docs", "h0", "h1", "kernel", "wait"):
            self.assertIn(word, said)

    def test_a_pipe_that_is_closed_ends_it(self):
        top = subprocess.Popen([PROGRAMS.ckvctl, "top", "--interval", "100ms", "-o", "json"], env=self.env,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        looks = [json.loads(top.stdout.readline()) for _ in range(2)]
        self.assertGreater(looks[1]["seconds"], 0)
        top.stdout.close()
        self.assertNotEqual(top.wait(PATIENCE_S), 0)  # it dies of SIGPIPE, as other programs do

    def test_q_leaves_the_terminal_as_it_was(self):
        top = Shown(self.env)
        top.until(rb"docs +[1-9]")  # a rate
        top.press(b"q")
        code, after = top.end()
        self.assertEqual((code, after), (0, top.before))
        self.assertEqual((top.seen.count(BEGIN), top.seen.count(END)), (1, 1))
        self.assertTrue(top.seen.endswith(END))
        for screen in top.screens():
            lines = screen.split("\n")
            self.assertLessEqual(len(lines), 40)
            self.assertTrue(all(len(line) <= 80 for line in lines), screen)
            self.assertIn("q quits", lines[0])

    def test_a_wide_terminal_has_more(self):
        top = Shown(self.env, columns=200)
        top.until(rb"docs +[1-9]")
        top.press(b"q")
        self.assertEqual(top.end()[0], 0)
        self.assertIn("SESSIONS", top.screens()[-1])

    def test_interrupts_leave_it_too(self):
        for interrupt in (lambda top: top.press(b"\x03"), lambda top: top.process.send_signal(signal.SIGTERM)):
            top = Shown(self.env)
            top.until(rb"HOLDER")
            interrupt(top)
            code, after = top.end()
            self.assertIn(code, (-signal.SIGINT, -signal.SIGTERM))
            self.assertEqual(after, top.before)
            self.assertTrue(top.seen.endswith(END), top.seen[-200:])

    def test_no_fleet_no_screen(self):
        top = Shown({**self.env, "CKV_DIRECTORY": "127.0.0.1:1"})
        code, _ = top.end()
        self.assertEqual(code, 4)
        self.assertNotIn(BEGIN, top.seen)
        self.assertIn(b"UNAVAILABLE", top.seen)
        self.ctl("--directory", "127.0.0.1:1", "top", "--once", code=4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--attend-caller", required=True)
    options, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl, PROGRAMS.attend_caller = options.ckvd, options.ckvctl, options.attend_caller
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
