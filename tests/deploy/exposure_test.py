#!/usr/bin/python3
"""Goal: the units leave a daemon little to harm the host with.

Method: systemd's own rating of the files, offline: at most 1.2, and 1.5 with the drop-in for RDMA.
The same units without their sandbox must fail, so that a rating of nothing cannot pass.
Exit 77 if systemd-analyze is not there.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip  # noqa: E402

SYSTEMD = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNITS = ("ckvd-holder@a.service", "ckvd-requester@a.service", "ckvd-directory.service")
PLAIN_MAX, RDMA_MAX = 12, 15  # tenths


def rate(root, unit, threshold):
    """Whether systemd rates the unit at most `threshold` tenths, and its rating."""
    done = subprocess.run(["systemd-analyze", "security", "--no-pager", "--offline=yes", f"--root={root}",
                           f"--threshold={threshold}", unit], text=True, capture_output=True)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    if found is None:
        sys.exit(f"{unit} is not rated:\n{done.stdout}{done.stderr}")
    return done.returncode == 0, float(found[1])


def make_root(folder, rdma):
    root = folder / ("rdma" if rdma else "plain")
    units = root / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    for file in SYSTEMD.glob("*.service"):
        shutil.copy(file, units)
        if rdma:
            drop_in = root / "etc/systemd/system" / f"{file.name}.d"
            drop_in.mkdir(parents=True)
            shutil.copy(SYSTEMD / "rdma.conf", drop_in)
    for program in ("usr/bin/ckvd", "bin/kill"):  # a unit whose programs are missing is not loaded
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", root / program)
    return root


def main():
    if shutil.which("systemd-analyze") is None:
        return skip.lacks("no systemd-analyze here")
    failed = False
    with tempfile.TemporaryDirectory() as name:
        for rdma, threshold in ((False, PLAIN_MAX), (True, RDMA_MAX)):
            root = make_root(pathlib.Path(name), rdma)
            for unit in UNITS:
                good, rating = rate(root, unit, threshold)
                print(f"{unit}{' with rdma.conf' if rdma else ''}: exposure {rating}, limit {threshold / 10}")
                failed |= not good
        # What holds the rating down is the sandbox.
        bare = root / "usr/lib/systemd/system" / "ckvd-directory.service"
        bare.write_text(bare.read_text().split("# What the daemon may do")[0])
        good, rating = rate(root, "ckvd-directory.service", RDMA_MAX)
        print(f"without its sandbox: exposure {rating}")
        failed |= good
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
