"""A fleet of real processes, and the ways to break it.

With users, the fleet runs as root inside `unshare --net --mount` (as health_matrix.py starts it). Each daemon then has
its own user, so that nftables can cut the path from one daemon to another. It has its own file system if a fault fills
or empties it. Without users the fleet needs none of this, and cannot be cut or filled.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "e2e"), str(HERE.parents[1] / "deploy")]
import ctl_fleet  # noqa: E402

READY_S = 60
LEASE = "--lease-ttl=1s"
FIRST_UID = 24001  # no machine assigns these user ids
DISK_BYTES = 16 << 20


class Broken(ctl_fleet.Fleet):
    """A directory, two holders and a requester. Each keeps its addresses across restarts."""

    NAMES = ("directory", "h0", "h1", "requester", "spare")

    def __init__(self, folder, directory_path=True, stores=True, small_disks=(), capacity="16MiB", users=True):
        """directory_path, stores: whether the directory and the holders have folders. small_disks: names of the daemons
        whose folder is a file system of 16 MiB. capacity: of the holders' memory. users: whether each daemon has its
        own user."""
        folder.chmod(0o755)  # other users read it
        self.folder, self.processes, self.by_name, self.killed, self.sockets = folder, [], {}, set(), []
        self.held = []
        self.directory_path, self.stores, self.capacity, self.users = directory_path, stores, capacity, users
        self.control = {name: self._hold_address() for name in self.NAMES}
        self.data = {name: self._hold_address() for name in self.NAMES}
        self.metrics = {name: self._hold_address() for name in self.NAMES}
        self.disks = []
        for name in self.NAMES:
            self.room(name).mkdir()
            if name in small_disks:
                self._mount(self.room(name))
            if users:
                shutil.chown(self.room(name), self.uid(name), self.uid(name))
        self.directory, self.requester = self.control["directory"], self.control["requester"]
        try:
            for name in ("directory", "h0", "h1", "requester"):
                self.again(name)
        except BaseException:
            Broken.stop(self)
            raise

    def _hold_address(self):
        """Binds a port without listening, so that no other process gets it while the daemon restarts."""
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        self.held.append(held)
        return f"127.0.0.1:{held.getsockname()[1]}"

    def uid(self, name):
        return FIRST_UID + self.NAMES.index(name)

    def room(self, name):
        """The folder of a daemon, with its store or log."""
        return self.folder / f"{name}-room"

    def store(self, index):
        return self.room(f"h{index}") / "store"

    def _mount(self, where):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", where], check=True)
        self.disks.append(where)

    def arguments(self, name, directory):
        if name == "directory":
            return ["--role=directory", *([f"--directory-path={self.room(name)}/log"] if self.directory_path else [])]
        if name == "spare":
            return []  # the caller passes its role
        more = ["--directory", directory, LEASE]
        if name == "requester":
            return ["--role=requester", *more]
        store = [f"--store-path={self.room(name)}/store"] if self.stores else []
        return ["--role=holder", f"--data-listen={self.data[name]}", f"--store-capacity={self.capacity}", *more, *store]

    def again(self, name, *more, program=None, directory=None, files=None):
        """Starts or restarts a daemon. `directory`: that of another fleet. `files`: how many files it may open."""
        ready = self.room(name) / "ready"
        ready.unlink(missing_ok=True)
        uid = str(self.uid(name))
        limit = ["prlimit", f"--nofile={files}:{files}"] if files else []
        user = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"] if self.users else []
        command = [*limit, *user, program or ctl_fleet.PROGRAMS.ckvd, f"--name={name}",
                   f"--listen={self.control[name]}", f"--metrics-address={self.metrics[name]}", f"--ready-file={ready}",
                   *self.arguments(name, directory or self.directory), *more]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes.append(process)
        self.by_name[name] = process
        deadline = time.monotonic() + READY_S
        while not (ready.exists() and ready.read_text().endswith("\n")):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start:\n{self.log(name)[-2000:]}")
            self.live(0.02)
        return process

    def live(self, seconds):
        """Waits for `seconds`. A daemon that ends by itself is an error."""
        end = time.monotonic() + seconds
        for name, process in self.by_name.items():
            try:
                process.wait(max(0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
            raise RuntimeError(f"{name} ended by itself:\n{self.log(name)[-2000:]}")

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def end(self, name, how=signal.SIGKILL):
        process = self.by_name.pop(name)
        process.send_signal(how)
        process.wait(READY_S)
        self.processes.remove(process)

    def hold(self, name):
        self.by_name[name].send_signal(signal.SIGSTOP)

    def cut(self, sender, port):
        """Drops all packets from `sender` to the port. Open connections get no reply, either."""
        if not self.killed:
            nft("add table inet ckv", "add chain inet ckv out { type filter hook output priority 0; }")
        self.killed.add((sender, port))
        who = f"meta skuid {self.uid(sender)} " if sender else ""
        nft(f"add rule inet ckv out {who}tcp dport {port} drop")

    def fill(self, name):
        """Fills a daemon's file system."""
        with (self.room(name) / "ballast").open("wb", buffering=0) as ballast:
            size = 1 << 20
            while size:
                try:
                    if ballast.write(b"\1" * size) < size:
                        size //= 2
                except OSError:
                    size //= 2

    def ctl(self, *arguments, check=True, timeout=120, **environment):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        env.update({"CKV_REQUESTER": self.requester, "CKV_DIRECTORY": self.directory, **environment})
        done = subprocess.run([ctl_fleet.PROGRAMS.ckvctl, *map(str, arguments)], env=env, timeout=timeout,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, (arguments, done.returncode, done.stdout, done.stderr)
        return done

    def load(self, name="docs", seed=1, tokens=70, *more, check=True):
        path = self.folder / f"{name}.safetensors"
        ctl_fleet.Rows(seed, tokens, 0).write(path)
        return self.ctl("corpus", "load", name, path, "--chunk-tokens", 10, *more, check=check)

    def stop(self):
        for one in (*self.sockets, *self.held):
            one.close()
        super().stop()
        if self.killed:
            nft("delete table inet ckv")
        for disk in self.disks:
            subprocess.run(["umount", disk], check=False)


def port_of(address):
    return int(address.rsplit(":", 1)[1])


def nft(*lines):
    subprocess.run(["nft", "-f", "-"], input="\n".join(lines), text=True, check=True)


def lacks():
    """What this machine lacks for a fleet with users, and what would run it; or None."""
    if os.geteuid() != 0:
        return "the health matrix needs root", "sudo deploy/bench.sh field"
    for program in ("unshare", "setpriv", "prlimit", "mount", "nft", "ip", "prometheus"):
        if not shutil.which(program):
            return f"no {program} here", "deploy/install-packages.sh field"
    return None
