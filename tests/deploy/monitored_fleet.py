"""A fleet of real processes that serve metrics and status pages, and the corpora and load that tests put on it."""

import itertools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE.parent / "support")]
import ctl_fleet  # noqa: E402
from ports import free_port  # noqa: E402

WAIT_S = 60  # for any condition, on a machine that may be busy


def wait_until(what, condition):
    """Waits until the condition is true; returns its value."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            value = condition()
        except OSError:
            value = None
        if value:
            return value
        assert time.monotonic() < deadline, f"not in {WAIT_S} s: {what}"
        time.sleep(0.2)


class Monitored(ctl_fleet.Fleet):
    """A fleet whose processes keep their metrics addresses, and can be restarted by name."""

    def __init__(self, folder, holders, *requester):
        """`requester`: additional arguments of the requester."""
        self.folder, self.processes, self.by_name, self.metrics = folder, [], {}, {}
        self.directory = f"127.0.0.1:{free_port()}"
        self.again("directory", "--role=directory", f"--directory-path={folder}/directory", listen=self.directory)
        for index in range(holders):
            self.holder(index)
        self.requester = self.again("requester", "--role=requester", f"--directory={self.directory}", *requester)

    def holder(self, index, *more, capacity="16MiB"):
        return self.again(f"h{index}", "--role=holder", f"--directory={self.directory}", "--lease-ttl=1s",
                          f"--store-capacity={capacity}", f"--store-path={self.store(index)}",
                          *more)

    def again(self, name, *arguments, listen="127.0.0.1:0"):
        self.metrics.setdefault(name, f"127.0.0.1:{free_port()}")
        address = self.start(name, f"--metrics-address={self.metrics[name]}", *arguments, listen=listen)
        self.by_name[name] = self.processes[-1]
        return address

    def end(self, name, how=signal.SIGTERM):
        process = self.by_name.pop(name)
        process.send_signal(how)
        process.wait(60)
        self.processes.remove(process)

    def _ctl(self, arguments):
        """The command and the environment of a ckvctl for this fleet."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        env["CKV_REQUESTER"] = self.requester
        return [ctl_fleet.PROGRAMS.ckvctl, "--directory", self.directory, *map(str, arguments)], env

    def ctl(self, *arguments, check=True):
        command, env = self._ctl(arguments)
        done = subprocess.run(command, env=env, timeout=120, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, done.stderr
        return done

    def start_ctl(self, *arguments):
        """Starts a ckvctl that runs beside the test. The caller ends it."""
        command, env = self._ctl(arguments)
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)


def attend(fleet, folder, *more, check=True):
    return fleet.ctl("attend", "--corpus", "docs", "--layer", 0, "--queries", folder / "q.safetensors", "--out",
                     folder / "o.safetensors", *more, check=check)


# Enough for the rows of one of the texts, so that agents over both prefetch again and again.
LOCAL_CACHE_BYTES = "--requester-local-cache-bytes=4MiB"
TEXTS = {f"text-{i}": "How a fleet keeps rows, and who attends them. " * (11 + i) for i in range(2)}


def load_corpora(fleet, folder, copies):
    """Loads the corpus docs from rows, and two corpora of text for agents. Writes q.safetensors, a query of docs."""
    ctl_fleet.Rows(1, 70, 0).write(folder / "rows.safetensors")
    query = [ctl_fleet.bf16(0.5)] * ctl_fleet.D_QK
    ctl_fleet.write_safetensors(folder / "q.safetensors",
                                {"q": ("BF16", [1, ctl_fleet.D_QK], b"".join(v.to_bytes(2, "little") for v in query))})
    fleet.ctl("corpus", "load", "docs", folder / "rows.safetensors", "--chunk-tokens", 32, "--replicas", copies)
    for name, text in TEXTS.items():
        (folder / f"{name}.txt").write_text(text)
        fleet.ctl("corpus", "load", name, folder / f"{name}.txt", "--text", "--replicas", copies)


class Load:
    """Callers of every kind, until `stop`: routes, routes of one frame, fetches, and agents with policy cache."""

    def __init__(self, fleet, folder, caller):
        self.fleet, self.ending = fleet, threading.Event()
        self.caller = subprocess.Popen([caller, fleet.requester, "docs", str(ctl_fleet.D_QK)], stdin=subprocess.PIPE,
                                       stdout=subprocess.DEVNULL)
        docs = ("--corpus", "docs", "--chunks", 0, "--out", folder / "load.safetensors")
        agents = [("agents", "run", "--corpus", name, "--no-check", "--policy", "cache", "--count", 2, "--tokens", 40)
                  for name in TEXTS]
        self.threads = [threading.Thread(target=self._again, args=turns) for turns in (
            [("fetch", *docs), ("attend", "--layer", 0, "--queries", folder / "q.safetensors", *docs)], agents)]
        for thread in self.threads:
            thread.start()

    def _again(self, *turns):
        for turn in itertools.cycle(turns):
            if self.ending.is_set():
                return
            one = self.fleet.start_ctl(*turn)
            while one.poll() is None and not self.ending.is_set():
                self.ending.wait(0.05)
            if one.poll() is None:
                one.terminate()
            one.wait()

    def stop(self):
        self.ending.set()
        for thread in self.threads:
            thread.join()
        self.caller.stdin.close()
        self.caller.wait(30)
