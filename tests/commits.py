"""The commits since BASE keep the rules for messages: tests/tidy.py lists those that do not."""

import re
import shutil
import subprocess
import sys

BASE = "93dfba4b"  # commits up to here are as they are
SUBJECT_MAX = 72
BODY_WORDS_MIN = 3
TRAILER = re.compile(r"[A-Z][A-Za-z-]+: ")  # Signed-off-by: and its like


def wrong(message):
    """What is wrong with a message, or None."""
    subject, _, rest = message.lstrip("\n").partition("\n")
    if len(subject) > SUBJECT_MAX:
        return f"a subject of {len(subject)} characters, limit {SUBJECT_MAX}"
    if subject.rstrip().endswith("."):
        return "a subject that ends with a full stop"
    said = "\n".join(line for line in rest.split("\n") if not TRAILER.match(line))
    if not rest.startswith("\n") or len(said.split()) < BODY_WORDS_MIN:
        return "no body: what was, what is, and why"
    return None


def breaches(root, base=BASE):
    """(short id, what is wrong) of each commit after `base`; of none where the clone has no `base`."""
    git = ["git", "-C", root]
    if not shutil.which("git") or subprocess.run([*git, "merge-base", "--is-ancestor", base, "HEAD"],
                                                 capture_output=True, check=False).returncode != 0:
        print(f"commit messages are not checked: this clone has no commit {base}", file=sys.stderr)
        return
    log = subprocess.run([*git, "log", "--no-merges", "--format=%h%x00%B%x01", f"{base}..HEAD"],
                         capture_output=True, text=True, check=True).stdout
    for entry in filter(str.strip, log.split("\x01")):
        short, _, message = entry.lstrip("\n").partition("\0")
        what = wrong(message.rstrip("\n"))
        if what:
            yield short, what
