"""Hosts on one network, for tests: each has a network, a name, processes, an uptime, an /etc/hosts and a
/var/lib of its own. They are namespaces of this host, joined by a bridge in a namespace of its own.

The hosts exist until the Lan or this process ends. The first process of a host ends when its standard
input is closed, and the kernel then ends the host's other processes.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess

NETWORK = "10.77.0"
HOSTS_MAX = 9
DAY_S = 86400
COMMAND_TIMEOUT_S = 120
# The first process of a host: reaps its children, and waits for the end of its standard input.
FIRST = """
set -e
trap '' CHLD
hostname "$1"
mount -t tmpfs lib /var/lib
mount --bind hosts /etc/hosts
ip link set lo up
echo up
exec cat
"""


class NoLan(Exception):
    """This machine cannot have hosts. The text gives the reason."""


def why_not():
    """(why this machine cannot have hosts, what would help), or None if it can."""
    if os.geteuid() != 0:
        return "no hosts here: not root", "the same as root"
    if shutil.which("ip") is None:
        return "no hosts here: no ip command", "deploy/install-packages.sh tests"
    if subprocess.run(["unshare", "-nmupf", "true"], capture_output=True).returncode != 0:
        return "no hosts here: no namespaces may be made", "a kernel that lets root make namespaces"
    return None


def child_of(pid):
    """The only child of an unshare or nsenter, which stays outside and waits."""
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


class Host:
    def __init__(self, name, folder, days_up):
        """days_up: how many days longer than this machine the host has been up."""
        self.name, self.folder = name, folder
        folder.mkdir()
        # As Debian's installer writes it: a host's own name is a loopback address.
        others = "".join(f"{NETWORK}.{i} host-{i}\n" for i in range(1, HOSTS_MAX + 1) if f"host-{i}" != name)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n{others}")
        apart = ["--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
        self._enter = ["-n", "-u", "-m", "-p"]
        if subprocess.run(["unshare", "-T", "true"], capture_output=True).returncode == 0:
            apart += ["--time", "--monotonic", str(days_up * DAY_S)]
            self._enter.append("-T")
        self._life = subprocess.Popen(["unshare", *apart, "bash", "-c", FIRST, "_", name],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
        if self._life.stdout.readline() != "up\n":
            self.end()
            raise NoLan(f"{name} did not start")
        self.pid = child_of(self._life.pid)

    def command(self, *command):
        """The command line that runs the command on the host, in the host's folder."""
        return ["nsenter", "-t", str(self.pid), *self._enter, f"--wd={self.folder}", *map(str, command)]

    def run(self, *command, env=None, code=0):
        """The output of a command, of both streams. The command must end with `code`, if that is not None."""
        # Uses a file, because a daemon that the command leaves behind would keep a pipe open.
        with (self.folder / ".output").open("w+") as out:
            done = subprocess.run(self.command(*command), stdin=subprocess.DEVNULL, stdout=out,
                                  stderr=out, env=env, timeout=COMMAND_TIMEOUT_S)
            out.seek(0)
            text = out.read()
        if code is not None and done.returncode != code:
            raise subprocess.CalledProcessError(done.returncode, command, text)
        return text

    @contextlib.contextmanager
    def daemon(self, *command, env, log):
        """Runs a process during the `with` block, then ends it with SIGTERM."""
        with log.open("wb") as out:
            outside = subprocess.Popen(self.command(*command), stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=out, env=env)
        try:
            yield
        finally:
            if outside.poll() is None:
                os.kill(child_of(outside.pid), signal.SIGTERM)
            outside.wait(COMMAND_TIMEOUT_S)

    def close_port(self, port):
        """Drops packets to a port that belong to no connection, as a firewall does.
        Uses routing rules, which every kernel has. They must precede the lookup in the table of local addresses."""
        self.run("ip", "rule", "add", "pref", 100, "lookup", "local")
        self.run("ip", "rule", "del", "pref", 0)
        # 6 is tcp. The name is in a file of the package netbase, which a small machine lacks.
        self.run("ip", "rule", "add", "pref", 10, "ipproto", 6, "dport", port, "blackhole")

    def open_port(self):
        self.run("ip", "rule", "del", "pref", 10)
        self.run("ip", "rule", "add", "pref", 0, "lookup", "local")
        self.run("ip", "rule", "del", "pref", 100)

    def end(self):
        self._life.stdin.close()
        try:
            self._life.wait(10)
        except subprocess.TimeoutExpired:
            self._life.kill()
            self._life.wait()
        self._life.stdout.close()


class Lan:
    """host-1 to host-COUNT at NETWORK.1 and so on."""

    def __init__(self, folder, count):
        self._switch = Host("switch", folder / "switch", 0)
        self.hosts = {}
        try:
            self._switch.run("ip", "link", "add", "bridge", "type", "bridge")
            self._switch.run("ip", "link", "set", "bridge", "up")
            for number in range(1, count + 1):
                self._add(folder, number)
        except BaseException:
            self.end()
            raise

    def _add(self, folder, number):
        name = f"host-{number}"
        host = self.hosts[name] = Host(name, folder / name, number)
        # `netns` is given as a process, so the device is created in that process's namespace.
        self._switch_ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", host.pid)
        self._switch_ip("link", "set", name, "master", "bridge", "up")
        host.run("ip", "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")

    def _switch_ip(self, *arguments):
        # Enters only the switch's network namespace: in its process namespace, host.pid would be another process.
        subprocess.run(["nsenter", "-t", str(self._switch.pid), "-n", "ip", *map(str, arguments)],
                       check=True, timeout=COMMAND_TIMEOUT_S)

    def cut(self, name):
        """Pulls the host's cable."""
        self._switch_ip("link", "set", name, "down")

    def isolate(self, name):
        """Stops the host's traffic at the switch. Its link stays up."""
        self._switch_ip("link", "set", name, "nomaster")

    def join(self, name):
        """Undoes `cut` and `isolate`."""
        self._switch_ip("link", "set", name, "master", "bridge", "up")

    def end(self):
        for host in [*self.hosts.values(), self._switch]:
            host.end()
