"""Characterizes one holder over links of given speeds, with real processes on a real wire.

A directory and a holder run in a network namespace of their own, behind a veth pair whose two ends are shaped by
tbf; ckvctl runs outside and measures. Full speed is a fleet on loopback, over shm and tcp. Needs root for the shaped
links; everything that is made is taken away again, and only processes started here are ended.
"""

import contextlib
import csv
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

HOLDER, OUTSIDE = "10.77.41.2", "10.77.41.1"
READY_S = 20
LINKS = {"10gbit": "128kb", "1gbit": "16kb"}  # and the bucket of each
ROW_BYTES = 1152  # of the reference engine's geometry, DeepSeek's


def run(*command, **more):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **more)


@contextlib.contextmanager
def daemon(build, folder, prefix, *arguments):
    """A ckvd that answers; ended by SIGTERM."""
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
    """A namespace's name whose one way out is `rate` (10gbit) each way."""
    name = f"ckv{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "inside", "netns", name)
        run("ip", "addr", "add", f"{OUTSIDE}/30", "dev", name)
        run("ip", "link", "set", name, "up")
        run("ip", "-n", name, "addr", "add", f"{HOLDER}/30", "dev", "inside")
        for device in ("lo", "inside"):
            run("ip", "-n", name, "link", "set", device, "up")
        # What passes while a timer is late, here some 100 us: a smaller bucket would not reach the rate, a larger one
        # lets whole frames pass at full speed, which no link does.
        shape = ["root", "tbf", "rate", rate, "burst", LINKS[rate], "latency", "50ms"]
        run("tc", "qdisc", "add", "dev", name, *shape)
        run("tc", "-n", name, "qdisc", "add", "dev", "inside", *shape)
        yield name
    finally:
        # By itself, a pair goes some time after its namespace.
        subprocess.run(["ip", "link", "del", name], stderr=subprocess.DEVNULL, check=False)
        run("ip", "netns", "del", name)


def characterize(build, folder, directory, fabrics, *options):
    """What `ckvctl characterize` says of each fabric, by name."""
    command = [str(build / "bin" / "ckvctl"), "--directory", directory, "characterize", *options,
               "--dir", str(folder / "costs"), "--output", "json"]
    for fabric in fabrics:
        command += ["--fabric", fabric]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {row["fabric"]: row for row in json.loads(out)["findings"]}
    with open(folder / "costs" / "samples.csv", newline="") as file:
        samples = [row for row in csv.DictReader(line for line in file if not line.startswith("#"))]
    for row in samples:
        if (row["sweep"], row["query_rows"], row["tokens"]) == ("route", "256", "2048"):
            routed = int(row["bytes_out"]) + int(row["bytes_in"])
            found[row["fabric"]]["bytes_saved"] = 1 - routed / (2048 * ROW_BYTES)
    return found


def full_speed(build):
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        directory = stack.enter_context(daemon(build, folder, [], "--role=directory", "--listen=127.0.0.1:0"))
        stack.enter_context(daemon(build, folder, [], "--role=holder", "--name=h0", "--listen=127.0.0.1:0",
                                   f"--directory={directory}"))
        # The whole grid, 6 min: --quick is over in 30 s, and a shared machine's slow moments last for seconds.
        return characterize(build, folder, directory, ("shm", "tcp"))


def limited(build, rate):
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        inside = ["ip", "netns", "exec", stack.enter_context(shaped_link(rate))]
        directory = stack.enter_context(
            daemon(build, folder, inside, "--role=directory", f"--listen={HOLDER}:7400"))
        stack.enter_context(
            daemon(build, folder, inside, "--role=holder", "--name=h0", f"--listen={HOLDER}:7401",
                   f"--data-listen={HOLDER}:7402", f"--directory={HOLDER}:7400"))
        return characterize(build, folder, directory, ("tcp",), "--quick")


def figures(build):
    """{link: {figure: value}} of every link: shm, tcp, 10gbit, 1gbit."""
    links = full_speed(build)
    for rate in LINKS:
        links[rate] = limited(build, rate)["tcp"]
    return {link: {"mape": 100 * row["mape"], "mape_large": 100 * row["mape_large"], "regret": 100 * row["regret"],
                   "right": 100 * row["right_share"], "clear_points": row["clear_points"],
                   "resolved_right": 100 * row["resolved_right_share"], "resolved_points": row["resolved_points"],
                   "bytes_saved": 100 * row["bytes_saved"]}
            for link, row in links.items()}


if __name__ == "__main__":
    import sys
    print(json.dumps(figures(pathlib.Path(sys.argv[1])), indent=2))
