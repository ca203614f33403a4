"""The commits since BASE keep the rules for messages: tests/tidy.py lists those that do not."""

import subprocess

BASE = "93dfba4b"  # commits up to here are as they are
SUBJECT_MAX = 72


def wrong(message):
    """What is wrong with a message, or None."""
    subject, _, rest = message.partition("\n")
    if len(subject) > SUBJECT_MAX:
        return f"a subject of {len(subject)} characters, limit {SUBJECT_MAX}"
    if subject.endswith("."):
        return "a subject that ends with a full stop"
    if not rest.startswith("\n") or not rest.strip():
        return "no body: what was, what is, and why"
    return None


def breaches(root, base=BASE):
    """(short id, what is wrong) of each commit after `base`; of none where the clone has no `base`."""
    git = ["git", "-C", root]
    if subprocess.run([*git, "merge-base", "--is-ancestor", base, "HEAD"], capture_output=True, check=False).returncode != 0:
        return
    log = subprocess.run([*git, "log", "--no-merges", "--format=%h%x00%B%x01", f"{base}..HEAD"],
                         capture_output=True, text=True, check=True).stdout
    for entry in filter(str.strip, log.split("\x01")):
        short, _, message = entry.lstrip("\n").partition("\0")
        what = wrong(message.rstrip("\n"))
        if what:
            yield short, what
