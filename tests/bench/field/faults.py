"""The faults of the health matrix, each tried on a fleet of its own.

A fault breaks a fleet. `subject` is the daemon whose /readyz should report it. `blind` names the reporters that cannot
detect it, and why. All other reporters must not report that all is well.
"""

import dataclasses
import json
import pathlib
import shutil
import signal
import socket
import typing

import ctl_fleet
from broken_fleet import port_of

FILES = 128  # a start needs 70
FAILED_CALLS = 4  # after 3, a requester reports that it does not reach a holder
ITSELF = "it serves what it is for; the others say what is wrong"
LACKS = "it serves what it has; the directory says what it lacks"
NO_CORPUS = "no corpus lacks anything"
NO_METRIC = "no daemon of the fleet sees it, so none has a metric of it"


@dataclasses.dataclass
class Fault:
    name: str
    make: typing.Callable  # called with a fleet
    subject: str
    code: str  # of the finding that health must report
    blind: dict = dataclasses.field(default_factory=dict)
    shape: dict = dataclasses.field(default_factory=dict)  # arguments of Broken
    replicas: int = 1


def directory_restarted(fleet):
    fleet.end("directory")
    fleet.end("h1")  # otherwise the directory recovers all it needs within seconds
    fleet.again("directory")


def directory_full(fleet):
    fleet.fill("directory")
    fleet.load("more", 2, 600, check=False)


def directory_folder_gone(fleet):
    shutil.rmtree(fleet.room("directory") / "log")
    fleet.load("more", 2, check=False)


def other_fleet(fleet):
    fleet.end("requester")
    fleet.again("spare", "--role=directory")
    fleet.again("requester", directory=fleet.control["spare"])


def holder_of_another(fleet):
    fleet.end("h1", signal.SIGTERM)
    fleet.again("spare", "--role=directory")
    fleet.again("h1", directory=fleet.control["spare"])


def holder_empty(fleet):
    fleet.end("h1")
    fleet.again("h1")


def holder_full(fleet):
    fleet.fill("h1")
    fleet.load("more", 2, 600, check=False)


def damaged(fleet):
    path = next(one for one in sorted(fleet.store(1).glob("chunks/*/*/*")) if not one.suffix)
    fleet.end("h1")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    fleet.again("h1")
    fleet.ctl("corpus", "verify", "docs", check=False)


def store_emptied(fleet):
    fleet.end("h1")
    for path in fleet.store(1).glob("chunks/*/*/*"):
        path.unlink()
    fleet.again("h1")


def store_gone(fleet):
    """Removed while the holder runs: it serves the chunks in its memory, but can store none."""
    shutil.rmtree(fleet.store(1))


def out_of_files(fleet):
    """A holder with a low limit of descriptors, and connections that stay open."""
    fleet.end("h1", signal.SIGTERM)
    fleet.again("h1", files=FILES)
    host, port = fleet.control["h1"].rsplit(":", 1)
    for _ in range(2 * FILES):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex((host, int(port)))
        fleet.sockets.append(one)


def deaf(fleet):
    """Cuts the control port. Open connections stay open, and are silent. The directory probes a holder every 2 s. It
    assumes that a holder which never answered is behind a firewall (ADR 0042)."""
    fleet.live(5)
    fleet.cut("", port_of(fleet.control["h1"]))


def from_directory(fleet):
    fleet.cut("h1", port_of(fleet.control["directory"]))


def from_requesters(fleet):
    fleet.cut("requester", port_of(fleet.control["h1"]))
    fleet.cut("requester", port_of(fleet.data["h1"]))
    for _ in range(FAILED_CALLS):
        fleet.attend()


def lanes_only(fleet):
    fleet.cut("requester", port_of(fleet.data["h1"]))
    for _ in range(FAILED_CALLS):
        fleet.attend()


def other_build(fleet):
    """The same program, patched to report another commit."""
    fleet.end("h1", signal.SIGTERM)
    said = fleet.ctl("status", "-o", "json", check=False).stdout
    commit = next(one["commit"] for one in json.loads(said)["members"] if one["commit"]).encode()
    program = fleet.folder / "ckvd-other"
    program.write_bytes(pathlib.Path(ctl_fleet.PROGRAMS.ckvd).read_bytes().replace(commit, commit[::-1]))
    program.chmod(0o755)
    fleet.again("h1", program=program)


def no_room(fleet):
    """Loads ever smaller corpora, until none fits."""
    tokens, count = 4000, 0
    while tokens >= 10:
        count += 1
        if fleet.load(f"big{count}", 10 + count, tokens, check=False).returncode:
            tokens //= 2


def end(name, how=signal.SIGKILL):
    return lambda fleet: fleet.end(name, how)


def hold(name):
    return lambda fleet: fleet.hold(name)


MEMORY = {"directory_path": False, "stores": False}
FAULTS = [
    Fault("directory in memory restarted, and a holder away", directory_restarted, "directory", "corpus-unproven", shape=MEMORY),
    Fault("directory's disk is full", directory_full, "directory", "directory-disk-full", {"corpora": NO_CORPUS},
          {"small_disks": ("directory",)}),
    Fault("directory's folder removed", directory_folder_gone, "directory", "directory-refuses-changes", {"corpora": NO_CORPUS}),
    Fault("directory killed", end("directory"), "directory", "directory-unreachable"),
    Fault("directory stopped", hold("directory"), "directory", "directory-unreachable"),
    Fault("requester of another fleet", other_fleet, "requester", "requester-other-fleet",
          {"corpora": NO_CORPUS, "page": "the directory does not know of it", "ready": "it serves its own fleet", "alerts": NO_METRIC}),
    Fault("requester killed", end("requester"), "requester", "requester-unreachable",
          {"corpora": NO_CORPUS, "page": "any number of requesters may come and go"}),
    Fault("requester stopped", hold("requester"), "requester", "requester-unreachable", {"corpora": NO_CORPUS}),
    Fault("holder in memory killed, and back empty", holder_empty, "h1", "holder-lacks-chunks", {"ready": LACKS}, MEMORY),
    Fault("holder killed", end("h1"), "h1", "corpus-chunks-missing"),
    Fault("holder killed, a replica lives", end("h1"), "h1", "corpus-copies-missing", {"corpora": "each chunk has a live holder"}, replicas=2),
    Fault("holder ended by its service manager", end("h1", signal.SIGTERM), "h1", "corpus-chunks-missing"),
    Fault("holder stopped", hold("h1"), "h1", "corpus-chunks-missing"),
    Fault("holder joined another fleet", holder_of_another, "h1", "corpus-chunks-missing", {"ready": "it serves another fleet"}),
    Fault("holder deaf on its control port", deaf, "h1", "member-unreachable",
          {"corpora": NO_CORPUS, "ready": "what the network drops it cannot see"}),
    Fault("holder's disk is full", holder_full, "h1", "holder-store-full", {"corpora": NO_CORPUS}, {"small_disks": ("h1",)}),
    Fault("a chunk of a holder is damaged", damaged, "h1", "holder-lacks-chunks", {"ready": LACKS}),
    Fault("a holder's files removed", store_emptied, "h1", "holder-lacks-chunks", {"ready": LACKS}),
    Fault("a holder's folder removed while it runs", store_gone, "h1", "holder-store-failing", {"corpora": NO_CORPUS}),
    Fault("holder out of descriptors", out_of_files, "h1", "descriptors-low", {"corpora": NO_CORPUS, "ready": "it has room again once connections close"}),
    Fault("holder cut off from the directory", from_directory, "h1", "corpus-chunks-missing"),
    Fault("holder cut off from requesters", from_requesters, "h1", "holder-unreached",
          {"corpora": NO_CORPUS, "ready": ITSELF}),
    Fault("holder's lanes cut off from requesters", lanes_only, "h1", "holder-unreached",
          {"corpora": NO_CORPUS, "ready": ITSELF}),
    Fault("holder of another build", other_build, "h1", "builds-mixed", {"corpora": NO_CORPUS, "ready": ITSELF}),
    Fault("no room on any holder", no_room, "h1", "no-room", {"corpora": NO_CORPUS, "ready": "it serves what it has"},
          MEMORY | {"capacity": "1MiB"}),
]
