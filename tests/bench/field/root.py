"""A clean root: a bare Debian 12 in a folder, whose commands run in namespaces of their own.

    with CleanRoot() as root:
        tree = root.clone()                                   # the committed state of this checkout
        ran = root.run(f"cd {tree} && deploy/quickstart.sh", limit_s=1200)
        print(ran.code, ran.seconds, ran.tail())

The root has what debootstrap calls minbase, git and ca-certificates: no compiler, no Python, no sudo.
Commands run as root. Each has its own mounts, processes and /dev/shm; processes that it leaves running
end with it. The network is this machine's, as are apt's sources and configuration, proxies, names and
trusted certificates. This needs root and debootstrap (deploy/install-packages.sh field).
"""

import dataclasses
import glob
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import time

TREE = pathlib.Path(__file__).resolve().parents[3]
RELEASE = "bookworm"
MIRROR = "http://deb.debian.org/debian"  # if apt here has no other
INCLUDE = ("git", "ca-certificates")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
# How this machine reaches a network, apart from apt's own files.
CARRIED = ("/etc/resolv.conf", "/etc/hosts", "/etc/hostname")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A Python like those of pyenv or conda: in a folder of its own, and without any package of Debian's.
OTHER_PYTHON = "/root/.pyenv/versions/3.11"
OTHER_PYTHON_PACKAGES = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib")
TAIL_LINES = 60

# Becomes the root named by $1 and runs the shell command $2. The mounts are this namespace's alone.
ENTER = r"""
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs shm dev/shm
mkdir -p .host
pivot_root . .host
umount -l .host
cd /root
exec bash -c "$2"
"""


class Cannot(Exception):
    """This machine cannot have a clean root. The text gives the reason, and what to do."""


@dataclasses.dataclass
class Ran:
    """A command that ended: its exit code (None if it was stopped at its limit), its time, its output."""

    code: int | None
    seconds: float
    log: pathlib.Path

    def text(self):
        return self.log.read_text(errors="replace")

    def tail(self, lines=TAIL_LINES):
        return "\n".join(self.text().splitlines()[-lines:])


def mirror():
    """The mirror from which apt here gets the release."""
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"],
                            capture_output=True, text=True, check=False).stdout.split("\n")
    return next((line.split()[0] for line in listed if line.split()[1:] == [RELEASE]), MIRROR)


class CleanRoot:
    """Makes the root at entry and removes it at exit, unless `keep`.

    `folder` must not exist. If it is None, the root is below $TMPDIR. A build and its tests need 12 GB there.
    """

    def __init__(self, folder=None, keep=False):
        self.folder = pathlib.Path(folder) if folder else None
        self.keep = keep
        self.made_s = None  # how long debootstrap took
        self.path = PATH
        self.runs = 0

    def __enter__(self):
        if os.geteuid() != 0:
            raise Cannot("only root can make a clean root: sudo deploy/bench.sh field")
        if shutil.which("debootstrap") is None:
            raise Cannot("debootstrap is missing: deploy/install-packages.sh field")
        self.folder = self.folder or pathlib.Path(tempfile.mkdtemp(prefix="ckv-clean-root-")) / "root"
        self.folder.mkdir(parents=True, mode=0o755)
        self.logs = self.folder.with_name(self.folder.name + "-logs")
        self.logs.mkdir()
        try:
            self._bootstrap()
            self._carry()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _bootstrap(self):
        # In its own namespace, because debootstrap leaves /proc mounted if it is interrupted.
        begin = time.monotonic()
        with (self.logs / "0-debootstrap").open("w") as log:
            done = subprocess.run(
                ["unshare", "--mount", "--propagation", "private", "debootstrap", "--variant=minbase",
                 f"--include={','.join(INCLUDE)}", RELEASE, self.folder, mirror()],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
        self.made_s = time.monotonic() - begin
        if done.returncode != 0:
            raise Cannot(f"debootstrap failed: {self.logs / '0-debootstrap'}")

    def _carry(self):
        """Copies the files by which this machine reaches its network, and nothing else."""
        for name in CARRIED:
            if os.path.exists(name):
                shutil.copyfile(name, self.inside(name))
        here = [*glob.glob("/etc/apt/sources.list.d/*.sources"), *glob.glob("/etc/apt/sources.list.d/*.list"),
                *glob.glob("/etc/apt/sources.list"), *glob.glob("/usr/share/keyrings/debian-*")]
        # Only apt's configuration of fetching: container images have hooks that empty apt's cache.
        here += [name for name in glob.glob("/etc/apt/apt.conf.d/*")
                 if "Acquire::" in pathlib.Path(name).read_text() and "docker" not in name]
        for name in here:
            if name.startswith("/etc/apt/sources") and "debian.org" not in pathlib.Path(name).read_text():
                continue  # a repository that is not Debian's
            shutil.copyfile(name, self.inside(name))
        if self.inside("/etc/apt/sources.list.d/debian.sources").exists():
            self.inside("/etc/apt/sources.list").unlink(missing_ok=True)  # debootstrap's list, of the same sources
        for name in glob.glob("/usr/local/share/ca-certificates/*.crt"):
            shutil.copyfile(name, self.inside(name))
        # No service starts when it is installed: no service manager runs here.
        policy = self.inside("/usr/sbin/policy-rc.d")
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        self.must("update-ca-certificates && apt-get update", limit_s=300)

    def inside(self, name):
        """The path on this machine of an absolute path in the root."""
        path = self.folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def run(self, command, limit_s, log=None):
        """Runs a shell command in the root, in /root. Writes its output to `log`, or to a file in `logs`."""
        self.runs += 1
        log = pathlib.Path(log) if log else self.logs / f"{self.runs}-run"
        environment = {"HOME": "/root", "PATH": self.path, "LANG": "C.UTF-8", "TERM": "dumb",
                       **{name: os.environ[name] for name in PROXIES if name in os.environ}}
        begin = time.monotonic()
        with log.open("w") as out:
            running = subprocess.Popen(
                ["/usr/bin/unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "/usr/bin/bash", "-euc",
                 ENTER, "enter", self.folder, command],
                stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment,
                start_new_session=True)
            try:
                code = running.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                # Killing the first process of the namespace ends all processes that the command left.
                if running.poll() is None:
                    running.kill()
                    running.wait()
        return Ran(code, time.monotonic() - begin, log)

    def must(self, command, limit_s):
        """Runs a command that must succeed. Raises Cannot if it fails: the root is then not as it should be."""
        ran = self.run(command, limit_s)
        if ran.code != 0:
            raise Cannot(f"{command}: exit {ran.code} after {ran.seconds:.0f} s\n{ran.tail()}")
        return ran

    def clone(self, tree=TREE, at="/root/ckv"):
        """Clones the committed state of `tree`; returns the clone's path in the root."""
        subprocess.run(["git", "clone", "--quiet", "--no-local", tree, self.inside(at)], check=True)
        return at

    def fetch_packages(self, *groups, tree="/root/ckv"):
        """Has apt fetch the packages of these groups of deploy/packages.txt, without installing them."""
        wanted = " ".join(f"-e '^{group} '" for group in groups)
        self.must(f"cd {shlex.quote(tree)} && apt-get install --download-only -qq -y --no-install-recommends "
                  f"$(grep {wanted} deploy/packages.txt | awk '{{ print $2 }}')", limit_s=1200)

    def other_python(self):
        """Puts a python3 without any package of Debian's first on PATH, as pyenv and conda do."""
        self.must(f"mkdir -p /tmp/python {OTHER_PYTHON} && cd /tmp/python && apt-get download -qq "
                  f"{' '.join(OTHER_PYTHON_PACKAGES)} && for deb in *.deb; do dpkg -x $deb {OTHER_PYTHON}; done && "
                  f"rm -r /tmp/python && ln -s python3.11 {OTHER_PYTHON}/usr/bin/python3 && "
                  f"{OTHER_PYTHON}/usr/bin/python3 -c 'import json, sys; sys.exit(sys.prefix == \"/usr\")'", limit_s=300)
        self.path = f"{OTHER_PYTHON}/usr/bin:{PATH}"
