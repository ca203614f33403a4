"""A fleet whose programs run on hosts of their own (tests/support/lan.py): three with a member of etcd and a directory,
three with a holder, one with a requester, and one for those that call it.

Each program can be killed, stopped and started again. Those that end by themselves are started again, as a service
manager does. Uses none of ckv's code, only the programs.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ctl_fleet import PROGRAMS
from etcd import PROGRAM as ETCD
from lan import NETWORK, Lan, child_of

DIRECTORIES, HOLDERS = 3, 3
HOSTS = DIRECTORIES + HOLDERS + 2
PORT, DATA_PORT, CLIENT_PORT, PEER_PORT = 7001, 7002, 2379, 2380
DISK = "/var/lib"  # of each host: a file system of its own, in memory
DISK_MIB = 128
READY_S = 60
LOSS_AFTER = "2s"
END_S_MAX = 60  # from a signal. A daemon gives its calls 10 s.
# etcd 3.4 waits in SIGTERM for peers that its host does not reach. As a service manager does, the fleet then kills it.
ETCD_END_S_MAX = 10


def address(number, port):
    return f"{NETWORK}.{number}:{port}"


class Program:
    """A program of a host. All of its lives write to one log."""

    def __init__(self, name, host, *command):
        self.name, self.host, self.command = name, host, command
        self.log = host.folder / f"{name}.log"
        self.outside = None  # the nsenter that waits for it
        self.life_begin = 0  # where the log of this life begins
        self.ended_by_itself, self.crashes = 0, []

    def start(self):
        with self.log.open("ab") as log:
            self.life_begin = log.tell()
            self.outside = subprocess.Popen(self.host.command(*self.command), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log)

    def pid(self):
        while self.outside.poll() is None:
            try:
                return child_of(self.outside.pid)
            except IndexError:  # it has not begun
                time.sleep(0.001)
        return None

    def send(self, sign):
        pid = self.pid()
        if pid is not None:
            os.kill(pid, sign)
            if sign == signal.SIGCONT:
                self.outside.send_signal(sign)  # it stopped with its child

    def kill(self, sign=signal.SIGKILL):
        """Ends it. It must not have crashed before."""
        self.look()
        self.send(signal.SIGCONT)
        self.send(sign)
        is_ours = self.command[0] != ETCD
        try:
            self.outside.wait(END_S_MAX if is_ours else ETCD_END_S_MAX)
        except subprocess.TimeoutExpired:
            if is_ours:
                self.crashes.append(f"{self.name} did not end within {END_S_MAX} s of signal {sign}: threads "
                                    f"{self.threads()}, its log ends {self.log.read_text()[-4000:]}")
            self.send(signal.SIGKILL)
            self.outside.wait(END_S_MAX)

    def threads(self):
        """The stack of each of its threads, or without a debugger its name and the kernel's function where it waits."""
        if shutil.which("gdb"):
            return subprocess.run(["gdb", "-p", str(self.pid()), "-batch", "-ex", "thread apply all bt 20"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120, check=False).stdout
        tasks = sorted(pathlib.Path(f"/proc/{self.pid()}/task").iterdir())
        return [f"{(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text()}" for task in tasks]

    def look(self):
        """Notes whether it ended by itself since its start."""
        code = self.outside.poll()
        if code is None:
            return False
        self.ended_by_itself += 1
        if code < 0 or code > 128:
            self.crashes.append(f"{self.name}: exit code {code}: {self.log.read_text()[-2000:]}")
        return True


class LanFleet:
    """`directory`, `requester` and `prefix` are what run_ctl and Worker of directory_kill_e2e.py read."""

    def __init__(self, folder):
        self.folder, self.programs = folder, {}
        self.lan = Lan(folder, HOSTS)
        self.directory = ",".join(address(i, PORT) for i in range(1, DIRECTORIES + 1))
        self.requester = address(HOSTS - 1, PORT)
        self.callers_host = self.lan.hosts[f"host-{HOSTS}"]
        self.prefix = self.callers_host.command()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self):
        store = "etcd://" + ",".join(address(i, CLIENT_PORT) for i in range(1, DIRECTORIES + 1))
        for i in range(1, DIRECTORIES + 1):
            self._add(f"etcd-{i}", i, *self._etcd(i))
        for i in range(1, DIRECTORIES + 1):
            self._add_ckvd(f"directory-{i}", i, "--role=directory", f"--directory-store={store}",
                           f"--repair-loss-after={LOSS_AFTER}")
        for i in range(HOLDERS):
            number = DIRECTORIES + 1 + i
            self.lan.hosts[f"host-{number}"].run("mount", "-o", f"remount,size={DISK_MIB}m", DISK)
            self._add_ckvd(f"h{i}", number, "--role=holder", f"--directory={self.directory}",
                           f"--data-listen={address(number, DATA_PORT)}", "--store-capacity=64MiB",
                           f"--store-path={DISK}/store")
        self._add_ckvd("requester", HOSTS - 1, "--role=requester", f"--directory={self.directory}")
        for program in self.programs.values():
            if not program.name.startswith("etcd"):
                self.await_ready(program)

    def _etcd(self, i):
        client, peer = f"http://{address(i, CLIENT_PORT)}", f"http://{address(i, PEER_PORT)}"
        cluster = ",".join(f"m{j}=http://{address(j, PEER_PORT)}" for j in range(1, DIRECTORIES + 1))
        return (ETCD, f"--name=m{i}", "--data-dir=etcd", f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster={cluster}",
                "--logger=zap", "--log-outputs=stderr")

    def _add(self, name, number, *command):
        program = self.programs[name] = Program(name, self.lan.hosts[f"host-{number}"], *command)
        program.start()

    def _add_ckvd(self, name, number, *options):
        self._add(name, number, PROGRAMS.ckvd, f"--name={name}", f"--listen={address(number, PORT)}", f"--ready-file={name}.ready",
                  *options)

    def await_ready(self, program):
        ready, deadline = program.host.folder / f"{program.name}.ready", time.monotonic() + READY_S
        while not ready.exists():
            if program.outside.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{program.name} does not start: {program.log.read_text()[-2000:]}")
            time.sleep(0.02)

    def role(self, prefix):
        return [program for name, program in self.programs.items() if name.startswith(prefix)]

    def restart_ended(self, apart=()):
        """Starts the programs again that ended by themselves, `apart` from those with these names."""
        for name, program in self.programs.items():
            if name not in apart and program.look():
                program.start()

    def stop(self):
        for program in reversed(self.programs.values()):
            if program.outside.poll() is None:
                program.send(signal.SIGCONT)
                program.send(signal.SIGKILL)
                program.outside.wait(60)
        self.lan.end()
