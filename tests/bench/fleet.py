"""Daemons of a benchmark and the links to them.

Ends only processes that it started, and removes everything that it made.
"""

import contextlib
import os
import signal
import subprocess
import time

INSIDE, OUTSIDE = "10.77.41.2", "10.77.41.1"
READY_S = 20
BUCKETS = {"10gbit": "128kb", "1gbit": "16kb"}


def run(*command, **more):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **more)


@contextlib.contextmanager
def daemon(build, folder, prefix, *arguments):
    """Yields the address of a ckvd that is ready. Ends it with SIGTERM."""
    ready = folder / f"{len(list(folder.iterdir()))}.ready"
    log = open(ready.with_suffix(".log"), "wb")
    process = subprocess.Popen([*prefix, str(build / "bin" / "ckvd"), f"--ready-file={ready}", *arguments],
                               stdout=log, stderr=log)
    try:
        end = time.monotonic() + READY_S
        while not (ready.exists() and ready.read_text().endswith("\n")):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"ckvd did not start: {ready.with_suffix('.log').read_text()[-500:]}")
        yield ready.read_text().split("\n")[0]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=READY_S)
        log.close()


@contextlib.contextmanager
def shaped_link(rate):
    """Yields the name of a namespace whose only link has `rate` (10gbit) in each direction."""
    name = f"ckv{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "inside", "netns", name)
        run("ip", "addr", "add", f"{OUTSIDE}/30", "dev", name)
        run("ip", "link", "set", name, "up")
        run("ip", "-n", name, "addr", "add", f"{INSIDE}/30", "dev", "inside")
        for device in ("lo", "inside"):
            run("ip", "-n", name, "link", "set", device, "up")
        # A bucket holds what passes while a timer is late, here some 100 us. A smaller bucket would not reach the rate.
        # A larger one would let whole frames pass at full speed, as no real link does.
        shape = ["root", "tbf", "rate", rate, "burst", BUCKETS[rate], "latency", "50ms"]
        run("tc", "qdisc", "add", "dev", name, *shape)
        run("tc", "-n", name, "qdisc", "add", "dev", "inside", *shape)
        yield name
    finally:
        # Without this, the pair is removed only some time after its namespace.
        subprocess.run(["ip", "link", "del", name], stderr=subprocess.DEVNULL, check=False)
        run("ip", "netns", "del", name)
