#!/usr/bin/python3
"""Goal: the packages install, upgrade under a running corpus, refuse a version that cannot read its stores, and
leave nothing behind after a purge.

Method: real dpkg and maintainer scripts on the machine of machine.sh, with its systemd. The previous version is this
build under a lower number. A further package declares that it reads only older stores. The programs that use manual
pages and completions read them.

    tests/deploy/machine.sh python3 tests/deploy/packages_test.py --packages build/release/packages
"""

import argparse
import json
import pathlib
import re
import shutil
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip  # noqa: E402

from on_machine import (ALL_UNITS, Corpus, check, run, show, step, wait_active, wait_until)  # noqa: E402
import on_machine  # noqa: E402

HOLDER = ALL_UNITS[1]
CONFIG = pathlib.Path("/etc/ckv/ckvd.yaml")
STORE = pathlib.Path("/var/lib/ckv/holder-a")
BEFORE = "0.0.9"


def version(name):
    return run("dpkg-query", "-W", "-f", "${Version}", name)


def repack(deb, folder, name, reads=None):
    """Repacks the package under the previous version. `reads`: the newest store format that it declares to read."""
    tree, out = folder / name, folder / f"{name}.deb"
    run("dpkg-deb", "-R", deb, tree)
    control = tree / "DEBIAN" / "control"
    control.write_text(re.sub(r"(?m)^Version: .*$", f"Version: {BEFORE}", control.read_text()))
    preinst = tree / "DEBIAN" / "preinst"
    if reads is not None:
        text, count = re.subn(r"(?m)^reads=\d+$", f"reads={reads}", preinst.read_text())
        check(count == 1, "preinst says which format it reads")
        preinst.write_text(text)
    run("dpkg-deb", "-Zgzip", "-z1", "-b", tree, out)
    return out


def install(before, ctl, library, dev):
    step("install: a user, folders, a configuration; nothing is started")
    run("dpkg", "-i", before, ctl, library)
    run(sys.executable, "-c", "import ctypes; ctypes.CDLL('libckv.so.1').ckv_last_error")
    run("dpkg", "-i", dev)
    check(version("ckvd") == BEFORE, "the version before is installed")
    run("getent", "passwd", "ckv")
    check(str(CONFIG) in run("dpkg-query", "-W", "-f", "${Conffiles}", "ckvd"), f"{CONFIG} is a conffile")
    for unit in ALL_UNITS:
        check(show(unit, "LoadState") == "loaded" and show(unit, "ActiveState") == "inactive",
              f"{unit} is known and does not run")
    run("ckvd", "--role", "holder", "--config", CONFIG, "--check-config")
    check(run("pkg-config", "--modversion", "ckv").strip() == version("libckv-dev"), "pkg-config finds libckv-dev")
    for name in ("ckvd", "ckvctl", "libckv1", "libckv-dev"):
        check("no licence yet" in run("dpkg-query", "-W", "-f", "${Description}", name), f"{name} tells of the licence")


def pages():
    step("pages: man reads them, shells complete from them")
    for page in ("/usr/share/man/man8/ckvd.8.gz", "/usr/share/man/man1/ckvctl.1.gz"):
        warnings = run("bash", "-c", f"man --warnings -E UTF-8 -l {page} 2>&1 >/dev/null")
        check(warnings == "", f"{page}: {warnings}")
    check("--store-capacity" in run("man", "ckvd").replace("\u2010", "-"), "man ckvd has the options")
    folder = "/usr/share/bash-completion/completions"

    def bash(program, *words):
        line = " ".join(f"'{word}'" for word in (program, *words))
        return run("bash", "-c", f"source {folder}/{program}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; "
                                 f'_{program}; echo "${{COMPREPLY[@]}}"').split()
    check(bash("ckvctl", "corpus", "l") == ["load", "list"], "bash completes verbs")
    check(bash("ckvctl", "corpus", "load", "--cut", "") == ["fixed", "document", "content"], "bash completes values")
    check("--chunk-tokens" in bash("ckvctl", "-o", "json", "corpus", "load", "--chunk"), "bash completes flags")
    check(bash("ckvctl", "corpus", "show", "") != [], "bash asks for names of corpora, and offers flags without any")
    check(bash("ckvd", "--rdma-fallback", "") == ["refuse", "tcp"], "bash completes ckvd's values")
    if shutil.which("fish"):
        lines = run("fish", "-c", "complete -C 'ckvctl corpus load --cut '").split()
        check({"fixed", "document", "content"} <= set(lines), f"fish completes values: {lines}")
        check("--log-level" in run("fish", "-c", "complete -C 'ckvd --log'"), "fish completes ckvd's flags")
    else:
        skip.say("no fish here, its completions are not read", skip.PACKAGES)
    if shutil.which("zsh"):
        for program in ("ckvd", "ckvctl"):
            run("zsh", "-n", f"/usr/share/zsh/vendor-completions/_{program}")
    else:
        skip.say("no zsh here, its completions are not read", skip.PACKAGES)
    for shell, path in (("bash", f"{folder}/ckvctl"), ("zsh", "/usr/share/zsh/vendor-completions/_ckvctl"),
                        ("fish", "/usr/share/fish/vendor_completions.d/ckvctl.fish")):
        check(run("ckvctl", "completion", shell) == pathlib.Path(path).read_text(), f"ckvctl completion {shell} is the package's")


def start(corpus):
    step("start: the packages' units serve a corpus")
    text = CONFIG.read_text()
    CONFIG.write_text(text.replace('#log.level: "info"', 'log.level: "debug"'))
    check(CONFIG.read_text() != text, "the configuration has a line to take the # from")
    pathlib.Path("/etc/ckv/holder-a.env").write_text("CKV_STORE_CAPACITY=64MiB\n")
    run("systemctl", "enable", "--now", *ALL_UNITS)
    corpus.load()
    return corpus.bits()


def upgrade(deb, to, corpus, bits):
    step(f"to {to}: daemons are restarted, and the corpus answers with the same bits")
    pids = {unit: show(unit, "MainPID") for unit in ALL_UNITS}
    run("dpkg", "-i", deb)
    check(version("ckvd") == to, f"it is {to} now")
    for unit in ALL_UNITS:
        wait_until(f"{unit} is another process", lambda: show(unit, "MainPID") not in ("0", pids[unit]))
    wait_active(*ALL_UNITS)
    check('\nlog.level: "debug"\n' in CONFIG.read_text(), "the changed configuration is kept")
    corpus.await_same_bits(bits)


def refuse(deb, corpus, bits):
    step("a downgrade that cannot read the store is refused, and nothing has changed")
    now, pid = version("ckvd"), show(HOLDER, "MainPID")
    said = run("dpkg", "-i", deb, code=1)
    check(f"ckvd: refused: {STORE} has format 1 of a later version, and this one reads up to 0." in said,
          f"it says why:\n{said}")
    check(version("ckvd") == now, "the later version is still there")
    check("install ok installed" in run("dpkg-query", "-W", "-f", "${Status}", "ckvd"), "it is whole")
    check(show(HOLDER, "MainPID") == pid and show(HOLDER, "ActiveState") == "active", "the holder did not stop")
    check(corpus.bits() == bits, "the corpus answers with the same bits")


def remove():
    step("remove: daemons stop, chunks and configuration stay")
    run("dpkg", "-r", "ckvd")
    for unit in ALL_UNITS:
        check(show(unit, "ActiveState") in ("inactive", "failed") and show(unit, "MainPID") == "0", f"{unit} is stopped")
    check(not pathlib.Path("/usr/bin/ckvd").exists(), "the program is gone")
    check(CONFIG.exists() and any(STORE.glob("chunks/*/*/*")), "configuration and chunks are kept")


def purge():
    step("purge: nothing is left but the user")
    run("dpkg", "-P", "ckvd", "ckvctl", "libckv-dev", "libckv1")
    left = [path for path in ("/etc/ckv", "/var/lib/ckv", "/run/ckv", "/usr/share/ckv", "/usr/include/ckv")
            if pathlib.Path(path).exists()]
    left += [str(path) for path in pathlib.Path("/etc/systemd/system").glob("*.wants/ckvd-*")]
    left += [str(path) for path in pathlib.Path("/usr").glob("*/**/*ckvd*") if "/work/" not in str(path)]
    check(not left, f"left behind: {left}")
    check("not-found" in show(HOLDER, "LoadState"), "the units are unknown")


def bill_of_materials(packages):
    step("the bill of materials names what the packages are built with")
    bill = json.loads((packages / "ckv.spdx.json").read_text())
    check(bill["spdxVersion"] == "SPDX-2.3" and bill["SPDXID"] == "SPDXRef-DOCUMENT", "it is SPDX 2.3")
    ids = [one["SPDXID"] for one in bill["packages"]]
    check(len(ids) == len(set(ids)) > 15, "each package is there once")
    for link in bill["relationships"]:
        check({link["spdxElementId"], link["relatedSpdxElement"]} <= {"SPDXRef-DOCUMENT", *ids}, f"{link} has both ends")
    grpc = [one for one in bill["packages"] if one["name"] == "libgrpc++-dev"]
    check(grpc and grpc[0]["versionInfo"] == version("libgrpc++-dev"), "versions are those installed")


def test(folder):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=pathlib.Path, required=True)
    packages = parser.parse_args().packages
    # Otherwise each installation indexes every manual page of the machine.
    pathlib.Path("/var/lib/man-db/auto-update").unlink(missing_ok=True)
    (now,), (ctl,), (library,), (dev,) = (list(packages.glob(f"{name}_*.deb"))
                                          for name in ("ckvd", "ckvctl", "libckv1", "libckv-dev"))
    before = repack(now, folder, "before")
    older = repack(now, folder, "older", reads=0)
    corpus = Corpus(folder)
    bill_of_materials(packages)
    install(before, ctl, library, dev)
    pages()
    bits = start(corpus)
    upgrade(now, version("ckvctl"), corpus, bits)
    refuse(older, corpus, bits)
    upgrade(before, BEFORE, corpus, bits)  # this version reads the store, so the downgrade is allowed
    remove()
    purge()


if __name__ == "__main__":
    sys.exit(on_machine.main(test))
