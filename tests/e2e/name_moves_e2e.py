#!/usr/bin/python3
"""Goal: a directory whose name moves to another address is served from there within two leases.

Method: real processes in a mount namespace with its own hosts file. The directory's name resolves to 127.0.0.2. A
holder and a requester are given only the name. The directory is killed, the name changes to 127.0.0.3, and the
directory starts there with its folder. Then a new corpus is loaded and queried. Needs root, or user namespaces;
otherwise it is skipped with a reason.

    python3 tests/e2e/name_moves_e2e.py --ckvd build/release/bin/ckvd --ckvctl build/release/bin/ckvctl
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import ports
import skip
from ctl_fleet import PROGRAMS, Fleet, Rows, D_QK, write_safetensors
from directory_kill_e2e import run_ctl

NAME = "directory.ckv.test"
LEASE_S = 3  # the default of ckvd
# Set in the process that runs in the namespace.
INSIDE = "CKV_TEST_NAME_MOVES_INSIDE"


def enter_namespace(command):
    """Runs `command` in a mount namespace, and returns its exit status, or None if none can be made."""
    environment = {**os.environ, INSIDE: "1"}
    for unshare in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0:
            return subprocess.run([*unshare, *command], env=environment, check=False).returncode
    return None


class Hosts:
    """The hosts file of this namespace."""

    def __init__(self, folder):
        self.path = folder / "hosts"
        self.name("127.0.0.2")
        subprocess.run(["mount", "--bind", self.path, "/etc/hosts"], check=True)

    def name(self, address):
        self.path.write_text(f"127.0.0.1 localhost\n{address} {NAME}\n")

    def close(self):
        subprocess.run(["umount", "/etc/hosts"], check=True)


def load(fleet, name, seed):
    rows = fleet.folder / f"{name}.safetensors"
    Rows(seed, 16, 0).write(rows)
    return run_ctl(fleet, "corpus", "load", name, rows, "--chunk-tokens", 4)


def ask(fleet, name):
    queries = fleet.folder / "q.safetensors"
    write_safetensors(queries, {"q": ("BF16", [2, D_QK], b"\x80\x3f" * (2 * D_QK))})
    return run_ctl(fleet, "attend", "--timeout", "2s", "--corpus", name, "--layer", 0, "--queries", queries, "--out",
                   fleet.folder / "out.safetensors")


def await_success(step, until):
    """Runs a command until it succeeds. Returns its error output if it has not by `until`."""
    while True:
        ran = step()
        if ran.returncode == 0 or time.monotonic() > until:
            return "" if ran.returncode == 0 else ran.stderr


def play(folder):
    """Returns the seconds from the directory's new start until a new corpus is loaded and queried."""
    hosts = Hosts(folder)
    fleet = Fleet.__new__(Fleet)
    fleet.folder, fleet.processes, fleet.durable = folder, [], False
    port = ports.free_port("127.0.0.2")
    fleet.directory = f"{NAME}:{port}"

    def start_directory(address):
        fleet.start("directory", "--role=directory", f"--directory-path={folder}/directory",
                    listen=f"{address}:{port}")
        return fleet.processes[-1]

    try:
        directory = start_directory("127.0.0.2")
        lease = f"--lease-ttl={LEASE_S}s"
        fleet.start("h0", "--role=holder", f"--directory={fleet.directory}", lease, "--store-capacity=64MiB")
        fleet.requester = fleet.start("requester", "--role=requester", f"--directory={fleet.directory}", lease)
        for step in (lambda: load(fleet, "first", 1), lambda: ask(fleet, "first")):
            if error := await_success(step, time.monotonic() + 60):
                raise RuntimeError(error)
        directory.kill()
        directory.wait()
        fleet.processes.remove(directory)
        hosts.name("127.0.0.3")
        start_directory("127.0.0.3")
        began = time.monotonic()
        for step in (lambda: load(fleet, "second", 2), lambda: ask(fleet, "second")):
            if error := await_success(step, began + 60):
                raise RuntimeError(error)
        return time.monotonic() - began
    finally:
        fleet.stop()
        hosts.close()


class NameMovesTest(unittest.TestCase):
    def test_serves_again_after_a_name_moves(self):
        with tempfile.TemporaryDirectory(prefix="ckv-name-moves-") as name:
            seconds = play(pathlib.Path(name))
        print(f"served again after {seconds:.1f} s", file=sys.stderr)
        self.assertLess(seconds, 2 * LEASE_S)


if __name__ == "__main__":
    if os.environ.get(INSIDE) is None:
        status = enter_namespace([sys.executable, *sys.argv])
        if status is None:
            status = skip.cannot("no mount namespace can be made here",
                                 "run it as root, or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1")
        sys.exit(status)
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--seconds", action="store_true", help="print the seconds and those of a lease, and assert nothing")
    options, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = options.ckvd, options.ckvctl
    if options.seconds:
        with tempfile.TemporaryDirectory(prefix="ckv-name-moves-") as where:
            print(play(pathlib.Path(where)), LEASE_S)
        sys.exit(0)
    unittest.main(argv=[sys.argv[0], *rest])
