"""A cluster of Debian's etcd on loopback, for one test."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

from ports import free_port

PROGRAM = pathlib.Path(os.environ.get("CKV_ETCD", "/usr/bin/etcd"))
START_S_MAX = 30


def is_installed():
    return os.access(PROGRAM, os.X_OK)


class EtcdCluster:
    """Members with folders and ports of their own. Nothing of one outlives `stop`."""

    def __init__(self, folder, count=3):
        self.folder = folder
        self.clients = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self.peers = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self.processes = [None] * count
        self.started = [False] * count
        for member in range(count):
            self.start(member)
        self.await_leader()

    @property
    def store(self):
        """The value of ckvd's --directory-store."""
        return "etcd://" + ",".join(self.clients)

    def start(self, member):
        client, peer = f"http://{self.clients[member]}", f"http://{self.peers[member]}"
        folder = self.folder / f"etcd-{member}"
        folder.mkdir(mode=0o700, exist_ok=True)
        state = "existing" if self.started[member] else "new"
        cluster = ",".join(f"m{i}=http://{address}" for i, address in enumerate(self.peers))
        with (self.folder / f"etcd-{member}.log").open("ab") as log:
            self.processes[member] = subprocess.Popen(
                [PROGRAM, f"--name=m{member}", f"--data-dir={folder}", f"--listen-client-urls={client}",
                 f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
                 f"--initial-advertise-peer-urls={peer}", f"--initial-cluster={cluster}",
                 f"--initial-cluster-state={state}", "--logger=zap", "--log-outputs=stderr"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.started[member] = True

    def await_leader(self):
        """Waits until a member answers with a leader of its own."""
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            for member, client in enumerate(self.clients):
                if self.processes[member] is None:
                    continue
                if _health(client):
                    return
            time.sleep(0.02)
        raise RuntimeError("etcd does not start:\n" + (self.folder / "etcd-0.log").read_text()[-2000:])

    def leader(self):
        """The member that leads the cluster, or None."""
        for member, client in enumerate(self.clients):
            if self.processes[member] is not None and _leads(client):
                return member
        return None

    def kill(self, member):
        process, self.processes[member] = self.processes[member], None
        process.kill()
        process.wait()

    def replace(self, member):
        """Takes a member out of the cluster with all that it has, and adds a new one at its addresses."""
        client = self.clients[(member + 1) % len(self.clients)]
        listed = _post(client, "cluster/member/list", {})["members"]
        (gone,) = [one["ID"] for one in listed if one.get("name") == f"m{member}"]
        self.kill(member)
        _post(client, "cluster/member/remove", {"ID": gone})
        shutil.rmtree(self.folder / f"etcd-{member}")
        _post(client, "cluster/member/add", {"peerURLs": [f"http://{self.peers[member]}"]})
        self.start(member)
        self.await_leader()

    def pause(self, member):
        self.processes[member].send_signal(signal.SIGSTOP)

    def resume(self, member):
        self.processes[member].send_signal(signal.SIGCONT)

    def stop(self):
        for member, process in enumerate(self.processes):
            if process is not None:
                self.kill(member)


def _post(client, call, body):
    """A call of etcd's gRPC gateway. The cluster may be in an election, so it is tried for START_S_MAX."""
    request = urllib.request.Request(f"http://{client}/v3/{call}", json.dumps(body).encode(), method="POST")
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return json.load(answer)
        except (OSError, urllib.error.URLError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _read(url):
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.read().decode()
    except (OSError, urllib.error.URLError):
        return ""


def _health(client):
    return '"health":"true"' in _read(f"http://{client}/health")


def _leads(client):
    return "\netcd_server_is_leader 1\n" in _read(f"http://{client}/metrics")
