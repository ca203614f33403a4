#!/usr/bin/python3
"""Goal: deploy/systemd/rdma.conf is all that daemons under the units need to use RDMA.

Method: in the guest, which has a soft RDMA device, on the machine of machine.sh. Without the drop-in, a
holder finds no device. With it, installed as the handbook says, an attend uses verbs.

    tests/guest/run.sh build/guest tests/deploy/machine.sh python3 tests/guest/rdma_units_test.py \\
        --ckvd ... --ckvctl ...
"""

import argparse
import pathlib
import re
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "deploy"))
from on_machine import (ALL_UNITS, DEPLOY, Corpus, check, install_units, journal, main, run, status,
                        step)  # noqa: E402

DIRECTORY, HOLDER, REQUESTER = ALL_UNITS
# Selects verbs by name: the fabric that is fastest here does not matter.
CONFIG = ("directory: 127.0.0.1:7400\nfabrics: [shm, tcp, verbs]\nfabric: verbs\nverbs.device: rxe0\n"
          "store.capacity: 64MiB\n")


def commands_of_the_handbook():
    """The commands of install.md that install the drop-in, with the tree's file in place of the package's."""
    text = (DEPLOY / "handbook" / "install.md").read_text()
    (code,) = [code for code in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S) if "rdma.conf" in code]
    return code.replace("/usr/share/ckv/systemd", str(DEPLOY / "systemd"))


def test(folder):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    install_units(vars(parser.parse_args()), CONFIG)
    run("systemctl", "start", DIRECTORY)
    step("the sandbox of the unit hides the device")
    run("systemctl", "start", HOLDER, code=1)
    run("systemctl", "stop", HOLDER)
    check("this process does not see /dev/infiniband: a unit of systemd needs rdma.conf" in journal(HOLDER),
          "the log says what is missing")
    step("rdma.conf lets it through, and an attend goes over verbs")
    run("bash", "-euc", commands_of_the_handbook())
    run("systemctl", "start", HOLDER, REQUESTER)
    corpus = Corpus(folder)
    corpus.load()
    corpus.bits()
    fabrics = {holder["fabric"] for holder in status()["requester"]["holders"]}
    check(fabrics == {"verbs"}, f"lanes are {fabrics}, not verbs")
    run("systemctl", "stop", REQUESTER, HOLDER, DIRECTORY)


if __name__ == "__main__":
    sys.exit(main(test))
